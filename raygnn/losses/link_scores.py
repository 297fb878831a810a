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
    """Scores of positive links, and of the candidates that each anchor might link to instead.

    Attributes:
        positive: [num_positives].
        candidate: [num_positives, num_candidates], of the same anchors.
        mask: bool [num_positives, num_candidates], True for excluded candidates: the positive
            itself, other known positives of its anchor, hard negatives of other anchors.
        in_batch: bool [num_candidates], True for targets of other links; None for none.
        log_q: float [num_candidates] or None: logarithm of a candidate's expected number among the
            candidates of a batch, to correct the sampling bias.
        query: int64 [num_positives] or None: the row of each positive, if `candidate` and `mask`
            have one row per query. All positives of a query are masked.
    Raises:
        DataError: shapes do not match.
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
                    f"{list(shape)}: positives by candidates. [loss-link-scores]"
                )
        if self.mask.dtype != torch.bool:
            raise DataError(
                f"LinkScores.mask is {self.mask.dtype}, expected torch.bool: True where a "
                "candidate does not take part. [loss-link-scores]"
            )

    def without_in_batch(self) -> LinkScores:
        """These scores with only random and hard negatives."""
        if self.in_batch is None:
            return self
        return replace(self, mask=self.mask | self.in_batch, in_batch=None)

    def compared(self) -> Tensor:
        """[num_positives, 1 + num_candidates]: each positive, then its candidates; -inf for those
        that do not take part. For scores without `query`.
        """
        candidate = self.candidate.masked_fill(self.mask, -torch.inf)
        return torch.cat([self.positive.unsqueeze(1), candidate], dim=1)

    def of_positives(self, rows: Tensor) -> Tensor:
        """Expands rows by query to rows by positive, [num_positives, ...]."""
        return rows if self.query is None else rows[self.query]

    def by_positive(self) -> LinkScores:
        """These scores with one row of candidates per positive."""
        candidate, mask = self.of_positives(self.candidate), self.of_positives(self.mask)
        return replace(self, candidate=candidate, mask=mask, query=None)


class LinkLoss(nn.Module, ABC):
    """A loss on links.

    As in `Loss`, sums over micro-batches and ranks are added, then divided once by the added
    weights. Each positive has weight 1 in all link losses, so weighted sums of losses are exact
    too.

    Attributes:
        in_batch: other anchors' positives are candidates, besides random and hard negatives.
        candidates: `rank`: candidates of the micro-batch; `global`: of all micro-batches of the
            optimizer step, on all ranks.
        reads_log_q: whether `LinkScores.log_q` matters.
        by_query: accepts scores with `LinkScores.query`.
    """

    in_batch: bool = False
    reads_log_q: bool = False
    by_query: bool = False
    candidates: CandidateScope = "rank"

    @abstractmethod
    def forward(self, scores: LinkScores) -> tuple[Tensor, Tensor | float]:
        """The loss of a micro-batch: a scalar sum over positives, and the divisor."""


def mean_over_candidates(pair_losses: Tensor, mask: Tensor) -> Tensor:
    """Averages over each positive's candidates, [num_positives]; 0 without candidates.

    `pair_losses`: [num_positives, num_candidates], finite also where masked.
    """
    num_candidates = (~mask).sum(dim=1).clamp(min=1)
    return pair_losses.masked_fill(mask, 0).sum(dim=1) / num_candidates


def precise_scores(scores: LinkScores) -> tuple[Tensor, Tensor]:
    """Positive and candidate scores at least in float32, with 0 for masked ones."""
    candidate = scores.candidate.masked_fill(scores.mask, 0)
    return in_full_precision(scores.positive), in_full_precision(candidate)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Nodes that positives compete with.

    Attributes:
        rows: [num_candidates, channels], embeddings.
        ids: int64 [num_candidates], dense ids. May repeat.
        owner: int64 [num_candidates], the only query of a hard negative, -1 for candidates of all;
            None if all belong to all.
        in_batch: bool [num_candidates], True for targets of other links; None for none.
        group: int64 [num_candidates], the only group of links of a candidate; None with one group.
        draw_probability, link_share: float [num_candidates], probability of a random draw, and
            share of all links with this target; None if unused.
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
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in tensors.items() if value is not None}

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        """Concatenates candidates with the same fields."""
        names = parts[0].columns
        return cls(**{n: torch.cat([part.columns[n] for part in parts]) for n in names})

    def log_q(self) -> Tensor | None:
        """Logarithm of each candidate's expected number among these, [num_candidates].

        With n random draws with probabilities p, and the targets of m links as candidates, node v
        is expected n p(v) + m q(v) times, where q(v) is the share of links with target v. A hard
        negative is not drawn and counts once.

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
    """Combines the scores of a batch with a mask of excluded candidates.

    Masked are, for each positive: its own target, hard negatives of other queries, candidates of
    other groups, and `known` positives.

    Args:
        positive: [num_positives], scores of the positive links.
        every: [num_positives, num_candidates], scores of their anchors with every candidate.
        query: int64 [num_positives], anchors as in `candidates.owner`.
        target_ids: int64 [num_positives], dense ids of the targets.
        candidates: in the order of `every`.
        known: bool [num_positives, num_candidates], True for known positives of the anchor; None
            masks no accidental hits.
        group: int64 [num_positives], groups as in `candidates.group`.
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
