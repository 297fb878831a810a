"""From embeddings to the scores that link losses take: whom a positive competes with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from raygnn.losses.link_scores import LinkScores


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
