"""Tables and charts of several runs, or of the trials of a sweep, on one page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from raygnn.config.registry import SLOTS
from raygnn.config.sections import SEVERAL_TASKS
from raygnn.data.filesystem import exists, join, read_text, redact
from raygnn.errors import RaygnnError, RunError
from raygnn.loops.baselines import is_error
from raygnn.outputs.html_page import NUM_COLORS, Chart, Series, duration, interval, render, show
from raygnn.outputs.report_errors import PageTable
from raygnn.outputs.stored_run import StoredRun

#: Sections of the config that do not influence results.
_NOT_COMPARED = ("run.", "job_name", "loggers", "tune.")
#: Values of keys that a config lacks, so that no run differs by a default.
_DEFAULTS: Mapping[str, Any] = {
    "task.type": SEVERAL_TASKS,
    "weight": 1.0,
    "losses": [],
    "metrics": [],
}
_MAX_RUNS_IN_TABLES = 12


@dataclass(frozen=True)
class Comparison:
    """The content of the page: tables by heading, and charts, in order."""

    title: str
    subtitle: str
    tables: dict[str, PageTable]
    charts: list[Chart]
    remark: str = ""

    def html(self) -> str:
        return render("comparison.html.jinja", self)


#: Metrics of a run on the test rows of another one, as `metrics.json` has them. Raises a
#: RaygnnError if there are none.
JudgeRun: TypeAlias = Callable[[StoredRun, StoredRun], Mapping[str, Any]]


def compare(uris: Sequence[str], judge: JudgeRun | None = None) -> Comparison:
    """Compares runs, or the trials of one sweep: test metrics with intervals, config differences,
    curves, cost. Raises a RunError if a folder has no run.

    `judge`: for runs that were tested on other rows than the newest.
    """
    if len(uris) == 1 and exists(join(uris[0], "trials.json")):
        return _compare_trials(uris[0])
    runs = [StoredRun.open(uri) for uri in uris]
    named = {run.name: run for run in runs}
    if len(named) < len(runs):  # equal names in different folders
        named = {redact(uri): run for uri, run in zip(uris, runs, strict=True)}
    named, remark, are_same = _on_the_same_rows(named, judge)
    named = _lined_up(named)
    title = f"{len(runs)} runs" if runs[1:] else runs[0].name
    tables = _tables(named, marks_best=are_same)
    return Comparison(title, ", ".join(named), tables, _curves(named), remark)


def _on_the_same_rows(
    runs: Mapping[str, StoredRun], judge: JudgeRun | None
) -> tuple[dict[str, StoredRun], str, bool]:
    """The runs with metrics of the test rows of the newest; a sentence; and False if they cannot be
    compared.
    """
    tested = {name: run for name, run in runs.items() if run.is_tested}
    digests = {run.metrics.get("test_rows") for run in tested.values()}
    if len(digests) < 2 and None not in digests:
        return dict(runs), "", True
    if None in digests:
        unknown = "It is not known whether the runs were tested on the same rows."
        return dict(runs), unknown if len(tested) > 1 else "", True
    newest = max(tested, key=lambda name: tested[name].start)
    found = dict(runs)
    for name, run in tested.items():
        if run.metrics["test_rows"] == tested[newest].metrics["test_rows"]:
            continue
        try:
            if judge is None or not run.is_of(tested[newest]):
                raise RunError(f"{name} learns another task [report-other-task]")
            found[name] = run.judged(judge(run, tested[newest]))
        except RaygnnError as error:
            remark = f"The runs were tested on different rows, so no best is marked: {error}"
            return dict(runs), remark, False
    return found, f"Test metrics are of the test rows of {newest}, the newest run.", True


def _lined_up(runs: Mapping[str, StoredRun]) -> dict[str, StoredRun]:
    several = [run for run in runs.values() if run.task_names]
    by_name = dict(runs)
    for key, run in runs.items():
        names = {name for other in several for name in other.task_names if run.is_of(other, name)}
        if len(names) == 1:
            by_name[key] = run.as_task(names.pop())
    return by_name


def _compare_trials(uri: str) -> Comparison:
    sweep = json.loads(read_text(join(uri, "trials.json")))
    uris = {row["trial"]: join(uri, row["trial"]) for row in sweep["trials"]}
    runs = {
        name: StoredRun.open(folder)
        for name, folder in uris.items()
        if exists(join(folder, "run.json"))
    }
    shown = dict(list(runs.items())[:_MAX_RUNS_IN_TABLES])
    title, metric = redact(uri).rstrip("/").rsplit("/", 1)[-1], sweep["metric"]
    subtitle = f"{len(sweep['trials'])} trials by {metric} ({sweep['mode']})"
    tables = sweep_tables(sweep) | _tables(shown)
    curves = [chart for chart in _curves(runs) if chart.title in (metric, "val/loss")]
    return Comparison(title, subtitle, tables, curves)


def _tables(runs: Mapping[str, StoredRun], *, marks_best: bool = True) -> dict[str, PageTable]:
    heads = tuple(runs)
    tables: dict[str, PageTable] = {}
    names = _union(run.metrics for run in runs.values())

    def rows(pattern: str) -> list[tuple[str, ...]]:
        chosen = [name for name in names if re.match(pattern, name)]
        return [(n, *(_with_interval(r.metrics, n) for r in runs.values())) for n in chosen]

    if tested := [(*r, _best(runs, r[0]) if marks_best else "-") for r in rows("test/")]:
        tables["Test metrics, with 95 % intervals"] = ("metric", *heads, "best"), tested
    if found := rows("baseline/[^/]+/test/"):
        baselines = [(name.removeprefix("baseline/"), *values) for name, *values in found]
        tables["Baselines, with 95 % intervals"] = ("baseline and metric", *heads), baselines
    differing = [
        (path, *(shown(run.config.get(path)) for run in runs.values()))
        for path in _union(run.config for run in runs.values())
        if not path.startswith(_NOT_COMPARED)
        and len({_cell(run, path) for run in runs.values()}) > 1
    ]
    if differing:
        tables["Differences between the configs"] = ("key", *heads), differing
    costs = [
        (what, *(shown(run.metrics[name]) if name in run.metrics else "-" for run in runs.values()))
        for name, (what, shown) in _COSTS.items()
    ]
    tables["Result and cost"] = ("", *heads), costs
    return tables


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


def _best(runs: Mapping[str, StoredRun], name: str) -> str:
    """The run with the best value; "-" without two values or a known direction."""
    metric = name.rpartition("/")[2]
    kind = metric.removeprefix("full_").partition("@")[0]
    known = {
        key: run.metrics[name] for key, run in runs.items() if run.metrics.get(name) is not None
    }
    if len(known) < 2 or kind not in {"loss", *SLOTS["metric"].names}:
        return "-"
    sign = -1 if is_error(metric) else 1
    return max(known, key=lambda key: sign * known[key])


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


def _cell(run: StoredRun, path: str) -> str:
    value = run.config.get(path, _DEFAULTS.get(re.sub(r"^tasks\.[^.]+\.", "", path)))
    return "-" if value is None else str(value)


def sweep_tables(sweep: Mapping[str, Any]) -> dict[str, PageTable]:
    paths = _union(row["values"] for row in sweep["trials"])
    heads = ("trial", sweep["metric"], "validations", "status", *paths)
    rows = [
        (
            row["trial"],
            row["best"],
            row["num_validations"],
            row["status"],
            *(shown(row["values"].get(path)) for path in paths),
        )
        for row in sweep["trials"]
    ]
    return {"Trials": (heads, rows)}


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else show(value)
