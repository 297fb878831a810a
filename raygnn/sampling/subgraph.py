"""What a sampler gives: a multi-hop neighborhood in local ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raygnn.data.edge_types import EdgeType


@dataclass(frozen=True)
class SampledSubgraph:
    """A sampled neighborhood, in PyG's order: seeds first, edges hop by hop, by destination.

    Attributes:
        node: by node type, int64 [num_nodes], global dense ids.
        row: by edge type, int64 [num_edges], local ids of sources.
        col: by edge type, int64 [num_edges], local ids of destinations, ascending.
        edge: by edge type, int64 [num_edges], positions in the CSC.
        num_sampled_nodes: by node type, new nodes per hop, the seeds first.
        num_sampled_edges: by edge type, edges per hop.
    """

    node: dict[str, np.ndarray]
    row: dict[EdgeType, np.ndarray]
    col: dict[EdgeType, np.ndarray]
    edge: dict[EdgeType, np.ndarray]
    num_sampled_nodes: dict[str, list[int]]
    num_sampled_edges: dict[EdgeType, list[int]]
