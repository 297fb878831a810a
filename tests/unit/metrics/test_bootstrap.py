from __future__ import annotations

import math

import torch

from raygnn.loops.evaluation import MIN_BATCHES, batch_intervals
from raygnn.metrics import Accuracy


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
