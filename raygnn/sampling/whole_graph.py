"""The whole graph as one batch, made once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from raygnn.data.edge_types import EdgeType
from raygnn.sampling.batch import EdgeRecord, NodeBatch, NodeRecord
from raygnn.sampling.batch_assembler import BatchAssembler
from raygnn.sampling.batch_sequence import BatchSequence
from raygnn.sampling.blocks import HeteroBlock, hetero_blocks_of
from raygnn.sampling.protocols import FeatureStore, GraphStore, PickRequest, SampledSubgraph
from raygnn.sampling.seeds import check_seeds

_NO_EDGES = np.empty(0, np.int64)


class WholeGraph:
    """All nodes in their order and all edges, for batches that differ only in their seeds.

    Every layer reads and writes all nodes, so one block serves all layers. Features and edges are
    read at the first batch, and then stay on the device once.

    Args:
        fanouts: by edge type, one number per layer; a type with only zeros carries no messages.
        columns: node columns to read, and their names in the batch.
    """

    def __init__(
        self,
        graph: GraphStore,
        features: FeatureStore,
        fanouts: Mapping[EdgeType, Sequence[int]],
        *,
        columns: Mapping[str, str],
        edge_columns: Mapping[str, str],
        device: torch.device,
        src_degrees: bool = False,
    ) -> None:
        self.graph = graph
        self._used = {edge_type for edge_type, hops in fanouts.items() if any(hops)}
        self._num_layers = max(len(hops) for hops in fanouts.values())
        self._assembler = BatchAssembler(
            graph, features, columns, edge_columns, src_degrees=src_degrees
        )
        self._device = device

    def batch(self, node_type: str, seeds: np.ndarray) -> NodeBatch:
        """The batch of distinct int64 seeds of a type. All else is shared with other batches."""
        nodes, edges, blocks = self._parts
        index = torch.from_numpy(seeds)
        batch = NodeBatch(
            index=0,
            input_id=index,
            nodes={node_type: replace(nodes[node_type], seed_index=index)},
            edges={},
            node_type=node_type,
            seed_index=index,
            labels=self._assembler.labels(node_type, seeds),
        ).to(self._device)
        return replace(batch, nodes=nodes | batch.nodes, edges=edges, blocks=blocks)

    @cached_property
    def _parts(
        self,
    ) -> tuple[dict[str, NodeRecord], dict[EdgeType, EdgeRecord], tuple[HeteroBlock, ...]]:
        subgraph = self._subgraph()
        empty = torch.empty(0, dtype=torch.int64)
        batch = NodeBatch(
            index=0,
            input_id=empty,
            nodes={
                node_type: replace(nodes, num_seeds=len(nodes.n_id))
                for node_type, nodes in self._assembler.nodes(subgraph).items()
            },
            edges=self._assembler.edges(subgraph),
            node_type="",
            seed_index=empty,
            labels={},
        ).to(self._device)
        # Equal for all layers: what a layer derives of the edges, the others find.
        blocks = (hetero_blocks_of(batch)[0],) * self._num_layers
        return batch.nodes, batch.edges, blocks

    def _subgraph(self) -> SampledSubgraph:
        graph, no_more = self.graph, [0] * self._num_layers
        num_nodes = {node_type: graph.num_nodes(node_type) for node_type in graph.node_types}
        subgraph = SampledSubgraph(
            node={node_type: np.arange(number) for node_type, number in num_nodes.items()},
            edge_index={},
            edge={},
            dst_ptr={},
            num_sampled_nodes={name: [number, *no_more] for name, number in num_nodes.items()},
            num_sampled_edges={},
            seed_index={},
        )
        for edge_type in graph.edge_types:
            destination_type = edge_type[2]
            ptr = np.zeros(num_nodes[destination_type] + 1, np.int64)
            sources = e_id = _NO_EDGES
            if edge_type in self._used:
                nodes = np.arange(num_nodes[destination_type])
                every = PickRequest(nodes, fanout=-1, key=0, hop=0)
                picks = graph.pick(edge_type, every)
                ptr, sources = picks.offsets, picks.neighbors.astype(np.int64)
                e_id = picks.e_id.astype(np.int64)
            destinations = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
            subgraph.edge_index[edge_type] = np.stack([sources, destinations])
            subgraph.edge[edge_type] = e_id
            subgraph.dst_ptr[edge_type] = ptr
            subgraph.num_sampled_edges[edge_type] = [len(sources), *no_more[1:]]
        return subgraph


class WholeGraphLoader(BatchSequence[NodeBatch]):
    """One batch per epoch: all seeds of a split, on the whole graph, with a new key.

    One rank has it, on the device; others have none.

    Args:
        seeds: int64 [num_seeds], distinct dense ids of the split.
    Raises:
        DataError: the graph has no such node type, or a seed is not one of its nodes.
    """

    def __init__(
        self,
        whole: WholeGraph,
        seeds: np.ndarray,
        node_type: str,
        *,
        split: str,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._whole = whole
        self.seeds = check_seeds(whole.graph, node_type, seeds)
        self.node_type = node_type
        super().__init__(
            len(self.seeds),
            batch_size=len(self.seeds),
            split=split,
            seed=seed,
            shuffle=False,
            rank=rank,
            world_size=world_size,
            num_threads=0,
        )

    def build(self, epoch: int, index: int) -> NodeBatch:
        return replace(self._batch, key=self.key(epoch, index))

    @cached_property
    def _batch(self) -> NodeBatch:
        return self._whole.batch(self.node_type, self.seeds)
