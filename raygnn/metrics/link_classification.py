"""AUC and AP of positive against negative links."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raygnn.metrics.ranking import AUROC, AveragePrecision
from raygnn.metrics.sampled_ranking import check_scores


def links_and_labels(scores: Tensor) -> tuple[Tensor, Tensor]:
    """All links of all rows together: float64 scores and bool labels, both [num_links].

    Args:
        scores: as `sampled_ranks` takes them.
    Raises:
        TrainingError: a score is NaN.
    """
    check_scores(scores, "scores")
    negative = scores[:, 1:]
    negative = negative[negative > -torch.inf]
    labels = torch.zeros(len(scores) + len(negative), dtype=torch.bool, device=scores.device)
    labels[: len(scores)] = True
    return torch.cat([scores[:, 0], negative]).double(), labels


class LinkAUC(AUROC):
    """Area under the ROC curve of positive against negative links; `roc_auc_score`."""

    name = "auc"
    problems = ("link_prediction",)

    def compute(self, prediction: Tensor, target: Tensor | None = None) -> dict[str, float]:
        """Gives `auc`; NaN without positives or negatives.

        Args:
            prediction: scores of all ranks as `sampled_ranks` takes them.
            target: not read.
        Raises:
            TrainingError: a score is NaN.
        """
        scores, labels = links_and_labels(prediction)
        has_both = labels.any() and not labels.all()
        return {self.name: self._binary(scores, labels) if has_both else math.nan}


class LinkAveragePrecision(AveragePrecision):
    """Average precision of positive among negative links; `average_precision_score`."""

    name = "ap"
    problems = ("link_prediction",)

    def compute(self, prediction: Tensor, target: Tensor | None = None) -> dict[str, float]:
        """Gives `ap`; see `LinkAUC.compute`."""
        scores, labels = links_and_labels(prediction)
        has_both = labels.any() and not labels.all()
        return {self.name: self._binary(scores, labels) if has_both else math.nan}
