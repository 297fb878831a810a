"""Factorizations of edge labels: what they find, and that training edges do not see themselves."""

from __future__ import annotations

import numpy as np
import pytest

from raygnn.data.splits import Splits
from raygnn.loops.tasks.edge_prediction.label_factors import LabelFactors


def _split(num: int) -> Splits:
    order = np.random.default_rng(1).permutation(num)
    return Splits(*(np.sort(part) for part in np.split(order, [num * 8 // 10, num * 9 // 10])))


def _errors(found: LabelFactors, labels: np.ndarray, splits: Splits) -> tuple[float, float, float]:
    """Root mean squared errors on test edges: of the start, of biases, of the mean."""
    sources, targets = (
        rows[of[splits.test]] for rows, of in zip(found.rows, found.ends, strict=True)
    )
    start = found.mean + sources[:, 0] + targets[:, 0] + (sources * targets)[:, 1:].sum(axis=1)
    guesses = (start, found.by_biases(splits.test), found.mean)
    return tuple(np.sqrt(np.square(each - labels[splits.test]).mean()) for each in guesses)


@pytest.mark.parametrize("is_low_rank", [True, False])
def test_factors_are_used_where_they_help(is_low_rank):
    rng = np.random.default_rng(0)
    ends = np.stack([rng.integers(0, 150, 9000), rng.integers(0, 100, 9000)])
    bias, factors = rng.normal(size=150), (rng.normal(size=(150, 2)), rng.normal(size=(100, 2)))
    labels = 3 + bias[ends[0]] + rng.normal(0, 0.5, 9000)
    if is_low_rank:
        labels += (factors[0][ends[0]] * factors[1][ends[1]]).sum(axis=1)
    splits = _split(9000)
    start, biases, mean = _errors(
        LabelFactors.fit(ends, labels, (150, 100), splits), labels, splits
    )
    assert biases < 0.9 * mean
    assert start < 0.65 if is_low_rank else start == pytest.approx(biases, abs=0.02)
    assert start < 0.55 or is_low_rank


def test_noise_is_not_learned_by_heart():
    rng = np.random.default_rng(0)
    ends, labels = rng.integers(0, 60, (2, 3000)), rng.normal(size=3000)
    splits = _split(3000)
    found = LabelFactors.fit(ends, labels, (60, 60), splits)
    start, _, mean = _errors(found, labels, splits)
    assert start == pytest.approx(mean, rel=0.05)
    held_out = np.corrcoef(found.held_out[splits.train], labels[splits.train])[0, 1]
    assert abs(held_out) < 4 / np.sqrt(len(splits.train))


def test_parallel_edges_and_reverses_do_not_reveal_a_label():
    rng = np.random.default_rng(0)
    ends, labels = rng.integers(0, 300, (2, 1000)), rng.normal(size=1000)
    twice, both = np.concatenate([ends, ends[::-1]], axis=1), np.tile(labels, 2)
    splits = Splits(np.arange(2000), np.arange(0), np.arange(0))
    found = LabelFactors.fit(twice, both, (300, 300), splits)
    assert abs(np.corrcoef(found.held_out, both)[0, 1]) < 4 / np.sqrt(1000)
