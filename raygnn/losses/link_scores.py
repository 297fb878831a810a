"""What link losses are computed from: the scores of positives, and of what they compete with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from raygnn.errors import DataError
from raygnn.losses.base import in_full_precision

CandidateScope = Literal["rank", "global"]


@dataclass(frozen=True, kw_only=True)
class LinkScores:
    """Scores of positive links, each beside the candidates that its anchor might link to instead.

    Attributes:
        positive: [num_positives], the scores of the positive links.
        candidate: [num_positives, num_candidates], scores of the same anchors with the candidates.
        mask: bool [num_positives, num_candidates], True where a candidate does not take part: the
            positive itself, another known positive of its anchor, another anchor's hard negative.
        in_batch: bool [num_candidates], the targets of other links; None if none is.
        log_q: float [num_candidates] or None: logarithm of the number of times that the candidate
            is expected among the candidates of a batch, against the bias of drawing.
    Raises:
        DataError: the shapes do not fit each other.
    """

    positive: Tensor
    candidate: Tensor
    mask: Tensor
    in_batch: Tensor | None = None
    log_q: Tensor | None = None

    def __post_init__(self) -> None:
        num_positives, num_candidates = self.positive.shape[0], self.candidate.shape[-1]
        expected = {
            "positive": (self.positive, (num_positives,)),
            "candidate": (self.candidate, (num_positives, num_candidates)),
            "mask": (self.mask, (num_positives, num_candidates)),
            "in_batch": (self.in_batch, (num_candidates,)),
            "log_q": (self.log_q, (num_candidates,)),
        }
        for name, (tensor, shape) in expected.items():
            if tensor is not None and tensor.shape != shape:
                raise DataError(
                    f"LinkScores.{name} has the shape {list(tensor.shape)}, expected "
                    f"{list(shape)}: one row per positive, one column per candidate."
                )
        if self.mask.dtype != torch.bool:
            raise DataError(
                f"LinkScores.mask is {self.mask.dtype}, expected torch.bool: True where a "
                f"candidate does not take part."
            )

    def without_in_batch(self) -> LinkScores:
        """The same with random and hard negatives alone."""
        if self.in_batch is None:
            return self
        return replace(self, mask=self.mask | self.in_batch, in_batch=None)


class LinkLoss(nn.Module, ABC):
    """A loss on links.

    As of a `Loss`, its sums over micro-batches and ranks are added and divided once by the added
    weights. Each positive weighs 1 in all link losses, so weighted sums of them are exact too.

    Attributes:
        in_batch: the candidates of a positive are the other anchors' positives too, beside random
            and hard negatives.
        candidates: `rank` takes the candidates of the micro-batch; `global` those of all the
            micro-batches of the optimizer step, on all ranks.
        reads_log_q: whether `LinkScores.log_q` changes anything.
    """

    in_batch: bool = False
    reads_log_q: bool = False
    candidates: CandidateScope = "rank"

    @abstractmethod
    def forward(self, scores: LinkScores) -> tuple[Tensor, Tensor | float]:
        """Computes the loss of one micro-batch.

        Returns:
            The loss summed over the positives (a scalar with gradient), and what it is divided by.
        """


def mean_over_candidates(pair_losses: Tensor, mask: Tensor) -> Tensor:
    """Averages over each positive's candidates; 0 for one without any; [num_positives].

    Args:
        pair_losses: [num_positives, num_candidates], finite also where masked.
    """
    num_candidates = (~mask).sum(dim=1).clamp(min=1)
    return pair_losses.masked_fill(mask, 0).sum(dim=1) / num_candidates


def precise_scores(scores: LinkScores) -> tuple[Tensor, Tensor]:
    """Positive and candidate scores in float32 at least, masked ones replaced by 0."""
    candidate = scores.candidate.masked_fill(scores.mask, 0)
    return in_full_precision(scores.positive), in_full_precision(candidate)
