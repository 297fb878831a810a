"""Ranking of all nodes of the target type for each anchor, as a metric of a link task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from raygnn.errors import ConfigError
from raygnn.metrics import FullRanking, Links, SumMetric
from raygnn.models.encoder import Encoder
from raygnn.models.exact import exact_inference

if TYPE_CHECKING:
    from raygnn.loops.link_prediction import LinkPrediction


class FullRankingEvaluation(SumMetric):
    """Encodes every node once per evaluation, exactly, then ranks batch by batch."""

    name = "full_ranking"
    problems = ("link_prediction",)

    def __init__(self, num_candidates: int) -> None:
        super().__init__(num_candidates, "link_prediction")
        self._ranking = FullRanking(num_candidates)

    def prepare(self, task: LinkPrediction, split: str) -> None:
        """Encodes all nodes along the messages of the split.

        Raises:
            ConfigError: the encoder does not go layer by layer.
        """
        predictor = task.predictor()
        encoder = predictor.encoder.module
        if not isinstance(encoder, Encoder):
            raise ConfigError(
                "task.args.full_ranking=True is invalid: the model does not go layer by layer over "
                "one edge type. Set it to false."
            )
        adjacency = task.messages(split).adjacency(task.env.bundle.edge_types[0])
        self._rows = exact_inference(
            encoder,
            task.features_of,
            (adjacency.indptr, adjacency.indices),
            device=task.env.device,
        )
        self._decoder, self._device = predictor.decoder, task.env.device
        self._positives, self._known = task.target.splits[split], task.target.known
        self._same_type = task.node_types[0] == task.node_types[1]

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Ranks the links of one batch of anchors.

        Args:
            target: int64 [num_links], dense ids of the anchors of the batch's links.
        """
        anchors = np.unique(target.cpu().numpy())
        rows = np.searchsorted(self._positives.anchors, anchors)
        positives = _rows_of(self._positives.indptr, self._positives.targets, rows)
        known = _rows_of(self._known.indptr, self._known.targets, anchors)
        if self._same_type:
            known = _with_themselves(known, anchors)
        candidates = self._rows.to(self._device)
        return self._ranking.update(
            candidates[torch.from_numpy(anchors)],
            candidates,
            positives,
            known,
            self._decoder.score_all,
        ).cpu()

    def compute(self, state: Tensor) -> dict[str, float]:
        return self._ranking.compute(state)


def _with_themselves(known: Links, anchors: np.ndarray) -> Links:
    """Adds each anchor to its own row: nobody is asked to link to itself."""
    ends = known.indptr[1:].numpy()
    targets = np.insert(known.targets.numpy(), ends, anchors)
    indptr = known.indptr + torch.arange(len(known.indptr))
    return Links(indptr, torch.from_numpy(targets))


def _rows_of(indptr: np.ndarray, targets: np.ndarray, rows: np.ndarray) -> Links:
    counts = indptr[rows + 1] - indptr[rows]
    bounds = np.concatenate([[0], np.cumsum(counts)])
    places = np.repeat(indptr[rows] - bounds[:-1], counts) + np.arange(bounds[-1])
    return Links(torch.from_numpy(bounds), torch.from_numpy(targets[places].astype(np.int64)))
