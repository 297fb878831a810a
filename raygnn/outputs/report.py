"""`report.html`: a run on one page, which needs no network and no server."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from raygnn import __version__
from raygnn.outputs.advice import baselines_of, verdicts
from raygnn.outputs.charts import Chart, label
from raygnn.outputs.history import LogRows
from raygnn.outputs.html_page import duration, interval, render, show
from raygnn.outputs.progress import show_global_batch
from raygnn.outputs.report_data import data_tables, degree_charts, split_chart
from raygnn.outputs.report_errors import Errors, Table, find_errors
from raygnn.outputs.run_charts import run_charts, without_flat

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine

_PACKAGES = ("torch", "torch_geometric", "ray", "numpy", "numba", "pyarrow")


@dataclass(frozen=True)
class Report:
    """What the page shows.

    Attributes:
        tiles: (what, value) of the few numbers that matter most.
        guesses: names of the baselines.
        metrics: by name the final value, its 95 % interval, that of the last validation, and the
            value of each guess.
        errors: where predictions are wrong.
        data_tables, degrees: what the run saw: types, degrees and splits.
        flat: the curves that are not drawn, since they have one value.
        cost_tables: by heading.
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
    data_tables: dict[str, Table]
    degrees: list[Chart]
    flat: dict[str, Table]
    cost_tables: dict[str, Table]
    facts: list[tuple[str, str]]
    config_yaml: str
    notes: list[str] = field(default_factory=list)
    usage: str = ""

    def html(self) -> str:
        """The page. All that comes from users is escaped."""
        return render("report.html.jinja", self)


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
    last = engine.history[-1] if engine.history else {}
    charts = run_charts(engine.history, logged.rows, best.tracker.monitor, marked)
    charts, flat = without_flat(charts)
    return Report(
        title=saved["job_name"] or name,
        subtitle=f"{name}: {saved['model']['type']}, {_tasks(saved)}",
        tiles=_tiles(engine, metrics),
        charts=charts,
        guesses=list(guesses),
        metrics={
            name: [
                value,
                interval(metrics, name),
                last.get(name),
                *(of_guess.get(name) for of_guess in guesses.values()),
            ]
            for name, value in metrics.items()
            if name.startswith(("test/", "val/"))
        },
        errors=find_errors(metrics),
        data_tables=data_tables(engine),
        degrees=[*degree_charts(engine.task.env.bundle), split_chart(engine)],
        flat={"Curves of one value": (("name", "value"), flat)} if flat else {},
        cost_tables=_cost_tables(metrics, starts),
        facts=_environment(engine),
        config_yaml=engine.loaded.saved_yaml(),
        notes=[note, *filter(None, [metrics["warnings"], *verdicts(metrics)])],
    )


def _tasks(saved: Mapping[str, Any]) -> str:
    """What is learned: the type of the task, or names and types of several."""
    named = [f"{name} ({entry['type']})" for name, entry in saved["tasks"].items()]
    return ", ".join(named) or str(saved["task"]["type"])


def _tiles(engine: Engine, metrics: dict[str, Any]) -> list[tuple[str, str]]:
    names = [name for name in metrics if name.startswith("test/") and name != "test/loss"]
    if parts := list(engine.task.parts):  # the first metric of each, after its loss
        named = (f"test/{part}/" for part in parts)
        names = [name for of in named for name in [n for n in names if n.startswith(of)][1:2]]
    tracker = engine.best.tracker
    tiles = [
        (" ".join(filter(None, [name, interval(metrics, name)])), show(metrics[name]))
        for name in names[: max(3, len(parts))]
    ]
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


def _cost_tables(metrics: Mapping[str, Any], starts: list[dict[str, Any]]) -> dict[str, Table]:
    wall_s, num_workers = metrics["wall_time_s"], metrics["num_workers"]
    rows = [
        ("training time", duration(metrics["training_time_s"])),
        ("wall time", duration(wall_s)),
        ("worker hours", show(wall_s * num_workers / 3600)),
        ("parameters", show(metrics["num_parameters"])),
        ("seeds", show(metrics["samples"])),
    ]
    starts_ = [
        (s["time"], s["host"], s["num_workers"], s["step"], s["resumed_from"] or "-")
        for s in starts
    ]
    heads = ("time", "host", "workers", "at step", "resumed from")
    return {"Cost": (("of", "value"), rows), "Starts": (heads, starts_)}


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
