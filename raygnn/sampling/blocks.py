"""Per-layer bipartite blocks of a batch, so that nothing is computed that nobody reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.errors import DataError
from raygnn.sampling.batch import Batch, EdgeRecord, TensorRecord


@dataclass(frozen=True, kw_only=True)
class Block(TensorRecord):
    """The edges of one layer. Its destinations are the first of its sources.

    Not so in a `HeteroBlock` where the two are of different node types.

    Attributes:
        edge_index: int64 [2, num_edges], (source, destination), by ascending destination.
        num_src: rows that the layer reads.
        num_dst: rows that the layer writes, at most `num_src`.
        dst_ptr: int64 [num_dst + 1]: the edges into destination i are `dst_ptr[i]` to
            `dst_ptr[i + 1]`.
        src_degree: float32 [num_src], in-degrees in the whole graph (out-degrees where messages go
            against the edges).
        dst_degree: float32 [num_dst], the same of the destinations.
        edge_attr: [num_edges, ...] or None.
        edge_weight: [num_edges] or None.
    """

    edge_index: Tensor
    num_src: int
    num_dst: int
    dst_ptr: Tensor
    src_degree: Tensor
    dst_degree: Tensor
    edge_attr: Tensor | None = None
    edge_weight: Tensor | None = None

    @property
    def num_edges(self) -> int:
        """How many edges there are."""
        return self.edge_index.shape[1]

    @cached_property
    def derived(self) -> dict[str, Any]:
        """What layers compute of the edges alone, by name; kept as long as the block is."""
        return {}


@dataclass(frozen=True, kw_only=True)
class HeteroBlock(TensorRecord):
    """The edges of one layer, of every edge type. Destinations of a type are its first sources.

    Attributes:
        blocks: by edge type (source type, relation, destination type), those without an edge too.
            Local ids are positions among the rows of the source and of the destination type.
            Degrees are along the edge type, in the whole graph: edges into a destination
            (`dst_degree`), edges out of a source (`src_degree`).
        num_src: rows that the layer reads, by node type.
        num_dst: rows that the layer writes, by node type.
    """

    blocks: dict[EdgeType, Block]
    num_src: dict[str, int]
    num_dst: dict[str, int]


def blocks_of(batch: Batch) -> list[Block]:
    """The blocks of a batch of one node type and one edge type, in the order of the layers.

    blocks[0], of the first layer, has all edges; blocks[-1] those into the seeds only. They are
    nested prefixes of the batch's edge lists and share its tensors.

    Raises:
        DataError: the batch is of a sampler that does not count its hops.
    """
    ((edge_type, _),) = batch.edges.items()
    return [block.blocks[edge_type] for block in hetero_blocks_of(batch)]


def hetero_blocks_of(batch: Batch) -> list[HeteroBlock]:
    """The blocks of a batch of any types; see `blocks_of`."""
    if batch.blocks is not None:
        return list(batch.blocks)
    nodes = {t: _up_to_each_hop(nodes.num_sampled) for t, nodes in batch.nodes.items()}
    edges = {t: _up_to_each_hop(edges.num_sampled) for t, edges in batch.edges.items()}
    num_hops = min(len(counts) for counts in nodes.values()) - 1
    return [_hetero_block(batch, hop, nodes, edges) for hop in reversed(range(num_hops))]


def _hetero_block(
    batch: Batch, hop: int, nodes: dict[str, list[int]], edges: dict[EdgeType, list[int]]
) -> HeteroBlock:
    num_src = {node_type: counts[hop + 1] for node_type, counts in nodes.items()}
    num_dst = {node_type: counts[hop] for node_type, counts in nodes.items()}
    blocks = {
        edge_type: _block(
            batch.edges[edge_type], num_src[edge_type[0]], num_dst[edge_type[2]], counts[hop]
        )
        for edge_type, counts in edges.items()
    }
    return HeteroBlock(blocks=blocks, num_src=num_src, num_dst=num_dst)


def _block(edges: EdgeRecord, num_src: int, num_dst: int, num_edges: int) -> Block:
    """A prefix of the edges of one type."""
    edge_attr, edge_weight = edges.columns.get("edge_attr"), edges.columns.get("edge_weight")
    return Block(
        edge_index=edges.edge_index[:, :num_edges],
        num_src=num_src,
        num_dst=num_dst,
        dst_ptr=edges.dst_ptr[: num_dst + 1],
        src_degree=edges.src_degree[:num_src],
        dst_degree=edges.dst_degree[:num_dst],
        edge_attr=None if edge_attr is None else edge_attr[:num_edges],
        edge_weight=None if edge_weight is None else edge_weight[:num_edges],
    )


def _up_to_each_hop(num_sampled: list[int] | None) -> list[int]:
    if num_sampled is None:
        raise DataError(
            "blocks of this batch cannot be made: its sampler does not count the nodes and edges "
            "of each hop. Fill num_sampled_nodes and num_sampled_edges in its SamplerOutput, or "
            "use a model that takes the sampled subgraph.",
            id="sampling-hop-counts-missing",
        )
    return list(accumulate(num_sampled))
