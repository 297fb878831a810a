"""Ranges of predicted numbers."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from raygnn.data.checksums import type_adapter
from raygnn.loops.ranges import Ranges


def _rows(num: int, seed: int, trend: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Counts around a mean that is predicted; their spread grows with it."""
    rng = np.random.default_rng(seed)
    means = rng.gamma(1.0, 5.0, num)
    return means.astype(np.float32), rng.poisson((1 + trend) * means).astype(np.float64)


def _contained(ranges: Ranges, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    low, high = ranges.of(predictions)
    assert low.dtype == high.dtype == predictions.dtype
    assert (low <= predictions).all()
    assert (predictions <= high).all()
    return (low <= labels) & (labels <= high)


def test_ranges_contain_four_fifths_of_small_and_of_large_values() -> None:
    rng = np.random.default_rng(0)
    for seed in range(3):
        predictions = rng.gamma(1.0, 5.0, 20_000)
        labels = predictions * rng.lognormal(0.0, 0.5, 20_000)
        ranges = Ranges.fit(predictions[:10_000], labels[:10_000])
        assert ranges is not None
        inside = _contained(ranges, predictions[10_000:], labels[10_000:])
        assert inside.mean() == pytest.approx(0.8, abs=0.015), seed
        order = np.argsort(predictions[10_000:])
        for part in np.array_split(inside[order], 5):
            assert part.mean() == pytest.approx(0.8, abs=0.04)
        low, high = ranges.of(predictions[10_000:])
        width = (high - low)[order]
        assert width[-1000:].mean() > 4 * width[:1000].mean()


def test_the_expected_share_is_at_least_four_fifths_for_few_rows() -> None:
    shares = []
    for seed in range(400):
        errors = np.random.default_rng(seed).normal(size=60)
        ranges = Ranges.fit(np.zeros(30), errors[:30])
        assert ranges is not None
        shares.append(_contained(ranges, np.zeros(30), errors[30:]).mean())
    assert 0.8 <= np.mean(shares) < 0.86
    assert Ranges.fit(np.zeros(19), np.zeros(19)) is None


def test_a_trend_after_validation_lowers_the_share() -> None:
    """Ranges assume that later rows are like those of validation."""
    ranges = Ranges.fit(*_rows(5_000, 0))
    assert ranges is not None
    assert _contained(ranges, *_rows(5_000, 1)).mean() > 0.79  # counts have few values
    assert _contained(ranges, *_rows(5_000, 1, trend=0.5)).mean() < 0.75


def test_ranges_of_counts_are_not_negative_and_survive_json() -> None:
    predictions, labels = _rows(1_000, 0)
    ranges = Ranges.fit(predictions, labels)
    assert ranges is not None
    assert ranges.of(np.zeros(1, np.float32))[0] == 0
    assert type_adapter(Ranges).validate_python(asdict(ranges)) == ranges
    signed = Ranges.fit(predictions, labels - 5)
    assert signed is not None
    assert signed.of(np.zeros(1, np.float32))[0] < 0


def test_a_slightly_higher_prediction_leaves_out_no_count() -> None:
    rng = np.random.default_rng(0)
    predictions, counts = rng.normal(1.0, 0.01, 2_000), rng.poisson(1.0, 2_000)
    ranges = Ranges.fit(predictions[:1_000], counts[:1_000])
    assert ranges is not None
    low, high = ranges.of(predictions[1_000:] + 0.05)
    assert set(low) == {0}
    assert set(high) == {2}


def test_equal_predictions_have_one_range() -> None:
    labels = np.random.default_rng(0).normal(size=1_000)
    ranges = Ranges.fit(np.ones(1_000), labels)
    assert ranges is not None
    assert ranges.bounds == ()
