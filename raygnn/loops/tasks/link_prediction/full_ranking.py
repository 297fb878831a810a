"""Ranking of all nodes of the target type for each anchor, as a metric of a link task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from raygnn.loops.tasks.link_prediction.target import LinkTarget
from raygnn.metrics import FullRanking, Links, SumMetric
from raygnn.models.decoders import Decoder


class FullRankingEvaluation(SumMetric):
    """Ranks batch by batch, among embeddings of all nodes that were made once per evaluation.

    Args:
        num_candidates: nodes of the target type.
        ks: see `FullRanking`.
    """

    name = "full_ranking"
    problems = ("link_prediction",)

    def __init__(self, num_candidates: int, ks: Sequence[int] | None = None) -> None:
        super().__init__(num_candidates, "link_prediction")
        self._ranking = FullRanking(num_candidates, ks)

    def prepare(
        self, target: LinkTarget, decoder: Decoder, split: str, rows: Mapping[str, Tensor]
    ) -> None:
        """Takes what an evaluation needs.

        Args:
            rows: by node type, embeddings of all nodes, on the device.
        """
        anchor_type, target_type = target.node_types
        self._anchors, self._candidates = rows[anchor_type], rows[target_type]
        self._decoder = decoder
        self._positives, self._known = target.splits[split], target.known

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Ranks all links of the anchors whose first link is in a batch.

        Args:
            target: int64 [num_links], positions among the links of the split.
        """
        links = target.cpu().numpy()
        rows = self._positives.row_of(links)
        rows = rows[self._positives.indptr[rows] == links]
        anchors = self._positives.anchors[rows]
        positives = _rows_of(self._positives.indptr, self._positives.targets, rows)
        relations = self._positives.relations
        relations = None if relations is None else relations[rows]
        known = Links(*(torch.from_numpy(part) for part in self._known.rows(anchors, relations)))
        if self._known.is_one_type and relations is None:
            known = _with_themselves(known, anchors)
        score_all = self._decoder.score_all
        if relations is not None:
            relation = torch.from_numpy(relations).to(self._candidates.device)
            score_all = partial(score_all, relation=relation)
        queries = self._anchors[torch.from_numpy(anchors)]
        # Scores in half precision would be tied where their order is what is measured.
        with torch.autocast(queries.device.type, enabled=False):
            state = self._ranking.update(queries, self._candidates, positives, known, score_all)
        return state.cpu()

    def compute(self, state: Tensor) -> dict[str, float]:
        return self._ranking.compute(state)


def _with_themselves(known: Links, anchors: np.ndarray) -> Links:
    """Adds each anchor to its own row: nobody is asked to link to itself.

    Of several relations some may lead from a node to itself: there, as is usual for knowledge
    graphs, all nodes compete.
    """
    ends = known.indptr[1:].numpy()
    targets = np.insert(known.targets.numpy(), ends, anchors)
    indptr = known.indptr + torch.arange(len(known.indptr))
    return Links(indptr, torch.from_numpy(targets))


def _rows_of(indptr: np.ndarray, targets: np.ndarray, rows: np.ndarray) -> Links:
    counts = indptr[rows + 1] - indptr[rows]
    bounds = np.concatenate([[0], np.cumsum(counts)])
    places = np.repeat(indptr[rows] - bounds[:-1], counts) + np.arange(bounds[-1])
    return Links(torch.from_numpy(bounds), torch.from_numpy(targets[places].astype(np.int64)))
