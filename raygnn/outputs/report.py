"""`report.html`: a run on one page, which needs no network, no server and no script."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jinja2
import torch

from raygnn import __version__
from raygnn.data.edge_types import edge_type_name
from raygnn.outputs.advice import baselines_of, verdicts
from raygnn.outputs.history import LogRows
from raygnn.outputs.line_chart import Chart, label
from raygnn.outputs.progress import show_global_batch
from raygnn.outputs.report_errors import Errors, Table, find_errors
from raygnn.outputs.run_charts import run_charts

if TYPE_CHECKING:
    from raygnn.data.bundle import Bundle
    from raygnn.loops.engine import Engine

_PACKAGES = ("torch", "torch_geometric", "ray", "numpy", "numba", "pyarrow")
_SPLITS = {"train": "training", "val": "validation", "test": "test"}
_95_PERCENT = 1.96  # standard errors on either side


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
    """A metric's 95 % interval as "0.71 to 0.74", or half of it as "± 0.012"; None if unknown.

    From the spread of evaluation batches where these are many; else by the standard error of
    `raygnn.loops.baselines`, which is rather too large than too small.
    """
    ends = metrics.get("intervals", {}).get(name)
    if ends is not None:
        return f"{show(ends[0])} to {show(ends[1])}"
    error = metrics.get("standard_errors", {}).get(name)
    return None if error is None else f"± {label(float(f'{_95_PERCENT * error:.2g}'))}"


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


