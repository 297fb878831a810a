"""A graph with added nodes and edges as graph store and feature store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numba import njit

from raygnn.data import edge_kernels
from raygnn.data.arrays import ragged_positions
from raygnn.data.bundle import Bundle, Csc, Csr
from raygnn.data.edge_kernels import edge_weights, fill_alias
from raygnn.data.edge_types import EdgeType, type_name
from raygnn.data.extended_bundle import ExtendedBundle
from raygnn.data.standardization import Affine, Standardization
from raygnn.sampling import stores
from raygnn.sampling.local_pick import LocalPicker
from raygnn.sampling.protocols import EdgesByNode, PickRequest, Picks
from raygnn.sampling.scratch import Scratch
from raygnn.sampling.temporal import Horizon


class ExtendedGraphStore(stores.StoreOfBundle):
    """A `GraphStore` of a graph and added edges.

    A request for nodes with added edges joins all edges of these nodes; other requests go to the
    graph. Picks equal those of a `LocalGraphStore` on the complete tables, except that added edges
    are numbered after known ones.
    """

    _bundle: ExtendedBundle

    def __init__(self, known: stores.LocalGraphStore, bundle: ExtendedBundle) -> None:
        super().__init__(bundle)
        self._known = known

    def adjacency(self, edge_type: EdgeType) -> EdgesByNode:
        """All edges, added ones after the known ones of a node."""
        known, added = self._known.adjacency(edge_type), self._bundle.addition.edges[edge_type]
        num_edges, num_added = int(known.indptr[-1]), len(added.sources)
        degrees = np.diff(known.indptr)
        nodes = np.concatenate([np.repeat(np.arange(len(degrees)), degrees), added.targets])
        order = np.argsort(nodes, kind="stable")
        num_nodes = self.num_nodes(edge_type[2])
        indptr = np.append(0, np.cumsum(np.bincount(nodes, minlength=num_nodes)))
        indices = np.concatenate([np.asarray(known.indices[:num_edges]), added.sources])
        e_id = np.arange(num_edges) if known.e_id is None else np.asarray(known.e_id[:num_edges])
        e_id = np.concatenate([e_id, num_edges + np.arange(num_added)])
        return EdgesByNode(indptr, indices[order], e_id[order])

    def pick(
        self, edge_type: EdgeType, request: PickRequest, scratch: Scratch | None = None
    ) -> Picks:
        nodes = request.nodes
        positions, _ = self._bundle.added_edges(edge_type, "in", nodes)
        is_touched = nodes >= self._num_known(edge_type, "in")
        is_touched[positions] = True
        if not is_touched.any():
            return self._known.pick(edge_type, request, scratch)
        rows = self._joined(edge_type, "in", np.unique(nodes[is_touched]), with_known=True)
        shares = [stores.Share(n, np.flatnonzero(is_touched == n)) for n in (False, True)]
        known, touched = (stores.restricted(request, share.positions) for share in shares)
        picks = [self._known.pick(edge_type, known, scratch), rows.pick(touched)]
        return stores.merged_picks(shares, picks, len(request.nodes))

    def _degrees(
        self, edge_type: EdgeType, direction: str, nodes: np.ndarray, horizon: Horizon | None
    ) -> np.ndarray:
        counts = np.zeros(len(nodes), np.int64)
        known = np.flatnonzero(nodes < self._num_known(edge_type, direction))
        picker = self._known.picker(edge_type, direction)
        counts[known] = picker.degrees(nodes[known], stores.restricted_horizon(horizon, known))
        positions, _ = self._bundle.added_edges(edge_type, direction, nodes)
        if horizon is None:
            return counts + np.bincount(positions, minlength=len(nodes))
        if len(positions):
            positions = np.unique(positions)
            added = self._joined(
                edge_type, direction, np.unique(nodes[positions]), with_known=False
            )
            of_added = stores.restricted_horizon(horizon, positions)
            counts[positions] += added.degrees(nodes[positions], of_added)
        return counts

    def _out_degrees(self, edge_type: EdgeType, nodes: np.ndarray) -> np.ndarray:
        positions, _ = self._bundle.added_edges(edge_type, "out", nodes)
        counts = np.bincount(positions, minlength=len(nodes))
        is_known = nodes < self._num_known(edge_type, "out")
        counts[is_known] += self._known.neighbor_degrees(edge_type, nodes[is_known])
        return counts

    def _count_sources(self, edge_type: EdgeType) -> np.ndarray:
        return self._out_degrees(edge_type, np.arange(self.num_nodes(edge_type[0])))

    def _num_known(self, edge_type: EdgeType, direction: str) -> int:
        return self._bundle.num_known(edge_type[2 if direction == "in" else 0])

    def _joined(
        self, edge_type: EdgeType, direction: str, nodes: np.ndarray, *, with_known: bool
    ) -> _JoinedEdges:
        known = self._known.picker(edge_type, direction).adjacency
        num_known = np.searchsorted(nodes, self._num_known(edge_type, direction))
        of_known = nodes[: num_known if with_known else 0]
        added = self._bundle.added_edges(edge_type, direction, nodes)
        return _JoinedEdges(self._bundle, edge_type, direction, nodes, known, of_known, *added)


class _JoinedEdges(Bundle):
    """Edges of one type of some nodes, in the order of an ingest of the complete tables.

    Args:
        nodes: int64, dense ids, distinct and ascending.
        known: edges of the graph.
        of_known: the first of the nodes, whose edges in the graph are among them.
        rows, added: int64, added edges of the nodes: position in `nodes`, and edge.
    """

    def __init__(
        self,
        bundle: ExtendedBundle,
        edge_type: EdgeType,
        direction: str,
        nodes: np.ndarray,
        known: Csc | Csr,
        of_known: np.ndarray,
        rows: np.ndarray,
        added: np.ndarray,
    ) -> None:
        super().__init__(bundle.path, bundle._record)
        self.is_larger_than_memory = False
        self._graph, self._addition = bundle.graph, bundle.addition
        self._edge_type, self._extended = edge_type, bundle
        self.nodes = nodes
        neighbors = self._addition.edges[edge_type][direction != "in"][added]
        known_rows, known_edges = ragged_positions(known.indptr, of_known)
        rows = np.concatenate([known_rows, rows])
        indices = np.concatenate([known.indices[known_edges], neighbors])
        indices = indices.astype(known.indices.dtype)
        num_known = len(known_edges)
        if known.e_id is not None:
            known_edges = known.e_id[known_edges].astype(np.int64)
        self._own_edges = np.concatenate([known_edges, self._graph.num_edges(edge_type) + added])
        self._order = self._sorted(num_known, rows, indices)
        self._indices = indices[self._order]
        self._indptr = np.append(0, np.cumsum(np.bincount(rows, minlength=len(self.nodes))))
        self._e_id = self._own_edges[self._order]
        self._picker = _JoinedPicker(self, edge_type, direction)

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
        """A column of these edges."""
        assert not isinstance(type_, str)
        return self._extended.rows(type_, name, self._own_edges)[self._order]

    def alias(self, edge_type: EdgeType, column: str) -> np.ndarray:
        table = np.empty(len(self._indices), np.int64)
        weights = edge_weights(self.column(edge_type, column), edge_type, column)
        fill_alias(self._indptr, None, weights, table)
        return table

    def _sorted(self, num_known: int, rows: np.ndarray, neighbors: np.ndarray) -> np.ndarray:
        columns = self.columns(self._edge_type)
        time = next((name for name, column in columns.items() if column.role == "time"), None)
        times = np.zeros(len(rows), np.int64)
        if time is not None and time in self._addition.columns(self._edge_type):
            self._order = np.arange(len(rows))
            times = edge_kernels.time_keys(self.column(self._edge_type, time))
        elif time is not None:  # nothing reads it
            neighbors = np.zeros_like(neighbors)
        keys = rows, times, neighbors
        added = num_known + np.lexsort([key[num_known:] for key in keys[::-1]])
        return _merged(num_known, added, *keys)


@njit(nogil=True, cache=True)
def _merged(num_known, added, rows, times, neighbors):  # type: ignore[no-untyped-def]
    """The order of edges by (row, time, neighbor), the first `num_known` and `added` in order."""
    order = np.empty(len(rows), np.int64)
    known = 0
    for i in range(len(added)):
        edge = added[i]
        key = rows[edge], times[edge], neighbors[edge]
        while known < num_known and (rows[known], times[known], neighbors[known]) <= key:
            order[known + i] = known
            known += 1
        order[known + i] = edge
    for edge in range(known, num_known):
        order[edge + len(added)] = edge
    return order


class _JoinedPicker(LocalPicker):
    def __init__(self, rows: _JoinedEdges, edge_type: EdgeType, direction: str) -> None:
        super().__init__(rows, edge_type, direction)
        self._nodes, self._extended = rows.nodes, rows._extended

    def _rows_of(self, nodes: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._nodes, nodes)

    def _times_of_neighbors(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        indices = self.adjacency.indices
        return np.arange(len(indices)), self._extended.rows(self._neighbor_type, column, indices)

    def _times_of_nodes(self, column: str, nodes: np.ndarray) -> np.ndarray:
        return self._extended.rows(self._node_type, column, nodes)


class ExtendedFeatureStore(stores.LocalFeatureStore):
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
        self._added = stores.LocalFeatureStore(added, scales)
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
        first = self._extended.num_known(type_)
        is_known = ids < first
        if is_known.all():
            super()._fill(type_, column, ids, out, affine)
            return
        known = np.empty((int(is_known.sum()), *out.shape[1:]), out.dtype)
        super()._fill(type_, column, ids[is_known], known, affine)
        out[is_known] = known
        out[~is_known] = self._added.gather(type_, column, ids[~is_known] - first)
