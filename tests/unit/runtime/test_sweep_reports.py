"""What a trial's controller hands on to Ray Tune."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from ray.exceptions import ActorDiedError
from ray.tune.integration.ray_train import TuneReportCallback

from raygnn.runtime.sweep import ReportValidations


@pytest.fixture
def reported() -> Any:
    with (
        patch.object(TuneReportCallback, "__init__", lambda self: None),
        patch.object(TuneReportCallback, "after_report") as report,
    ):
        yield report


def test_validations_are_handed_on_and_checkpoints_alone_are_not(reported: Any) -> None:
    callback = ReportValidations()
    callback.after_report(None, [{"val/loss": 1.0}], None)
    callback.after_report(None, [{}], None)
    reported.assert_called_once_with(None, [{"val/loss": 1.0}], None)


def test_a_queue_that_has_ended_with_its_trial_is_no_error(reported: Any) -> None:
    reported.side_effect = ActorDiedError()
    ReportValidations().after_report(None, [{"val/loss": 1.0}], None)
    reported.assert_called_once()
