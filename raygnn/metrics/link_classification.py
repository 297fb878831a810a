"""AUC and AP of positive against negative links."""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from raygnn.metrics.base import ComparedMetric
from raygnn.metrics.sampled_ranking import raise_if_nan

_NUM_FIXED = 3  # scores, those that are NaN, and negative links


class _LinkClassification(ComparedMetric):
    """A metric of how positive links are ordered among all negative links of the split.

    There are few positives, and many negatives for each, so each rank sorts its own negatives and
    counts how many lie below every positive.
    """

    problems = ("link_prediction",)

    def few(self, prediction: Tensor) -> Tensor:
        """The scores of positive links, [num_rows].

        Args:
            prediction: scores as `sampled_ranks` takes them.
        """
        return prediction[:, 0].contiguous()

    def count(self, prediction: Tensor, few: Tensor) -> Tensor:
        """How many negatives of this rank are below each distinct positive, and not above it."""
        scores, levels = prediction[:, 1:].numpy(), few.unique().numpy()
        negatives = scores[scores > -np.inf]
        negatives.sort()
        num_nan = int(prediction.isnan().sum())
        counts = [
            np.array([prediction.numel(), num_nan, len(negatives)]),
            np.searchsorted(negatives, levels, side="left"),
            np.searchsorted(negatives, levels, side="right"),
        ]
        return torch.from_numpy(np.concatenate(counts))

    def compute(self, few: Tensor, counts: Tensor) -> dict[str, float]:
        """Gives the metric under its name; NaN without positives or negatives.

        Raises:
            TrainingError: a score is NaN.
        """
        num_scores, num_nan, num_negatives = counts[:_NUM_FIXED].tolist()
        raise_if_nan(num_nan, num_scores, "scores")
        if not len(few) or not num_negatives:
            return {self.name: math.nan}
        # float64 holds whole numbers up to 2^53, and does not wrap around beyond.
        positive = few.unique(return_counts=True)[1].double()
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
