"""`report.html`: a run on one page, without network and server."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from raygnn import __version__
from raygnn.data.edge_types import edge_type_name
from raygnn.data.partition.part import Outline
from raygnn.outputs.curves import run_charts, without_flat
from raygnn.outputs.history import LogRows
from raygnn.outputs.html_page import (
    NUM_COLORS,
    Chart,
    Series,
    duration,
    interval,
    label,
    render,
    show,
)
from raygnn.outputs.ladder import Ladder, find_ladder, shown_metrics, verdict_sentence
from raygnn.outputs.progress import show_global_batch
from raygnn.outputs.report_errors import SPLITS, Errors, PageTable, find_errors

if TYPE_CHECKING:
    from raygnn.data.bundle import Bundle
    from raygnn.loops.engine import Engine
    from raygnn.loops.task import Task


_PACKAGES = ("torch", "torch_geometric", "ray", "numpy", "numba", "pyarrow")


@dataclass(frozen=True)
class Report:
    """The content of the page.

    Attributes:
        verdict: the result in a sentence; may be empty.
        tiles: (name, value) of the few most important numbers.
        ladder: the model and its baselines, weakest first; false without baselines.
        around: 95 % intervals of the model, by metric of the ladder.
        metrics: all metrics, of the best and of the last weights.
        data_tables, degrees: data of the run: types, degrees and splits.
        flat: curves that are not drawn, because they have one value.
        facts: (name, value) of the environment.
        usage: how to use the model in Python; empty if inference cannot.
    """

    title: str
    subtitle: str
    verdict: str
    tiles: list[tuple[str, str]]
    ladder: Ladder
    around: dict[str, str | None]
    metrics: PageTable
    charts: list[Chart]
    errors: Errors
    data_tables: dict[str, PageTable]
    degrees: list[Chart]
    flat: dict[str, PageTable]
    cost_tables: dict[str, PageTable]
    facts: list[tuple[str, str]]
    config_yaml: str
    notes: list[str] = field(default_factory=list)
    usage: str = ""

    def html(self) -> str:
        return render("report.html.jinja", self)


def build_report(
    engine: Engine,
    logged: LogRows,
    name: str,
    metrics: dict[str, Any],
    starts: list[dict[str, Any]],
    note: str,
) -> Report:
    """Gathers the report of a run. Makes no collective call. `note`: how the run ended."""
    best = engine.best
    saved = engine.loaded.saved  # not the config itself: it may hold secrets
    validated = bool(best.metrics)
    at = best.position
    marked = (at.step, f"best: epoch {at.current_epoch}") if validated else None
    monitor, parts = best.tracker.monitor, engine.task.parts
    ladder = find_ladder(metrics, monitor, parts)
    charts = run_charts(engine.history, logged.rows, monitor, marked)
    charts, flat = without_flat(charts)
    title = saved["job_name"] or name
    run = "" if title == name else f"{name}: "
    tasks = [f"{name} ({entry['type']})" for name, entry in saved["tasks"].items()]
    return Report(
        title=title,
        subtitle=f"{run}{saved['model']['type']}, {', '.join(tasks) or saved['task']['type']}",
        verdict=verdict_sentence(metrics, ladder),
        tiles=_tiles(engine, metrics, shown_metrics(metrics, monitor, parts)),
        ladder=ladder,
        around={name: interval(metrics, name) for name in ladder.names},
        metrics=_metrics_table(metrics, engine.history[-1] if engine.history else {}),
        charts=charts,
        errors=find_errors(metrics),
        data_tables=data_tables(engine),
        degrees=[*degree_charts(engine.task.env.bundle), split_chart(engine)],
        flat={"Constant curves": (("name", "value"), flat)} if flat else {},
        cost_tables=_cost_tables(metrics, starts),
        facts=_environment(engine),
        config_yaml=engine.loaded.saved_yaml(),
        notes=[
            note,
            *([f"Warning: {metrics['warnings']}"] if metrics["warnings"] else []),
            *filter(None, [metrics["left_out"]]),
        ],
    )


def _tiles(engine: Engine, metrics: dict[str, Any], names: Sequence[str]) -> list[tuple[str, str]]:
    tiles = [
        (" ".join(filter(None, [name, interval(metrics, name)])), show(metrics[name]))
        for name in names
    ]
    if engine.best.metrics:
        tracker = engine.best.tracker
        tiles.append((f"best {tracker.monitor}, epoch {metrics['best_epoch']}", show(tracker.best)))
    return [*tiles, ("training time", duration(metrics["training_time_s"]))]


def _metrics_table(metrics: Mapping[str, Any], last: Mapping[str, float]) -> PageTable:
    """Test and validation of each metric in one row."""
    measured = [name for name in metrics if name.startswith(("test/", "val/"))]
    names = dict.fromkeys(name.partition("/")[2] for name in measured)
    rows = [
        (
            name,
            metrics.get(f"test/{name}"),
            interval(metrics, f"test/{name}"),
            metrics.get(f"val/{name}"),
            last.get(f"val/{name}"),
        )
        for name in names
    ]
    return ("metric", "test", "95 % interval", "validation", "last validation"), rows


def _cost_tables(metrics: Mapping[str, Any], starts: list[dict[str, Any]]) -> dict[str, PageTable]:
    wall_s, num_workers = metrics["wall_time_s"], metrics["num_workers"]
    rows = [
        ("training time", duration(metrics["training_time_s"])),
        ("wall time", duration(wall_s)),
        ("steps", show(metrics["step"])),
        ("steps per epoch", show(metrics["steps_per_epoch"])),
        *_speed(metrics),
        ("restarts", show(metrics["restarts"])),
        ("worker hours", show(wall_s * num_workers / 3600)),
        ("parameters", show(metrics["num_parameters"])),
        ("seeds", show(metrics["samples"])),
    ]
    starts_ = [
        (s["time"], s["host"], s["num_workers"], s["step"], s["resumed_from"] or "-")
        for s in starts
    ]
    heads = ("time", "host", "workers", "at step", "resumed from")
    return {"Cost": (("quantity", "value"), rows), "Starts": (heads, starts_)}


def _speed(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "perf/seeds_per_s" not in metrics:
        return []
    return [
        ("seeds per second", label(round(metrics["perf/seeds_per_s"]))),
        ("waiting for batches", f"{metrics['perf/loader_wait_share']:.1%}"),
    ]


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


_MAX_DEGREE_CHARTS = 4


def data_tables(engine: Engine) -> dict[str, PageTable]:
    bundle = engine.task.env.bundle
    nodes = [(t, bundle.num_nodes(t), _columns(bundle, t)) for t in bundle.node_types]
    edges = [
        (
            " → ".join(t),
            bundle.num_edges(t),
            bundle.num_edges(t) / max(bundle.num_nodes(t[2]), 1),
            _columns(bundle, t),
        )
        for t in bundle.edge_types
    ]
    return {
        "Node types": (("type", "nodes", "columns"), nodes),
        "Edge types": (("type", "edges", "per destination", "columns"), edges),
        **_label_edges(bundle),
        "Splits": (("split", "seeds", "batches", "share"), _splits(engine)),
    }


def degree_charts(bundle: Bundle) -> list[Chart]:
    """In-degree histograms of the largest edge types; none of a partitioned graph."""
    if isinstance(bundle, Outline):
        return []
    types = sorted(bundle.edge_types, key=bundle.num_edges, reverse=True)[:_MAX_DEGREE_CHARTS]
    charts = []
    for number, edge_type in enumerate(types):
        degrees = np.diff(bundle.csc(edge_type).indptr)
        # 0, 1, 2 to 3, 4 to 7, ...
        counts = np.bincount(np.frexp(degrees.astype(np.float64))[1] * (degrees > 0))
        ends = [(2**number // 2, 2**number - 1) for number in range(len(counts))]
        names = [f"{a:,}" if a >= b else f"{a:,}-{b:,}" for a, b in ends]
        line = Series("nodes", list(enumerate(counts.tolist())), number % NUM_COLORS)
        title = f"Incoming edges of {edge_type[2]}, {edge_type_name(edge_type)}"
        label = "edges of a node"
        charts.append(Chart(title, [line], x_label=label, x_names=names, bars=True, from_zero=True))
    return charts


def split_chart(engine: Engine) -> Chart:
    rows = _splits(engine)
    line = Series("seeds", [(place, row[1]) for place, row in enumerate(rows)], 2)
    names = [row[0] for row in rows]
    return Chart("Splits", [line], x_label="split", x_names=names, bars=True, from_zero=True)


def _label_edges(bundle: Bundle) -> dict[str, PageTable]:
    rows = [(edge_type_name(e.edge_type), e.sign, len(e.targets)) for e in bundle.label_edges]
    return {"Label edges": (("type", "sign", "edges"), rows)} if rows else {}


def _columns(bundle: Bundle, type_: Any) -> str:
    texts = []
    for column in bundle.columns(type_).values():
        if column.role == "row":
            continue
        shape = f" [{', '.join(map(str, column.shape))}]" if column.shape else ""
        kind = f"{column.dtype}{shape}{', sparse' if column.sparse else ''}"
        classes = f", {column.num_classes} classes" if column.num_classes else ""
        texts.append(f"{column.name} ({column.role}, {kind}{classes})")
    return "; ".join(texts) or "-"


def _splits(engine: Engine) -> list[tuple[Any, ...]]:
    parts = engine.task.parts
    if parts:
        return [
            (f"{part}: {name}", *others)
            for part, task in parts.items()
            for name, *others in _splits_of(task)
        ]
    return _splits_of(engine.task)


def _splits_of(task: Task) -> list[tuple[Any, ...]]:
    loaders = {name: task.loader(split) for split, name in SPLITS.items()}
    splits = {name: loader for name, loader in loaders.items() if loader is not None}
    total = sum(loader.num_examples for loader in splits.values())
    return [
        (name, loader.num_examples, loader.num_batches, f"{loader.num_examples / total:.0%}")
        for name, loader in splits.items()
    ]
