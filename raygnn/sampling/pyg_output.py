"""Between the records of PyG's samplers and ours."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import (
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)

from raygnn.errors import DataError
from raygnn.sampling.protocols import GraphStore
from raygnn.sampling.subgraph import SampledSubgraph


def node_output(
    subgraph: SampledSubgraph, node_type: str, index: NodeSamplerInput
) -> SamplerOutput | HeteroSamplerOutput:
    """PyG's record of the neighborhood of nodes.

    Raises:
        DataError: a seed was given twice.
    """
    seed_index = subgraph.seed_index[node_type]
    if len(seed_index) > subgraph.num_sampled_nodes[node_type][0]:
        raise DataError(
            f"seeds of node type {node_type!r} are invalid: PyG's loaders take the first rows of a "
            "batch for its seeds, so none may be there twice. Give distinct seeds.",
            id="sampling-seeds-repeated",
        )
    return _output(subgraph, index.input_type is None, (index.input_id, index.time))


class LinkEnds(NamedTuple):
    """The two ends of links and of what is to be distinguished from them.

    Attributes:
        num_links: links as given; what comes after them is negative.
        source: int64 [num_links + num_negatives], or [num_links] with negative destinations only.
        target: int64 [num_links + num_negatives].
    """

    num_links: int
    source: Tensor
    target: Tensor


def link_types(graph: GraphStore, index: EdgeSamplerInput) -> tuple[str, str]:
    """The node types of the two ends."""
    if index.input_type is None:
        return graph.node_types[0], graph.node_types[0]
    return index.input_type[0], index.input_type[-1]


def link_ends(
    graph: GraphStore, index: EdgeSamplerInput, negatives: NegativeSampling | None
) -> LinkEnds:
    """Links with their negatives, which PyG draws, from torch's global generator."""
    source, target, num_links = index.row, index.col, len(index.row)
    if negatives is not None:
        num_negatives = math.ceil(num_links * negatives.amount)
        source_type, target_type = link_types(graph, index)
        if negatives.is_binary():
            drawn = negatives.sample(num_negatives, "src", graph.num_nodes(source_type))
            source = torch.cat([source, drawn])
        drawn = negatives.sample(num_negatives, "dst", graph.num_nodes(target_type))
        target = torch.cat([target, drawn])
    return LinkEnds(num_links, source, target)


def link_output(
    subgraph: SampledSubgraph,
    index: EdgeSamplerInput,
    ends: LinkEnds,
    types: tuple[str, str],
    negatives: NegativeSampling | None,
) -> SamplerOutput | HeteroSamplerOutput:
    """PyG's record of the neighborhood of links, sampled for sources before targets."""
    source = torch.from_numpy(subgraph.seed_index[types[0]])[: len(ends.source)]
    target = torch.from_numpy(subgraph.seed_index[types[1]])[-len(ends.target) :]
    metadata: tuple[Any, ...]
    if negatives is not None and negatives.is_triplet():
        positive, negative = target[: ends.num_links], target[ends.num_links :]
        negative = negative.view(ends.num_links, -1).squeeze(-1)
        metadata = (index.input_id, source, positive, negative, index.time)
    else:
        label = index.label
        if negatives is not None:
            label = torch.ones(ends.num_links) if label is None else label
            size = (len(ends.source) - ends.num_links, *label.shape[1:])
            label = torch.cat([label, label.new_zeros(size)])
        metadata = (index.input_id, torch.stack([source, target]), label, index.time)
    return _output(subgraph, index.input_type is None, metadata)


def _output(
    subgraph: SampledSubgraph, is_one_graph: bool, metadata: tuple[Any, ...]
) -> SamplerOutput | HeteroSamplerOutput:
    if is_one_graph:
        ((node_type, nodes),) = subgraph.node.items()
        ((edge_type, edge),) = subgraph.edge.items()
        row, col = torch.from_numpy(subgraph.edge_index[edge_type])
        return SamplerOutput(
            node=torch.from_numpy(nodes),
            row=row,
            col=col,
            edge=torch.from_numpy(edge),
            num_sampled_nodes=subgraph.num_sampled_nodes[node_type],
            num_sampled_edges=subgraph.num_sampled_edges[edge_type],
            batch=None if subgraph.seed is None else torch.from_numpy(subgraph.seed[node_type]),
            metadata=metadata,
        )
    batch = None
    if subgraph.seed is not None:
        batch = {name: torch.from_numpy(number) for name, number in subgraph.seed.items()}
    edge_index = {et: torch.from_numpy(edges) for et, edges in subgraph.edge_index.items()}
    return HeteroSamplerOutput(
        node={name: torch.from_numpy(nodes) for name, nodes in subgraph.node.items()},
        row={edge_type: edges[0] for edge_type, edges in edge_index.items()},
        col={edge_type: edges[1] for edge_type, edges in edge_index.items()},
        edge={edge_type: torch.from_numpy(edge) for edge_type, edge in subgraph.edge.items()},
        num_sampled_nodes=subgraph.num_sampled_nodes,
        num_sampled_edges=subgraph.num_sampled_edges,
        batch=batch,
        metadata=metadata,
    )
