"""Losses on links: a positive against its candidates."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from raygnn.errors import ConfigError
from raygnn.losses.link_scores import (
    CandidateScope,
    LinkLoss,
    LinkScores,
    mean_over_candidates,
    precise_scores,
)
from raygnn.losses.seed_losses import in_full_precision


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
                f"more where scores are larger.",
                id="loss-argument",
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


class _SampledSoftmax(LinkLoss):
    """Cross-entropy of each positive in the softmax over itself and its candidates.

    With log_q, exp(score) of a candidate is divided by the number of times that it is expected
    among the candidates. Their sum is then an unbiased estimate of the sum over all nodes. The
    positive is always present and is not corrected ("Correcting the LogQ Correction",
    arXiv:2507.09331).
    """

    reads_log_q = True

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if not isinstance(temperature, int | float) or not 0 < temperature < float("inf"):
            raise ConfigError(
                f"losses.args.temperature={temperature!r} is invalid: it must be greater than 0. "
                f"Set 1.0 to leave the scores as they are, or 0.1 for embeddings of unit length.",
                id="loss-argument",
            )
        self.temperature = float(temperature)

    def forward(self, scores: LinkScores) -> tuple[Tensor, Tensor | float]:
        """See `LinkLoss`."""
        if not self.in_batch:
            scores = scores.without_in_batch()
        positive = in_full_precision(scores.positive).unsqueeze(1) / self.temperature
        candidate = in_full_precision(scores.candidate) / self.temperature
        if scores.log_q is not None:
            candidate = candidate - scores.log_q.to(candidate.dtype)
        candidate = candidate.masked_fill(scores.mask, -torch.inf)
        total = torch.cat([positive, candidate], dim=1).logsumexp(dim=1, keepdim=True)
        return (total - positive).sum(), float(len(positive))


class Retrieval(_SampledSoftmax):
    """Softmax of each positive against everything in the batch.

    Candidates are the positives of the other anchors, the random negatives and the hard negatives.

    Args:
        temperature: divides the scores.
        candidates: `rank`: of the micro-batch; `global`: of all micro-batches of the optimizer step
            together, whichever rank has them and however many it accumulates. The loss and its
            gradient then do not depend on how the global batch is cut.
    Raises:
        ConfigError: an argument is out of range.
    """

    in_batch = True

    def __init__(self, temperature: float = 1.0, candidates: CandidateScope = "rank") -> None:
        super().__init__(temperature)
        if candidates not in ("rank", "global"):
            raise ConfigError(
                f"losses.args.candidates={candidates!r} is invalid: it must be one of rank, "
                f"global. Set one of these.",
                id="loss-argument",
            )
        self.candidates = candidates


class SoftmaxOwnNegatives(_SampledSoftmax):
    """Softmax of each positive against random negatives and its own anchor's hard negatives.

    Args:
        temperature: divides the scores.
    Raises:
        ConfigError: it is out of range.
    """
