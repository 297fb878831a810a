"""From a batch of links and the embeddings of its nodes to the scores that losses take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from raygnn.losses import Candidates, LinkScores, score_links
from raygnn.models.decoders import Decoder

# More groups than a batch has: tells those of one batch from those of another.
_GROUPS_OF_A_BATCH = 1 << 10


class LinkScoring:
    """Scores the links of a batch, and what they compete with.

    Args:
        node_types: of the anchors and of the targets.
    """

    def __init__(self, node_types: tuple[str, str]) -> None:
        self._anchor_type, self._target_type = node_types

    def ends(self, batch: Any, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """[num_links, channels] of the anchors and of the targets."""
        anchors, targets = batch.label_index
        return rows[self._anchor_type][anchors], rows[self._target_type][targets]

    def offered(self, batch: Any, rows: Mapping[str, Tensor], *, in_batch: bool) -> Candidates:
        """What competes with every link: random negatives, and the links' targets where asked.

        Args:
            batch: as `LinkLoader` gives it for training.
            rows: by node type, embeddings of its nodes.
        """
        index, ids = batch.random_negatives, batch.random_negative_id
        is_target = torch.zeros_like(index, dtype=torch.bool)
        group = batch.random_group if "group" in batch else None
        if in_batch:
            index, ids = (
                torch.cat([index, batch.label_index[1]]),
                torch.cat([ids, batch.label_id[1]]),
            )
            is_target = torch.cat([is_target, torch.ones_like(batch.query, dtype=torch.bool)])
            group = None if group is None else torch.cat([group, batch.group])
        has_log_q = "link_share" in batch
        return Candidates(
            rows=rows[self._target_type][index],
            ids=ids,
            owner=torch.full_like(ids, -1),
            in_batch=is_target,
            group=None if group is None else group + batch.index * _GROUPS_OF_A_BATCH,
            draw_probability=batch.draw_probability if has_log_q else None,
            link_share=batch.link_share if has_log_q else None,
        )

    def scores(
        self, decoder: Decoder, batch: Any, rows: Mapping[str, Tensor], offered: Candidates
    ) -> LinkScores:
        """Scores of a training batch: its links among what is offered, and their hard negatives.

        Args:
            offered: of this batch, or of several.
        """
        candidates = Candidates.joined([offered, self._hard(batch, rows, offered)])
        anchors, targets = self.ends(batch, rows)
        relation = batch.relation if "relation" in batch else 0
        group = batch.group + batch.index * _GROUPS_OF_A_BATCH if "group" in batch else None
        return score_links(
            decoder.score_pairs(anchors, targets, relation),
            decoder.score_all(anchors, candidates.rows, relation),
            batch.query,
            batch.label_id[1],
            candidates,
            self._known(batch, candidates.ids),
            group,
        )

    def evaluation_scores(
        self, decoder: Decoder, batch: Any, rows: Mapping[str, Tensor]
    ) -> LinkScores:
        """Scores of the links of an evaluation batch, each among its own candidates."""
        anchors, targets = self.ends(batch, rows)
        relation = batch.relation if "relation" in batch else 0
        every = decoder.score_all(
            anchors, rows[self._target_type][batch.random_negatives], relation
        )
        return LinkScores(
            positive=decoder.score_pairs(anchors, targets, relation),
            candidate=every.gather(1, batch.candidate),
            mask=torch.zeros_like(batch.candidate, dtype=torch.bool),
        )

    def _hard(self, batch: Any, rows: Mapping[str, Tensor], offered: Candidates) -> Candidates:
        index, ids = batch.negative_index, batch.negative_id
        zeros = torch.zeros_like(ids)
        group = None
        if offered.group is not None:
            # Each query is in one group.
            group = torch.zeros_like(batch.query)
            group[batch.query] = batch.group + batch.index * _GROUPS_OF_A_BATCH
            group = group[batch.negative_query]
        unread = None if offered.link_share is None else zeros.to(offered.link_share.dtype)
        return Candidates(
            rows=rows[self._target_type][index],
            ids=ids,
            owner=batch.negative_query,
            in_batch=zeros.bool(),
            group=group,
            draw_probability=unread,
            link_share=unread,
        )

    def _known(self, batch: Any, candidate_ids: Tensor) -> Tensor | None:
        """bool [num_links, num_candidates]: what is a known link; None where that may compete.

        On the batch's device alone: nothing waits for it, and nothing is copied to the host.
        """
        if "known" in batch:
            mask: Tensor = batch.known
            return mask
        if "known_query" not in batch:
            return None
        # By distinct candidate, of which each stands where the first of its id is in sorted order.
        ordered = candidate_ids.sort().values
        column = torch.searchsorted(ordered, batch.known_target)
        last = len(ordered) - 1
        is_candidate = ordered[column.clamp(max=last)] == batch.known_target
        column = torch.where(is_candidate, column, last + 1)  # one that nothing reads
        found = torch.zeros(
            (len(batch.query), last + 2), dtype=torch.bool, device=candidate_ids.device
        )
        found[batch.known_query, column] = True
        mask = found[batch.query][:, torch.searchsorted(ordered, candidate_ids)]
        if self._anchor_type == self._target_type:
            mask |= batch.label_id[0].unsqueeze(1) == candidate_ids
        return mask
