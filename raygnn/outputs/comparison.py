"""Several runs, or the trials of a sweep, on one page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from raygnn.config.cross_rules import INPUTS_OF_ENCODER
from raygnn.config.tasks_section import SEVERAL_TASKS
from raygnn.data.filesystem import exists, join, read_text, redact
from raygnn.errors import RunError
from raygnn.outputs.html_page import NUM_COLORS, Chart, Series, duration, interval, render, show
from raygnn.outputs.report_errors import Table
from raygnn.outputs.sweep_charts import sweep_charts, sweep_tables

#: Sections of the config that say where a run lies, not what it does.
_NOT_COMPARED = ("run.", "job_name", "loggers", "tune.")
#: What a key counts as where a config does not have it, so that no run differs by a default.
_DEFAULTS: Mapping[str, Any] = {
    "task.type": SEVERAL_TASKS,
    "weight": 1.0,
    "losses": [],
    "metrics": [],
}
#: Keys of a task that say what it learns, the type first.
_LEARNED = (
    "type",
    "args.target",
    "args.label",
    "args.edge_type",
    "args.labels",
    "args.label_edges",
)
_SPLITS = ("train", "val", "test")
_INTERVALS = ("intervals", "standard_errors")  # of `metrics.json`, by name of the metric
_MAX_RUNS_IN_TABLES = 12


@dataclass(frozen=True)
class StoredRun:
    """The files of a run; empty for those not written yet.

    Attributes:
        metrics: of `metrics.json`.
        history: a row for each validation.
        config: all keys, by dotted path; empty mappings have none.
    """

    name: str
    metrics: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    config: Mapping[str, Any]

    @classmethod
    def open(cls, uri: str) -> StoredRun:
        """Reads the folder of a run.

        Raises:
            RunError: there is no run.
        """
        if not exists(join(uri, "run.json")):
            raise RunError(
                f"RUN={redact(uri)!r} is invalid: there is no run. Give the folders of runs, with "
                "run.json in them, or of one sweep.",
                id="report-no-run",
            )
        metrics = json.loads(_text(uri, "metrics.json") or "{}")
        history = [json.loads(line) for line in _text(uri, "history.jsonl").splitlines()]
        config = yaml.safe_load(_text(uri, "config.yaml")) or {}
        return cls(uri.rstrip("/").rsplit("/", 1)[-1], metrics, history, dict(_paths(config)))

    @property
    def task_names(self) -> list[str]:
        """The names of several tasks."""
        return _union([path.split(".")[1]] for path in self.config if path.startswith("tasks."))

    def is_of(self, other: StoredRun, name: str) -> bool:
        """Whether the task of this run is one of several of another run."""
        ours, theirs = (
            [run.config.get(f"{place}.{key}") for key in _LEARNED]
            for run, place in ((self, "task"), (other, f"tasks.{name}"))
        )
        pairs = zip(ours, theirs, strict=True)
        return ours[0] == theirs[0] and all(a == b or None in (a, b) for a, b in pairs)

    def as_task(self, name: str) -> StoredRun:
        """This run with the metric names and keys that it would have as one of several tasks."""

        def metric_of(metric: str) -> str:
            split, _, own = metric.partition("/")
            return f"{split}/{name}/{own}" if split in _SPLITS else metric

        def renamed(row: Mapping[str, Any]) -> dict[str, Any]:
            return {metric_of(key): value for key, value in row.items()}

        def path_of(path: str) -> str:
            own = path.removeprefix("task.")
            is_moved = own != path and own.removeprefix("args.") not in INPUTS_OF_ENCODER
            return f"tasks.{name}.{own}" if is_moved or path in ("losses", "metrics") else path

        around = {key: renamed(self.metrics.get(key, {})) for key in _INTERVALS}
        return replace(
            self,
            metrics=renamed(self.metrics) | around,
            history=[renamed(row) for row in self.history],
            config={path_of(path): value for path, value in self.config.items()},
        )


@dataclass(frozen=True)
class Comparison:
    """The content of the page: tables by heading, and charts, in this order."""

    title: str
    subtitle: str
    sweep_charts: list[Chart]
    tables: dict[str, Table]
    charts: list[Chart]

    def html(self) -> str:
        """The page. All that comes from users is escaped."""
        return render("comparison.html.jinja", self)


def compare(uris: Sequence[str]) -> Comparison:
    """Compares runs: test metrics with their intervals, what their configs differ in, curves, cost.

    Args:
        uris: folders of runs, or of one sweep, whose trials are compared.
    Raises:
        RunError: there is no run in one of them.
    """
    if len(uris) == 1 and exists(join(uris[0], "trials.json")):
        return _compare_trials(uris[0])
    runs = [StoredRun.open(uri) for uri in uris]
    named = {run.name: run for run in runs}
    if len(named) < len(runs):  # equal names in different folders
        named = {redact(uri): run for uri, run in zip(uris, runs, strict=True)}
    named = _lined_up(named)
    title = f"{len(runs)} runs" if runs[1:] else runs[0].name
    return Comparison(title, ", ".join(named), [], _tables(named), _curves(named))


def _lined_up(runs: Mapping[str, StoredRun]) -> dict[str, StoredRun]:
    """The runs, those of one task as that of several that it must be, where there is one."""
    several = [run for run in runs.values() if run.task_names]
    found = dict(runs)
    for key, run in runs.items():
        names = {name for other in several for name in other.task_names if run.is_of(other, name)}
        if len(names) == 1:
            found[key] = run.as_task(names.pop())
    return found


def _compare_trials(uri: str) -> Comparison:
    sweep = json.loads(read_text(join(uri, "trials.json")))
    found = {row["trial"]: join(uri, row["trial"]) for row in sweep["trials"]}
    runs = {
        name: StoredRun.open(folder)
        for name, folder in found.items()
        if exists(join(folder, "run.json"))
    }
    shown = dict(list(runs.items())[:_MAX_RUNS_IN_TABLES])
    title, metric = redact(uri).rstrip("/").rsplit("/", 1)[-1], sweep["metric"]
    subtitle = f"{len(sweep['trials'])} trials by {metric} ({sweep['mode']})"
    tables = sweep_tables(sweep) | _tables(shown)
    curves = [chart for chart in _curves(runs) if chart.title in (metric, "val/loss")]
    return Comparison(title, subtitle, sweep_charts(sweep), tables, curves)


def _tables(runs: Mapping[str, StoredRun]) -> dict[str, Table]:
    heads = tuple(runs)
    found: dict[str, Table] = {}
    names = _union(run.metrics for run in runs.values())
    tested = [
        (name, *(_with_interval(run.metrics, name) for run in runs.values()))
        for name in names
        if name.startswith("test/")
    ]
    if tested:
        found["Test metrics, with 95 % intervals"] = ("metric", *heads), tested
    differing = [
        (path, *(_cell(run.config.get(path)) for run in runs.values()))
        for path in _union(run.config for run in runs.values())
        if not path.startswith(_NOT_COMPARED)
        and len({_cell(run.config.get(path, _default(path))) for run in runs.values()}) > 1
    ]
    if differing:
        found["What the configs differ in"] = ("key", *heads), differing
    costs = [
        (what, *(shown(run.metrics[name]) if name in run.metrics else "-" for run in runs.values()))
        for name, (what, shown) in _COSTS.items()
    ]
    found["How it ended, and what it cost"] = ("", *heads), costs
    return found


_COSTS: dict[str, tuple[str, Any]] = {
    "stop_reason": ("stopped by", str),
    "best_epoch": ("best epoch", show),
    "step": ("steps", show),
    "training_time_s": ("training time", duration),
    "wall_time_s": ("wall time", duration),
    "num_workers": ("workers", show),
    "num_parameters": ("parameters", show),
    "perf/seeds_per_s": ("seeds per second", lambda value: show(round(value))),
}


def _with_interval(metrics: Mapping[str, Any], name: str) -> str:
    around = interval(metrics, name)
    value = show(metrics.get(name))
    return f"{value} ({around})" if around else value


def _curves(runs: Mapping[str, StoredRun]) -> list[Chart]:
    names = _union(row for run in runs.values() for row in run.history)
    names = [n for n in names if re.match(r"val/|train/loss|train/[^/]+/loss", n)]
    names.sort(key=lambda name: (not name.endswith("/loss"), not name.startswith("val/")))
    charts = []
    for name in names:
        lines = []
        for number, (run_name, run) in enumerate(runs.items()):
            points = [(r["step"], r[name]) for r in run.history if r.get(name) is not None]
            if points:
                lines.append(Series(run_name, points, number % NUM_COLORS))
        charts.append(Chart(name, lines, wide=name == "val/loss"))
    return charts


def _union(mappings: Any) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _paths(value: Any, start: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [
            found
            for key, entry in value.items()
            for found in _paths(entry, f"{start}.{key}" if start else str(key))
        ]
    return [(start, value)]


def _default(path: str) -> Any:
    return _DEFAULTS.get(re.sub(r"^tasks\.[^.]+\.", "", path))


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


def _text(uri: str, name: str) -> str:
    place = join(uri, name)
    return read_text(place) if exists(place) else ""
