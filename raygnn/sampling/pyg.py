"""PyG samplers in raygnn, and raygnn's samples as PyG's records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)

from raygnn.data.edge_types import EdgeType
from raygnn.errors import DataError
from raygnn.sampling.protocols import GraphStore, SampledSubgraph
from raygnn.sampling.rng import BatchKey


class ForeignSampler:
    """Samples with a PyG sampler, and sorts its edges by destination.

    Its draws do not depend on the batch key, so batches are equal for any number of threads, ranks
    and restarts only if the sampler ensures it. The loader's threads call it concurrently. If the
    sampler counts nodes and edges by hop, and each hop's edges lead to nodes of the previous hop,
    batches have per-layer blocks; else only the union of the hops.
    """

    def __init__(
        self, sampler: BaseSampler, node_types: Sequence[str], edge_types: Sequence[EdgeType]
    ) -> None:
        self._sampler = sampler
        self._is_one_graph = len(node_types) == 1 and len(edge_types) == 1
        self._edge_types = list(edge_types)

    def sample(self, seeds: Mapping[str, np.ndarray], key: BatchKey) -> SampledSubgraph:
        """Samples the neighborhood of distinct seeds of one type.

        Raises a DataError if a seed repeats, or the sampler does not return the seeds first.
        """
        ((node_type, ids),) = seeds.items()
        seeds_input = NodeSamplerInput(
            input_id=torch.arange(len(ids)),
            node=torch.from_numpy(ids),
            input_type=None if self._is_one_graph else node_type,
        )
        output = self._sampler.sample_from_nodes(seeds_input)
        if isinstance(output, SamplerOutput):
            output = _by_type(output, node_type, self._edge_types[0])
        return _subgraph(output, node_type, ids)


def _by_type(output: SamplerOutput, node_type: str, edge_type: EdgeType) -> HeteroSamplerOutput:
    def counts(key: object, values: Sequence[int] | None) -> dict | None:
        return None if values is None else {key: values}

    return HeteroSamplerOutput(
        node={node_type: output.node},
        row={edge_type: output.row},
        col={edge_type: output.col},
        edge={edge_type: output.edge},
        num_sampled_nodes=counts(node_type, output.num_sampled_nodes),
        num_sampled_edges=counts(edge_type, output.num_sampled_edges),
    )


def _subgraph(output: HeteroSamplerOutput, node_type: str, seeds: np.ndarray) -> SampledSubgraph:
    node = {name: _array(nodes) for name, nodes in output.node.items()}
    _check_seeds(node[node_type], node_type, seeds)
    edge_index, edge, dst_ptr = {}, {}, {}
    for edge_type in output.row:
        row, col = _array(output.row[edge_type]), _array(output.col[edge_type])
        order = np.argsort(col, kind="stable")
        edge_index[edge_type] = np.stack([row[order], col[order]])
        e_id = None if output.edge is None else output.edge.get(edge_type)
        if e_id is not None:
            edge[edge_type] = _array(e_id)[order]
        marks = np.arange(len(node[edge_type[2]]) + 1)
        dst_ptr[edge_type] = np.searchsorted(edge_index[edge_type][1], marks)
    num_nodes = {name: list(counts) for name, counts in (output.num_sampled_nodes or {}).items()}
    num_edges = {name: list(counts) for name, counts in (output.num_sampled_edges or {}).items()}
    if not all(
        _follows_hops(
            edge_index[edge_type],
            dst_ptr[edge_type],
            num_nodes.get(edge_type[0]),
            num_nodes.get(edge_type[2]),
            num_edges.get(edge_type),
        )
        for edge_type in edge_index
    ):
        num_nodes, num_edges = {}, {}
    seed_index = {node_type: np.arange(len(seeds))}
    return SampledSubgraph(node, edge_index, edge, dst_ptr, num_nodes, num_edges, seed_index)


def _follows_hops(
    edge_index: np.ndarray,
    dst_ptr: np.ndarray,
    num_src: list[int] | None,
    num_dst: list[int] | None,
    num_edges: list[int] | None,
) -> bool:
    if num_src is None or num_dst is None or num_edges is None:
        return False
    src_before, dst_before = list(accumulate(num_src)), list(accumulate(num_dst))
    edges_before = list(accumulate(num_edges))
    if not len(src_before) == len(dst_before) == len(edges_before) + 1:
        return False
    return all(
        dst_ptr[dst_before[hop]] == edges
        and edge_index[0, :edges].max(initial=-1) < src_before[hop + 1]
        for hop, edges in enumerate(edges_before)
    )


def _check_seeds(nodes: np.ndarray, node_type: str, seeds: np.ndarray) -> None:
    if len(np.unique(seeds)) < len(seeds):
        raise DataError(
            f"seeds of node type {node_type!r} are invalid: some repeat, which PyG's samplers "
            f"cannot express. Give distinct seeds, or use raygnn's sampler.",
            id="sampling-seeds-repeated",
        )
    if not np.array_equal(nodes[: len(seeds)], seeds):
        raise DataError(
            "sampling.type is invalid: its sample_from_nodes() does not put the seeds first. "
            "Give a SamplerOutput whose first nodes are the seeds in their order.",
            id="sampling-seeds-first",
        )


def _array(values: Tensor) -> np.ndarray:
    return values.numpy().astype(np.int64, copy=False)


def node_output(
    subgraph: SampledSubgraph, node_type: str, index: NodeSamplerInput
) -> SamplerOutput | HeteroSamplerOutput:
    """PyG's record of the neighborhood of nodes. Raises a DataError if a seed repeats."""
    seed_index = subgraph.seed_index[node_type]
    if len(seed_index) > subgraph.num_sampled_nodes[node_type][0]:
        raise DataError(
            f"seeds of node type {node_type!r} are invalid: PyG's loaders take the first rows of a "
            "batch for its seeds, so none may repeat. Give distinct seeds.",
            id="sampling-seeds-repeated",
        )
    return _output(subgraph, index.input_type is None, (index.input_id, index.time))


class LinkEnds(NamedTuple):
    """The ends of links and of their negatives.

    Attributes:
        num_links: number of links; negatives follow them.
        source: int64 [num_links + num_negatives], or [num_links] with only negative destinations.
        target: int64 [num_links + num_negatives].
    """

    num_links: int
    source: Tensor
    target: Tensor


def link_types(graph: GraphStore, index: EdgeSamplerInput) -> tuple[str, str]:
    if index.input_type is None:
        return graph.node_types[0], graph.node_types[0]
    return index.input_type[0], index.input_type[-1]


def link_ends(
    graph: GraphStore, index: EdgeSamplerInput, negatives: NegativeSampling | None
) -> LinkEnds:
    """Links with their negatives, which PyG draws from torch's global generator."""
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
