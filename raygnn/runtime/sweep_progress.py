"""Progress lines of a sweep, and the results of its trials."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import cloudpickle
from ray.tune import Callback, ResultGrid, Stopper
from ray.tune.experiment import Trial

from raygnn.config.source import to_plain
from raygnn.console import count, say
from raygnn.data.filesystem import join
from raygnn.errors import ConfigError, RaygnnError
from raygnn.outputs.html_page import duration
from raygnn.outputs.run_folder import RunFolder, RunStatus
from raygnn.runtime.ray_internals import attribute
from raygnn.runtime.sweep_plan import TIME_ATTRIBUTE


class SweepProgress(Callback):
    """Prints a line when a trial starts and ends, and a validation every minute. Pickled."""

    EVERY_S = 60.0

    def __init__(self, metric: str, mode: str, num_trials: int, num_concurrent: int) -> None:
        self._metric, self._mode = metric, mode
        self._num_trials, self._num_concurrent = num_trials, num_concurrent
        self._next_s = -math.inf
        self._stopped: set[str] = set()  # trials that the scheduler stopped
        self._started_s: dict[str, float] = {}
        self._seconds: list[float] = []  # of the trials that ended

    def on_trial_start(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any
    ) -> None:
        self._started_s[str(trial)] = time.monotonic()
        say(f"{trial} started: {shown(trial.config)}")

    def on_trial_result(
        self,
        iteration: int,
        trials: Sequence[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        if result.get("done"):
            self._stopped.add(str(trial))
        if self._metric in result and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self.EVERY_S
            value = f"{self._metric} {result[self._metric]:.5g}"
            say(f"{trial} validation {int(result.get(TIME_ATTRIBUTE, 0))}: {value}")

    def on_trial_complete(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any
    ) -> None:
        analysis = trial.metric_analysis.get(self._metric, {})
        best = analysis.get(self._mode)
        num_validations = int(trial.last_result.get(TIME_ATTRIBUTE, 0))
        shown_best = "" if best is None else f": best {self._metric} {best:.5g}"
        if str(trial) in self._stopped:
            # It may finish another validation meanwhile, which the table counts.
            end = f"stopped early at validation {num_validations}"
        else:
            end = f"ended after {count(num_validations, 'validation')}"
        say(f"{trial} {end}{self._time(trials, trial)}{shown_best}")

    def _time(self, trials: Sequence[Trial], trial: Trial) -> str:
        """The time of a trial that ended, and an estimate for those that are left."""
        if str(trial) not in self._started_s:  # in an earlier process
            return ""
        self._seconds.append(time.monotonic() - self._started_s[str(trial)])
        text = f" in {duration(self._seconds[-1])}"
        num_ended = sum(other is trial or other.is_finished() for other in trials)
        if num_left := self._num_trials - num_ended:
            mean_s = sum(self._seconds) / len(self._seconds)
            rest = duration(mean_s * math.ceil(num_left / self._num_concurrent))
            text += f" ({num_left} of {self._num_trials} trials are left, about {rest})"
        return text

    def on_trial_error(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any
    ) -> None:
        if trial.pickled_error_file is None:
            error: Any = Path(trial.error_file).read_text()
        else:
            error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
        say(f"{trial} failed: {_explain(error)}")


class StopWithoutMetric(Stopper):
    """Ends a sweep at its first validation if the metric is missing."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._is_missing = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if TIME_ATTRIBUTE in result and self._metric not in result:
            self._is_missing = True
        return self._is_missing

    def stop_all(self) -> bool:
        return self._is_missing


def trial_name(trial: Trial) -> str:
    return f"trial-{trial.trial_id.rpartition('_')[2]}"


def trial_rows(grid: ResultGrid, sweep_uri: str, metric: str, mode: str) -> list[TrialRow]:
    """The status of each trial, from its run folder. Raises a ConfigError for unknown metrics."""
    # ResultGrid does not distinguish trials that were stopped early from unfinished ones.
    trials = attribute(grid, "_experiment_analysis").trials
    folders = [_folder(trial, sweep_uri) for trial in trials]
    histories = [folder.read_history() for folder in folders]
    known = {name for history in histories for row in history for name in row if "/" in name}
    if known:
        rule = "trials do not log it"
        ConfigError.check_choice(
            "tune.metric", metric, sorted(known), rule, id="sweep-metric-unknown"
        )
    return [
        _row(trial, folder, history, metric, mode)
        for trial, folder, history in zip(trials, folders, histories, strict=True)
    ]


def _folder(trial: Trial, sweep_uri: str) -> RunFolder:
    uri = join(sweep_uri, str(trial))
    return RunFolder(uri, model_uri=uri, logs_uri=join(uri, "logs"), attempt="")


def _row(
    trial: Trial, folder: RunFolder, history: list[dict[str, float]], metric: str, mode: str
) -> TrialRow:
    error = None
    if trial.status == Trial.ERROR:
        status = "failed"
        error = _explain(trial.get_pickled_error() or trial.get_error())
    elif (folder.read_state() or {}).get("status") == RunStatus.FINISHED.value:
        status = "finished"
    else:
        # A sweep that is interrupted ends its trials too, and calls none of them done.
        status = "stopped early" if trial.last_result.get("done") else "unfinished"
    best = best_value([row.get(metric) for row in history], mode)
    return TrialRow(str(trial), trial.config, status, best, len(history), error)


def _explain(error: Any) -> str:
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, RaygnnError):
        return " ".join(str(cause).split())
    lines = [line for line in str(cause).strip().splitlines() if line.strip()]
    return f"{lines[-1].strip() if lines else repr(cause)} (see error.txt in the trial's folder)"


_SHOWN_ERROR = 160  # characters of a failed trial's error in the table


@dataclass(frozen=True)
class TrialRow:
    """The result of one trial.

    Attributes:
        values: by dotted path.
        status: finished | stopped early | failed | unfinished.
        best: best value of the metric over all validations, if any.
        error: its last line, if it failed.
    """

    name: str
    values: Mapping[str, Any]
    status: str
    best: float | None
    num_validations: int
    error: str | None = None


def rank(rows: Sequence[TrialRow], mode: str) -> list[TrialRow]:
    sign = 1.0 if mode == "min" else -1.0
    return sorted(rows, key=lambda row: math.inf if row.best is None else sign * row.best)


def best_value(values: Sequence[float | None], mode: str) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return None
    return min(finite) if mode == "min" else max(finite)


def table(rows: Sequence[TrialRow], metric: str) -> list[str]:
    if not rows:
        return []
    paths = list(rows[0].values)
    cells = [["rank", "trial", metric, "validations", "status", *paths]]
    for number, row in enumerate(rows, 1):
        best = "-" if row.best is None else f"{row.best:.5g}"
        status = row.status if row.error is None else f"{row.status}: {row.error[:_SHOWN_ERROR]}"
        texts = [_cell(row.values[path]) for path in paths]
        cells.append([str(number), row.name, best, str(row.num_validations), status, *texts])
    # The status comes last: an error is longer than any column.
    cells = [[*line[:4], *line[5:], line[4]] for line in cells]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def as_json(rows: Sequence[TrialRow], metric: str, mode: str) -> str:
    trials = [
        {"trial": of_row.pop("name"), **of_row, "values": to_plain(of_row["values"], [], set())}
        for of_row in (dict(vars(row)) for row in rows)
    ]
    return json.dumps({"metric": metric, "mode": mode, "trials": trials}, indent=1) + "\n"


def shown(values: Mapping[str, Any]) -> str:
    return "  ".join(f"{path} {_cell(value)}" for path, value in values.items())


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
