"""A graph with added nodes and edges as graph store and feature store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from raygnn.data import edge_kernels
from raygnn.data.arrays import ragged_positions
from raygnn.data.bundle import Bundle, Csc, Csr
from raygnn.data.edge_kernels import edge_weights, fill_alias
from raygnn.data.edge_types import EdgeType, type_name
from raygnn.data.extended_bundle import ExtendedBundle
from raygnn.data.standardization import Affine, Standardization
from raygnn.sampling.local_pick import LocalPicker
from raygnn.sampling.protocols import EdgesByNode, PickRequest, Picks, ends
from raygnn.sampling.scratch import Scratch
from raygnn.sampling.stores import (
    LocalFeatureStore,
    LocalGraphStore,
    Share,
    StoreOfBundle,
    merged_picks,
    restricted,
    restricted_horizon,
)
from raygnn.sampling.temporal import Horizon


class ExtendedGraphStore(StoreOfBundle):
    """A `GraphStore` of a graph and added edges.

    Nodes with added edges have one row of all their edges; other requests go to the graph. Picks
    equal those of a `LocalGraphStore` on the complete tables, except that added edges are numbered
    after known ones.
    """

    _bundle: ExtendedBundle

    def __init__(self, known: LocalGraphStore, bundle: ExtendedBundle) -> None:
        super().__init__(bundle)
        self._known, self.direction = known, known.direction
        self._rows: dict[tuple[EdgeType, str], _TouchedRows] = {}

    def adjacency(self, edge_type: EdgeType) -> EdgesByNode:
        """All edges, added ones after the known ones of a node."""
        known, added = self._known.adjacency(edge_type), self._bundle.addition.edges[edge_type]
        num_edges, num_added = int(known.indptr[-1]), len(added.sources)
        of, by = added if self.direction == "in" else added[::-1]
        degrees = np.diff(known.indptr)
        nodes = np.concatenate([np.repeat(np.arange(len(degrees)), degrees), by])
        order = np.argsort(nodes, kind="stable")
        num_nodes = self.num_nodes(ends(edge_type, self.direction)[1])
        indptr = np.append(0, np.cumsum(np.bincount(nodes, minlength=num_nodes)))
        indices = np.concatenate([np.asarray(known.indices[:num_edges]), of])
        e_id = np.arange(num_edges) if known.e_id is None else np.asarray(known.e_id[:num_edges])
        e_id = np.concatenate([e_id, num_edges + np.arange(num_added)])
        return EdgesByNode(indptr, indices[order], e_id[order])

    def pick(
        self, edge_type: EdgeType, request: PickRequest, scratch: Scratch | None = None
    ) -> Picks:
        rows = self._touched(edge_type, self.direction)
        is_touched = np.isin(request.nodes, rows.nodes)
        if not is_touched.any():
            return self._known.pick(edge_type, request, scratch)
        shares = [Share(n, np.flatnonzero(is_touched == n)) for n in (False, True)]
        known, touched = (restricted(request, share.positions) for share in shares)
        picks = [self._known.pick(edge_type, known, scratch), rows.pick(touched)]
        return merged_picks(shares, picks, len(request.nodes))

    def _degrees(
        self, edge_type: EdgeType, direction: str, nodes: np.ndarray, horizon: Horizon | None
    ) -> np.ndarray:
        rows = self._touched(edge_type, direction)
        touched = np.flatnonzero(np.isin(nodes, rows.nodes))
        others = np.setdiff1d(np.arange(len(nodes)), touched)
        counts = np.empty(len(nodes), np.int64)
        of_known = self._known.picker(edge_type, direction)
        counts[others] = of_known.degrees(nodes[others], restricted_horizon(horizon, others))
        counts[touched] = rows.degrees(nodes[touched], restricted_horizon(horizon, touched))
        return counts

    def _out_degrees(self, edge_type: EdgeType, nodes: np.ndarray) -> np.ndarray:
        sources = np.sort(self._bundle.addition.edges[edge_type].sources)
        ends = [np.searchsorted(sources, nodes, side) for side in ("left", "right")]
        counts = ends[1] - ends[0]
        is_known = nodes < self._bundle.graph.num_nodes(edge_type[0])
        counts[is_known] += self._known.neighbor_degrees(edge_type, nodes[is_known])
        return counts

    def _count_sources(self, edge_type: EdgeType) -> np.ndarray:
        return self._out_degrees(edge_type, np.arange(self.num_nodes(edge_type[0])))

    def _touched(self, edge_type: EdgeType, direction: str) -> _TouchedRows:
        key = (edge_type, direction)
        with self._lock:
            if key not in self._rows:
                self._rows[key] = _TouchedRows(self._bundle, edge_type, direction)
            return self._rows[key]


class _TouchedRows(Bundle):
    """All edges of one type of the nodes with added ones.

    Edges have the order of an ingest of the complete tables.

    Attributes:
        nodes: int64, dense ids of these nodes, ascending, including all new nodes.
    """

    def __init__(self, bundle: ExtendedBundle, edge_type: EdgeType, direction: str) -> None:
        super().__init__(bundle.path, bundle._record)
        self.is_larger_than_memory = False
        self._graph, self._addition = bundle.graph, bundle.addition
        self._edge_type = edge_type
        sources, targets = self._addition.edges[edge_type]
        taker, takers, neighbors = edge_type[2], targets, sources
        if direction != "in":
            taker, takers, neighbors = edge_type[0], sources, targets
        first_new = self._graph.num_nodes(taker)
        new = first_new + np.arange(self._addition.num_new[taker])
        self.nodes = np.union1d(takers, new)
        num_known = int(np.searchsorted(self.nodes, first_new))
        known = self._graph.csc(edge_type) if direction == "in" else self._graph.csr(edge_type)
        known_rows, known_edges = ragged_positions(known.indptr, self.nodes[:num_known])
        rows = np.concatenate([known_rows, np.searchsorted(self.nodes, takers)])
        indices = np.concatenate([known.indices[known_edges], neighbors])
        indices = indices.astype(known.indices.dtype)
        self._known_edges = known_edges
        if known.e_id is not None:
            self._known_edges = known.e_id[known_edges].astype(np.int64)
        self._order = self._sorted(rows, indices)
        self._indices = indices[self._order]
        self._indptr = np.append(0, np.cumsum(np.bincount(rows, minlength=len(self.nodes))))
        added_edges = self._graph.num_edges(edge_type) + np.arange(len(takers))
        self._e_id = np.concatenate([self._known_edges, added_edges])[self._order]
        self._picker = _TouchedPicker(self, edge_type, direction)

    def pick(self, request: PickRequest) -> Picks:
        picks = self._picker.pick(request, Scratch())
        return picks._replace(e_id=self._e_id[picks.e_id])

    def degrees(self, nodes: np.ndarray, horizon: Horizon | None) -> np.ndarray:
        return self._picker.degrees(nodes, horizon)

    def csc(self, edge_type: EdgeType) -> Csc:
        return Csc(self._indptr, self._indices)

    def csr(self, edge_type: EdgeType) -> Csr:
        return Csr(self._indptr, self._indices, np.arange(len(self._indices)))

    def column(self, type_: str | EdgeType, name: str) -> np.ndarray:
        """A column of these edges, or of all nodes of the extended graph."""
        known: Any = self._graph.column(type_, name)
        added: Any = self._addition.column(type_, name)
        if isinstance(type_, str):
            return np.concatenate([known, added])
        return np.concatenate([known[self._known_edges], added])[self._order]

    def alias(self, edge_type: EdgeType, column: str, direction: str) -> np.ndarray:
        table = np.empty(len(self._indices), np.int64)
        weights = edge_weights(self.values(edge_type, column), edge_type, column)
        fill_alias(self._indptr, None, weights, table)
        return table

    def _sorted(self, rows: np.ndarray, neighbors: np.ndarray) -> np.ndarray:
        columns = self.columns(self._edge_type)
        time = next((name for name, column in columns.items() if column.role == "time"), None)
        if time is None:
            return np.lexsort((neighbors, rows))
        if time not in self._addition.columns(self._edge_type):  # nothing reads it
            return np.argsort(rows, kind="stable")
        self._order = np.arange(len(rows))
        times = edge_kernels.time_keys(self.column(self._edge_type, time))
        return np.lexsort((neighbors, times, rows))


class _TouchedPicker(LocalPicker):
    def __init__(self, rows: _TouchedRows, edge_type: EdgeType, direction: str) -> None:
        super().__init__(rows, edge_type, direction)
        self._nodes = rows.nodes

    def _rows_of(self, nodes: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._nodes, nodes)


class ExtendedFeatureStore(LocalFeatureStore):
    """A `FeatureStore` of a graph and added rows. Sparse columns are returned dense."""

    def __init__(self, bundle: ExtendedBundle, standardization: Standardization) -> None:
        super().__init__(bundle.graph, standardization)
        added = bundle.addition
        scales = {
            (name := type_name(type_)): {
                column: scale
                for column, scale in standardization.get(name, {}).items()
                if column in added.columns(type_)
            }
            for type_ in added.types
        }
        self._graph, self._added = bundle.graph, LocalFeatureStore(added, scales)
        self._extended = bundle

    def __reduce__(self) -> tuple[Callable[[], ExtendedFeatureStore], tuple[()]]:
        return partial(ExtendedFeatureStore, self._extended, dict(self._standardization)), ()

    def _fill(
        self,
        type_: str | EdgeType,
        column: str,
        ids: np.ndarray,
        out: np.ndarray,
        affine: Affine | None,
    ) -> None:
        graph = self._graph
        first = graph.num_nodes(type_) if isinstance(type_, str) else graph.num_edges(type_)
        is_known = ids < first
        if is_known.all():
            super()._fill(type_, column, ids, out, affine)
            return
        known = np.empty((int(is_known.sum()), *out.shape[1:]), out.dtype)
        super()._fill(type_, column, ids[is_known], known, affine)
        out[is_known] = known
        out[~is_known] = self._added.gather(type_, column, ids[~is_known] - first)
