"""AUC and AP of positive against negative links."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from raygnn.metrics.base import ComparedMetric, ScoreCounts
from raygnn.metrics.sampled_ranking import raise_if_nan


class _LinkClassification(ComparedMetric):
    problems = ("link_prediction",)
    num_columns = 1

    def columns(self, prediction: Tensor, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `ComparedMetric`.

        Args:
            prediction: scores as `sampled_ranks` takes them.
            target: not read.
        """
        is_positive = torch.zeros_like(prediction, dtype=torch.bool)
        is_positive[:, 0] = True
        takes_part = is_positive | (prediction != -torch.inf)
        return prediction[takes_part].unsqueeze(1), is_positive[takes_part].unsqueeze(1)

    def of_column(self, counts: ScoreCounts) -> float | None:
        raise_if_nan(counts.num_nan, counts.num_scores, "scores")
        return self._of_counts(counts) if counts.has_both else None

    @abstractmethod
    def _of_counts(self, counts: ScoreCounts) -> float:
        """The metric of scores, some of which are positive and some negative."""


class LinkAUC(_LinkClassification):
    """Area under the ROC curve of positive against negative links; `roc_auc_score`."""

    name = "auc"

    def _of_counts(self, counts: ScoreCounts) -> float:
        return counts.auc()


class LinkAveragePrecision(_LinkClassification):
    """Average precision of positive among negative links; `average_precision_score`."""

    name = "ap"

    def _of_counts(self, counts: ScoreCounts) -> float:
        return counts.average_precision()
