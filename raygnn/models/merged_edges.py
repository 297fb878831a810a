"""The edges of several edge types into one node type, as one list by destination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from raygnn.models.adjacency import Adjacency

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block


class MergedEdges(NamedTuple):
    """Edges of several blocks with the same destinations.

    Attributes:
        adjacency: of all edges, by destination.
        order: int64 [num_edges]: where each edge is among the blocks' edges one after the other.
    """

    adjacency: Adjacency
    order: Tensor


def merge_edges(blocks: Sequence[Block], src_offsets: Sequence[int], num_src: int) -> MergedEdges:
    """Merges by destination, without a sort: each block's edges are by destination already.

    Args:
        blocks: at least one, all with the same destinations.
        src_offsets: by block, what is added to its sources.
        num_src: sources of all blocks together.
    """
    ptr = torch.stack([block.dst_ptr for block in blocks])
    counts = ptr.diff(dim=1)
    merged_ptr = torch.cat([ptr.new_zeros(1), counts.sum(dim=0).cumsum(0)])
    # Of each destination, the edges of the first block come first.
    start = merged_ptr[:-1] + counts.cumsum(0) - counts
    shift = start - ptr[:, :-1]
    places, sources, targets = [], [], []
    for i, (block, offset) in enumerate(zip(blocks, src_offsets, strict=True)):
        src, dst = block.edge_index
        places.append(shift[i][dst] + torch.arange(block.num_edges, device=dst.device))
        sources.append(src + offset)
        targets.append(dst)
    place = torch.cat(places)
    order = torch.empty_like(place)
    order[place] = torch.arange(len(place), device=place.device)
    adjacency = Adjacency(torch.cat(sources)[order], torch.cat(targets)[order], merged_ptr, num_src)
    return MergedEdges(adjacency, order)
