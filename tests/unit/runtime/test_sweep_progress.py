"""Lines that a sweep prints while its trials run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from raygnn.errors import ConfigError
from raygnn.runtime.sweep_plan import TIME_ATTRIBUTE
from raygnn.runtime.sweep_progress import SweepProgress


class FailedTrial:
    """A trial as Tune has it when it calls its callbacks."""

    def __init__(self, folder: Path, error: Exception, is_pickled: bool) -> None:
        self.error_file = str(folder / "error.txt")
        Path(self.error_file).write_text(f"Failure # 1\n{error}\n")
        self.pickled_error_file = None
        if is_pickled:
            self.pickled_error_file = str(folder / "error.pkl")
            Path(self.pickled_error_file).write_bytes(cloudpickle.dumps(error))

    def __str__(self) -> str:
        return "trial-00002"


_LAST_LINE = "last line (see error.txt in the trial's folder)"


@pytest.mark.parametrize(
    ("error", "is_pickled", "told"),
    [
        (ConfigError("lr is invalid:\nset less."), True, "lr is invalid: set less."),
        (ValueError("first line\nlast line"), True, _LAST_LINE),
        (ValueError("first line\nlast line"), False, _LAST_LINE),
    ],
)
def test_a_failed_trial_says_why_in_a_line(capsys, tmp_path, error, is_pickled, told) -> None:
    trial = FailedTrial(tmp_path, error, is_pickled)
    SweepProgress("val/loss", "min").on_trial_error(1, [trial], trial)
    assert capsys.readouterr().out == f"[raygnn] trial-00002 failed: {told}\n"


def test_a_sweep_prints_a_validation_a_minute(capsys, monkeypatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("raygnn.runtime.sweep_progress.time.time", lambda: clock[0])
    progress = SweepProgress("val/loss", "min")
    for number in range(1, 14):  # two minutes, and a validation each 10 s
        result = {"val/loss": 1 / number, TIME_ATTRIBUTE: number}
        progress.on_trial_result(number, [], "trial-00000", result)
        clock[0] += 10
    assert capsys.readouterr().out.splitlines() == [
        "[raygnn] trial-00000 validation 1: val/loss 1",
        "[raygnn] trial-00000 validation 7: val/loss 0.14286",
        "[raygnn] trial-00000 validation 13: val/loss 0.076923",
    ]


def test_a_trial_that_the_scheduler_stops_says_at_which_validation(capsys, monkeypatch) -> None:
    progress = SweepProgress("val/loss", "min")
    progress._next_s = math.inf
    for name, is_stopped in (("trial-00000", True), ("trial-00001", False)):
        result = {"val/loss": 0.5, TIME_ATTRIBUTE: 2, "done": is_stopped}
        trial = RunningTrial(name, result)
        progress.on_trial_result(2, [], trial, result)
        progress.on_trial_complete(2, [], trial)
    assert capsys.readouterr().out.splitlines() == [
        "[raygnn] trial-00000 stopped early at validation 2: best val/loss 0.5",
        "[raygnn] trial-00001 ended after 2 validations: best val/loss 0.5",
    ]


class RunningTrial:
    def __init__(self, name: str, result: dict[str, Any]) -> None:
        self._name, self.last_result = name, result
        self.metric_analysis = {"val/loss": {"min": result["val/loss"]}}

    def __str__(self) -> str:
        return self._name
