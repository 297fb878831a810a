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

    Edges point from a neighbor (row) to the node that took it (col). They come hop by hop; within a
    hop by ascending col, so the edges of the first hops are a prefix of the list, and so are the
    nodes that they touch. Edge types are those of the graph; sampled against their direction
    (`out`), an edge (src, rel, dst) has its row among the nodes of type dst.

    Attributes:
        node: by node type, int64 [num_nodes], dense ids, each once.
        edge_index: by edge type, int64 [2, num_edges], local ids (row, col).
        edge: by edge type, int64 [num_edges], CSC positions (`e_id`).
        dst_ptr: by edge type, int64 [num_dst + 1]: the edges into local node i are
            `dst_ptr[i]` to `dst_ptr[i + 1]`; num_dst leaves out the nodes of the last hop, which
            took no neighbors.
        num_sampled_nodes: by node type, new nodes per hop, the distinct seeds first.
        num_sampled_edges: by edge type, edges per hop.
        seed_index: by node type with seeds, int64 [num_seeds], the local id of each seed as given;
            0, 1, 2... unless a seed was given twice.
        seed: by node type, int64 [num_nodes], the number of the seed whose neighborhood each node
            is in, counted over the types in their order; None where seeds share nodes. A node is
            there once for each seed.
        seed_time: by node type, [num_nodes], the time of the seed whose neighborhood each node is
            in; None where there are no times. A node is there once for each time.
        temporal: the settings of temporal sampling; None without it.
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
        """Latest times of edges for the first nodes of a type. None without temporal sampling."""
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
    """The arguments of `NeighborSampler.sample`, from which a neighborhood follows.

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
        """The given arrays, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def digest(self, sampler: str) -> str:
        """16 hexadecimal digits of a hash over names, types and values of all arguments.

        Args:
            sampler: its fingerprint: equal digests are equal neighborhoods.
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
