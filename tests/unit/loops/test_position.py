from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from raygnn.config import Period
from raygnn.loops.position import Position, is_due


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
