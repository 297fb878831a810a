"""Metrics of compared scores over several ranks, which are threads here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch
from torch import Tensor

from raygnn.metrics import ComparedMetric, ComparedScores, compare

_TIMEOUT_S = 60


def of_ranks_together(
    metric: ComparedMetric, of_ranks: Sequence[tuple[Tensor, Tensor]], num_held: int = 1 << 23
) -> dict[str, float]:
    """The metric of each rank's predictions and targets, seven rows a batch; all ranks agree."""
    barrier, box = Barrier(len(of_ranks)), [torch.empty(0)] * len(of_ranks)

    def exchange(rank: int, rows: Tensor, joined: Callable[[list[Tensor]], Tensor]) -> Tensor:
        box[rank] = rows
        barrier.wait(_TIMEOUT_S)
        found = joined(box)
        barrier.wait(_TIMEOUT_S)
        return found

    def run(rank: int) -> dict[str, float]:
        scores = ComparedScores(metric.num_columns, num_held)
        prediction, target = of_ranks[rank]
        for part, of_part in zip(prediction.split(7), target.split(7), strict=True):
            scores.add(*metric.columns(part, of_part))
        columns = scores.columns(
            lambda rows: exchange(rank, rows, torch.cat),
            lambda counts: exchange(rank, counts, lambda parts: torch.stack(parts).sum(0)),
        )
        return compare([metric], columns)

    with ThreadPoolExecutor(len(of_ranks)) as threads:
        found = list(threads.map(run, range(len(of_ranks))))
    assert len({str(each) for each in found}) == 1  # also where it is NaN
    return found[0]
