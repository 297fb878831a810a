"""Link prediction as classification of pairs into linked and not linked."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from raygnn.losses.link_scores import (
    LinkLoss,
    LinkScores,
    mean_over_candidates,
    precise_scores,
)


class LinkBinaryCrossEntropy(LinkLoss):
    """Binary cross-entropy on scores as logits, positives and candidates weighing the same.

    Half the loss of the positive plus half the mean loss of its candidates. With one candidate per
    positive it is the mean over all pairs, as of a script with PyG's `negative_sampling`.
    """

    def forward(self, scores: LinkScores) -> tuple[Tensor, Tensor | float]:
        """See `LinkLoss`."""
        scores = scores.without_in_batch()
        positive, candidate = precise_scores(scores)
        of_candidates = mean_over_candidates(functional.softplus(candidate), scores.mask)
        losses = (functional.softplus(-positive) + of_candidates) / 2
        return losses.sum(), float(len(positive))
