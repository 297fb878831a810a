"""The nearest targets of anchors, by exact search among all of them."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from raygnn.data.bundle import Bundle
from raygnn.data.links.split import LinkSplit, find_label_edges
from raygnn.data.links.supervision import (
    KnownPositives,
    known_positives,
    known_positives_as_of,
)
from raygnn.data.tables.read_ids import as_plain_texts, original_ids
from raygnn.inference.applied_model import AppliedModel, used_recommender
from raygnn.inference.embeddings import Embeddings
from raygnn.inference.job import Score, TopKRequest
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.models.decoders import Decoder, InnerProduct, top_k
from raygnn.models.graph_encoder import EdgePredictor
from raygnn.parallel.agreement import run_and_sync_errors

_ANCHORS_AT_A_TIME = 64


class NeighborSearch:
    """Ranks all nodes of the target type for ranges of the anchors.

    A node is never its own neighbor. Collective: all ranks must build it; they search alone.
    """

    def __init__(self, request: TopKRequest, applied: AppliedModel, embeddings: Embeddings) -> None:
        self._request = request
        self._device = applied.env.device
        bundle, model, output = applied.bundle, applied.model, applied.spec.output
        decoder = build_decoder(request.score, applied)
        self._scores = partial(decoder.score_all, relation=request.relation or 0)
        self._anchor_ids = original_ids(bundle, request.anchor_type, request.anchors)
        anchors = embeddings.rows_of(request.anchor_type, request.anchors)
        targets = embeddings.all_rows(request.target_type)
        if isinstance(decoder, EdgeValues):
            ids = request.anchors, np.arange(len(targets))
            anchors, targets = decoder.rows((anchors, targets), ids, output.num_known(bundle))
        self._anchors, self._targets = anchors, targets
        self._ids = bundle.ids(request.target_type).slice(0, len(targets))
        # By id, so that of equal scores the smaller id comes first.
        self._order = pc.sort_indices(self._ids).to_numpy().astype(np.int64)
        self._known = run_and_sync_errors(lambda: _known(request, bundle), "finding known links")
        factors, ends = used_recommender(model), (request.anchor_type, request.target_type)
        if factors is not None and factors.settings.hides_known and ends == output.ends:
            links = applied.basis(factors).links
            self._known.append(KnownPositives(links.indptr, links.indices))

    def table(self, first: int, last: int) -> pa.Table:
        """anchor_id, neighbor_id, score and rank (from 1) for a range of the anchors."""
        anchors = self._request.anchors[first:last]
        tables = [
            self._search(anchors[i : i + _ANCHORS_AT_A_TIME], self._anchors[first + i :])
            for i in range(0, len(anchors), _ANCHORS_AT_A_TIME)
        ]
        scores, places = (np.concatenate(parts) for parts in zip(*tables, strict=True))
        row, rank = np.nonzero(scores > -np.inf)
        neighbors = as_plain_texts(self._ids.take(pa.array(self._order[places[row, rank]])))
        columns: dict[str, Any] = {
            "anchor_id": self._anchor_ids.take(pa.array(first + row)),
            "neighbor_id": neighbors,
            "score": scores[row, rank],
            "rank": (rank + 1).astype(np.int32),
        }
        more = self._request.columns
        if more is not None:
            ids = pc.cast(more["id"], neighbors.type)
            rows = more.drop_columns("id").take(pc.index_in(neighbors, ids))
            columns |= dict(zip(rows.column_names, rows.columns, strict=True))
        return pa.table(columns)

    @torch.no_grad()
    def _search(self, anchors: np.ndarray, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
        def candidates(first: int, last: int) -> Tensor:
            return self._targets[torch.from_numpy(self._order[first:last])].to(self._device)

        def left_out(first: int, last: int) -> Tensor:
            return torch.from_numpy(self._left_out(anchors, self._order[first:last])).to(
                self._device
            )

        best, places = top_k(
            rows[: len(anchors)].to(self._device),
            candidates,
            len(self._order),
            self._request.k,
            self._scores,
            left_out,
        )
        return best.cpu().numpy(), places.cpu().numpy()

    def _left_out(self, anchors: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        out = np.zeros((len(anchors), len(candidates)), bool)
        for known in self._known:
            out |= known.mask(anchors, candidates)
        if self._request.anchor_type == self._request.target_type:
            out |= anchors[:, None] == candidates
        return out


class EdgeValues(Decoder):
    """Predicted numbers of edges as scores, in float64. A row of a node ends with its id."""

    def __init__(self, model: EdgePredictor, output: LabelOutput) -> None:
        super().__init__(model.head.out.in_features + 1)
        self._model, self._output = copy.deepcopy(model).double().eval(), output

    def rows(
        self,
        of_ends: tuple[Tensor, Tensor],
        ids: tuple[np.ndarray, np.ndarray],
        num_known: tuple[int, int],
    ) -> tuple[Tensor, Tensor]:
        """Appends the dense ids of sources and targets; -1 for nodes that training did not have."""
        known = (np.where(of < num, of, -1) for of, num in zip(ids, num_known, strict=True))
        columns = (torch.from_numpy(of).double().unsqueeze(1) for of in known)
        source, target = (
            torch.cat([rows.double(), column.to(rows.device)], dim=1)
            for rows, column in zip(of_ends, columns, strict=True)
        )
        return source, target

    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        ids = torch.stack([anchor_rows[:, -1], target_rows[:, -1]]).long()
        found, _ = self._model.of_ends(anchor_rows[:, :-1], target_rows[:, :-1], None, ids)
        return self._output.in_units(found).squeeze(1)

    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        # An anchor at a time, since the head reads three rows of each pair.
        scores = [
            self.score_pairs(row.expand(len(candidate_rows), -1), candidate_rows)
            for row in anchor_rows
        ]
        return torch.stack(scores)


def build_decoder(score: Score, applied: AppliedModel) -> Decoder:
    """The decoder of a score, in float64."""
    model, output = applied.model, applied.spec.output
    if score == "inner_product":
        return InnerProduct(1)
    if isinstance(model, EdgePredictor):
        assert isinstance(output, LabelOutput)
        return EdgeValues(model, output)
    assert isinstance(model.decoder, Decoder)
    return copy.deepcopy(model.decoder).double()


def _known(request: TopKRequest, bundle: Bundle) -> list[KnownPositives]:
    links = [
        LinkSplit(t, labels=find_label_edges(bundle, t, "positive") is not None)
        for t in request.filter_known
    ]
    if request.times is None:
        return [known_positives(bundle, link) for link in links]
    moment = request.times.moment
    return [known_positives_as_of(bundle, link, request.anchors, moment) for link in links]
