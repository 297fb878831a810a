"""Per-layer bipartite blocks of a batch, so that nothing is computed that nobody reads."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

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
            Local ids are places among the rows of the source and of the destination type. Degrees
            are along the edge type, in the whole graph: edges into a destination (`dst_degree`),
            edges out of a source (`src_degree`).
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


def blocks_of(batch: Any) -> list[Block]:
    """The blocks of a batch, in the order of the layers.

    blocks[0], of the first layer, has all edges; blocks[-1] those into the seeds only. They are
    nested prefixes of the batch's edge list and share its tensors.

    Args:
        batch: of one node type and one edge type, as `NeighborLoader` gives it.
    Raises:
        DataError: the batch is of several types, or of a sampler that does not count its hops.
    """
    _check(batch)
    num_nodes = list(accumulate(batch.num_sampled_nodes))
    num_edges = list(accumulate(batch.num_sampled_edges))
    counts = zip(num_nodes[1:], num_nodes[:-1], num_edges, strict=True)
    return [_prefix(batch, *of_hop) for of_hop in counts][::-1]


def _prefix(batch: Any, num_src: int, num_dst: int, num_edges: int) -> Block:
    edge_attr, edge_weight = getattr(batch, "edge_attr", None), getattr(batch, "edge_weight", None)
    return Block(
        edge_index=batch.edge_index[:, :num_edges],
        num_src=num_src,
        num_dst=num_dst,
        dst_ptr=batch.dst_ptr[: num_dst + 1],
        src_degree=batch.degree[:num_src],
        dst_degree=batch.degree[:num_dst],
        edge_attr=None if edge_attr is None else edge_attr[:num_edges],
        edge_weight=None if edge_weight is None else edge_weight[:num_edges],
    )


def _check(batch: Any) -> None:
    if hasattr(batch, "node_types"):
        raise DataError(
            "blocks of a batch of several node or edge types are not offered. Use a model that "
            "takes the sampled subgraph."
        )
    if getattr(batch, "num_sampled_nodes", None) is None:
        raise DataError(
            "blocks of this batch cannot be made: its sampler does not count the nodes and edges "
            "of each hop. Fill num_sampled_nodes and num_sampled_edges in its SamplerOutput, or "
            "use a model that takes the sampled subgraph."
        )
