"""What sampling sees of a graph: one-hop picks and feature rows, wherever they lie."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.edge_types import EdgeType
from raygnn.errors import ConfigError
from raygnn.sampling import kernels


class Picks(NamedTuple):
    """The picked in-edges of some nodes.

    Attributes:
        neighbors: int64 [num_edges], global ids of the other ends.
        e_id: int64 [num_edges], CSC positions.
        offsets: int64 [num_nodes + 1], where each node's picks begin.
    """

    neighbors: np.ndarray
    e_id: np.ndarray
    offsets: np.ndarray


class GraphStore(Protocol):
    """One-hop neighbors."""

    node_types: tuple[str, ...]
    edge_types: tuple[EdgeType, ...]

    def num_nodes(self, node_type: str) -> int: ...

    def pick(
        self, edge_type: EdgeType, nodes: np.ndarray, fanout: int, replace: bool, key: int
    ) -> Picks: ...

    def degrees(self, edge_type: EdgeType, nodes: np.ndarray) -> np.ndarray: ...


class FeatureStore(Protocol):
    """Rows of columns."""

    def gather(self, type_: str | EdgeType, column: str, ids: np.ndarray) -> np.ndarray: ...


class LocalGraphStore:
    """Picks from the memory-mapped bundle of this node."""

    def __init__(self, bundle: Bundle, direction: str = "in") -> None:
        self.bundle = bundle
        self.direction = direction
        self.node_types = tuple(bundle.node_types)
        self.edge_types = tuple(bundle.edge_types)
        self._adjacency = {et: self._open(et) for et in self.edge_types}

    def num_nodes(self, node_type: str) -> int:
        return self.bundle.num_nodes(node_type)

    def pick(
        self, edge_type: EdgeType, nodes: np.ndarray, fanout: int, replace: bool, key: int
    ) -> Picks:
        indptr, indices, e_id = self._adjacency[edge_type]
        offsets = np.empty(len(nodes) + 1, dtype=np.int64)
        kernels.count_picks(indptr, nodes, fanout, replace, offsets)
        positions = np.empty(offsets[-1], dtype=np.int64)
        kernels.pick(indptr, nodes, fanout, replace, np.uint64(key), offsets, positions)
        neighbors = np.empty(len(positions), dtype=np.int64)
        kernels.load(indices, positions, neighbors)
        if e_id is not None:
            positions = e_id[positions]
        return Picks(neighbors, positions, offsets)

    def degrees(self, edge_type: EdgeType, nodes: np.ndarray) -> np.ndarray:
        indptr = self._adjacency[edge_type][0]
        return indptr[nodes + 1] - indptr[nodes]

    def adjacency(self, edge_type: EdgeType):
        return self.bundle.csc(edge_type) if self.direction == "in" else self.bundle.csr(edge_type)

    def _open(self, edge_type: EdgeType) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        if self.direction == "in":
            csc = self.bundle.csc(edge_type)
            return csc.indptr, csc.indices, None
        csr = self.bundle.csr(edge_type)
        return csr.indptr, csr.indices, csr.e_id


class LocalFeatureStore:
    """Gathers rows from the memory-mapped bundle of this node."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def gather(self, type_: str | EdgeType, column: str, ids: np.ndarray) -> np.ndarray:
        rows = self._bundle.column(type_, column)
        if isinstance(rows, SparseColumn):
            out = np.zeros((len(ids), rows.dim), dtype=np.float32)
            values = np.empty(0, np.float32) if rows.values is None else rows.values
            kernels.gather_sparse(rows.indptr, rows.indices, values, ids, out)
            return out
        dtype = np.float32 if rows.dtype == np.float16 else rows.dtype
        flat = rows.reshape(len(rows), -1)
        out = np.empty((len(ids), flat.shape[1]), dtype=dtype)
        if rows.dtype == np.float16:
            out[:] = flat[ids]
        else:
            kernels.gather_rows(flat, ids, out)
        return out.reshape(len(ids), *rows.shape[1:])


def check_fanouts(fanouts: object, edge_types: tuple[EdgeType, ...]) -> None:
    """Refuses fanouts of edge types that the graph does not have."""
    if isinstance(fanouts, dict):
        for name in fanouts:
            if name not in edge_types:
                raise ConfigError(
                    f"sampling.fanouts={name!r} is invalid: the graph has no such edge type. Set "
                    f"one of: {', '.join('__'.join(et) for et in edge_types)}."
                )
