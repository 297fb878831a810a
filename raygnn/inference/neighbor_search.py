"""The nearest targets of anchors, by exact search among all of them."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor, nn

from raygnn.data.bundle import Bundle
from raygnn.data.links.split import LinkSplit, find_label_edges
from raygnn.data.links.supervision import (
    KnownPositives,
    known_positives,
    known_positives_as_of,
)
from raygnn.data.tables.read_ids import as_plain_texts, original_ids
from raygnn.inference.embeddings import Embeddings
from raygnn.inference.job import TopKRequest
from raygnn.models.decoders import Decoder, InnerProduct, Scores, top_k
from raygnn.parallel.agreement import run_and_sync_errors

_ANCHORS_AT_A_TIME = 64


class NeighborSearch:
    """Ranks all nodes of the target type for ranges of the anchors.

    A node is never its own neighbor. Collective: all ranks must build it; they search alone.
    """

    def __init__(
        self,
        request: TopKRequest,
        bundle: Bundle,
        model: nn.Module,
        embeddings: Embeddings,
        device: torch.device,
    ) -> None:
        self._request = request
        self._device = device
        self._scores = _scores(request, model)
        self._anchor_ids = original_ids(bundle, request.anchor_type, request.anchors)
        self._targets = embeddings.all_rows(request.target_type)
        self._anchors = embeddings.rows_of(request.anchor_type, request.anchors)
        self._ids = bundle.ids(request.target_type).slice(0, len(self._targets))
        # By id, so that of equal scores the smaller id comes first.
        self._order = pc.sort_indices(self._ids).to_numpy().astype(np.int64)
        self._known = run_and_sync_errors(lambda: _known(request, bundle), "finding known links")

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


def _scores(request: TopKRequest, model: nn.Module) -> Scores:
    decoder = InnerProduct(1) if request.score == "inner_product" else precise_decoder(model)
    return partial(decoder.score_all, relation=request.relation or 0)


def precise_decoder(model: nn.Module) -> Decoder:
    assert isinstance(model.decoder, Decoder)
    return copy.deepcopy(model.decoder).double()


def _known(request: TopKRequest, bundle: Bundle) -> list[KnownPositives]:
    links = [LinkSplit(t, labels=_has_labels(bundle, t)) for t in request.filter_known]
    if request.times is None:
        return [known_positives(bundle, link) for link in links]
    moment = request.times.moment
    return [known_positives_as_of(bundle, link, request.anchors, moment) for link in links]


def _has_labels(bundle: Bundle, edge_type: tuple[str, str, str]) -> bool:
    return find_label_edges(bundle, edge_type, "positive") is not None
