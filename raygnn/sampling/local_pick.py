"""Picks among the edges of one type that lie in arrays on this machine."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from raygnn.data.alias import edge_weights
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType
from raygnn.sampling import pick as kernels
from raygnn.sampling.exclusion import NO_SKIPS, Exclusion, Skips, merged, step_over
from raygnn.sampling.pick_weighted import first_draws, pick_weighted
from raygnn.sampling.protocols import Picks
from raygnn.sampling.scratch import Scratch
from raygnn.sampling.temporal import LAST, Horizon, as_times, find_late, narrow, salts_of

_NONE = np.empty(0, np.int32)
_NO_ALIAS = np.empty(0, np.int64)


class Adjacency(NamedTuple):
    """The edges of a type by the node that takes them.

    Attributes:
        indptr: int64 [num_nodes + 1].
        indices: int32 or int64 [num_edges], neighbors.
        e_id: CSC positions of the edges; None where `indices` is the CSC itself.
        is_sorted: whether the neighbors of each node ascend; else they go by time first.
    """

    indptr: np.ndarray
    indices: np.ndarray
    e_id: np.ndarray | None
    is_sorted: bool


class LocalPicker:
    """The edges of one type, and how nodes take them."""

    def __init__(self, bundle: Bundle, edge_type: EdgeType, direction: str) -> None:
        is_sorted = all(c.role != "time" for c in bundle.columns(edge_type).values())
        if direction == "in":
            csc = bundle.csc(edge_type)
            self.adjacency = Adjacency(csc.indptr, csc.indices, csc.e_id, is_sorted)
        else:
            csr = bundle.csr(edge_type)
            self.adjacency = Adjacency(csr.indptr, csr.indices, csr.e_id, is_sorted)
        self._bundle = bundle
        self._edge_type, self._direction = edge_type, direction
        self._neighbor_type = edge_type[0] if direction == "in" else edge_type[2]
        self._alias: dict[str, np.ndarray] = {}
        self._weights: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()

    def pick(
        self,
        nodes: np.ndarray,
        fanout: int,
        replace: bool,
        key: np.uint64,
        scratch: Scratch,
        exclude: Exclusion | None,
        weight: str | None,
        horizon: Horizon | None,
        salts: np.ndarray | None,
    ) -> Picks:
        """Takes edges of each node; see `GraphStore.pick`.

        Args:
            key: of the hop.
        """
        if salts is None:
            salts = kernels.NO_SALTS if horizon is None else salts_of(horizon.latest)
        indptr, indices, e_id, is_sorted = self.adjacency
        starts = scratch.array("starts", len(nodes), np.int64)
        degrees = scratch.array("degrees", len(nodes), np.int64)
        offsets = scratch.array("offsets", len(nodes) + 1, np.int64)
        kernels.find_rows(indptr, nodes, fanout, replace, starts, degrees, offsets)
        skips = None
        if horizon is not None:
            skips = self._find_late(horizon, starts, degrees)
        if exclude is not None:
            excluded = exclude.skips(indices, is_sorted, nodes, starts, degrees, scratch)
            skips = merged(skips, excluded) if skips and excluded else skips or excluded
        if weight is not None and weight in self._bundle.columns(self._edge_type):
            rows = (nodes, starts, degrees, offsets)
            positions = self._pick_weighted(
                weight, horizon is None, rows, salts, fanout, replace, key, scratch, skips
            )
        else:
            if skips is not None:
                degrees[skips.rows] -= np.diff(skips.ptr)
            if skips is not None or horizon is not None:
                kernels.count_taken(degrees, fanout, replace, offsets)
            positions = scratch.array("positions", int(offsets[-1]), np.int64)
            if (
                horizon is not None
                and horizon.temporal.strategy == LAST
                and self._has_times(horizon)
            ):
                kernels.pick_last(starts, degrees, offsets, positions)
            else:
                kernels.pick_positions(
                    nodes,
                    salts,
                    starts,
                    degrees,
                    offsets,
                    fanout,
                    replace,
                    key,
                    scratch.zeros("table", kernels.membership_table(fanout, replace), np.int64),
                    positions,
                )
            if skips is not None:
                step_over(*skips, starts, offsets, positions)
        neighbors = scratch.array("neighbors", len(positions), indices.dtype)
        kernels.load_neighbors(indices, positions, neighbors)
        if e_id is None:
            return Picks(neighbors, positions, offsets)
        edges = scratch.array("edges", len(positions), e_id.dtype)
        kernels.load_neighbors(e_id, positions, edges)
        return Picks(neighbors, edges, offsets)

    def degrees(self, nodes: np.ndarray, horizon: Horizon | None = None) -> np.ndarray:
        """int64 [num_nodes], how many edges each node could take up to its horizon."""
        starts, degrees = np.empty(len(nodes), np.int64), np.empty(len(nodes), np.int64)
        if horizon is None:
            kernels.load_degrees(self.adjacency.indptr, nodes, degrees)
            return degrees
        offsets = np.empty(len(nodes) + 1, np.int64)
        kernels.find_rows(
            self.adjacency.indptr, nodes, kernels.ALL, False, starts, degrees, offsets
        )
        skips = self._find_late(horizon, starts, degrees)
        if skips is not None:
            degrees[skips.rows] -= np.diff(skips.ptr)
        return degrees

    def _pick_weighted(
        self,
        weight: str,
        of_all_edges: bool,
        rows: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
        salts: np.ndarray,
        fanout: int,
        replace: bool,
        key: np.uint64,
        scratch: Scratch,
        skips: Skips | None,
    ) -> np.ndarray:
        nodes, starts, degrees, offsets = rows
        kernels.count_taken(degrees, fanout, replace, offsets)  # at most
        positions = scratch.array("positions", int(offsets[-1]), np.int64)
        weights, alias = self._weighted(weight, of_all_edges)
        drawn = scratch.array("drawn", len(nodes) * max(fanout, 0), np.int64)
        if len(alias):
            rests = scratch.array("rests", len(drawn), np.uint32)
            first_draws(nodes, salts, starts, degrees, fanout, replace, key, alias, drawn, rests)
        pick_weighted(
            nodes,
            salts,
            starts,
            degrees,
            fanout,
            replace,
            key,
            alias,
            weights,
            _NONE if self.adjacency.e_id is None else self.adjacency.e_id,
            drawn,
            tuple(NO_SKIPS if skips is None else skips),
            offsets,
            positions,
        )
        return positions[: offsets[-1]]

    def _weighted(self, column: str, has_alias: bool) -> tuple[np.ndarray, np.ndarray]:
        """The weights by CSC position, and the alias table where it is of use."""
        with self._lock:
            if column not in self._weights:
                stored = self._bundle.column(self._edge_type, column)
                self._weights[column] = edge_weights(stored, self._edge_type, column)
            weights = self._weights[column]
            if has_alias and column not in self._alias:
                self._alias[column] = self._bundle.alias(self._edge_type, column, self._direction)
            return weights, self._alias[column] if has_alias else _NO_ALIAS

    def _has_times(self, horizon: Horizon) -> bool:
        return horizon.temporal.column in self._bundle.columns(self._edge_type)

    def _times(self, type_: str | EdgeType, column: str) -> np.ndarray:
        times = self._bundle.column(type_, column)
        assert isinstance(times, np.ndarray)
        return times

    def _find_late(self, horizon: Horizon, starts: np.ndarray, degrees: np.ndarray) -> Skips | None:
        """Lowers the degrees to edges that are early enough, and finds neighbors that are not."""
        indices, e_id = self.adjacency.indices, self.adjacency.e_id
        column, latest = horizon.temporal.column, horizon.latest
        if self._has_times(horizon):
            times = self._times(self._edge_type, column)
            order = _NONE if e_id is None else e_id
            narrow(times, order, as_times(latest, times.dtype), starts, degrees)
        if column not in self._bundle.columns(self._neighbor_type):
            return None
        times = self._times(self._neighbor_type, column)
        rows, ptr = np.empty(len(starts), np.int64), np.empty(len(starts) + 1, np.int64)
        given = (indices, times, as_times(latest, times.dtype), starts, degrees, rows, ptr)
        num_rows, num_skips = find_late(*given, np.empty(0, np.int64))
        if num_skips == 0:
            return None
        edges = np.empty(num_skips, np.int64)
        find_late(*given, edges)
        return Skips(rows[:num_rows], ptr[: num_rows + 1], edges)
