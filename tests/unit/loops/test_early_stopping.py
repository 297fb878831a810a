from __future__ import annotations

import math

from raygnn.config import load_config
from raygnn.loops.early_stopping import BestTracker, EarlyStopper, early_stopper
from tests.errors import raises
from tests.small_runs import CONFIG


def test_stops_after_patience_validations_without_improvement():
    stopper = EarlyStopper(BestTracker("val/loss"), patience=2)
    assert [stopper.should_stop(v) for v in (1.0, 0.5, 0.6, 0.5)] == [False, False, False, True]


def test_an_improvement_starts_the_patience_anew():
    stopper = EarlyStopper(BestTracker("val/accuracy", mode="max"), patience=2)
    values = (0.5, 0.4, 0.6, 0.5, 0.5)
    left, stops = zip(
        *[(stopper.left_after(v), stopper.should_stop(v)) for v in values], strict=True
    )
    assert left == (2, 1, 2, 1, 0)
    assert stops == (False, False, False, False, True)


def test_a_gain_of_min_delta_or_less_is_none():
    tracker = BestTracker("val/loss", min_delta=0.25)
    assert tracker.improves(1.0)
    assert not tracker.improves(0.75)
    assert tracker.improves(0.7)


def test_a_metric_of_the_task_that_hardly_changes_does_not_improve():
    config = load_config({**CONFIG, "early_stopping": {"patience": 2}}).config
    values = (0.18, 0.1801, 0.18015, 0.1801)
    stopper = early_stopper(config, True, ("val/full_ndcg@20", "max"), least_gain=1e-3)
    assert [stopper.should_stop(v) for v in values].index(True) == 2
    named = {"monitor": "val/full_ndcg@20", "mode": "max", "patience": 2}
    for own in (named, {"patience": 2, "min_delta": 0.0}):
        config = load_config({**CONFIG, "early_stopping": own}).config
        stopper = early_stopper(config, True, ("val/full_ndcg@20", "max"), least_gain=1e-3)
        assert not any(stopper.should_stop(v) for v in values)


def test_a_nan_is_an_error_and_not_a_rank():
    with raises("monitor-nan", "val/loss"):
        BestTracker("val/loss").value_of({"val/loss": math.nan})


def test_an_unknown_monitor_lists_what_is_logged():
    with raises("metric-not-logged", "val/hits", "train/loss, val/loss"):
        BestTracker("val/hits").value_of({"val/loss": 1.0, "train/loss": 1.0})


def test_state_survives_a_round_trip():
    stopper = EarlyStopper(BestTracker("val/loss"), patience=2)
    stopper.should_stop(0.5)
    stopper.should_stop(0.6)
    resumed = EarlyStopper(BestTracker("val/loss"), patience=2)
    resumed.load_state_dict(stopper.state_dict())
    assert resumed.should_stop(0.7)
