"""Per-layer bipartite blocks of a batch: nothing that nobody reads is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """The edges of one layer, destination-sorted; destinations are the first of the sources."""

    edge_index: Tensor
    dst_ptr: Tensor
    num_src: int
    num_dst: int
    src_degree: Tensor
    dst_degree: Tensor
    edge_attr: Tensor | None = None
    edge_weight: Tensor | None = None


def blocks_of(batch: Any) -> list[Block]:
    """Nested prefixes of one edge list, the deepest first: one block per layer."""
    nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
    num_hops = len(edges)
    blocks = []
    for depth in range(num_hops, 0, -1):
        num_dst, num_src = sum(nodes[:depth]), sum(nodes[: depth + 1])
        num_edges = sum(edges[:depth])
        edge_index = batch.edge_index[:, :num_edges]
        marks = torch.arange(num_dst + 1, device=edge_index.device)
        blocks.append(
            Block(
                edge_index,
                torch.searchsorted(edge_index[1].contiguous(), marks),
                num_src,
                num_dst,
                batch.degree[:num_src],
                batch.degree[:num_dst],
            )
        )
    return blocks
