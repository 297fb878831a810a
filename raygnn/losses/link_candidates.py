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
        owner: int64 [num_candidates], the only anchor that the candidate is for (a hard negative),
            -1 where it is for all; None if all are for all.
        in_batch: bool [num_candidates], the target of another link; None if none is.
        time: int64 or float64 [num_candidates], as of when each is embedded; None without time.
        log_q: see `LinkScores`.
    """

    rows: Tensor
    ids: Tensor
    owner: Tensor | None = None
    in_batch: Tensor | None = None
    time: Tensor | None = None
    log_q: Tensor | None = None

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


def score_links(
    positive: Tensor,
    every: Tensor,
    anchor_index: Tensor,
    anchor_ids: Tensor,
    target_ids: Tensor,
    candidates: Candidates,
    known: Tensor | None = None,
) -> LinkScores:
    """Lays out the scores of a batch by positive, and masks what may not compete.

    Masked are, for each positive: its own target wherever it is among the candidates, hard
    negatives of other anchors, and what `known` says.

    Args:
        positive: [num_positives], the scores of the positive links.
        every: [num_anchors, num_candidates], the scores of each distinct anchor with every
            candidate.
        anchor_index: int64 [num_positives], the anchor of each positive, as a row of `every`.
        anchor_ids: int64 [num_anchors], what `candidates.owner` calls the anchors.
        target_ids: int64 [num_positives], dense ids of the positives' targets.
        candidates: in the order of `every`.
        known: bool [num_anchors, num_candidates], True where the candidate is a known positive of
            the anchor; None masks no accidental hit.
    """
    mask = target_ids.unsqueeze(1) == candidates.ids
    if known is not None:
        mask |= known[anchor_index]
    if candidates.owner is not None:
        is_others = candidates.owner != anchor_ids.unsqueeze(1)
        mask |= (is_others & (candidates.owner >= 0))[anchor_index]
    return LinkScores(
        positive=positive,
        candidate=every[anchor_index],
        mask=mask,
        in_batch=candidates.in_batch,
        log_q=candidates.log_q,
    )
