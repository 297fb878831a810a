"""Protocols of graph and feature stores: one-hop picks and rows of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, reversed_edge_type
from raygnn.sampling.exclusion import Exclusion
from raygnn.sampling.rng import BatchKey
from raygnn.sampling.scratch import Scratch
from raygnn.sampling.sparse_features import SparseFeatures
from raygnn.sampling.temporal import Horizon


@dataclass(frozen=True)
class PickRequest:
    """Request to sample edges of one type for some nodes.

    Attributes:
        nodes: int64 [num_nodes], dense ids of the destination type; each is drawn for by its id, so
            their order only orders the reply.
        fanout: edges per node; -1 takes all, as a node with fewer does without `replace`.
        replace: whether an edge may be taken several times.
        hop: 0 next to the seeds.
        exclude: edges that are not there: what is taken is what the graph without them, all else in
            its order, would give.
        exclude_keys: int64 [num_nodes], what stands for each node in `exclude`; None is the node.
        weight: a column of weights: edges are taken in proportion to it, those of weight 0 never;
            along edge types without the column all weigh the same.
        horizon: how late an edge may be for each node; nodes of other times draw otherwise.
        salts: uint64 [num_nodes], draws depend on these in place of the times.
        by_neighbor: all nodes draw by the same numbers of their neighbors, without `replace`; see
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
    """The edges that some nodes took, node by node.

    Attributes:
        neighbors: int32 or int64 [num_picks], dense ids of the other ends.
        e_id: int32 or int64 [num_picks], CSC positions.
        offsets: int64 [num_nodes + 1], where each node's edges begin.
    """

    neighbors: np.ndarray
    e_id: np.ndarray
    offsets: np.ndarray


class EdgeValues(Protocol):
    """Rows by edge: an array, or what reads them from one when they are asked for."""

    def __getitem__(self, edges: slice, /) -> np.ndarray:
        """The rows of consecutive edges."""


@dataclass(frozen=True)
class LazyRows:
    """`EdgeValues` that are read when they are asked for."""

    read: Callable[[slice], np.ndarray]

    def __getitem__(self, edges: slice) -> np.ndarray:
        return self.read(edges)


class EdgesByNode(Protocol):
    """All edges of a type, by the node that takes them."""

    @property
    def indptr(self) -> np.ndarray:
        """int64 [num_nodes + 1], where the edges of each node begin."""

    @property
    def indices(self) -> EdgeValues:
        """int32 or int64 [num_edges], neighbors."""

    @property
    def e_id(self) -> EdgeValues | None:
        """CSC positions of the edges; None where these are the CSC itself."""


class GraphStore(Protocol):
    """One-hop neighbors of nodes.

    Nodes take edges from their neighbors: their in-edges, or their out-edges where the store's
    direction is `out`. A node is a destination of messages either way.
    """

    @property
    def node_types(self) -> Sequence[str]:
        """Node types of the graph."""

    @property
    def edge_types(self) -> Sequence[EdgeType]:
        """Edge types of the graph."""

    @property
    def direction(self) -> str:
        """`in` or `out`."""

    def num_nodes(self, node_type: str) -> int:
        """Number of nodes of a type."""

    def num_edges(self, edge_type: EdgeType) -> int:
        """Number of edges of a type."""

    def columns(self, type_: str | EdgeType) -> Mapping[str, ColumnInfo]:
        """Columns of a node or edge type."""

    def pick(
        self, edge_type: EdgeType, request: PickRequest, scratch: Scratch | None = None
    ) -> Picks:
        """Takes edges of each node: a pure function of the arguments and the graph.

        Args:
            scratch: where the store may keep its working arrays and the reply, which then is valid
                until the next call with the same scratch.
        """

    def adjacency(self, edge_type: EdgeType) -> EdgesByNode:
        """All edges of a type, for what reads them range by range.

        Raises:
            DataError: the graph has no such edge type.
        """

    def degrees(
        self, edge_type: EdgeType, nodes: np.ndarray, horizon: Horizon | None = None
    ) -> np.ndarray:
        """int64 [num_nodes], how many edges each node could take, up to its horizon if given."""

    def neighbor_degrees(
        self, edge_type: EdgeType, nodes: np.ndarray, horizon: Horizon | None = None
    ) -> np.ndarray:
        """int64 [num_nodes], as neighbors of how many edges each node could be taken."""


class FeatureStore(Protocol):
    """Rows of the columns of node and edge types."""

    def columns(self, type_: str | EdgeType) -> Mapping[str, ColumnInfo]:
        """Columns of a type."""

    def row_layout(self, type_: str | EdgeType, column: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and type of a row as `gather` gives it: (1,) of a node's feature of one number.

        Raises:
            DataError: there is no such column.
        """

    def gather(
        self, type_: str | EdgeType, column: str, ids: np.ndarray, out: np.ndarray | None = None
    ) -> np.ndarray:
        """The rows of a column.

        Sparse rows come out dense, they and rows of two-byte floats as float32, others as stored.

        Args:
            ids: int64 [n], dense ids or, of an edge type, CSC positions; may repeat.
            out: [n, ...], C-contiguous and of the type that is given; None makes a new array.
        Returns:
            [n, ...]; `out` if given.
        """

    def gather_sparse(
        self, type_: str | EdgeType, column: str, ids: np.ndarray
    ) -> SparseFeatures | None:
        """The rows of a column as sparse ones; None of a column whose rows only `gather` gives."""


def ends(edge_type: EdgeType, direction: str) -> tuple[str, str]:
    """The types of neighbors and of the nodes that take them."""
    source, _, target = edge_type
    return (source, target) if direction == "in" else (target, source)


def message_type(edge_type: EdgeType, direction: str) -> EdgeType:
    """Name of an edge type in models and batches; reversed when sampling against the edges."""
    return edge_type if direction == "in" else reversed_edge_type(edge_type)
