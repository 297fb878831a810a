"""`report.html`: a run on one page, which needs no network, no server and no script."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jinja2
import torch

from raygnn import __version__
from raygnn.data.edge_types import edge_type_name
from raygnn.outputs.advice import baselines_of, verdicts
from raygnn.outputs.history import LogRows
from raygnn.outputs.line_chart import NUM_COLORS, Chart, Series, label
from raygnn.outputs.progress import show_global_batch

if TYPE_CHECKING:
    from raygnn.data.bundle import Bundle
    from raygnn.loops.engine import Engine

_PACKAGES = ("torch", "torch_geometric", "ray", "numpy", "numba", "pyarrow")
_SPLITS = {"train": "training", "val": "validation", "test": "test"}
_MAX_CLASSES = 200  # in a table
_MAX_PAIRS = 10  # of classes, listed as most often confused
_95_PERCENT = 1.96  # standard errors on either side

#: A table: its heads, and its rows.
Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]


@dataclass(frozen=True)
class ConfusionTable:
    """Which classes are predicted as which.

    Attributes:
        rows: of each actual class its name, and of each predicted class the count, with the share
            of the row in whole percent.
    """

    title: str
    classes: list[str]
    rows: list[tuple[str, list[tuple[int, int]]]]


@dataclass(frozen=True)
class Errors:
    """Where the predictions are wrong.

    Attributes:
        confusion: null of a task without classes, or with many.
        charts, tables: beside it, the latter by heading.
    """

    confusion: ConfusionTable | None = None
    charts: list[Chart] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.confusion or self.charts or self.tables)


@dataclass(frozen=True)
class Report:
    """What the page shows.

    Attributes:
        tiles: (what, value) of the few numbers that matter most.
        guesses: names of the baselines.
        metrics: by name the final value, half of its 95 % interval, and the value of each guess.
        errors: where predictions are wrong.
        tables: by heading.
        facts: (what, value) of the environment.
        usage: how to use the model, in Python; empty where inference cannot.
    """

    title: str
    subtitle: str
    tiles: list[tuple[str, str]]
    charts: list[Chart]
    guesses: list[str]
    metrics: dict[str, list[Any]]
    errors: Errors
    tables: dict[str, Table]
    facts: list[tuple[str, str]]
    config_yaml: str
    notes: list[str] = field(default_factory=list)
    usage: str = ""

    def html(self) -> str:
        """The page. All that comes from users is escaped."""
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        environment.filters["label"] = show
        template = files("raygnn.outputs").joinpath("report.html.jinja").read_text("utf-8")
        return environment.from_string(template).render(report=self)


def build_report(
    engine: Engine,
    logged: LogRows,
    name: str,
    metrics: dict[str, Any],
    starts: list[dict[str, Any]],
    note: str,
) -> Report:
    """Gathers the report of a run. Makes no collective call.

    Args:
        note: how it ended.
    """
    best = engine.best
    saved = engine.loaded.saved  # not the config itself: it may hold secrets
    validated = bool(best.metrics)
    at = best.position
    marked = (at.step, f"best: epoch {at.current_epoch}") if validated else None
    guesses = baselines_of(metrics)
    return Report(
        title=saved["job_name"] or name,
        subtitle=f"{name}: {saved['model']['type']}, {saved['task']['type']}",
        tiles=_tiles(engine, metrics),
        charts=run_charts(engine.history, logged.rows, best.tracker.monitor, marked),
        guesses=list(guesses),
        metrics={
            name: [
                value,
                interval(metrics, name),
                *(of_guess.get(name) for of_guess in guesses.values()),
            ]
            for name, value in metrics.items()
            if name.startswith(("test/", "val/"))
        },
        errors=find_errors(metrics),
        tables=_tables(engine, starts),
        facts=_environment(engine),
        config_yaml=engine.loaded.saved_yaml(),
        notes=[note, *filter(None, [metrics["warnings"], *verdicts(metrics)])],
    )


def show(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e3 or value == 0 else label(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def duration(seconds: float) -> str:
    """Seconds as people say them: 12.3 s, 4 min 5 s, 2 h 3 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _tiles(engine: Engine, metrics: dict[str, Any]) -> list[tuple[str, str]]:
    test = [
        (" ".join(filter(None, [k, interval(metrics, k)])), show(v))
        for k, v in metrics.items()
        if k.startswith("test/") and k != "test/loss"
    ]
    tracker = engine.best.tracker
    tiles = test[:3]
    if engine.best.metrics:
        tiles.append((f"best {tracker.monitor}, epoch {metrics['best_epoch']}", show(tracker.best)))
    tiles.append(("steps", show(metrics["step"])))
    tiles.append(("steps per epoch", show(metrics["steps_per_epoch"])))
    tiles.append(("training time", duration(metrics["training_time_s"])))
    tiles.append(("wall time", duration(metrics["wall_time_s"])))
    if "perf/seeds_per_s" in metrics:
        tiles.append(("seeds per second", label(round(metrics["perf/seeds_per_s"]))))
        tiles.append(("waiting for batches", f"{metrics['perf/loader_wait_share']:.1%}"))
    tiles.append(("restarts", show(metrics["restarts"])))
    return tiles


def _tables(engine: Engine, starts: list[dict[str, Any]]) -> dict[str, Table]:
    bundle = engine.task.env.bundle
    return {
        "Node types": (
            ("type", "nodes", "columns"),
            [(t, bundle.num_nodes(t), _columns(bundle, t)) for t in bundle.node_types],
        ),
        "Edge types": (
            ("type", "edges", "per destination", "columns"),
            [
                (
                    " → ".join(t),
                    bundle.num_edges(t),
                    bundle.num_edges(t) / max(bundle.num_nodes(t[2]), 1),
                    _columns(bundle, t),
                )
                for t in bundle.edge_types
            ],
        ),
        **_label_edges(bundle),
        "Starts": (
            ("time", "host", "workers", "at step", "resumed from"),
            [
                (s["time"], s["host"], s["num_workers"], s["step"], s["resumed_from"] or "-")
                for s in starts
            ],
        ),
        "Splits": (("split", "seeds", "batches"), _splits(engine)),
    }


def interval(metrics: Mapping[str, Any], name: str) -> str | None:
    """Half of a metric's 95 % interval as "± 0.012"; None where it is not known.

    By the standard error of `raygnn.loops.baselines`, which is rather too large than too small.
    """
    error = metrics.get("standard_errors", {}).get(name)
    return None if error is None else f"± {label(float(f'{_95_PERCENT * error:.2g}'))}"


def find_errors(metrics: Mapping[str, Any]) -> Errors:
    """Where predictions are wrong, from what `metrics.json` has by name and split."""
    confusion, charts, tables = None, list[Chart](), dict[str, Table]()
    for split, found in metrics.get("confusion", {}).items():
        confusion = _confusion(f"Actual and predicted classes, {_SPLITS[split]}", found)
        tables |= _most_confused(f"Most often confused, {_SPLITS[split]}", found)
    for split, found in metrics.get("calibration", {}).items():
        title = f"Calibration, {_SPLITS[split]}: expected error {found['error']:.3f}"
        points = list(zip(found["confidence"], found["accuracy"], strict=True))
        charts.append(_against_identity(title, "accuracy", points, "probability of the prediction"))
    for split, found in metrics.get("errors_by_value", {}).items():
        points = list(zip(found["actual"], found["predicted"], strict=True))
        title = f"Predicted against actual values, {_SPLITS[split]}"
        charts.append(_against_identity(title, "mean prediction", points, "actual value"))
        columns = (found[name] for name in ("actual", "predicted", "mae", "rows"))
        rows = list(zip(*columns, strict=True))
        heads = ("mean actual value", "mean prediction", "mean absolute error", "rows")
        tables[f"Errors by value, {_SPLITS[split]}"] = heads, rows
    return Errors(confusion, charts, tables | _class_tables(metrics.get("per_class", {})))


def _confusion(title: str, found: Mapping[str, Any]) -> ConfusionTable:
    rows = [
        (name, [(count, round(100 * count / max(sum(counts), 1))) for count in counts])
        for name, counts in zip(found["classes"], found["counts"], strict=True)
    ]
    return ConfusionTable(title, found["classes"], rows)


def _most_confused(title: str, found: Mapping[str, Any]) -> dict[str, Table]:
    """The pairs of classes with most rows; nothing of two classes, whose matrix shows it."""
    classes, pairs = found["classes"], list[tuple[str, str, int, str]]()
    for actual, counts in zip(classes, found["counts"], strict=True):
        for predicted, count in zip(classes, counts, strict=True):
            if count and actual != predicted:
                pairs.append((actual, predicted, count, f"{count / sum(counts):.0%}"))
    if len(classes) < 3 or not pairs:
        return {}
    pairs.sort(key=lambda pair: -pair[2])
    return {title: (("actual", "predicted", "rows", "share of the class"), pairs[:_MAX_PAIRS])}


def _against_identity(
    title: str, name: str, points: list[tuple[float, float]], x_label: str
) -> Chart:
    ends = [points[0][0], points[-1][0]]
    lines = [Series(name, points, 0), Series("perfect", [(x, x) for x in ends], NUM_COLORS - 1)]
    return Chart(title, lines, x_label=x_label, x_from_zero=False)


def _class_tables(per_class: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Table]:
    """A table for each split: the rarest classes first."""
    tables = {}
    for split, figures in per_class.items():
        by_support = sorted(figures.items(), key=lambda item: item[1]["support"])
        heading = f"Classes, {_SPLITS[split]}"
        if len(figures) > _MAX_CLASSES:
            heading += f": the rarest {_MAX_CLASSES} of {len(figures):,}"
        heads = ("class", *by_support[0][1])
        tables[heading] = heads, [(name, *row.values()) for name, row in by_support[:_MAX_CLASSES]]
    return tables


def _label_edges(bundle: Bundle) -> dict[str, Table]:
    rows = [(edge_type_name(e.edge_type), e.sign, len(e.targets)) for e in bundle.label_edges]
    return {"Label edges": (("type", "sign", "edges"), rows)} if rows else {}


def _columns(bundle: Bundle, type_: Any) -> str:
    texts = []
    for column in bundle.columns(type_).values():
        shape = f" [{', '.join(map(str, column.shape))}]" if column.shape else ""
        kind = f"{column.dtype}{shape}{', sparse' if column.sparse else ''}"
        classes = f", {column.num_classes} classes" if column.num_classes else ""
        texts.append(f"{column.name} ({column.role}, {kind}{classes})")
    return "; ".join(texts) or "-"


def _splits(engine: Engine) -> list[tuple[Any, ...]]:
    rows = []
    for split, name in _SPLITS.items():
        loader = engine.task.loader(split)
        if loader is not None:
            rows.append((name, loader.num_examples, loader.num_batches))
    return rows


def _environment(engine: Engine) -> list[tuple[str, str]]:
    device = engine.context.device
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "none"
    versions = [(package, _version(package)) for package in _PACKAGES]
    return [
        ("host", socket.gethostname()),
        ("system", platform.platform()),
        ("CPUs", str(os.cpu_count())),
        ("GPU of rank 0", gpu),
        ("workers", str(engine.context.world_size)),
        ("a step", show_global_batch(engine)),
        ("raygnn", __version__),
        ("Python", platform.python_version()),
        *[(package, version) for package, version in versions if version],
    ]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


Row = Mapping[str, float]

_NOT_METRICS = {"step", "epoch", "samples", "time_s"}
_TITLES = {
    "loss": "Loss",
    "lr": "Learning rate",
    "grad_norm": "Norm of the gradient",
    "perf/seeds_per_s": "Seeds per second",
    "perf/edges_per_s": "Edges per second",
    "perf/loader_wait_share": "Share of time waiting for batches",
    "perf/memory_bytes": "Resident memory of rank 0 [bytes]",
    "perf/cuda_memory_bytes": "GPU memory of rank 0, at most [bytes]",
}
_ACRONYMS = {"auroc", "auc", "ap", "mrr", "ndcg", "mae", "rmse"}
_LAST = ("grad_norm", "lr")


def run_charts(
    history: Sequence[Row], logged: Sequence[Row], monitor: str, best: tuple[int, str] | None
) -> list[Chart]:
    """Charts of everything in the history of validations and in the logged rows.

    Args:
        best: the step to mark in the charts of losses and metrics, and what to say there.
    """
    groups: dict[str, list[Series]] = {}
    for name in _names([*history, *logged]):
        # Both may have it, such as the training loss: the finer of the two is drawn.
        points = max(_points(history, name), _points(logged, name), key=len)
        lines = groups.setdefault(_group(name), [])
        lines.append(Series(name, points, _color(name, len(lines))))
    order = sorted(groups, key=lambda group: _place(group, _group(monitor)))
    return [
        Chart(
            _title(group),
            groups[group],
            best[0] if best and _is_metric(group) else None,
            best[1] if best else "",
            from_zero=group.startswith("perf/"),
        )
        for group in order
    ]


def _names(rows: Sequence[Row]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in _NOT_METRICS]


def _points(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    return [(row["step"], row[name]) for row in rows if name in row]


def _group(name: str) -> str:
    """train/loss and val/loss share a chart, and so do val/hits@1 and val/hits@10."""
    if name.startswith("perf/"):
        return name
    return name.partition("/")[2].partition("@")[0] or name


def _color(name: str, index: int) -> int:
    """A validation is never drawn in the first color, which is that of training."""
    return (index or int(name.startswith("val/"))) % NUM_COLORS


def _title(group: str) -> str:
    if group in _ACRONYMS:
        return group.upper()
    return _TITLES.get(group, group[:1].upper() + group[1:].replace("_", " "))


def _is_metric(group: str) -> bool:
    return not group.startswith("perf/") and group not in _LAST


def _place(group: str, monitored: str) -> tuple[int, int]:
    """Losses, the monitored metric, other metrics, then how training went."""
    if _is_metric(group):
        return 0, 0 if group == "loss" else 1 if group == monitored else 2
    return 1, _LAST.index(group) if group in _LAST else len(_LAST)
