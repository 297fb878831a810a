"""A bundle followed by added nodes and edges in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_chains import EdgeChains
from raygnn.data.edge_types import EdgeType
from raygnn.data.id_map import IdMap, integer_ids


class AddedEdges(NamedTuple):
    """Ends of added edges of one type, including reverse copies of undirected ones.

    Both are int64 [num_edges], dense ids in the extended graph.
    """

    sources: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True)
class Addition:
    """New nodes and edges of a graph. New nodes are numbered after known ones.

    Columns are read like a bundle's, by the row's number among the new ones. `infos` describes
    those of the graph.

    Attributes:
        numbers: new nodes by original id, among them perhaps later ones; looked up instead of
            `ids`.
        chains: edges by their end in direction `in` or `out`, among them perhaps later ones.
    """

    num_new: Mapping[str, int]
    ids: Mapping[str, pa.Array]
    edges: Mapping[EdgeType, AddedEdges]
    arrays: Mapping[str | EdgeType, Mapping[str, np.ndarray | SparseColumn]]
    infos: Mapping[str | EdgeType, Mapping[str, ColumnInfo]]
    numbers: Mapping[str, Mapping[Any, int]] = field(default_factory=dict)
    chains: Mapping[tuple[EdgeType, str], EdgeChains] = field(default_factory=dict)

    is_larger_than_memory = False

    @property
    def types(self) -> list[str | EdgeType]:
        return [*self.num_new, *self.edges]

    def columns(self, type_: str | EdgeType) -> Mapping[str, ColumnInfo]:
        return self.infos[type_]

    def column(self, type_: str | EdgeType, name: str) -> np.ndarray | SparseColumn:
        return self.arrays[type_][name]


class ExtendedBundle(Bundle):
    """Counts and ids of a graph and its additions.

    Edges and columns are in the stores of `raygnn.sampling.extended_stores`.
    """

    def __init__(self, graph: Bundle, addition: Addition) -> None:
        super().__init__(graph.path, graph._record)
        self.graph, self.addition = graph, addition
        self._chains = dict(addition.chains)

    def num_nodes(self, node_type: str) -> int:
        return self.graph.num_nodes(node_type) + self.addition.num_new[node_type]

    def num_edges(self, edge_type: EdgeType) -> int:
        return self.graph.num_edges(edge_type) + len(self.addition.edges[edge_type].sources)

    def ids(self, node_type: str) -> pa.Array:
        return pa.concat_arrays([self.graph.ids(node_type), self.addition.ids[node_type]])

    def take_ids(self, node_type: str, dense: np.ndarray) -> pa.Array:
        num_known = self.graph.num_nodes(node_type)
        is_new = dense >= num_known
        known = self.graph.take_ids(node_type, dense[~is_new])
        new = self.addition.ids[node_type].take(pa.array(dense[is_new] - num_known))
        order = np.argsort(is_new, kind="stable")
        return pa.concat_arrays([known, new]).take(pa.array(np.argsort(order)))

    def id_map(self, node_type: str) -> IdMap:
        added = self.addition
        numbers = added.numbers.get(node_type)
        return ExtendedIds(self.graph.id_map(node_type), added.ids[node_type], numbers)

    def num_known(self, type_: str | EdgeType) -> int:
        """Number of nodes or edges of a type without the added ones."""
        graph = self.graph
        return graph.num_nodes(type_) if isinstance(type_, str) else graph.num_edges(type_)

    def added_edges(
        self, edge_type: EdgeType, direction: str, nodes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Added edges of nodes, by their end in direction `in` or `out`; see `EdgeChains.find`."""
        edges, key = self.addition.edges[edge_type], (edge_type, direction)
        with self._lock:
            if key not in self._chains:
                node_type = edge_type[2 if direction == "in" else 0]
                counts = self.num_known(node_type), self.addition.num_new[node_type]
                self._chains[key] = EdgeChains.of(*counts, edges[direction == "in"])
        return self._chains[key].find(nodes, len(edges.sources))

    def rows(self, type_: str | EdgeType, name: str, ids: np.ndarray) -> np.ndarray:
        """Rows of a dense column, as stored."""
        graph, first = self.graph, self.num_known(type_)
        known, added = graph.dense(type_, name), self.addition.column(type_, name)
        assert isinstance(added, np.ndarray)
        out, is_new = np.empty((len(ids), *known.shape[1:]), known.dtype), ids >= first
        out[~is_new] = known[ids[~is_new]]
        out[is_new] = added[ids[is_new] - first].reshape(-1, *known.shape[1:])
        return out


class ExtendedIds(IdMap):
    """Looks ids up among known ones, then among new ones, which are numbered after them.

    `numbers`: of new ids, and perhaps of further ones, instead of a search in `new`.
    """

    def __init__(
        self, known: IdMap, new: pa.Array, numbers: Mapping[Any, int] | None = None
    ) -> None:
        self.index = known.index
        self._known, self._new, self._numbers = known, new, numbers

    @property
    def num_ids(self) -> int:
        known = self._known
        num_known = known.num_ids if isinstance(known, ExtendedIds) else self.index.num_ids
        return num_known + len(self._new)

    def lookup(self, ids: pa.Array | np.ndarray) -> np.ndarray:
        dense = self._known.lookup(ids)
        unknown = np.flatnonzero(dense < 0)
        if len(unknown) and len(self._new):
            id_array = ids if isinstance(ids, pa.Array) else pa.array(ids)
            wanted = id_array.take(pa.array(unknown))
            too_large = np.zeros(len(wanted), bool)
            if self.kind == "int":
                null = wanted.is_null()
                values, too_large = integer_ids(wanted)
                wanted = pa.array(values, mask=null.to_numpy(zero_copy_only=False))
            positions = np.where(too_large, -1, self._positions(wanted.cast(self._new.type)))
            first = self.num_ids - len(self._new)
            dense[unknown] = np.where(positions < 0, -1, first + positions)
        return dense

    def _positions(self, wanted: pa.Array) -> np.ndarray:
        """int64 [num_wanted], positions among the new ids; -1 for others."""
        if self._numbers is None:
            found = pc.index_in(wanted, value_set=self._new, skip_nulls=True)
            return np.asarray(pc.fill_null(found, -1).to_numpy(), np.int64)
        numbers = [-1 if id is None else self._numbers.get(id, -1) for id in wanted.to_pylist()]
        positions = np.array(numbers, np.int64)
        return np.where(positions < len(self._new), positions, -1)
