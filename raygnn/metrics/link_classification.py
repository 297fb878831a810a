"""AUC and AP of positive against negative links."""

from __future__ import annotations

import math
import tempfile
from abc import abstractmethod
from collections.abc import Iterator
from typing import IO

import numpy as np
import torch
from torch import Tensor

from raygnn.metrics.base import ComparedMetric
from raygnn.metrics.sampled_ranking import raise_if_nan

_NUM_FIXED = 3  # scores, those that are NaN, and negative links
# Negative scores that a rank holds in memory: 64 MB of float32.
_NUM_HELD = 1 << 24


class ComparedScores:
    """Scores of positive links, and counts of the negative ones below them, in bounded memory.

    There are few positives, and many negatives for each. Negatives beyond `num_held` are sorted and
    written to a temporary file, block by block, so counts are exact however many there are.
    """

    def __init__(self, num_held: int = _NUM_HELD) -> None:
        self._num_held = num_held
        self._positives = [torch.empty(0)]
        self._held = [np.empty(0, np.float32)]
        self._file: IO[bytes] | None = None
        self._blocks: list[int] = []
        self._num_scores = self._num_nan = 0

    def add(self, prediction: Tensor) -> None:
        """Takes one batch of this rank, scores as `sampled_ranks` takes them."""
        scores = prediction.detach().float().cpu()
        self._num_scores += scores.numel()
        self._num_nan += int(scores.isnan().sum())
        self._positives.append(scores[:, 0].clone())
        negatives = scores[:, 1:].numpy()
        self._held.append(negatives[negatives > -np.inf])
        if sum(map(len, self._held)) > self._num_held:
            self._write()

    def positives(self) -> Tensor:
        """float32 [num_positives], of this rank."""
        return torch.cat(self._positives)

    def count(self, positives: Tensor) -> Tensor:
        """Counts this rank's negatives below each distinct positive, and not above it; once.

        Args:
            positives: those of all ranks, in any order.
        Returns:
            int64, to be added to the other ranks'.
        """
        levels = positives.unique().numpy()
        below, not_above = np.zeros((2, len(levels)), np.int64)
        num_negatives = 0
        for block in self._sorted_blocks():
            num_negatives += len(block)
            below += np.searchsorted(block, levels, side="left")
            not_above += np.searchsorted(block, levels, side="right")
        fixed = [self._num_scores, self._num_nan, num_negatives]
        return torch.from_numpy(np.concatenate([fixed, below, not_above]))

    def _sorted_blocks(self) -> Iterator[np.ndarray]:
        yield np.sort(np.concatenate(self._held))
        if self._file is not None:
            with self._file as file:
                file.seek(0)
                for size in self._blocks:
                    yield np.frombuffer(file.read(4 * size), np.float32)

    def _write(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - `count` closes it
        block = np.sort(np.concatenate(self._held))
        self._file.write(block.tobytes())
        self._blocks.append(len(block))
        self._held = [np.empty(0, np.float32)]


class _LinkClassification(ComparedMetric):
    """A metric of how positive links are ordered among all negative links of the split."""

    problems = ("link_prediction",)

    def compute(self, positives: Tensor, counts: Tensor) -> dict[str, float]:
        """Gives the metric under its name; NaN without positives or negatives.

        Raises:
            TrainingError: a score is NaN.
        """
        num_scores, num_nan, num_negatives = counts[:_NUM_FIXED].tolist()
        raise_if_nan(num_nan, num_scores, "scores")
        if not len(positives) or not num_negatives:
            return {self.name: math.nan}
        # float64 holds whole numbers up to 2^53, and does not wrap around beyond.
        positive = positives.unique(return_counts=True)[1].double()
        below, not_above = counts[_NUM_FIXED:].double().view(2, -1)
        return {self.name: self._of_counts(positive, below, not_above, num_negatives)}

    @abstractmethod
    def _of_counts(
        self, positive: Tensor, below: Tensor, not_above: Tensor, num_negatives: int
    ) -> float:
        """The metric from counts by distinct score of a positive, ascending."""


class LinkAUC(_LinkClassification):
    """Area under the ROC curve of positive against negative links; `roc_auc_score`."""

    name = "auc"

    def _of_counts(
        self, positive: Tensor, below: Tensor, not_above: Tensor, num_negatives: int
    ) -> float:
        twice_right = (positive * (below + not_above)).sum()
        return float(twice_right / 2 / (positive.sum() * num_negatives))


class LinkAveragePrecision(_LinkClassification):
    """Average precision of positive among negative links; `average_precision_score`."""

    name = "ap"

    def _of_counts(
        self, positive: Tensor, below: Tensor, not_above: Tensor, num_negatives: int
    ) -> float:
        positive = positive.flip(0)
        positive_above = positive.cumsum(0)
        precision = positive_above / (positive_above + (num_negatives - below).flip(0))
        return float((precision * positive).sum() / positive.sum())
