"""The edges of a block as a sparse matrix, for the reductions of message passing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from numba import njit
from torch import Tensor
from torch.nn import functional

from raygnn.sampling.blocks import Block
from raygnn.sampling.sparse_features import Groups, group_by_key


class Adjacency:
    """Edges sorted by destination, and their transpose once a backward pass needs it.

    Attributes:
        src: int64 [num_edges].
        dst: int64 [num_edges], ascending.
        ptr: int64 [num_dst + 1], start of each destination's edges.
        num_self_edges: edges from source i to destination i; None counts them on demand.
    """

    def __init__(
        self,
        src: Tensor,
        dst: Tensor,
        ptr: Tensor,
        num_src: int,
        num_self_edges: int | None = None,
    ) -> None:
        self.src = src
        self.dst = dst
        self.ptr = ptr
        self.num_src = num_src
        self.num_dst = ptr.numel() - 1
        self.num_self_edges = num_self_edges
        self._by_head: dict[tuple[int, bool], HeadEdges] = {}
        self._by_source_and_head: dict[int, HeadEdges] = {}

    @classmethod
    def of(cls, block: Block) -> Adjacency:
        """The adjacency of a block. Shares its tensors and lives as long as the block."""
        if "adjacency" not in block.derived:
            src, dst = block.edge_index
            num_loops = None if block.counts is None else block.counts.num_self_edges
            block.derived["adjacency"] = cls(src, dst, block.dst_ptr, block.num_src, num_loops)
        adjacency: Adjacency = block.derived["adjacency"]
        return adjacency

    @property
    def num_edges(self) -> int:
        return self.src.numel()

    @cached_property
    def num_in_edges(self) -> Tensor:
        """int64 [num_dst], edges of each destination."""
        return self.ptr[1:] - self.ptr[:-1]

    @cached_property
    def by_source(self) -> Groups:
        return group_by_key(self.src, self.dst, self.num_src)

    def by_head(self, heads: int, *, own_rows: bool) -> HeadEdges:
        """Edges by destination and head, on a CPU. `own_rows`: sources have a row per head."""
        key = (heads, own_rows)
        if key not in self._by_head:
            self._by_head[key] = edges_by_head(self.src, self.ptr, heads, own_rows=own_rows)
        return self._by_head[key]

    def by_source_and_head(self, heads: int) -> HeadEdges:
        """The transpose by source and head, for destinations with a row per head."""
        if heads not in self._by_source_and_head:
            _, dst, ptr = self.by_source
            self._by_source_and_head[heads] = edges_by_head(dst, ptr, heads, own_rows=True)
        return self._by_source_and_head[heads]

    @cached_property
    def with_self_loops(self) -> Adjacency:
        """The edges with exactly one from each destination to itself, placed last.

        Destination i is source i. Self-edges of the graph are dropped, so none is counted twice.
        """
        indices, _ = self.without_self_edges
        src, dst = indices.src, indices.dst
        nodes = torch.arange(self.num_dst, device=src.device)
        edge_at = torch.arange(src.numel(), device=src.device) + dst
        loop_at = indices.ptr[1:] + nodes
        both = src.new_empty(2, src.numel() + self.num_dst)
        both[0, edge_at], both[1, edge_at] = src, dst
        both[:, loop_at] = nodes
        return Adjacency(both[0], both[1], functional.pad(loop_at + 1, (1, 0)), self.num_src)

    @cached_property
    def without_self_edges(self) -> tuple[Adjacency, Tensor | None]:
        """Drops edges from source i to destination i.

        Also returns positions of the remaining edges, int64 [num_kept]; None if all remain.
        """
        if self.num_self_edges == 0:
            return self, None
        keep = self.src != self.dst
        num_loops = self.num_self_edges
        if num_loops is None:
            num_loops = self.num_edges - int(keep.sum())
        if num_loops == 0:
            return self, None
        indices = positions(keep, self.num_edges - num_loops)
        ptr = functional.pad(keep.cumsum(0), (1, 0))[self.ptr]
        return Adjacency(self.src[indices], self.dst[indices], ptr, self.num_src, 0), indices


def positions(mask: Tensor, number: int) -> Tensor:
    """Positions of true elements. Their `number` is known, so the device is not waited for."""
    return torch.nonzero_static(mask, size=number).squeeze(1)


class MergedEdges(NamedTuple):
    """Edges of several blocks with the same destinations, sorted by destination.

    Attributes:
        dst: int64 [num_edges], ascending.
        ptr: int64 [num_dst + 1], start of each destination's edges.
        position: int64 [num_edges], position here of each edge of the concatenated blocks.
        order: int64 [num_edges], the inverse of `position`.
    """

    dst: Tensor
    ptr: Tensor
    position: Tensor
    order: Tensor


def merge_edges(blocks: Sequence[Block]) -> MergedEdges:
    """Merges blocks without a sort, because each block's edges are sorted by destination.

    For each destination, edges of the first block come first. All blocks have the same
    destinations.
    """
    ptr = torch.stack([block.dst_ptr for block in blocks])
    counts = ptr.diff(dim=1)
    merged_ptr = functional.pad(counts.sum(dim=0).cumsum(0), (1, 0))
    shift = merged_ptr[:-1] + counts.cumsum(0) - counts - ptr[:, :-1]
    targets = [block.edge_index[1] for block in blocks]
    position = torch.cat(
        [shift[i][dst] + torch.arange(len(dst), device=dst.device) for i, dst in enumerate(targets)]
    )
    order = torch.empty_like(position)
    order[position] = torch.arange(len(position), device=position.device)
    return MergedEdges(torch.cat(targets)[order], merged_ptr, position, order)


class HeadEdges(NamedTuple):
    """Edges of segments once per head: by segment, then head, then edge.

    Heads of a segment are adjacent, so a node's rows are read while they are in the cache, and
    results are written at their position in [num_segments, heads, channels].

    Attributes:
        ptr: int64 [num_segments * heads + 1], start of each segment's heads.
        rows: int64 [num_edges * heads], row read by each edge.
        order: int64 [num_edges * heads], positions in a flat [num_edges, heads].
        place: int64 [num_edges * heads], the inverse of `order`.
    """

    ptr: Tensor
    rows: Tensor
    order: Tensor
    place: Tensor


def edges_by_head(index: Tensor, ptr: Tensor, heads: int, *, own_rows: bool) -> HeadEdges:
    """Repeats the edges of each segment once per head.

    Args:
        index: int64 [num_edges], the node that each edge reads.
        ptr: int64 [num_segments + 1], start of each segment's edges.
        own_rows: nodes have a row per head, [num_nodes, heads, channels], instead of a shared one.
    """
    head = torch.arange(heads, device=index.device)
    starts = heads * ptr[:-1].unsqueeze(1) + ptr.diff().unsqueeze(1) * head
    ends = functional.pad(starts.flatten(), (0, 1), value=len(index) * heads)
    order, place = _order_and_place(ptr, starts, len(index))
    index = index.unsqueeze(1)
    rows = index * heads + head if own_rows else index.expand(-1, heads)
    return HeadEdges(ends, rows.flatten().index_select(0, order), order, place)


def _order_and_place(ptr: Tensor, starts: Tensor, num_edges: int) -> tuple[Tensor, Tensor]:
    order, place = (ptr.new_empty(num_edges * starts.shape[1]) for _ in range(2))
    arrays = (tensor.contiguous().numpy() for tensor in (ptr, starts, order, place))
    _write_order_and_place(*arrays)
    return order, place


@njit(nogil=True, cache=True)
def _write_order_and_place(ptr, starts, order, place):  # type: ignore[no-untyped-def]
    num_segments, heads = starts.shape
    for segment in range(num_segments):
        for head in range(heads):
            to = starts[segment, head]
            for edge in range(ptr[segment], ptr[segment + 1]):
                place[edge * heads + head] = to
                order[to] = edge * heads + head
                to += 1
