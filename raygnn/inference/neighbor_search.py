"""The nearest targets of anchors, by exact search among all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.links.split import LinkSplit, find_label_edges
from raygnn.data.links.supervision import KnownPositives, known_positives, known_positives_as_of
from raygnn.data.tables.read_ids import original_ids
from raygnn.inference.applied_model import AppliedModel, used_recommender
from raygnn.inference.embeddings import NodeEncoder, SampledEmbeddings
from raygnn.inference.job import Score, TopKRequest
from raygnn.inference.result_tables import Parts, cut
from raygnn.inference.row_tables import ID, with_times
from raygnn.inference.seed_times import SeedTimes
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.models.decoders import Decoder, InnerProduct, top_k
from raygnn.models.predictors import EdgePredictor
from raygnn.parallel.agreement import run_and_sync_errors
from raygnn.sampling.loader import RowPlan

_ANCHORS_AT_A_TIME = 1024


class NeighborSearch:
    """Ranks all nodes of the target type for anchors, as of one moment.

    A node is never its own neighbor. Collective: all ranks must build it; they search alone.

    Args:
        applied: as of the moment.
        targets: [num_targets, channels], by dense id.
        known: links that are excluded, besides those of the request.
    """

    def __init__(
        self,
        request: TopKRequest,
        applied: AppliedModel,
        targets: Tensor,
        known: Sequence[KnownPositives] = (),
    ) -> None:
        self._request, self._bundle = request, applied.bundle
        self._device = applied.env.device
        output, ends = applied.spec.output, (request.anchor_type, request.target_type)
        self._decoder = build_decoder(request.score, applied)
        self._scores = partial(self._decoder.score_all, relation=request.relation or 0)
        if isinstance(self._decoder, EdgeValues):
            self._num_known, num_targets = output.num_known(applied.bundle)
            targets = self._decoder.rows(targets, np.arange(len(targets)), num_targets)
        self._targets = targets
        self._ids = applied.bundle.ids(request.target_type).slice(0, len(targets))
        # By id, so that of equal scores the smaller id comes first.
        self._order = pc.sort_indices(self._ids).to_numpy().astype(np.int64)
        found = run_and_sync_errors(
            lambda: _known(request, applied.bundle, applied.times), "finding known links"
        )
        self._known = [*known, *found]
        factors = used_recommender(applied.model)
        if factors is not None and factors.settings.hides_known and ends == output.ends:
            links = applied.basis(factors).links
            self._known.append(KnownPositives(links.indptr, links.indices))

    @torch.no_grad()
    def best(self, anchors: np.ndarray, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The best-scored targets of anchors, best first.

        Args:
            anchors: int64 [num_anchors], dense ids.
            rows: [num_anchors, channels].
        Returns:
            float32 [num_anchors, k], scores, and int64 [num_anchors, k], dense ids. -inf marks
            missing targets if too many are left out.
        """
        if isinstance(self._decoder, EdgeValues):
            rows = self._decoder.rows(rows, anchors, self._num_known)
        scores = np.empty((len(anchors), self._request.k), np.float32)
        neighbors = np.empty(scores.shape, np.int64)
        for first in range(0, len(anchors), _ANCHORS_AT_A_TIME):
            part = slice(first, first + _ANCHORS_AT_A_TIME)
            best, places = top_k(
                rows[part].to(self._device),
                self._candidates,
                len(self._order),
                self._request.k,
                self._scores,
                partial(self._left_out, anchors[part]),
            )
            scores[part], neighbors[part] = best.cpu().numpy(), self._order[places.cpu().numpy()]
        return scores, neighbors

    def table(self, anchors: np.ndarray, rows: Tensor) -> pa.Table:
        """anchor_id, neighbor_id, score, rank (from 1) and the requested columns."""
        request, bundle = self._request, self._bundle
        scores, neighbors = self.best(anchors, rows)
        row, rank = np.nonzero(scores > -np.inf)
        ids = original_ids(bundle, request.target_type, neighbors[row, rank])
        columns: dict[str, Any] = {
            "anchor_id": original_ids(bundle, request.anchor_type, anchors[row]),
            "neighbor_id": ids,
            "score": scores[row, rank],
            "rank": (rank + 1).astype(np.int32),
        }
        if (more := request.columns) is not None:
            places = pc.index_in(ids, pc.cast(more["id"], ids.type))
            found = more.drop_columns("id").take(places)
            columns |= dict(zip(found.column_names, found.columns, strict=True))
        return pa.table(columns)

    def _candidates(self, first: int, last: int) -> Tensor:
        return self._targets[torch.from_numpy(self._order[first:last])].to(self._device)

    def _left_out(self, anchors: np.ndarray, first: int, last: int) -> Tensor:
        candidates = self._order[first:last]
        out = np.zeros((len(anchors), len(candidates)), bool)
        for known in self._known:
            out |= known.mask(anchors, candidates)
        if self._request.anchor_type == self._request.target_type:
            out |= anchors[:, None] == candidates
        return torch.from_numpy(out).to(self._device)


def neighbors(encoder: NodeEncoder, request: TopKRequest, size: int, share: slice) -> Parts:
    """The best-scored targets of each anchor, in parts of about `size` rows."""
    ranges = cut(len(request.anchors), max(size // request.k, 1))
    if request.rows is not None:
        return Parts(ranges, _lists(encoder, request, request.rows, ranges[share]), share)
    with encoder.encoded(request.node_types) as embeddings:
        rows = embeddings.rows_of(request.anchor_type, request.anchors)
        search = NeighborSearch(request, encoder.applied, embeddings.all_rows(request.target_type))

    def make(first: int, last: int) -> pa.Table:
        return search.table(request.anchors[first:last], rows[first:last])

    return Parts(ranges, make, share)


def _lists(
    encoder: NodeEncoder, request: TopKRequest, rows: SeedRows, ranges: Sequence[tuple[int, int]]
) -> Callable[[int, int], pa.Table]:
    """Ranks the targets for some ranges of rows, as of the time of each. Collective: all ranks must
    call.

    Returns a function that makes a table of a range: `id`, `time`, and lists `neighbor_id` and
    `score`, best first. A list is shorter than k if the model does not rank known links, and few
    other targets are left.
    """
    anchor_type, target_type = request.anchor_type, request.target_type
    bundle, every = encoder.applied.bundle, np.arange(rows.num_rows)
    with closing(SampledEmbeddings(encoder.applied, {anchor_type: every}, RowPlan(rows))) as found:
        encoded = found.all_rows(anchor_type)
    scores = np.empty((rows.num_rows, request.k), np.float32)
    neighbors = np.empty(scores.shape, np.int64)
    mine = np.concatenate([every[:0], *(every[slice(*each)] for each in ranges)])
    moments = np.zeros(rows.num_rows) if rows.time is None else rows.time
    for moment in np.unique(moments):
        at = encoder if rows.time is None else encoder.at(moment.item())
        num_targets = bundle.num_nodes(target_type)
        targets = {target_type: np.arange(num_targets)}
        with closing(SampledEmbeddings(at.applied, targets)) as of_targets:
            search = NeighborSearch(request, at.applied, of_targets.all_rows(target_type))
        chosen = mine[moments[mine] == moment]
        anchors = request.anchors[chosen]
        nodes = torch.from_numpy(anchors)
        of_anchors = at.applied.blended(anchor_type, encoded[chosen], nodes)
        scores[chosen], neighbors[chosen] = search.best(anchors, of_anchors)

    def make(first: int, last: int) -> pa.Table:
        is_ranked = scores[first:last] > -np.inf
        ends = pa.array(np.cumsum([0, *is_ranked.sum(axis=1)], dtype=np.int32))
        ids = original_ids(bundle, target_type, neighbors[first:last][is_ranked])
        lists = {"neighbor_id": ids, "score": pa.array(scores[first:last][is_ranked])}
        columns = {name: pa.ListArray.from_arrays(ends, values) for name, values in lists.items()}
        of_rows = original_ids(bundle, anchor_type, request.anchors[first:last])
        return with_times(pa.table({ID: of_rows, **columns}), rows, every[first:last])

    return make


class EdgeValues(Decoder):
    """Predicted numbers of edges as scores, in float64. A row of a node ends with its id."""

    def __init__(self, model: EdgePredictor, output: LabelOutput) -> None:
        super().__init__(model.head.out.in_features + 1)
        self._model, self._output = copy.deepcopy(model).double().eval(), output

    def rows(self, rows: Tensor, ids: np.ndarray, num_known: int) -> Tensor:
        """Appends the dense ids of nodes; -1 for nodes that training did not have."""
        column = torch.from_numpy(np.where(ids < num_known, ids, -1)).double().unsqueeze(1)
        return torch.cat([rows.double(), column.to(rows.device)], dim=1)

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
        applied.warn_of_gnn()
        return EdgeValues(model, output)
    assert isinstance(model.decoder, Decoder)
    return copy.deepcopy(model.decoder).double()


def _known(request: TopKRequest, bundle: Bundle, times: SeedTimes | None) -> list[KnownPositives]:
    links = [
        LinkSplit(t, labels=find_label_edges(bundle, t, "positive") is not None)
        for t in request.filter_known
    ]
    if times is None:
        return [known_positives(bundle, link) for link in links]
    anchors = np.unique(request.anchors)
    return [known_positives_as_of(bundle, link, anchors, times.moment) for link in links]
