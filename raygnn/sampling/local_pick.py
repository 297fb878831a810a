"""Picks among the edges of one type in arrays on this machine."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from raygnn.data.arrays import ask_for_rows
from raygnn.data.bundle import Bundle
from raygnn.data.edge_kernels import edge_weights
from raygnn.data.edge_types import EdgeType
from raygnn.sampling import pick as kernels
from raygnn.sampling.exclusion import NO_SKIPS, Skips, merged, step_over
from raygnn.sampling.pick_by_neighbor import copies_table, pick_by_neighbor
from raygnn.sampling.pick_weighted import Weighting, first_draws, pick_weighted
from raygnn.sampling.protocols import PickRequest, Picks
from raygnn.sampling.rng import hop_key
from raygnn.sampling.scratch import Scratch
from raygnn.sampling.temporal import LAST, Horizon, as_times, find_late, narrow, salts_of

_NONE = np.empty(0, np.int32)
_NO_ALIAS = np.empty(0, np.int64)


class NeighborRows(NamedTuple):
    """The edges of a type by the node that samples them.

    Attributes:
        indptr: int64 [num_nodes + 1].
        indices: int32 or int64 [num_edges], neighbors.
        e_id: CSC positions of the edges; None if `indices` is in CSC order.
        is_sorted: the neighbors of each node ascend; otherwise time comes first.
    """

    indptr: np.ndarray
    indices: np.ndarray
    e_id: np.ndarray | None
    is_sorted: bool


class LocalPicker:
    """Samples edges of one type. `first_node`: dense id of the first row, 0 unless in a part."""

    def __init__(
        self, bundle: Bundle, edge_type: EdgeType, direction: str, first_node: int = 0
    ) -> None:
        is_sorted = all(c.role != "time" for c in bundle.columns(edge_type).values())
        if direction == "in":
            csc = bundle.csc(edge_type)
            self.adjacency = NeighborRows(csc.indptr, csc.indices, csc.e_id, is_sorted)
        else:
            csr = bundle.csr(edge_type)
            self.adjacency = NeighborRows(csr.indptr, csr.indices, csr.e_id, is_sorted)
        self._bundle = bundle
        self._first_node = first_node
        self._edge_type, self._direction = edge_type, direction
        self._neighbor_type = edge_type[0] if direction == "in" else edge_type[2]
        self._alias: dict[str, np.ndarray] = {}
        self._weights: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()

    def pick(self, request: PickRequest, scratch: Scratch) -> Picks:
        nodes, horizon, salts = request.nodes, request.horizon, request.salts
        if salts is None:
            salts = kernels.NO_SALTS if horizon is None else salts_of(horizon.latest)
        indptr, indices, e_id, is_sorted = self.adjacency
        starts = scratch.array("starts", len(nodes), np.int64)
        degrees = scratch.array("degrees", len(nodes), np.int64)
        offsets = scratch.array("offsets", len(nodes) + 1, np.int64)
        rows = kernels.Rows(nodes, salts, starts, degrees, offsets)
        key = np.uint64(hop_key(request.key, request.hop, self._edge_type))
        draws = kernels.Draws(request.fanout, request.replace, key)
        ranges = (starts, degrees, offsets)
        self._ask_for(indptr, self._rows_of(nodes))
        kernels.find_rows(indptr, self._rows_of(nodes), draws.fanout, draws.replace, *ranges)
        skips = None
        if horizon is not None:
            skips = self._find_late(horizon, starts, degrees)
        if request.exclude is not None:
            keys = nodes if request.exclude_keys is None else request.exclude_keys
            excluded = request.exclude.skips(indices, is_sorted, keys, starts, degrees, scratch)
            skips = merged(skips, excluded) if skips and excluded else skips or excluded
        weight = request.weight
        if weight is not None and weight not in self._bundle.columns(self._edge_type):
            weight = None
        if request.by_neighbor:
            weights = None if weight is None else self._weighting(weight, has_alias=False)
            positions = _pick_by_neighbor(rows, draws, self.adjacency, weights, skips, scratch)
        elif weight is not None:
            weighting = self._weighting(weight, has_alias=horizon is None)
            positions = _pick_weighted(rows, draws, weighting, skips, scratch)
        else:
            if skips is not None:
                degrees[skips.rows] -= np.diff(skips.ptr)
            if skips is not None or horizon is not None:
                kernels.count_taken(degrees, draws.fanout, draws.replace, offsets)
            takes_last = horizon is not None and self._takes_last(horizon)
            positions = _pick(rows, draws, scratch, takes_last=takes_last)
            if skips is not None:
                step_over(*skips, starts, offsets, positions)
        self._ask_for(indices, positions)
        neighbors = scratch.array("neighbors", len(positions), indices.dtype)
        kernels.load_neighbors(indices, positions, neighbors)
        if e_id is None:
            return Picks(neighbors, positions, offsets)
        edges = scratch.array("edges", len(positions), e_id.dtype)
        kernels.load_neighbors(e_id, positions, edges)
        return Picks(neighbors, edges, offsets)

    def degrees(self, nodes: np.ndarray, horizon: Horizon | None = None) -> np.ndarray:
        """int64 [num_nodes], number of edges that each node could sample up to its horizon."""
        starts, degrees = np.empty(len(nodes), np.int64), np.empty(len(nodes), np.int64)
        if horizon is None:
            kernels.load_degrees(self.adjacency.indptr, self._rows_of(nodes), degrees)
            return degrees
        ranges = (starts, degrees, np.empty(len(nodes) + 1, np.int64))
        rows = self._rows_of(nodes)
        kernels.find_rows(self.adjacency.indptr, rows, kernels.ALL, False, *ranges)
        skips = self._find_late(horizon, starts, degrees)
        if skips is not None:
            degrees[skips.rows] -= np.diff(skips.ptr)
        return degrees

    def _ask_for(self, array: np.ndarray, ids: np.ndarray) -> None:
        if self._bundle.is_larger_than_memory:
            ask_for_rows(array, ids)

    def _rows_of(self, nodes: np.ndarray) -> np.ndarray:
        return nodes - self._first_node if self._first_node else nodes

    def _weighting(self, column: str, *, has_alias: bool) -> Weighting:
        e_id = _NONE if self.adjacency.e_id is None else self.adjacency.e_id
        with self._lock:
            if column not in self._weights:
                stored = self._bundle.values(self._edge_type, column)
                self._weights[column] = edge_weights(stored, self._edge_type, column)
            weights = self._weights[column]
            if has_alias and column not in self._alias:
                self._alias[column] = self._bundle.alias(self._edge_type, column, self._direction)
            alias = self._alias[column] if has_alias else _NO_ALIAS
            return Weighting(alias, weights, e_id)

    def _takes_last(self, horizon: Horizon) -> bool:
        return horizon.temporal.strategy == LAST and self._has_times(horizon)

    def _has_times(self, horizon: Horizon) -> bool:
        return horizon.temporal.column in self._bundle.columns(self._edge_type)

    def _times(self, type_: str | EdgeType, column: str) -> np.ndarray:
        times = self._bundle.column(type_, column)
        assert isinstance(times, np.ndarray)
        return times

    def _find_late(self, horizon: Horizon, starts: np.ndarray, degrees: np.ndarray) -> Skips | None:
        indices, e_id = self.adjacency.indices, self.adjacency.e_id
        column, latest = horizon.temporal.column, horizon.latest
        if self._has_times(horizon):
            times = self._times(self._edge_type, column)
            order = _NONE if e_id is None else e_id
            bounds = as_times(latest, times.dtype), horizon.earliest(times.dtype)
            narrow(times, order, *bounds, starts, degrees)
        if column not in self._bundle.columns(self._neighbor_type):
            return None
        times = self._times(self._neighbor_type, column)
        rows, ptr = np.empty(len(starts), np.int64), np.empty(len(starts) + 1, np.int64)
        arguments = (indices, times, as_times(latest, times.dtype), starts, degrees, rows, ptr)
        num_rows, num_skips = find_late(*arguments, np.empty(0, np.int64))
        if num_skips == 0:
            return None
        edges = np.empty(num_skips, np.int64)
        find_late(*arguments, edges)
        return Skips(rows[:num_rows], ptr[: num_rows + 1], edges)


def _pick(
    rows: kernels.Rows,
    draws: kernels.Draws,
    scratch: Scratch,
    *,
    takes_last: bool,
) -> np.ndarray:
    positions = scratch.array("positions", int(rows.offsets[-1]), np.int64)
    if takes_last:
        kernels.pick_last(rows.starts, rows.degrees, rows.offsets, positions)
    else:
        size = kernels.membership_table(draws.fanout, draws.replace)
        table = scratch.zeros("table", size, np.int64)
        kernels.pick_positions(tuple(rows), tuple(draws), table, positions)
    return positions


def _pick_weighted(
    rows: kernels.Rows,
    draws: kernels.Draws,
    weighting: Weighting,
    skips: Skips | None,
    scratch: Scratch,
) -> np.ndarray:
    kernels.count_taken(rows.degrees, draws.fanout, draws.replace, rows.offsets)  # at most
    positions = scratch.array("positions", int(rows.offsets[-1]), np.int64)
    drawn = scratch.array("drawn", len(rows.nodes) * max(draws.fanout, 0), np.int64)
    arguments = (tuple(rows), tuple(draws))
    if len(weighting.alias):
        rests = scratch.array("rests", len(drawn), np.uint32)
        first_draws(*arguments, weighting.alias, drawn, rests)
    stepped_over = tuple(NO_SKIPS if skips is None else skips)
    pick_weighted(*arguments, tuple(weighting), drawn, stepped_over, positions)
    return positions[: rows.offsets[-1]]


def _pick_by_neighbor(
    rows: kernels.Rows,
    draws: kernels.Draws,
    adjacency: NeighborRows,
    weighting: Weighting | None,
    skips: Skips | None,
    scratch: Scratch,
) -> np.ndarray:
    kernels.count_taken(rows.degrees, draws.fanout, False, rows.offsets)  # at most
    positions = scratch.array("positions", int(rows.offsets[-1]), np.int64)
    size = copies_table(rows.degrees, adjacency.is_sorted)
    copies = (adjacency.is_sorted, scratch.zeros("copies", size, np.int64))
    weights = (_NONE, _NONE) if weighting is None else (weighting.weights, weighting.e_id)
    stepped_over = tuple(NO_SKIPS if skips is None else skips)
    indices = adjacency.indices
    pick_by_neighbor(tuple(rows), tuple(draws), indices, weights, stepped_over, copies, positions)
    return positions[: rows.offsets[-1]]
