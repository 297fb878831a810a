"""Sampled subgraphs in the records of PyG's samplers, and back."""

from __future__ import annotations

import torch
from torch_geometric.sampler import HeteroSamplerOutput, NodeSamplerInput, SamplerOutput

from raygnn.errors import DataError
from raygnn.sampling.subgraph import SampledSubgraph


def to_pyg_output(
    subgraph: SampledSubgraph, node_type: str, index: NodeSamplerInput
) -> SamplerOutput | HeteroSamplerOutput:
    """PyG's record of a subgraph: of one graph, or by type where it was asked with a type.

    Raises:
        DataError: a seed was given twice.
    """
    seed_index = subgraph.seed_index[node_type]
    if len(seed_index) > subgraph.num_sampled_nodes[node_type][0]:
        raise DataError(
            f"seeds of node type {node_type!r} are invalid: PyG's loaders take the first rows of a "
            "batch for its seeds, so none may be there twice. Give distinct seeds."
        )
    metadata = (index.input_id, index.time)
    if index.input_type is None:
        (edge_type,) = subgraph.edge
        row, col = torch.from_numpy(subgraph.edge_index[edge_type])
        return SamplerOutput(
            node=torch.from_numpy(subgraph.node[node_type]),
            row=row,
            col=col,
            edge=torch.from_numpy(subgraph.edge[edge_type]),
            num_sampled_nodes=subgraph.num_sampled_nodes[node_type],
            num_sampled_edges=subgraph.num_sampled_edges[edge_type],
            metadata=metadata,
        )
    edge_index = {et: torch.from_numpy(edges) for et, edges in subgraph.edge_index.items()}
    return HeteroSamplerOutput(
        node={name: torch.from_numpy(nodes) for name, nodes in subgraph.node.items()},
        row={edge_type: edges[0] for edge_type, edges in edge_index.items()},
        col={edge_type: edges[1] for edge_type, edges in edge_index.items()},
        edge={edge_type: torch.from_numpy(edge) for edge_type, edge in subgraph.edge.items()},
        num_sampled_nodes=subgraph.num_sampled_nodes,
        num_sampled_edges=subgraph.num_sampled_edges,
        metadata=metadata,
    )
