"""Requests and samples of samplers, and the protocols of graph and feature stores."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.sampling.exclusion import Exclusion
from raygnn.sampling.rng import BatchKey
from raygnn.sampling.scratch import Scratch
from raygnn.sampling.sparse_features import SparseFeatures
from raygnn.sampling.temporal import Horizon, Temporal
from raygnn.sampling.tensor_record import DeviceColumn


@dataclass(frozen=True)
class SampledSubgraph:
    """A sampled neighborhood: seeds first, then nodes by hop in order of discovery.

    Edges point from a neighbor (row) to the node that sampled it (col). They are ordered by hop,
    then by ascending col, so the edges of the first hops, and their nodes, are prefixes. Edge types
    are those of the graph.

    Attributes:
        node: by node type, int64 [num_nodes], distinct dense ids.
        edge_index: by edge type, int64 [2, num_edges], local ids (row, col).
        edge: by edge type, int64 [num_edges], CSC positions (`e_id`).
        dst_ptr: by edge type, int64 [num_dst + 1]: local node i has edges `dst_ptr[i]` to
            `dst_ptr[i + 1]`. Excludes nodes of the last hop, which sampled no neighbors.
        num_sampled_nodes: by node type, new nodes per hop, the distinct seeds first.
        num_sampled_edges: by edge type, edges per hop.
        seed_index: by node type with seeds, int64 [num_seeds], local id of each given seed; 0, 1,
            2... unless seeds repeat.
        seed: by node type, int64 [num_nodes], number of the seed whose neighborhood has the node,
            counted over the types in their order; None if seeds share nodes. A node appears once
            per seed.
        seed_time: by node type, [num_nodes], time of that seed; None without times. A node appears
            once per time.
        temporal: settings of temporal sampling, if any.
        num_added_edges: edges that `Padding` added; None if it did not pad the sample.
    """

    node: dict[str, np.ndarray]
    edge_index: dict[EdgeType, np.ndarray]
    edge: dict[EdgeType, np.ndarray]
    dst_ptr: dict[EdgeType, np.ndarray]
    num_sampled_nodes: dict[str, list[int]]
    num_sampled_edges: dict[EdgeType, list[int]]
    seed_index: dict[str, np.ndarray]
    seed: dict[str, np.ndarray] | None = None
    seed_time: dict[str, np.ndarray] | None = None
    temporal: Temporal | None = None
    num_added_edges: int | None = None

    def horizon(self, node_type: str, num_nodes: int) -> Horizon | None:
        """Latest edge times of the first nodes of a type. None without temporal sampling."""
        if self.temporal is None or self.seed_time is None:
            return None
        return Horizon(self.temporal, self.seed_time[node_type][:num_nodes])


@dataclass(frozen=True, eq=False)
class SampleRequest:
    """The arguments of `NeighborSampler.sample`, which determine a neighborhood.

    Attributes:
        seeds: by node type, int64 dense ids.
        salts: by node type, uint64 [num_seeds].
    """

    seeds: Mapping[str, np.ndarray]
    key: BatchKey
    exclude: Mapping[EdgeType, np.ndarray] | None = None
    exclude_for: Mapping[EdgeType, np.ndarray] | None = None
    times: Mapping[str, np.ndarray] | None = None
    isolated: Mapping[str, np.ndarray] | None = None
    salts: Mapping[str, np.ndarray] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    def digest(self, sampler: str) -> str:
        """Hash over names, types and values of all arguments, 16 hexadecimal digits.

        Args:
            sampler: the sampler's fingerprint. Equal digests mean equal neighborhoods.
        """
        hashed = hashlib.blake2b(sampler.encode(), digest_size=8)
        for name, value in self.arguments.items():
            if name == "key":
                hashed.update(f"{name}={value};".encode())
                continue
            for type_, values in value.items():
                of = type_ if isinstance(type_, str) else edge_type_name(type_)
                hashed.update(f"{name}.{of}:{values.dtype}{values.shape};".encode())
                hashed.update(np.ascontiguousarray(values).data)
        return hashed.hexdigest()


@dataclass(frozen=True)
class PickRequest:
    """Request to sample edges of one type for some nodes.

    Attributes:
        nodes: int64 [num_nodes], dense ids of the destination type. Draws depend on the id; the
            result follows the order of `nodes`.
        fanout: edges per node. -1 takes all, as does a node with fewer edges.
        hop: 0 next to the seeds.
        exclude: edges to ignore. Sampling behaves as if the graph did not contain them.
        exclude_keys: int64 [num_nodes], each node's key in `exclude`. Default: the node.
        weight: column of weights. Edges are drawn in proportion to it, never if it is 0. Edge types
            without the column draw uniformly.
        horizon: latest edge time of each node. Nodes with other times have other draws.
        salts: uint64 [num_nodes], input of draws instead of the times.
        by_neighbor: all nodes draw with the same number per neighbor; see
            `raygnn.sampling.pick_by_neighbor`.
    """

    nodes: np.ndarray
    fanout: int
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


@dataclass(frozen=True)
class LazyRows:
    """Rows by edge that are read on demand."""

    read: Callable[[slice], np.ndarray]

    def __getitem__(self, edges: slice) -> np.ndarray:
        return self.read(edges)


#: Rows by edge: an array, or a reader of one.
EdgeValues = np.ndarray | LazyRows


class EdgesByNode(NamedTuple):
    """All edges of a type, by the node that samples them.

    Attributes:
        indptr: int64 [num_nodes + 1], start of each node's edges.
        indices: int32 or int64 [num_edges], neighbors.
        e_id: CSC positions of the edges; None if they are in CSC order.
    """

    indptr: np.ndarray
    indices: EdgeValues
    e_id: EdgeValues | None


class GraphStore(Protocol):
    """One-hop neighbors of nodes, which sample in-edges."""

    @property
    def node_types(self) -> Sequence[str]: ...

    @property
    def edge_types(self) -> Sequence[EdgeType]: ...

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
        """int64 [num_nodes], number of edges that each node could sample, up to its horizon."""

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
