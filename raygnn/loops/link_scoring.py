"""From a batch of links and the embeddings of its nodes to the scores that losses take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from raygnn.data.link_target import LinkTarget
from raygnn.losses import Candidates, LinkScores, score_links
from raygnn.models.decoders import Decoder


class LinkScoring:
    """Lays out what the links of a batch compete with.

    Args:
        in_batch: in training the targets of other anchors compete too.
        remove_accidental_hits: candidates that are known links of the anchor do not.
    """

    def __init__(self, target: LinkTarget, *, in_batch: bool, remove_accidental_hits: bool) -> None:
        self._target = target
        self._anchor_type, _, self._target_type = target.edge_type
        self._in_batch = in_batch
        self._removes_hits = remove_accidental_hits

    def scores(
        self,
        decoder: Decoder,
        batch: Any,
        rows: Mapping[str, Tensor],
        *,
        fixed_candidates: bool,
    ) -> LinkScores:
        """Scores of the batch's links and of what they compete with.

        Args:
            batch: as `LinkLoader` gives it.
            rows: by node type, embeddings of its nodes.
            fixed_candidates: only the random negatives, as in evaluation.
        """
        candidates = self.candidates(batch, rows, fixed=fixed_candidates)
        anchor_rows = rows[self._anchor_type][batch.anchor_index]
        return score_links(
            decoder.score_pairs(*self.ends(batch, rows)),
            decoder.score_all(anchor_rows, candidates.rows),
            batch.label_query,
            torch.arange(len(batch.input_id), device=batch.input_id.device),
            batch.label_id[1],
            candidates,
            self._known(batch.input_id, candidates.ids),
        )

    def ends(self, batch: Any, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """[num_links, channels] of the anchors and of the targets."""
        anchors, targets = batch.label_index
        return rows[self._anchor_type][anchors], rows[self._target_type][targets]

    def candidates(self, batch: Any, rows: Mapping[str, Tensor], *, fixed: bool) -> Candidates:
        """Random negatives; in training hard ones, and in-batch targets where a loss asks."""
        places, ids = [batch.random_negatives], [batch.random_negative_id]
        owners = [torch.full_like(batch.random_negatives, -1)]
        if not fixed:
            places.append(batch.negative_index[1])
            ids.append(batch.negative_id[1])
            owners.append(batch.negative_query)
            if self._in_batch:
                places.append(batch.label_index[1])
                ids.append(batch.label_id[1])
                owners.append(torch.full_like(batch.label_index[1], -1))
        return Candidates(
            rows=rows[self._target_type][torch.cat(places)],
            ids=torch.cat(ids),
            owner=torch.cat(owners),
        )

    def _known(self, anchor_ids: Tensor, candidate_ids: Tensor) -> Tensor | None:
        if not self._removes_hits:
            return None
        found = self._target.known.mask(anchor_ids.cpu().numpy(), candidate_ids.cpu().numpy())
        known = torch.from_numpy(found).to(anchor_ids.device)
        if self._anchor_type == self._target_type:
            known |= anchor_ids.unsqueeze(1) == candidate_ids  # nobody is asked to link to itself
        return known
