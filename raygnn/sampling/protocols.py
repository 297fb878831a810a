"""Protocols of graph and feature stores: one-hop picks and rows of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, reversed_edge_type
from raygnn.sampling.exclusion import Exclusion
from raygnn.sampling.rng import BatchKey
from raygnn.sampling.scratch import Scratch
from raygnn.sampling.sparse_features import SparseFeatures
from raygnn.sampling.temporal import Horizon
from raygnn.sampling.tensor_record import DeviceColumn


@dataclass(frozen=True)
class PickRequest:
    """Request to sample edges of one type for some nodes.

    Attributes:
        nodes: int64 [num_nodes], dense ids of the destination type. Draws depend on the id; the
            result follows the order of `nodes`.
        fanout: edges per node. -1 takes all, as does a node with fewer edges without `replace`.
        replace: whether edges may repeat.
        hop: 0 next to the seeds.
        exclude: edges to ignore. Sampling behaves as if the graph did not contain them.
        exclude_keys: int64 [num_nodes], each node's key in `exclude`. Default: the node.
        weight: column of weights. Edges are drawn in proportion to it, never if it is 0. Edge types
            without the column draw uniformly.
        horizon: latest edge time of each node. Nodes with other times have other draws.
        salts: uint64 [num_nodes], input of draws instead of the times.
        by_neighbor: all nodes draw with the same number per neighbor, without `replace`; see
            `raygnn.sampling.pick_by_neighbor`.
    """

    nodes: np.ndarray
    fanout: int
    replace: bool
    key: BatchKey
    hop: int
    exclude: Exclusion | None = None
    exclude_keys: np.ndarray | None = None
    weight: str | None = None
    horizon: Horizon | None = None
    salts: np.ndarray | None = None
    by_neighbor: bool = False


class Picks(NamedTuple):
    """Sampled edges, node by node.

    Attributes:
        neighbors: int32 or int64 [num_picks], dense ids of the other ends.
        e_id: int32 or int64 [num_picks], CSC positions.
        offsets: int64 [num_nodes + 1], start of each node's edges.
    """

    neighbors: np.ndarray
    e_id: np.ndarray
    offsets: np.ndarray


class EdgeValues(Protocol):
    """Rows by edge: an array, or a reader of one."""

    def __getitem__(self, edges: slice, /) -> np.ndarray: ...


@dataclass(frozen=True)
class LazyRows:
    """`EdgeValues` that are read on demand."""

    read: Callable[[slice], np.ndarray]

    def __getitem__(self, edges: slice) -> np.ndarray:
        return self.read(edges)


class EdgesByNode(Protocol):
    """All edges of a type, by the node that samples them."""

    @property
    def indptr(self) -> np.ndarray:
        """int64 [num_nodes + 1], start of each node's edges."""

    @property
    def indices(self) -> EdgeValues:
        """int32 or int64 [num_edges], neighbors."""

    @property
    def e_id(self) -> EdgeValues | None:
        """CSC positions of the edges; None if they are in CSC order."""


class GraphStore(Protocol):
    """One-hop neighbors of nodes.

    Nodes sample in-edges, or out-edges if the store's direction is `out`. A node is a destination
    of messages either way.
    """

    @property
    def node_types(self) -> Sequence[str]: ...

    @property
    def edge_types(self) -> Sequence[EdgeType]: ...

    @property
    def direction(self) -> str:
        """`in` or `out`."""

    def num_nodes(self, node_type: str) -> int: ...

    def num_edges(self, edge_type: EdgeType) -> int: ...

    def columns(self, type_: str | EdgeType) -> Mapping[str, ColumnInfo]: ...

    def pick(
        self, edge_type: EdgeType, request: PickRequest, scratch: Scratch | None = None
    ) -> Picks:
        """Samples edges of each node: a pure function of the arguments and the graph.

        Args:
            scratch: holds working arrays and the result, which is valid until the next call with
                it.
        """

    def adjacency(self, edge_type: EdgeType) -> EdgesByNode:
        """All edges of a type, for reading in ranges.

        Raises:
            DataError: the graph has no such edge type.
        """

    def degrees(
        self, edge_type: EdgeType, nodes: np.ndarray, horizon: Horizon | None = None
    ) -> np.ndarray:
        """int64 [num_nodes], number of edges that each node could sample, up to its horizon if
        given.
        """

    def neighbor_degrees(
        self, edge_type: EdgeType, nodes: np.ndarray, horizon: Horizon | None = None
    ) -> np.ndarray:
        """int64 [num_nodes], number of edges that could sample each node as a neighbor."""


#: By type and name, the columns whose rows a device computes.
DeviceColumns = Mapping[tuple[str | EdgeType, str], DeviceColumn]
NO_COLUMNS: DeviceColumns = MappingProxyType({})


class FeatureStore(Protocol):
    """Rows of the columns of node and edge types."""

    @property
    def device_columns(self) -> DeviceColumns: ...

    def columns(self, type_: str | EdgeType) -> Mapping[str, ColumnInfo]: ...

    def row_layout(self, type_: str | EdgeType, column: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of a row from `gather`: (1,) for a node feature of one number.

        Raises:
            DataError: there is no such column.
        """

    def gather(
        self, type_: str | EdgeType, column: str, ids: np.ndarray, out: np.ndarray | None = None
    ) -> np.ndarray:
        """The rows of a column, [n, ...]. Sparse rows are returned dense.

        Sparse rows and two-byte floats are returned as float32, others as stored.

        Args:
            ids: int64 [n], dense ids or, for an edge type, CSC positions; may repeat.
            out: [n, ...], C-contiguous, of the returned dtype, or of the stored one, which copies
                rows as stored; None allocates a new array.
        """

    def gather_sparse(
        self, type_: str | EdgeType, column: str, ids: np.ndarray
    ) -> SparseFeatures | None:
        """The rows of a column as sparse ones; None if only `gather` returns them."""


def ends(edge_type: EdgeType, direction: str) -> tuple[str, str]:
    source, _, target = edge_type
    return (source, target) if direction == "in" else (target, source)


def message_type(edge_type: EdgeType, direction: str) -> EdgeType:
    """Name of an edge type in models and batches; reversed when sampling against the edges."""
    return edge_type if direction == "in" else reversed_edge_type(edge_type)
