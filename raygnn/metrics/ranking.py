"""Metrics of how well scores order rows. They need all rows together."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from raygnn.metrics.base import GatheredMetric, Problem


class _RankingMetric(GatheredMetric):
    """A metric of binary scores, averaged over classes or labels.

    Two classes that exclude each other are one binary problem, the second class against the first.
    More classes are each judged against all others by their probability; labels, each by its logit.
    Averaged is over the classes or labels that have rows of both kinds: where all rows are of one
    kind nothing can be ordered. If that leaves none, or a score is NaN, the metric is NaN.
    """

    problems: tuple[Problem, ...] = ("multi_class", "multi_label")

    def compute(self, prediction: Tensor, target: Tensor) -> dict[str, float]:
        """Gives the score under the metric's name."""
        scores, labels = self._columns(prediction.double(), target)
        if scores.isnan().any():
            return {self.name: math.nan}
        values = [
            self._binary(scores[:, i], labels[:, i])
            for i in range(scores.shape[1])
            if labels[:, i].any() and not labels[:, i].all()
        ]
        return {self.name: math.fsum(values) / len(values) if values else math.nan}

    def _columns(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if self.problem == "multi_label":
            return scores, target.reshape(scores.shape).bool()
        target = target.flatten()
        if scores.shape[1] == 2:
            return (scores[:, 1] - scores[:, 0]).unsqueeze(1), (target == 1).unsqueeze(1)
        # The logarithm keeps the order of probabilities and tells apart those next to 1.
        one_hot = target.unsqueeze(1) == torch.arange(scores.shape[1], device=target.device)
        return scores.log_softmax(dim=1), one_hot

    @abstractmethod
    def _binary(self, scores: Tensor, labels: Tensor) -> float:
        """The metric of float64 scores [num_rows] and bool labels, some true and some false."""


class AUROC(_RankingMetric):
    """Area under the ROC curve, macro-averaged; scikit-learn's `roc_auc_score`.

    The share of (positive, negative) pairs of rows that the scores order rightly, ties by half:
    counted exactly, in whole numbers up to 2^53 pairs.
    """

    name = "auroc"

    def _binary(self, scores: Tensor, labels: Tensor) -> float:
        positive, negative = _counts_by_score(scores, labels)
        negative_below = negative.cumsum(0) - negative
        twice_right = (positive * (2 * negative_below + negative)).sum()
        return float(twice_right.double() / 2 / (positive.sum() * negative.sum()).double())


class AveragePrecision(_RankingMetric):
    """Average precision, macro-averaged; scikit-learn's `average_precision_score`.

    The sum over thresholds of precision times the step in recall, without interpolation.
    """

    name = "average_precision"

    def _binary(self, scores: Tensor, labels: Tensor) -> float:
        positive, negative = (counts.flip(0) for counts in _counts_by_score(scores, labels))
        positive_above = positive.cumsum(0)
        precision = positive_above / (positive_above + negative.cumsum(0)).double()
        return float((precision * positive).sum() / positive.sum())


def _counts_by_score(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Positive and negative rows of each distinct score, ascending; int64."""
    levels, level_of = scores.unique(return_inverse=True)
    positive = torch.bincount(level_of[labels], minlength=len(levels))
    return positive, torch.bincount(level_of, minlength=len(levels)) - positive
