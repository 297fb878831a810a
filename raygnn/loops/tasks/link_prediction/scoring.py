"""Scores of links and candidates."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from raygnn.losses import Candidates, LinkScores, score_links
from raygnn.models.decoders import Decoder
from raygnn.sampling.batch import BatchLinks, LinkBatch
from raygnn.sampling.negatives import NONE

# Larger than the number of groups in a batch, so that groups of two batches never coincide.
_GROUPS_OF_A_BATCH = 1 << 10


class LinkScoring:
    def __init__(self, node_types: tuple[str, str]) -> None:
        self._anchor_type, self._target_type = node_types

    def ends(self, links: BatchLinks, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """[num_links, channels] of anchors and targets."""
        anchors, targets = links.index
        return rows[self._anchor_type][anchors], rows[self._target_type][targets]

    def offered(
        self, batch: LinkBatch, rows: Mapping[str, Tensor], *, in_batch: bool
    ) -> Candidates:
        links = batch.links
        index, ids, group = links.random.index, links.random.id, links.random.group
        is_target = torch.zeros_like(index, dtype=torch.bool)
        if in_batch:
            index, ids = torch.cat([index, links.index[1]]), torch.cat([ids, links.id[1]])
            is_target = torch.cat([is_target, torch.ones_like(links.query, dtype=torch.bool)])
            if group is not None and links.group is not None:
                group = torch.cat([group, links.group])
        log_q = links.log_q
        return Candidates(
            rows=rows[self._target_type][index],
            ids=ids,
            owner=torch.full_like(ids, -1),
            in_batch=is_target,
            group=_in_step(group, batch),
            draw_probability=None if log_q is None else log_q.draw_probability,
            link_share=None if log_q is None else log_q.link_share,
        )

    def scores(
        self, decoder: Decoder, batch: LinkBatch, rows: Mapping[str, Tensor], offered: Candidates
    ) -> LinkScores:
        """Scores of a training batch among the offered candidates (of one or several batches) and
        hard negatives.
        """
        links = batch.links
        candidates = Candidates.joined([offered, self._hard(batch, rows, offered)])
        anchors, targets = self.ends(links, rows)
        relation = 0 if links.relation is None else links.relation
        return score_links(
            decoder.score_pairs(anchors, targets, relation),
            decoder.score_all(anchors, candidates.rows, relation),
            links.query,
            links.id[1],
            candidates,
            self._known(links, candidates.ids),
            _in_step(links.group, batch),
        )

    def scores_among_all(
        self, decoder: Decoder, batch: LinkBatch, rows: Mapping[str, Tensor]
    ) -> LinkScores:
        """Scores of a training batch among all nodes of the target type.

        If known links are masked, links of one query (an anchor with a relation) share candidates,
        which are scored once per query. Otherwise each link has its own: all but its target.
        """
        links = batch.links
        anchors, targets = self.ends(links, rows)
        relation = 0 if links.relation is None else links.relation
        every = rows[self._target_type][links.random.index]
        positive = decoder.score_pairs(anchors, targets, relation)
        known = links.known_pairs
        if known is None:
            candidate = decoder.score_all(anchors, every, relation)
            mask = links.id[1].unsqueeze(1) == links.random.id
            return LinkScores(positive=positive, candidate=candidate, mask=mask)
        first = _first_of_each(links.query)
        relation = relation if isinstance(relation, int) else relation[first]
        candidate = decoder.score_all(anchors[first], every, relation)
        mask = torch.zeros_like(candidate, dtype=torch.bool)
        mask[known.query, known.id] = True
        return LinkScores(positive=positive, candidate=candidate, mask=mask, query=links.query)

    def evaluation_scores(
        self, decoder: Decoder, links: BatchLinks, rows: Mapping[str, Tensor]
    ) -> LinkScores:
        assert links.candidate is not None
        anchors, targets = self.ends(links, rows)
        relation = 0 if links.relation is None else links.relation
        random = rows[self._target_type][links.random.index]
        # One product scores targets and candidates: in another shape the last bit may differ, and
        # all ties of nodes with equal rows would go one way. The last columns of a product whose
        # width is no multiple of 16 differ too.
        compared = torch.cat([targets, random])
        padding = compared[:1].expand(-len(compared) % 16, -1)
        scores = decoder.score_all(anchors, torch.cat([compared, padding]), relation)
        return LinkScores(
            positive=scores.diagonal(),
            candidate=scores[:, len(targets) :].gather(1, links.candidate.clamp(min=0)),
            mask=links.candidate == NONE,
        )

    def _hard(
        self, batch: LinkBatch, rows: Mapping[str, Tensor], offered: Candidates
    ) -> Candidates:
        links, hard = batch.links, batch.links.hard
        zeros = torch.zeros_like(hard.id)
        group = None
        if offered.group is not None and links.group is not None:
            # Each query is in one group.
            group = torch.zeros_like(links.query)
            group[links.query] = links.group
            group = group[hard.query]
        unread = None if offered.link_share is None else zeros.to(offered.link_share.dtype)
        return Candidates(
            rows=rows[self._target_type][hard.index],
            ids=hard.id,
            owner=hard.query,
            in_batch=zeros.bool(),
            group=_in_step(group, batch),
            draw_probability=unread,
            link_share=unread,
        )

    def _known(self, links: BatchLinks, candidate_ids: Tensor) -> Tensor | None:
        """bool [num_links, num_candidates] of known links, computed on the device without a wait;
        None if they compete.
        """
        known = links.known_pairs
        if known is None:
            return links.known
        # By distinct candidate, of which each stands where the first of its id is in sorted order.
        ordered = candidate_ids.sort().values
        column = torch.searchsorted(ordered, known.id)
        last = len(ordered) - 1
        is_candidate = ordered[column.clamp(max=last)] == known.id
        column = torch.where(is_candidate, column, last + 1)  # one that nothing reads
        is_known = torch.zeros(
            (len(links.query), last + 2), dtype=torch.bool, device=candidate_ids.device
        )
        is_known[known.query, column] = True
        mask = is_known[links.query][:, torch.searchsorted(ordered, candidate_ids)]
        if self._anchor_type == self._target_type:
            mask |= links.id[0].unsqueeze(1) == candidate_ids
        return mask


def _first_of_each(query: Tensor) -> Tensor:
    """Position of the first link of each query, in the order of queries; int64."""
    order = query.argsort(stable=True)
    ordered = query[order]
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return order[is_first]


def _in_step(group: Tensor | None, batch: LinkBatch) -> Tensor | None:
    return None if group is None else group + batch.index * _GROUPS_OF_A_BATCH
