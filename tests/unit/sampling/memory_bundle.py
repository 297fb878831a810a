"""A bundle in memory, for tests: what sampling reads of `raygnn.data.bundle.Bundle`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from raygnn.data.alias import edge_weights, fill_alias
from raygnn.data.bundle import Csc, Csr, SparseColumn
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType

NODE, EDGE = "node", ("node", "to", "node")


@dataclass
class MemoryBundle:
    """Edges by type as (sources, targets), and their times; columns by type and name."""

    nodes: dict[str, int]
    edges: dict[EdgeType, tuple[np.ndarray, np.ndarray]]
    index_dtype: str = "int32"
    stored: dict[object, dict[str, np.ndarray | SparseColumn]] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=lambda: {"y": "label"})
    reverses: dict[EdgeType, EdgeType] = field(default_factory=dict)
    times: dict[EdgeType, np.ndarray] = field(default_factory=dict)

    @property
    def node_types(self) -> list[str]:
        return list(self.nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        return list(self.edges)

    def num_nodes(self, node_type: str) -> int:
        return self.nodes[node_type]

    def num_edges(self, edge_type: EdgeType) -> int:
        return len(self.edges[edge_type][0])

    def csc(self, edge_type: EdgeType) -> Csc:
        _, indptr, indices = self._by(edge_type, 1)
        return Csc(indptr, indices)

    def csr(self, edge_type: EdgeType) -> Csr:
        in_order, _, _ = self._by(edge_type, 1)
        e_id_of = np.empty(len(in_order), np.int32)
        e_id_of[in_order] = np.arange(len(in_order))
        order, indptr, indices = self._by(edge_type, 0)
        return Csr(indptr, indices, e_id_of[order])

    def alias(self, edge_type: EdgeType, column: str, direction: str) -> np.ndarray:
        weights = edge_weights(self.column(edge_type, column), edge_type, column)
        edges = self.csc(edge_type) if direction == "in" else self.csr(edge_type)
        table = np.empty(len(edges.indices), np.int64)
        fill_alias(edges.indptr, edges.e_id, weights, table)
        return table

    def reverse_of(self, edge_type: EdgeType) -> EdgeType | None:
        return self.reverses.get(edge_type)

    def columns(self, type_: str | EdgeType) -> dict[str, ColumnInfo]:
        infos = {}
        for name, column in self.stored.get(type_, {}).items():
            is_sparse = isinstance(column, SparseColumn)
            shape = (column.dim,) if is_sparse else column.shape[1:]
            dtype = "float32" if is_sparse else str(column.dtype)
            role = self.roles.get(name, "feature")
            infos[name] = ColumnInfo(name, role, dtype, shape, is_sparse)
        if type_ in self.times:
            infos["time"] = ColumnInfo("time", "time", str(self.times[type_].dtype), (), False)
        return infos

    def column(self, type_: str | EdgeType, name: str) -> np.ndarray | SparseColumn:
        if name == "time" and type_ in self.times:
            return self.times[type_][self._by(type_, 1)[0]]
        return self.stored[type_][name]

    def transposed(self) -> MemoryBundle:
        """The same edges, named alike, the other way round."""
        return MemoryBundle(self.nodes, {et: ends[::-1] for et, ends in self.edges.items()})

    def _by(self, edge_type: EdgeType, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ends = self.edges[edge_type]
        size = self.nodes[edge_type[0 if end == 0 else 2]]
        times = self.times.get(edge_type, np.zeros(len(ends[0])))
        order = np.lexsort((ends[1 - end], times, ends[end]))
        indptr = np.zeros(size + 1, np.int64)
        np.cumsum(np.bincount(ends[end], minlength=size), out=indptr[1:])
        return order, indptr, ends[1 - end][order].astype(self.index_dtype)


def random_bundle(
    num_nodes: int = 200, num_edges: int = 2000, seed: int = 0, index_dtype: str = "int32"
) -> MemoryBundle:
    """One node and edge type; half of the edges lead to a tenth of the nodes."""
    rng = np.random.default_rng(seed)
    source = rng.integers(0, num_nodes, num_edges)
    target = rng.integers(0, num_nodes, num_edges)
    hubs = rng.random(num_edges) < 0.5
    target[hubs] %= max(num_nodes // 10, 1)
    x = np.arange(num_nodes, dtype=np.float32)[:, None].repeat(3, 1)
    return MemoryBundle(
        {NODE: num_nodes},
        {EDGE: (source, target)},
        index_dtype,
        {
            NODE: {"x": x, "y": np.arange(num_nodes) % 7},
            EDGE: {"weight": np.arange(num_edges, dtype=np.float32)},
        },
    )
