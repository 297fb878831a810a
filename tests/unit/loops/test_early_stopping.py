"""Positions, periods that are due, and early stopping."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from raygnn.config import Period, load_config
from raygnn.loops.early_stopping import BestTracker, EarlyStopper, Watched, early_stopper
from raygnn.loops.position import Position, is_due
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
    stopper = early_stopper(config, True, Watched("val/full_ndcg@20", "max", 1e-3))
    assert [stopper.should_stop(v) for v in values].index(True) == 2
    named = {"monitor": "val/full_ndcg@20", "mode": "max", "patience": 2}
    for own in (named, {"patience": 2, "min_delta": 0.0}):
        config = load_config({**CONFIG, "early_stopping": own}).config
        stopper = early_stopper(config, True, Watched("val/full_ndcg@20", "max", 1e-3))
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


def _walk(num_steps: int, per_step: int, epoch_batches: int) -> list[Position]:
    positions = [Position()]
    for _ in range(num_steps):
        last = positions[-1]
        taken = min(per_step, epoch_batches - last.batch_in_epoch)
        positions.append(
            last.advance(num_batches=taken, num_samples=10 * taken, epoch_batches=epoch_batches)
        )
    return positions


def test_an_epoch_ends_with_its_last_partial_step():
    positions = _walk(num_steps=4, per_step=2, epoch_batches=3)
    assert [p.epoch for p in positions] == [0, 0, 1, 1, 2]
    assert [p.batch_in_epoch for p in positions] == [0, 2, 0, 2, 0]
    assert [p.batches for p in positions] == [0, 2, 3, 5, 6]


@given(every=st.integers(1, 50), per_step=st.integers(1, 7), epoch_batches=st.integers(1, 30))
def test_a_period_is_due_once_for_each_mark_passed(every, per_step, epoch_batches):
    positions = _walk(60, per_step, epoch_batches)
    for unit, value in (
        ("steps", lambda p: p.step),
        ("batches", lambda p: p.batches),
        ("epochs", lambda p: p.epoch),
        ("samples", lambda p: p.samples),
    ):
        period = Period(**{unit: every})
        pairs = itertools.pairwise(positions)
        due = [is_due(period, before, after) for before, after in pairs]
        passed = [
            any(mark % every == 0 for mark in range(value(before) + 1, value(after) + 1))
            for before, after in itertools.pairwise(positions)
        ]
        assert due == passed


def test_several_marks_are_due_when_any_is_and_none_never():
    before, after = Position(step=3), Position(step=4)
    assert is_due(Period(steps=4, epochs=100), before, after)
    assert not is_due(None, before, after)
