"""Guesses from what was known of an entity before."""

from __future__ import annotations

import numpy as np
import pytest

from raygnn.data.bundle import SeedRows
from raygnn.data.past_labels import PastLabels


@pytest.mark.parametrize(("end", "window"), [(None, None), (12, None), (None, 3), (12, 3)])
def test_guesses_are_of_earlier_labels_of_the_entity(end: int | None, window: int | None) -> None:
    rng = np.random.default_rng(0)
    nodes, times = rng.integers(0, 9, 300), rng.integers(0, 20, 300)
    scores = rng.normal(size=(300, 2))
    known = np.flatnonzero(rng.random(300) < 0.7)
    asked = rng.permutation(300)[:100]
    rows = SeedRows("visits", "user", 300, nodes, times, None, None, {}, window)
    default = np.array([5.0, -5.0])
    labels = PastLabels.of(rows, known, scores[known])
    until = times[asked] if end is None else np.minimum(times[asked], end)
    found = labels.guesses(nodes[asked], until, default)
    for row, mean, last in zip(asked, found["entity_mean"], found["last_label"], strict=True):
        until = times[row] if end is None else min(times[row], end)
        latest = until - (window or 1)  # its window is over, or its row is an earlier one
        past = [r for r in known if nodes[r] == nodes[row] and times[r] <= latest]
        if not past:
            assert np.array_equal(mean, default)
            assert np.array_equal(last, default)
            continue
        assert np.allclose(mean, scores[past].mean(axis=0))
        assert np.array_equal(last, scores[max(past, key=lambda r: (times[r], r))])


def test_no_labels_are_known() -> None:
    rows = SeedRows("visits", "user", 2, np.zeros(2, int), np.arange(2), None, None, {})
    none = np.empty(0, np.int64)
    for labels in (PastLabels.of(rows, none, np.ones((0, 1))), PastLabels.none(1)):
        found = labels.guesses(np.zeros(2, int), np.arange(2), np.array([0.5]))
        assert all(np.array_equal(guess, [[0.5], [0.5]]) for guess in found.values())
