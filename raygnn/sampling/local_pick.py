"""Picks among the edges of one type in arrays on this machine."""

from __future__ import annotations

import math
import threading

import numpy as np

from raygnn.data.arrays import ask_for_rows
from raygnn.data.bundle import Bundle, Csc, Csr
from raygnn.data.edge_kernels import edge_weights
from raygnn.data.edge_types import EdgeType
from raygnn.data.time_units import Time
from raygnn.sampling import pick as kernels
from raygnn.sampling.exclusion import NO_SKIPS, Exclusion, Skips, merged, step_over
from raygnn.sampling.pick_by_neighbor import copies_table, pick_by_neighbor
from raygnn.sampling.pick_weighted import Weighting, first_draws, pick_weighted
from raygnn.sampling.protocols import PickRequest, Picks
from raygnn.sampling.rng import hop_key
from raygnn.sampling.scratch import Scratch
from raygnn.sampling.temporal import (
    LAST,
    Horizon,
    Temporal,
    as_seed_times,
    as_times,
    find_outside,
    narrow,
    salts_of,
)

_NONE = np.empty(0, np.int32)
_NO_ALIAS = np.empty(0, np.int64)


class LocalPicker:
    """Samples edges of one type. `first_node`: dense id of the first row, 0 unless in a part."""

    def __init__(
        self, bundle: Bundle, edge_type: EdgeType, direction: str, first_node: int = 0
    ) -> None:
        self.adjacency: Csc | Csr
        self.adjacency = bundle.csc(edge_type) if direction == "in" else bundle.csr(edge_type)
        # With times, neighbors are sorted by time first.
        self._is_sorted = all(c.role != "time" for c in bundle.columns(edge_type).values())
        self._bundle = bundle
        self._first_node = first_node
        self._edge_type = edge_type
        self._neighbor_type, self._node_type = edge_type[:: 2 if direction == "in" else -2]
        self._alias: dict[str, np.ndarray] = {}
        self._weights: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()

    def pick(self, request: PickRequest, scratch: Scratch) -> Picks:
        nodes, horizon, salts = request.nodes, request.horizon, request.salts
        if salts is None:
            salts = kernels.NO_SALTS if horizon is None else salts_of(horizon.latest)
        indices, e_id = self.adjacency.indices, self.adjacency.e_id
        starts = scratch.array("starts", len(nodes), np.int64)
        degrees = scratch.array("degrees", len(nodes), np.int64)
        offsets = scratch.array("offsets", len(nodes) + 1, np.int64)
        rows = kernels.NodeEdges(nodes, salts, starts, degrees, offsets)
        key = np.uint64(hop_key(request.key, request.hop, self._edge_type))
        draws = kernels.Draws(request.fanout, key)
        self._ask_for(self.adjacency.indptr, self._rows_of(nodes))
        kernels.find_rows(self.adjacency.indptr, self._rows_of(nodes), starts, degrees)
        skips = None if horizon is None else self._find_outside(horizon, nodes, starts, degrees)
        if request.exclude is not None:
            keys = nodes if request.exclude_keys is None else request.exclude_keys
            arguments = (indices, self._is_sorted, keys, starts, degrees, scratch)
            excluded = request.exclude.skips(*arguments)
            skips = merged(skips, excluded) if skips and excluded else skips or excluded
        weight = request.weight
        if weight is not None and weight not in self._bundle.columns(self._edge_type):
            weight = None
        is_uniform = weight is None and not request.by_neighbor
        if is_uniform and skips is not None:
            degrees[skips.rows] -= np.diff(skips.ptr)
        kernels.count_taken(degrees, draws.fanout, offsets)
        positions = scratch.array("positions", int(offsets[-1]), np.int64)
        if is_uniform:
            takes_last = horizon is not None and self.takes_last(horizon.temporal)
            _pick(rows, draws, positions, scratch, takes_last=takes_last)
            if skips is not None:
                step_over(*skips, starts, offsets, positions)
        else:
            stepped_over = tuple(skips or NO_SKIPS)
            if request.by_neighbor:
                size = copies_table(rows.degrees, self._is_sorted)
                copies = (self._is_sorted, scratch.zeros("copies", size, np.int64))
                given = (tuple(rows), tuple(draws), indices, stepped_over)
                pick_by_neighbor(*given, copies, positions)
            else:
                assert weight is not None
                weighting = self._weighting(weight, has_alias=horizon is None)
                _pick_weighted(rows, draws, weighting, stepped_over, positions, scratch)
            positions = positions[: offsets[-1]]  # skipped edges, and those of weight 0, are fewer
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
        starts, degrees = np.empty((2, len(nodes)), np.int64)
        kernels.find_rows(self.adjacency.indptr, self._rows_of(nodes), starts, degrees)
        skips = None if horizon is None else self._find_outside(horizon, nodes, starts, degrees)
        if skips is not None:
            degrees[skips.rows] -= np.diff(skips.ptr)
        return degrees

    def find_excluded(self, excluded: Exclusion) -> np.ndarray:
        """int64, ascending: positions of the excluded edges in `adjacency`, plus the number of
        edges times that of the neighborhood, if destinations are codes of `DisjointIds`.
        """
        indptr, indices = self.adjacency.indptr, self.adjacency.indices
        numbers, nodes = np.divmod(excluded.destinations, len(indptr) - 1)
        starts, degrees = np.empty((2, len(nodes)), np.int64)
        kernels.find_rows(indptr, nodes, starts, degrees)
        arguments = (indices, self._is_sorted, excluded.destinations, starts, degrees, Scratch())
        skips = excluded.skips(*arguments) or NO_SKIPS
        first = (numbers * len(indices) + starts)[skips.rows]
        return np.repeat(first, np.diff(skips.ptr)) + skips.edges

    def own_times(self, column: str) -> np.ndarray | None:
        """int64 or float64 [num_edges], in the order of `adjacency`; None without the column."""
        if column not in self._bundle.columns(self._edge_type):
            return None
        times, e_id = (
            as_seed_times(self._bundle.dense(self._edge_type, column)),
            self.adjacency.e_id,
        )
        return times if e_id is None else times[e_id]

    def visible_from(self, column: str) -> np.ndarray | None:
        """int64 or float64 [num_edges], the later of the times of each edge and of its neighbor;
        None if neither type has the column. Both have integers, or both floats.
        """
        own = self.own_times(column)
        if column not in self._bundle.columns(self._neighbor_type):
            return own
        indices, times = self._times_of_neighbors(column)
        of_neighbors = as_seed_times(times)[indices]
        return of_neighbors if own is None else np.maximum(own, of_neighbors)

    def count_neighbors(self, num_neighbors: int) -> np.ndarray:
        """int64 [num_neighbors], number of edges of each neighbor."""
        counts = np.zeros(num_neighbors, np.int64)
        kernels.count_neighbors(self.adjacency.indices, counts)
        return counts

    def _ask_for(self, array: np.ndarray, ids: np.ndarray) -> None:
        if self._bundle.is_larger_than_memory:
            ask_for_rows(array, ids)

    def _rows_of(self, nodes: np.ndarray) -> np.ndarray:
        return nodes - self._first_node if self._first_node else nodes

    def _weighting(self, column: str, *, has_alias: bool) -> Weighting:
        e_id = _NONE if self.adjacency.e_id is None else self.adjacency.e_id
        with self._lock:
            if column not in self._weights:
                stored = self._bundle.column(self._edge_type, column)
                self._weights[column] = edge_weights(stored, self._edge_type, column)
            weights = self._weights[column]
            if has_alias and column not in self._alias:
                self._alias[column] = self._bundle.alias(self._edge_type, column)
            alias = self._alias[column] if has_alias else _NO_ALIAS
            return Weighting(alias, weights, e_id)

    def takes_last(self, temporal: Temporal) -> bool:
        """Whether nodes sample their latest edges of this type."""
        has_times = temporal.column in self._bundle.columns(self._edge_type)
        return temporal.strategy == LAST and has_times

    def _has_times(self, horizon: Horizon) -> bool:
        return horizon.temporal.column in self._bundle.columns(self._edge_type)

    def _times_of_neighbors(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """The position of each edge's neighbor in an array of times, and the array."""
        return self.adjacency.indices, self._bundle.dense(self._neighbor_type, column)

    def _times_of_nodes(self, column: str, nodes: np.ndarray) -> np.ndarray:
        return self._bundle.dense(self._node_type, column)[nodes]

    def _find_outside(
        self, horizon: Horizon, nodes: np.ndarray, starts: np.ndarray, degrees: np.ndarray
    ) -> Skips | None:
        """Narrows rows sorted by time to the edges in time. Returns the other edges to skip."""
        e_id = self.adjacency.e_id
        column, latest = horizon.temporal.column, horizon.latest
        if self._has_times(horizon):
            times = self._bundle.dense(self._edge_type, column)
            order = _NONE if e_id is None else e_id
            bounds = as_times(latest, times.dtype), horizon.earliest(times.dtype)
            narrow(times, order, *bounds, starts, degrees)
        if column not in self._bundle.columns(self._neighbor_type):
            return None
        indices, times = self._times_of_neighbors(column)
        earliest = horizon.earliest(times.dtype)
        if self._has_times(horizon):
            earliest = earliest[:0]
        elif len(earliest) and column in self._bundle.columns(self._node_type):
            own = self._times_of_nodes(column, nodes)
            is_recent = own >= horizon.earliest(own.dtype)
            earliest = np.where(is_recent, _first_time(earliest.dtype), earliest)
        rows, ptr = np.empty(len(starts), np.int64), np.empty(len(starts) + 1, np.int64)
        bounds = as_times(latest, times.dtype), earliest
        arguments = (indices, times, *bounds, starts, degrees, rows, ptr)
        num_rows, num_skips = find_outside(*arguments, np.empty(0, np.int64))
        if num_skips == 0:
            return None
        edges = np.empty(num_skips, np.int64)
        find_outside(*arguments, edges)
        return Skips(rows[:num_rows], ptr[: num_rows + 1], edges)


def _first_time(dtype: np.dtype) -> Time:
    return -math.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _pick(
    rows: kernels.NodeEdges,
    draws: kernels.Draws,
    positions: np.ndarray,
    scratch: Scratch,
    *,
    takes_last: bool,
) -> None:
    if takes_last:
        kernels.pick_last(rows.starts, rows.degrees, rows.offsets, positions)
    else:
        size = kernels.membership_table(draws.fanout)
        table = scratch.zeros("table", size, np.int64)
        kernels.pick_positions(tuple(rows), tuple(draws), table, positions)


def _pick_weighted(
    rows: kernels.NodeEdges,
    draws: kernels.Draws,
    weighting: Weighting,
    skips: tuple[np.ndarray, ...],
    positions: np.ndarray,
    scratch: Scratch,
) -> None:
    drawn = scratch.array("drawn", len(rows.nodes) * max(draws.fanout, 0), np.int64)
    if len(weighting.alias):
        rests = scratch.array("rests", len(drawn), np.uint32)
        first_draws(tuple(rows), tuple(draws), weighting.alias, drawn, rests)
    pick_weighted(tuple(rows), tuple(draws), tuple(weighting), drawn, skips, positions)
