"""A request to a sampler, and the sampled subgraph that answers it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.sampling.rng import BatchKey
from raygnn.sampling.temporal import Horizon, Temporal


@dataclass(frozen=True)
class SampledSubgraph:
    """A sampled neighborhood: seeds first, then nodes by hop in order of discovery.

    Edges point from a neighbor (row) to the node that sampled it (col). They are ordered by hop,
    then by ascending col, so the edges of the first hops, and their nodes, are prefixes. Edge types
    are those of the graph; against their direction (`out`), an edge (src, rel, dst) has its row
    among the nodes of type dst.

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

    def horizon(self, node_type: str, num_nodes: int) -> Horizon | None:
        """Latest edge times of the first nodes of a type. None without temporal sampling."""
        if self.temporal is None or self.seed_time is None:
            return None
        return Horizon(self.temporal, self.seed_time[node_type][:num_nodes])

    @property
    def row(self) -> dict[EdgeType, np.ndarray]:
        """Local ids of the neighbors, int64 [num_edges] by edge type."""
        return {edge_type: edges[0] for edge_type, edges in self.edge_index.items()}

    @property
    def col(self) -> dict[EdgeType, np.ndarray]:
        """Local ids of the nodes that sampled them, int64 [num_edges] by edge type."""
        return {edge_type: edges[1] for edge_type, edges in self.edge_index.items()}


@dataclass(frozen=True, eq=False)
class SampleRequest:
    """The arguments of `NeighborSampler.sample`, which determine a neighborhood.

    Attributes:
        seeds: by node type, int64 dense ids.
    """

    seeds: Mapping[str, np.ndarray]
    key: BatchKey
    exclude: Mapping[EdgeType, np.ndarray] | None = None
    exclude_for: Mapping[EdgeType, np.ndarray] | None = None
    times: Mapping[str, np.ndarray] | None = None
    isolated: Mapping[str, np.ndarray] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    def digest(self, sampler: str) -> str:
        """Hash over names, types and values of all arguments, 16 hexadecimal digits.

        Args:
            sampler: the sampler's fingerprint. Equal digests mean equal neighborhoods.
        """
        hashed = hashlib.blake2b(sampler.encode(), digest_size=8)
        for name, given in self.arguments.items():
            if name == "key":
                hashed.update(f"{name}={given};".encode())
                continue
            for type_, values in given.items():
                of = type_ if isinstance(type_, str) else edge_type_name(type_)
                hashed.update(f"{name}.{of}:{values.dtype}{values.shape};".encode())
                hashed.update(np.ascontiguousarray(values).data)
        return hashed.hexdigest()
