"""Losses that compare a positive with one candidate at a time."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from raygnn.errors import ConfigError
from raygnn.losses.link_scores import (
    LinkLoss,
    LinkScores,
    mean_over_candidates,
    precise_scores,
)


class Margin(LinkLoss):
    """max(0, margin - positive + candidate), averaged over each positive's candidates.

    Args:
        margin: by how much a positive shall score higher.
    Raises:
        ConfigError: it is out of range.
    """

    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        if not isinstance(margin, int | float) or not 0 <= margin < float("inf"):
            raise ConfigError(
                f"losses.args.margin={margin!r} is invalid: it must be at least 0. Set 0.5, or "
                f"more where scores are larger."
            )
        self.margin = float(margin)

    def forward(self, scores: LinkScores) -> tuple[Tensor, Tensor | float]:
        """See `LinkLoss`."""
        scores = scores.without_in_batch()
        positive, candidate = precise_scores(scores)
        lacking = (self.margin - positive.unsqueeze(1) + candidate).relu()
        return mean_over_candidates(lacking, scores.mask).sum(), float(len(positive))


class BPR(LinkLoss):
    """Bayesian personalized ranking, arXiv:1205.2618: -log sigmoid(positive - candidate).

    Averaged over each positive's candidates.
    """

    def forward(self, scores: LinkScores) -> tuple[Tensor, Tensor | float]:
        """See `LinkLoss`."""
        scores = scores.without_in_batch()
        positive, candidate = precise_scores(scores)
        losses = functional.softplus(candidate - positive.unsqueeze(1))
        return mean_over_candidates(losses, scores.mask).sum(), float(len(positive))
