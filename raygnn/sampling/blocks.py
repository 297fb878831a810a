"""Per-layer bipartite blocks of a batch, so that nothing is computed that nobody reads."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from raygnn.data.edge_types import EdgeType
from raygnn.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Block:
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

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Block:
        """The block with its tensors on a device."""
        moved: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                moved[field.name] = value.to(device, non_blocking=non_blocking)
        return replace(self, **moved)


@dataclass(frozen=True, kw_only=True)
class HeteroBlock:
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

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> HeteroBlock:
        """The block with its tensors on a device."""
        moved = {t: b.to(device, non_blocking=non_blocking) for t, b in self.blocks.items()}
        return replace(self, blocks=moved)


def blocks_of(batch: Data | HeteroData) -> list[Any]:
    """The blocks of a batch, in the order of the layers.

    blocks[0], of the first layer, has all edges; blocks[-1] those into the seeds only. They are
    nested prefixes of the batch's edge lists and share its tensors.

    Args:
        batch: as `NeighborLoader` or `LinkLoader` gives it.
    Returns:
        Of `Data` a list of `Block`, of `HeteroData` a list of `HeteroBlock`.
    Raises:
        DataError: the batch is of a sampler that does not count its hops.
    """
    if not isinstance(batch, HeteroData):
        nodes, edges = _counts(batch, "num_sampled_nodes"), _counts(batch, "num_sampled_edges")
        ends = zip(nodes[1:], nodes[:-1], edges, strict=True)
        degree = batch.degree
        return [
            _prefix(batch, num_src, num_dst, num_edges, degree, degree)
            for num_src, num_dst, num_edges in ends
        ][::-1]
    nodes_of = {t: _counts(batch[t], "num_sampled_nodes") for t in batch.node_types}
    edges_of = {t: _counts(batch[t], "num_sampled_edges") for t in batch.edge_types}
    num_hops = min(len(counts) for counts in nodes_of.values()) - 1
    return [_hetero_prefix(batch, hop, nodes_of, edges_of) for hop in reversed(range(num_hops))]


def _hetero_prefix(
    batch: HeteroData,
    hop: int,
    nodes_of: dict[str, list[int]],
    edges_of: dict[EdgeType, list[int]],
) -> HeteroBlock:
    num_src = {node_type: counts[hop + 1] for node_type, counts in nodes_of.items()}
    num_dst = {node_type: counts[hop] for node_type, counts in nodes_of.items()}
    blocks = {}
    for edge_type, counts in edges_of.items():
        source, _, target = edge_type
        store = batch[edge_type]
        blocks[edge_type] = _prefix(
            store,
            num_src[source],
            num_dst[target],
            counts[hop],
            store.src_degree,
            store.dst_degree,
        )
    return HeteroBlock(blocks=blocks, num_src=num_src, num_dst=num_dst)


def _prefix(
    store: Any, num_src: int, num_dst: int, num_edges: int, src_degree: Tensor, dst_degree: Tensor
) -> Block:
    edge_attr, edge_weight = getattr(store, "edge_attr", None), getattr(store, "edge_weight", None)
    return Block(
        edge_index=store.edge_index[:, :num_edges],
        num_src=num_src,
        num_dst=num_dst,
        dst_ptr=store.dst_ptr[: num_dst + 1],
        src_degree=src_degree[:num_src],
        dst_degree=dst_degree[:num_dst],
        edge_attr=None if edge_attr is None else edge_attr[:num_edges],
        edge_weight=None if edge_weight is None else edge_weight[:num_edges],
    )


def _counts(store: Any, name: str) -> list[int]:
    """How many nodes or edges there are up to each hop."""
    by_hop = getattr(store, name, None)
    if by_hop is None:
        raise DataError(
            "blocks of this batch cannot be made: its sampler does not count the nodes and edges "
            "of each hop. Fill num_sampled_nodes and num_sampled_edges in its SamplerOutput, or "
            "use a model that takes the sampled subgraph.",
            id="sampling-hop-counts-missing",
        )
    return list(accumulate(by_hop))
