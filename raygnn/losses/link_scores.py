"""Inputs of link losses: scores of positives and of their candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor, nn

from raygnn.errors import DataError
from raygnn.losses.seed_losses import in_full_precision

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
        query: int64 [num_positives] or None: rows of `candidate` and `mask` are those of queries,
            once each, and this is the row of each positive. All positives of a query are masked.
    Raises:
        DataError: the shapes do not fit each other.
    """

    positive: Tensor
    candidate: Tensor
    mask: Tensor
    in_batch: Tensor | None = None
    log_q: Tensor | None = None
    query: Tensor | None = None

    def __post_init__(self) -> None:
        num_positives, num_candidates = self.positive.shape[0], self.candidate.shape[-1]
        num_rows = num_positives if self.query is None else self.mask.shape[0]
        expected = {
            "positive": (self.positive, (num_positives,)),
            "candidate": (self.candidate, (num_rows, num_candidates)),
            "mask": (self.mask, (num_rows, num_candidates)),
            "query": (self.query, (num_positives,)),
            "in_batch": (self.in_batch, (num_candidates,)),
            "log_q": (self.log_q, (num_candidates,)),
        }
        for name, (tensor, shape) in expected.items():
            if tensor is not None and tensor.shape != shape:
                raise DataError(
                    f"LinkScores.{name} has the shape {list(tensor.shape)}, expected "
                    f"{list(shape)}: one row per positive, one column per candidate.",
                    id="loss-link-scores",
                )
        if self.mask.dtype != torch.bool:
            raise DataError(
                f"LinkScores.mask is {self.mask.dtype}, expected torch.bool: True where a "
                f"candidate does not take part.",
                id="loss-link-scores",
            )

    def without_in_batch(self) -> LinkScores:
        """These scores with random and hard negatives only."""
        if self.in_batch is None:
            return self
        return replace(self, mask=self.mask | self.in_batch, in_batch=None)

    def of_positives(self, rows: Tensor) -> Tensor:
        """Rows of `candidate`, or what was made of each, by positive; [num_positives, ...]."""
        return rows if self.query is None else rows[self.query]

    def by_positive(self) -> LinkScores:
        """These scores with one row of candidates per positive."""
        candidate, mask = self.of_positives(self.candidate), self.of_positives(self.mask)
        return replace(self, candidate=candidate, mask=mask, query=None)


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
        by_query: it takes scores with `LinkScores.query`.
    """

    in_batch: bool = False
    reads_log_q: bool = False
    by_query: bool = False
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


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Nodes that positives compete with.

    Attributes:
        rows: [num_candidates, channels], embeddings.
        ids: int64 [num_candidates], dense ids; a node may be there several times.
        owner: int64 [num_candidates], the only query that the candidate is for (a hard negative),
            -1 where it is for all; None if all are for all.
        in_batch: bool [num_candidates], the target of another link; None if none is.
        group: int64 [num_candidates], the only group of links that it is for; None if there is one.
        draw_probability, link_share: float [num_candidates], of one random draw being the
            candidate, and the share of all links that lead to it; None if nothing reads them.
    """

    rows: Tensor
    ids: Tensor
    owner: Tensor | None = None
    in_batch: Tensor | None = None
    group: Tensor | None = None
    draw_probability: Tensor | None = None
    link_share: Tensor | None = None

    @property
    def columns(self) -> dict[str, Tensor]:
        """The fields that there are, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        """The candidates of all parts, which have the same fields."""
        names = parts[0].columns
        return cls(**{n: torch.cat([part.columns[n] for part in parts]) for n in names})

    def log_q(self) -> Tensor | None:
        """The logarithm of how often each candidate is expected among these; [num_candidates].

        With n random draws by the probabilities p, and the targets of m links as candidates, node v
        is expected n p(v) + m q(v) times, q(v) being the share of links that lead to v. A hard
        negative is not a draw: it is expected once.

        Source: Sampling-Bias-Corrected Neural Modeling, Yi et al., RecSys 2019, section 3.
        """
        if self.link_share is None or self.draw_probability is None:
            return None
        is_hard = torch.zeros_like(self.ids, dtype=torch.bool)
        if self.owner is not None:
            is_hard = self.owner >= 0
        is_target = torch.zeros_like(is_hard) if self.in_batch is None else self.in_batch
        num_random = (~(is_target | is_hard)).sum()
        expected = num_random * self.draw_probability + is_target.sum() * self.link_share
        return expected.masked_fill(is_hard, 1.0).log().float()


def score_links(
    positive: Tensor,
    every: Tensor,
    query: Tensor,
    target_ids: Tensor,
    candidates: Candidates,
    known: Tensor | None = None,
    group: Tensor | None = None,
) -> LinkScores:
    """Puts the scores of a batch beside a mask of what may not compete.

    Masked are, for each positive: its own target wherever it is among the candidates, hard
    negatives of other queries, candidates of other groups, and what `known` says.

    Args:
        positive: [num_positives], the scores of the positive links.
        every: [num_positives, num_candidates], the scores of their anchors with every candidate.
        query: int64 [num_positives], what `candidates.owner` calls the anchors.
        target_ids: int64 [num_positives], dense ids of the positives' targets.
        candidates: in the order of `every`.
        known: bool [num_positives, num_candidates], True where the candidate is a known positive of
            the anchor; None masks no accidental hit.
        group: int64 [num_positives], what `candidates.group` calls their groups.
    """
    mask = target_ids.unsqueeze(1) == candidates.ids
    if known is not None:
        mask |= known
    if candidates.owner is not None:
        mask |= (candidates.owner != query.unsqueeze(1)) & (candidates.owner >= 0)
    if candidates.group is not None and group is not None:
        mask |= candidates.group != group.unsqueeze(1)
    return LinkScores(
        positive=positive,
        candidate=every,
        mask=mask,
        in_batch=candidates.in_batch,
        log_q=candidates.log_q(),
    )
