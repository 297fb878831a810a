"""Standard errors and intervals of metrics, compared with those of drawn samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raygnn.loops.evaluation import MIN_BATCHES, batch_intervals
from raygnn.metrics import (
    AUROC,
    R2,
    Accuracy,
    F1Macro,
    MeanAbsoluteError,
    RootMeanSquaredError,
    metrics_of,
)
from raygnn.metrics.standard_errors import influences, standard_error

_NUM, _DRAWS = 400, 400


def _drawn(metric: object, predictions: list[np.ndarray], labels: np.ndarray) -> float:
    """Standard deviation of (the difference of) a metric over samples with replacement."""
    rng, values = np.random.default_rng(1), []
    for _ in range(_DRAWS):
        rows = rng.integers(0, _NUM, _NUM)
        target = torch.from_numpy(labels[rows])
        found = [
            next(iter(metrics_of([metric], torch.from_numpy(p[rows]), target).values()))
            for p in predictions
        ]
        values.append(found[0] - (found[1] if len(found) > 1 else 0))
    return float(np.std(values))


@pytest.mark.parametrize(
    "metric_class", [AUROC, Accuracy, MeanAbsoluteError, RootMeanSquaredError, R2]
)
def test_errors_are_those_of_drawn_samples(metric_class: type) -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=_NUM)
    is_class = metric_class in (AUROC, Accuracy)
    noise = [rng.normal(size=_NUM) for _ in range(2)]
    guesses = [(truth + 0.8 * each)[:, None] for each in noise]
    metric = metric_class(2 if is_class else 1, "multi_class" if is_class else "regression")
    labels = (truth + 0.5 * rng.normal(size=_NUM) > 0.3).astype(np.int64) if is_class else truth
    if is_class:
        guesses = [np.concatenate([np.zeros_like(each), each], axis=1) for each in guesses]
    each, both = np.arange(_NUM), [influences(metric, guess, labels) for guess in guesses]
    assert standard_error(both[0], each) == pytest.approx(
        _drawn(metric, guesses[:1], labels), rel=0.15
    )
    of_difference = standard_error(both[0] - both[1], each)
    assert of_difference == pytest.approx(_drawn(metric, guesses, labels), rel=0.15)


def test_rows_of_a_group_are_not_independent() -> None:
    values = np.repeat(np.random.default_rng(0).normal(size=50), 20)
    one_by_one, in_groups = (
        standard_error(values, groups) for groups in (np.arange(1000), np.repeat(np.arange(50), 20))
    )
    assert in_groups == pytest.approx(one_by_one * np.sqrt(20))


def test_other_metrics_have_no_closed_form() -> None:
    assert influences(F1Macro(2, "multi_class"), np.zeros((3, 2)), np.zeros(3, int)) is None


def _table(right: torch.Tensor, batch_size: int) -> torch.Tensor:
    """[num_batches, 2]: rows that are right, and rows."""
    batches = right.double().split(batch_size)
    return torch.stack([torch.tensor([batch.sum(), len(batch)]) for batch in batches])


def _accuracy(sums: torch.Tensor) -> dict[str, float]:
    return {"accuracy": float(sums[0] / sums[1])}


def test_of_independent_rows_the_interval_is_that_of_a_binomial():
    right = torch.rand(20_000, generator=torch.Generator().manual_seed(3)) < 0.7
    low, high = batch_intervals(_table(right, 50), _accuracy)["accuracy"]
    half = 1.96 * math.sqrt(0.7 * 0.3 / 20_000)
    assert abs((high - low) / 2 - half) < 0.1 * half
    assert low < right.double().mean() < high


def test_of_rows_that_agree_within_a_batch_it_is_wider():
    right = torch.rand(400, generator=torch.Generator().manual_seed(3)) < 0.7
    low, high = batch_intervals(_table(right.repeat_interleave(50), 50), _accuracy)["accuracy"]
    half = 1.96 * math.sqrt(0.7 * 0.3 / 400)  # 400 batches, not 20,000 rows
    assert abs((high - low) / 2 - half) < 0.1 * half


def test_ninety_five_of_a_hundred_intervals_hold_the_truth():
    generator, held = torch.Generator().manual_seed(1), 0
    for _ in range(100):
        right = torch.rand(1000, generator=generator) < 0.4
        low, high = batch_intervals(_table(right, 25), _accuracy)["accuracy"]
        held += low <= 0.4 <= high
    assert 88 <= held <= 100


def test_few_batches_and_draws_without_a_value_give_none():
    right = torch.ones(MIN_BATCHES * 10 - 10)
    assert batch_intervals(_table(right, 10), _accuracy) == {}
    empty = torch.zeros(MIN_BATCHES, 2, dtype=torch.float64)
    empty[0] = 1
    assert batch_intervals(empty, _accuracy) == {}


def test_states_of_metrics_are_added_as_batches_are():
    metric = Accuracy(3, "multi_class")
    target = torch.arange(300) % 3
    prediction = torch.nn.functional.one_hot(target, 3).float()
    batches = zip(prediction.split(10), target.split(10), strict=True)
    table = torch.stack([metric.update(*batch) for batch in batches])
    assert batch_intervals(table, metric.compute) == {"accuracy": (1.0, 1.0)}
