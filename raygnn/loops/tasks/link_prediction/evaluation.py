"""Evaluation of links: ranks among all nodes, and ranks by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from raygnn.data.bundle import Bundle
from raygnn.data.links.supervision import KnownLinks, SupervisionEdges
from raygnn.device_memory import copied
from raygnn.loops.tasks.link_prediction.target import LinkTarget
from raygnn.metrics import FullRanking, Links, SumMetric
from raygnn.metrics.diagnostics import Diagnostic, sums_by_bin
from raygnn.metrics.full_ranking import ScoreAll
from raygnn.metrics.sampled_ranking import sampled_ranks
from raygnn.models.decoders import Decoder
from raygnn.recommender.choice import links_of_rows
from raygnn.recommender.known_links import LinkHistory

#: Scores of rows in memory.
SCORES_AT_A_TIME = 1 << 24
#: Metric of the encoder without its recommender.
ENCODER_NDCG = "full_encoder_ndcg@20"


class RowsAtTime(NamedTuple):
    """Embeddings of the rows of (anchor, time, targets) of one time.

    Attributes:
        positions: int64 [num_rows], ascending, among the rows of the split.
        anchors: [num_rows, channels], possibly computed when they are read.
        targets: [num_targets, channels], of all targets.
        known: links that rank last, [num_rows, num_targets], if any do.
    """

    positions: np.ndarray
    anchors: Any
    targets: Tensor
    known: sparse.csr_matrix | None = None


class FullRankingEvaluation(SumMetric):
    """Ranks batches among embeddings of all targets, computed once per evaluation. `ks`: see
    `FullRanking`. Reads the positions of links on the host, and waits for the device in each batch.
    """

    name = "full_ranking"
    problems = ("link_prediction",)

    def __init__(self, bundle: Bundle, num_candidates: int, ks: Sequence[int] | None) -> None:
        super().__init__(num_candidates, "link_prediction")
        self._bundle = bundle
        self._ranking = FullRanking(num_candidates, ks)
        self.ks = self._ranking.ks
        self.of_encoder: float | None = None

    def prepare(
        self,
        target: LinkTarget,
        decoder: Decoder,
        split: str,
        rows: Mapping[str, Any] | Sequence[RowsAtTime],
        of_encoder: float | None = None,
    ) -> None:
        """Prepares an evaluation with embeddings on the device, of all nodes or as of times.

        `of_encoder`: NDCG@20 of an encoder without the recommender beside it, which is reported.
        """
        self.of_encoder = of_encoder
        self._at_times: Sequence[RowsAtTime] = ()
        if isinstance(rows, Mapping):
            self._anchors, self._candidates = (rows[name] for name in target.node_types)
        else:
            self._at_times = rows
        self._decoder = decoder
        self._positives = target.splits[split]
        if target.by_time:
            self._known = KnownLinks.of_rows(self._positives)
        else:
            self._known = target.known(self._bundle, split)
        self._is_one_type = target.is_one_type and not target.by_time

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        links = target.numpy()
        rows = self._positives.row_of(links)
        rows = rows[self._positives.indptr[rows] == links]
        if not self._at_times:
            anchors = torch.from_numpy(self._positives.anchors[rows])
            queries = self._anchors[copied(anchors, self._anchors.device)]
            return self._rank(rows, queries, self._candidates)
        states = []
        for positions, of_anchors, targets, known in self._at_times:
            of_time = rows[np.isin(rows, positions)]
            step = max(1, SCORES_AT_A_TIME // len(targets))
            for first in range(0, max(len(of_time), 1), step):
                chosen = of_time[first : first + step]
                places = np.searchsorted(positions, chosen)
                queries = of_anchors[copied(torch.from_numpy(places), targets.device)]
                last = None if known is None else torch.from_numpy(known[places].toarray() > 0)
                states.append(self._rank(chosen, queries, targets, last))
        return torch.stack(states).sum(0)  # exact: see `FullRanking`

    def _rank(
        self, rows: np.ndarray, queries: Tensor, candidates: Tensor, last: Tensor | None = None
    ) -> Tensor:
        """Ranks the links of rows; `last` marks targets that rank last, [num_rows, num_targets]."""
        anchors = self._positives.anchors[rows]
        positives = links_of_rows(self._positives, rows)
        relations = self._positives.relations
        relations = None if relations is None else relations[rows]
        known_rows = rows if self._known.by_row else anchors
        known = Links(*(torch.from_numpy(part) for part in self._known.rows(known_rows, relations)))
        if self._is_one_type and relations is None:
            known = _with_themselves(known, anchors)
        score_all = self._decoder.score_all
        if relations is not None:
            relation = copied(torch.from_numpy(relations), candidates.device)
            score_all = partial(score_all, relation=relation)
        if last is not None:
            last = copied(last, queries.device)
            score_all = partial(_with_last, queries, candidates, last, score_all)
            queries, candidates = (
                torch.arange(len(each), device=each.device) for each in (queries, candidates)
            )
        # Half precision would tie scores, and the metrics measure their order.
        with torch.autocast(queries.device.type, enabled=False):
            return self._ranking.update(queries, candidates, positives, known, score_all)

    def compute(self, state: Tensor) -> dict[str, float]:
        computed = self._ranking.compute(state)
        if self.of_encoder is not None:
            computed[ENCODER_NDCG] = self.of_encoder
        return computed


def _with_last(
    queries: Tensor,
    candidates: Tensor,
    last: Tensor,
    score_all: ScoreAll,
    query: Tensor,
    candidate: Tensor,
) -> Tensor:
    """Scores by position of queries and candidates; -inf for those that rank last."""
    scores = score_all(queries[query], candidates[candidate])
    return scores.masked_fill(last[query.unsqueeze(1), candidate], -torch.inf)


def _with_themselves(known: Links, anchors: np.ndarray) -> Links:
    """Adds each anchor to its own row, so that it is not its own candidate.

    With several relations, some may link a node to itself, so all nodes compete as is usual for
    knowledge graphs.
    """
    ends = known.indptr[1:].numpy()
    targets = np.insert(known.targets.numpy(), ends, anchors)
    indptr = known.indptr + torch.arange(len(known.indptr))
    return Links(indptr, torch.from_numpy(targets))


#: Training links of a target at which the next group begins.
_BOUNDS = (1, 2, 6, 21, 101, 1001)
_HITS_AT = 10


class RanksByGroup(Diagnostic):
    """Mean reciprocal rank and hits of links, by group of links.

    Args:
        group_of: int64 [num_links], group of each link of the split.
    """

    problems = ("link_prediction",)

    def __init__(
        self, num_outputs: int, name: str, group_of: np.ndarray, groups: Sequence[str]
    ) -> None:
        super().__init__(num_outputs, "link_prediction")
        self.name = name
        self._group_of, self._groups = torch.from_numpy(group_of), list(groups)

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        ranks = sampled_ranks(prediction)
        groups = copied(self._group_of[target], ranks.device)
        return sums_by_bin(groups, len(self._groups), 1 / ranks, (ranks <= _HITS_AT).double())

    def _of_state(self, state: Tensor) -> dict[str, Any]:
        """Metrics of groups with links. No `hits@10` if every link would be a hit."""
        sums = state.view(3, -1)
        has_links = sums[0] > 0
        links, reciprocal, hits = sums[:, has_links]
        groups = {
            "groups": [g for g, has in zip(self._groups, has_links.tolist(), strict=True) if has],
            "links": links.long().tolist(),
            "mrr": (reciprocal / links).tolist(),
        }
        if self.num_outputs > _HITS_AT:
            groups[f"hits@{_HITS_AT}"] = (hits / links).tolist()
        return groups


def ranks_by_group(
    num_outputs: int,
    train: SupervisionEdges,
    judged: SupervisionEdges,
    history: LinkHistory | None = None,
) -> list[Diagnostic]:
    """Ranks by the target's number of known links, and by which ends have any.

    Training links are known, or those of `history` until the time of a row of (anchor, time).
    Between nodes of one type, a training link counts for both ends.
    """
    if history is None:
        anchor_degree, target_degree = _degrees(train, judged)
    else:
        (anchors, targets), times = ends_of_links(judged), np.asarray(judged.times)
        anchor_degree = history.num_known_to(anchors, times)
        target_degree = history.reversed.num_known_to(targets, times)
    by_degree = np.searchsorted(_BOUNDS, target_degree, side="right")
    warmth = 2 * (anchor_degree == 0) + (target_degree == 0)
    names = ("both warm", "cold target", "cold anchor", "both cold")
    return [
        RanksByGroup(num_outputs, "ranks_by_degree", by_degree, _names(_BOUNDS)),
        RanksByGroup(num_outputs, "ranks_by_warmth", warmth, names),
    ]


def _degrees(train: SupervisionEdges, judged: SupervisionEdges) -> tuple[np.ndarray, np.ndarray]:
    """int64 [num_links] each: training links of the anchor and of the target of evaluated links."""
    anchors, targets = ends_of_links(judged)
    own_anchors, own_targets = ends_of_links(train)
    num_nodes = 1 + max(
        int(ends.max(initial=0)) for ends in (anchors, targets, *ends_of_links(train))
    )
    of_anchors = np.bincount(own_anchors, minlength=num_nodes)
    of_targets = np.bincount(own_targets, minlength=num_nodes)
    if train.anchor_type == train.target_type:
        of_anchors = of_targets = of_anchors + of_targets
    return of_anchors[anchors], of_targets[targets]


def ends_of_links(links: SupervisionEdges) -> tuple[np.ndarray, np.ndarray]:
    """[num_links] each: anchors and targets."""
    return np.repeat(links.anchors, np.diff(links.indptr)), np.asarray(links.targets)


def _names(bounds: Sequence[int]) -> list[str]:
    ends = [
        f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"
        for low, high in zip((0, *bounds[:-1]), bounds, strict=True)
    ]
    return [*ends, f"{bounds[-1]:,} and more"]
