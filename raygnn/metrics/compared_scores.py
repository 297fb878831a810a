"""Exact comparison of positive and negative scores in bounded memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO

import numpy as np
import torch
from torch import Tensor

from raygnn.metrics.base import ComparedMetric, ScoreCounts

# Scores that a rank holds before it sorts them: 64 MB of float64.
_NUM_HELD = 1 << 23
_NUM_FIXED = 3  # scores, those that are NaN, and negative ones


class ComparedScores:
    """Columns of scores: the positives, and counts of negatives below them.

    Beyond `num_held` scores, positives are kept, and negatives are sorted and written to a
    temporary file in blocks. Counts are exact for any number.
    """

    def __init__(self, num_columns: int, num_held: int = _NUM_HELD) -> None:
        self._num_held = num_held
        self._held: list[tuple[np.ndarray, np.ndarray]] = []
        self._num_now = 0
        self._totals = np.zeros((num_columns, _NUM_FIXED), np.int64)
        self._positives: list[list[np.ndarray]] = [[] for _ in range(num_columns)]
        self._last = [np.empty(0)] * num_columns  # sorted negatives of what is held
        self._file: IO[bytes] | None = None
        self._blocks: list[list[tuple[int, int]]] = [[] for _ in range(num_columns)]

    def add(self, scores: Tensor, is_positive: Tensor) -> None:
        """Adds one batch of this rank; [num_rows, num_columns], floating and bool."""
        if self._num_now + scores.numel() > self._num_held:
            self._write()
        # Copies: a slice would keep the storage of a whole batch.
        self._held.append((np.array(scores.double().cpu()), np.array(is_positive.cpu())))
        self._num_now += scores.numel()

    def columns(
        self,
        gather: Callable[[Tensor], Tensor] = lambda rows: rows,
        add: Callable[[Tensor], Tensor] = lambda counts: counts,
    ) -> Iterator[ScoreCounts]:
        """Yields the counts of each column. Call it once.

        Args:
            gather: gathers rows of all ranks.
            add: sums counts over all ranks.
        """
        self._last = self._cut()
        for column, parts in enumerate(self._positives):
            positives = gather(torch.from_numpy(np.concatenate([np.empty(0), *parts])))
            levels, positive = positives.unique(return_counts=True)
            counts = add(self._count(column, levels.numpy()))
            num_scores, num_nan, num_negatives = counts[:_NUM_FIXED].tolist()
            below, not_above = counts[_NUM_FIXED:].double().view(2, -1)
            yield ScoreCounts(
                positive.double(), below, not_above, num_negatives, num_scores, num_nan
            )
        if self._file is not None:
            self._file.close()

    def _count(self, column: int, levels: np.ndarray) -> Tensor:
        """int64: stored counts, then negatives of this rank below each level and not above it."""
        below, not_above = np.zeros((2, len(levels)), np.int64)
        for block in self._sorted_blocks(column):
            below += np.searchsorted(block, levels, side="left")
            not_above += np.searchsorted(block, levels, side="right")
        return torch.from_numpy(np.concatenate([self._totals[column], below, not_above]))

    def _sorted_blocks(self, column: int) -> Iterator[np.ndarray]:
        yield self._last[column]
        for start, size in self._blocks[column]:
            assert self._file is not None
            self._file.seek(start)
            yield np.frombuffer(self._file.read(size))

    def _write(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - `columns` closes it
        for column, block in enumerate(self._cut()):
            self._blocks[column].append((self._file.tell(), block.nbytes))
            self._file.write(block.tobytes())

    def _cut(self) -> list[np.ndarray]:
        if not self._held:
            return [np.empty(0)] * len(self._positives)
        scores, is_positive = (np.concatenate(parts) for parts in zip(*self._held, strict=True))
        self._held, self._num_now = [], 0
        negatives = []
        for column, (values, chosen) in enumerate(zip(scores.T, is_positive.T, strict=True)):
            self._positives[column].append(values[chosen])
            negatives.append(np.sort(values[~chosen]))
            of_column = (len(values), np.isnan(values).sum(), len(negatives[-1]))
            self._totals[column] += np.array(of_column)
        return negatives


def compare(metrics: Sequence[ComparedMetric], columns: Iterator[ScoreCounts]) -> dict[str, float]:
    values = [[metric.of_column(counts) for metric in metrics] for counts in columns]
    results: dict[str, float] = {}
    for index, metric in enumerate(metrics):
        results.update(metric.compute([row[index] for row in values]))
    return results
