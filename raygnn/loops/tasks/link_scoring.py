"""From a batch of links and the embeddings of its nodes to the scores that losses take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from raygnn.data.links.target import LinkTarget
from raygnn.loops.tasks.log_q import LogQ
from raygnn.losses import Candidates, LinkScores, score_links
from raygnn.models.decoders import Decoder


class LinkScoring:
    """Lays out what the links of a batch compete with.

    In time, a link is scored between its ends as of its own time, and a candidate that is embedded
    as of a later time does not compete.

    Args:
        remove_accidental_hits: candidates that are known links of the anchor do not compete.
        is_temporal: batches are sampled in time.
    """

    def __init__(
        self, target: LinkTarget, *, remove_accidental_hits: bool, is_temporal: bool = False
    ) -> None:
        self._target = target
        self._anchor_type, self._target_type = target.node_types
        self._removes_hits = remove_accidental_hits
        self._is_temporal = is_temporal

    def ends(self, batch: Any, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """[num_links, channels] of the anchors and of the targets."""
        anchors, targets = batch.label_index
        return rows[self._anchor_type][anchors], rows[self._target_type][targets]

    def offered(self, batch: Any, rows: Mapping[str, Tensor], *, in_batch: bool) -> Candidates:
        """What competes with every link: random negatives, and the links' targets where asked.

        Args:
            batch: as `LinkLoader` gives it.
            rows: by node type, embeddings of its nodes.
        """
        places, ids = batch.random_negatives, batch.random_negative_id
        is_target = torch.zeros_like(places, dtype=torch.bool)
        if in_batch:
            places, ids = (
                torch.cat([places, batch.label_index[1]]),
                torch.cat([ids, batch.label_id[1]]),
            )
            is_target = torch.cat([is_target, torch.ones_like(batch.label_query, dtype=torch.bool)])
        return self._candidates(batch, rows, places, ids, is_target, torch.full_like(ids, -1))

    def scores(
        self,
        decoder: Decoder,
        batch: Any,
        rows: Mapping[str, Tensor],
        offered: Candidates,
        *,
        with_hard: bool,
        log_q: LogQ | None = None,
    ) -> LinkScores:
        """Scores of the batch's links and of what they compete with.

        Args:
            offered: of this batch, or of several.
            with_hard: hard negatives of the batch compete too, with the links of their anchor.
            log_q: gives each candidate its `LinkScores.log_q`; None gives none.
        """
        candidates = offered
        if with_hard:
            candidates = Candidates.joined([offered, self._hard(batch, rows)])
        if log_q is not None:
            candidates = replace(candidates, log_q=log_q(candidates))
        relation = batch.relation if "relation" in batch else None
        known = self._known(batch.input_id, candidates.ids, relation)
        places, query = batch.anchor_index, batch.label_query
        relation = torch.zeros_like(places) if relation is None else relation
        of_links = relation[query]
        owners = torch.arange(len(places), device=places.device)
        if self._is_temporal:
            # An anchor is another one at each time of its links: each link asks on its own.
            places, owners = batch.label_index[0], query
            known = known[query] | self._is_later(batch, candidates)
            query = torch.arange(len(owners), device=owners.device)
            relation = of_links
        return score_links(
            decoder.score_pairs(*self.ends(batch, rows), of_links),
            decoder.score_all(rows[self._anchor_type][places], candidates.rows, relation),
            query,
            owners,
            batch.label_id[1],
            candidates,
            known,
        )

    def _hard(self, batch: Any, rows: Mapping[str, Tensor]) -> Candidates:
        places, ids = batch.negative_index[1], batch.negative_id[1]
        is_target = torch.zeros_like(places, dtype=torch.bool)
        return self._candidates(batch, rows, places, ids, is_target, batch.negative_query)

    def _candidates(
        self,
        batch: Any,
        rows: Mapping[str, Tensor],
        places: Tensor,
        ids: Tensor,
        is_target: Tensor,
        owner: Tensor,
    ) -> Candidates:
        time = self._times(batch, self._target_type)[places] if self._is_temporal else None
        rows_of_all = rows[self._target_type][places]
        return Candidates(rows=rows_of_all, ids=ids, owner=owner, in_batch=is_target, time=time)

    def _is_later(self, batch: Any, candidates: Candidates) -> Tensor:
        """bool [num_links, num_candidates]: the candidate is of a later time than the link."""
        assert candidates.time is not None
        time_of_link = self._times(batch, self._anchor_type)[batch.label_index[0]]
        return candidates.time > time_of_link.unsqueeze(1)

    def _times(self, batch: Any, node_type: str) -> Tensor:
        store = batch[node_type] if isinstance(batch, HeteroData) else batch
        times: Tensor = store.seed_time
        return times

    def _known(self, anchor_ids: Tensor, candidate_ids: Tensor, relation: Tensor | None) -> Tensor:
        shape = (len(anchor_ids), len(candidate_ids))
        known = torch.zeros(shape, dtype=torch.bool, device=anchor_ids.device)
        if self._removes_hits:
            relations = None if relation is None else relation.cpu().numpy()
            ids = (anchor_ids.cpu().numpy(), candidate_ids.cpu().numpy())
            found = self._target.known.mask(*ids, relations)
            known = torch.from_numpy(found).to(anchor_ids.device)
            if self._anchor_type == self._target_type:
                known |= anchor_ids.unsqueeze(1) == candidate_ids  # nobody links to itself
        return known
