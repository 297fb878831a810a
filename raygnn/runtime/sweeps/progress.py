"""Progress lines of a sweep, and the results of its trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import cloudpickle
from ray.tune import Callback, ResultGrid, Stopper
from ray.tune.experiment import Trial

from raygnn.config.run_section import Tune
from raygnn.console import count, say
from raygnn.data.filesystem import join
from raygnn.errors import ConfigError, RaygnnError, choose_from
from raygnn.outputs.run_folder import RunFolder, RunStatus
from raygnn.runtime.ray_internals import attribute
from raygnn.runtime.sweeps.plan import TIME_ATTRIBUTE
from raygnn.runtime.sweeps.table import TrialRow, best_value, shown

if TYPE_CHECKING:
    from collections.abc import Sequence


class SweepProgress(Callback):
    """A line when a trial starts and one when it ends, and validations every ten seconds.

    Pickled with the sweep's state.
    """

    def __init__(self, metric: str, mode: str) -> None:
        self._metric, self._mode = metric, mode

    def on_trial_start(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any
    ) -> None:
        say(f"{trial} started: {shown(trial.config)}")

    def on_trial_result(
        self,
        iteration: int,
        trials: Sequence[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        if self._metric in result:
            value = f"{self._metric} {result[self._metric]:.5g}"
            say(f"{trial} validation {int(result.get(TIME_ATTRIBUTE, 0))}: {value}", "step")

    def on_trial_complete(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any
    ) -> None:
        analysis = trial.metric_analysis.get(self._metric, {})
        best = analysis.get(self._mode)
        num_validations = int(trial.last_result.get(TIME_ATTRIBUTE, 0))
        shown_best = "" if best is None else f": best {self._metric} {best:.5g}"
        say(f"{trial} ended after {count(num_validations, 'validation')}{shown_best}")

    def on_trial_error(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any
    ) -> None:
        say(f"{trial} failed: {_explain(_new_error(trial))}")


class StopWithoutMetric(Stopper):
    """Ends a sweep at its first validation if that has no metric of the name."""

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
    """The name of a trial and its folder: `trial-00003`."""
    return f"trial-{trial.trial_id.rpartition('_')[2]}"


def trial_rows(grid: ResultGrid, sweep_uri: str, section: Tune) -> list[TrialRow]:
    """The status of each trial, read from its run folder.

    Raises:
        ConfigError: trials log no metric of the name.
    """
    # ResultGrid itself does not tell a trial that was stopped early from one that is unfinished.
    trials = attribute(grid, "_experiment_analysis").trials
    folders = [_folder(trial, sweep_uri) for trial in trials]
    histories = [folder.read_history() for folder in folders]
    known = {name for history in histories for row in history for name in row if "/" in name}
    if known and section.metric not in known:
        raise ConfigError(
            f"tune.metric={section.metric!r} is invalid: trials log no such metric. "
            f"{choose_from(section.metric, sorted(known))}.",
            id="sweep-metric-unknown",
        )
    return [
        _row(trial, folder, history, section)
        for trial, folder, history in zip(trials, folders, histories, strict=True)
    ]


def _folder(trial: Trial, sweep_uri: str) -> RunFolder:
    uri = join(sweep_uri, str(trial))
    return RunFolder(uri, model_uri=uri, logs_uri=join(uri, "logs"), attempt="")


def _row(
    trial: Trial, folder: RunFolder, history: list[dict[str, float]], section: Tune
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
    best = best_value([row.get(section.metric) for row in history], section.mode)
    return TrialRow(str(trial), trial.config, status, best, len(history), error)


def _new_error(trial: Trial) -> Any:
    if trial.pickled_error_file is None:
        return Path(trial.error_file).read_text()
    return cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())


def _explain(error: Any) -> str:
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, RaygnnError):
        return " ".join(str(cause).split())
    lines = [line for line in str(cause).strip().splitlines() if line.strip()]
    return f"{lines[-1].strip() if lines else repr(cause)} (see error.txt in the trial's folder)"
