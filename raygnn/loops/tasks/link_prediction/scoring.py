"""From a batch of links and the embeddings of its nodes to the scores that losses take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from raygnn.data.links.supervision import KnownLinks
from raygnn.losses import Candidates, LinkScores, score_links
from raygnn.models.decoders import Decoder

# More groups than a batch has: tells those of one batch from those of another.
_GROUPS_OF_A_BATCH = 1 << 10


class LinkScoring:
    """Scores the links of a batch, and what they compete with.

    Args:
        node_types: of the anchors and of the targets.
        known: links that may not compete, for batches that do not say which those are: their
            candidates come from other batches of the step, too. None lets them.
    """

    def __init__(self, node_types: tuple[str, str], known: KnownLinks | None) -> None:
        self._anchor_type, self._target_type = node_types
        self._known = known

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
            batch.known if "known" in batch else self._find_known(batch, candidates.ids),
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
            group = zeros.new_zeros(int(batch.query.max()) + 1)
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

    def _find_known(self, batch: Any, candidate_ids: Tensor) -> Tensor | None:
        if self._known is None:
            return None
        relation = batch.relation.cpu().numpy() if "relation" in batch else None
        ids = batch.label_id[0].cpu().numpy(), candidate_ids.cpu().numpy()
        return torch.from_numpy(self._known.mask(*ids, relation)).to(candidate_ids.device)
