"""The edges of a block as a sparse matrix, and reductions without a tensor of messages.

PyG gathers a message per edge, [num_edges, channels], and scatters the messages into the
destinations. Here sources are reduced directly (a sum with `embedding_bag`), and the backward pass
of a sum is the same sum over the transposed edges. Every sum has one order, so results are
bit-identical from run to run with any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from numba import njit
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
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
        self, src: Tensor, dst: Tensor, ptr: Tensor, num_src: int, num_self_edges: int | None = None
    ) -> None:
        self.src = src
        self.dst = dst
        self.ptr = ptr
        self.num_src = num_src
        self.num_dst = ptr.numel() - 1
        self.num_self_edges = num_self_edges
        self._by_head: dict[tuple[int, bool, bool], HeadEdges] = {}

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

    def by_head(self, heads: int, *, own_rows: bool, transposed: bool = False) -> HeadEdges:
        """Edges by destination and head, on a CPU; `transposed`, by source and head.

        `own_rows`: the nodes at the other end have a row per head.
        """
        key = (heads, own_rows, transposed)
        if key not in self._by_head:
            index, ptr = self.by_source[1:] if transposed else (self.src, self.ptr)
            self._by_head[key] = edges_by_head(index, ptr, heads, own_rows=own_rows)
        return self._by_head[key]

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


# A CPU forms messages for this many edges at a time: 256 float32 each then stay in a cache of 2 MB
# until they are reduced (5 times faster than all edges together).
_CHUNK_EDGES = 2048
# Summing one channel of one edge takes about as long as this many multiply-adds of a matrix
# product (on one CPU core: 20 GB/s of gathered float32, 75 G multiply-adds/s).
_EDGE_COST = 15


def segment_sum(x: Tensor, adjacency: Adjacency, edge_weight: Tensor | None = None) -> Tensor:
    """Sums source rows into their destinations: [num_dst, channels]; 0 without edges.

    Args:
        x: [num_src, channels].
        edge_weight: [num_edges], a factor on each edge's row. Gets no gradient.
    """
    return apply_eagerly(_SegmentSum, x, adjacency, edge_weight)


def segment_sum_and_rows(x: Tensor, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    """Sums source rows, and returns the destinations' own rows, which are the first sources.

    Equals `segment_sum(x, adjacency), x[:num_dst]`, without a slice's backward pass, which
    allocates and adds a second gradient of all sources, mostly zeros.
    """
    sums, rows = apply_eagerly(_SegmentSumAndRows, x, adjacency)
    return sums, rows


def segment_mean(x: Tensor, adjacency: Adjacency) -> Tensor:
    """Averages source rows per destination; 0 without edges."""
    return mean_of(segment_sum(x, adjacency), adjacency)


def mean_of(sums: Tensor, adjacency: Adjacency) -> Tensor:
    count = adjacency.num_in_edges.clamp(min=1).to(sums.dtype)
    return sums / count.unsqueeze(-1)


def segment_max(x: Tensor, adjacency: Adjacency) -> Tensor:
    """Largest entry per destination and channel; 0 without edges.

    Equal largest entries share the gradient equally, as in PyG.
    """
    return apply_eagerly(_SegmentMax, x, adjacency)


def scale_sampled(neighbor_sum: Tensor, block: Block) -> Tensor:
    """Scales each destination's sum, [num_dst, channels], by (in-degree / in-edges sampled).

    Uniform sampling takes each in-edge equally often, so the expected value is the sum over all
    in-edges. The factor is 1 if all were taken. Weighted draws take some edges more often, and the
    others stand in for links excluded from a batch.
    """
    num_sampled = (block.dst_ptr[1:] - block.dst_ptr[:-1]).clamp(min=1)
    dtype = torch.promote_types(neighbor_sum.dtype, torch.float32)
    factor = block.dst_degree.to(dtype) / num_sampled
    return neighbor_sum * factor.to(neighbor_sum.dtype).unsqueeze(-1)


def inverse_sqrt(degree: Tensor, dtype: torch.dtype) -> Tensor:
    # Half precision does not distinguish large degrees.
    precise = degree.to(torch.promote_types(dtype, torch.float32))
    return precise.rsqrt().to(dtype).unsqueeze(-1)


def transform_first(
    block: Block | Adjacency, in_channels: int, out_channels: int, heads: int = 1
) -> bool:
    """Whether A (x W) is faster than (A x) W, which are equal up to rounding.

    The first sums narrower rows if W narrows them. The second multiplies fewer rows: destinations
    instead of sources.

    Args:
        out_channels: of all heads together.
        heads: attention heads. Each has its own A, which the second form applies to complete rows.
    """
    weights = in_channels * out_channels
    first = block.num_src * weights + _EDGE_COST * block.num_edges * out_channels
    last = block.num_dst * weights + _EDGE_COST * block.num_edges * in_channels * heads
    return first < last


def bag_sum(rows: Tensor, index: Tensor, ptr: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sums `rows[index[ptr[i]:ptr[i + 1]]]`, times `weight` by edge, for each i. No gradient."""
    if weight is not None:
        weight = weight.detach().to(rows.dtype).contiguous()
    out: Tensor = torch.embedding_bag(
        rows.detach().contiguous(), index, ptr, False, 0, False, weight, True
    )[0]
    return out


def row_sum(rows: Tensor, ptr: Tensor) -> Tensor:
    """Sums `rows[ptr[i]:ptr[i + 1]]` for each i. No gradient."""
    if rows.device.type != "cpu" and rows.dtype in (torch.float32, torch.float64):
        # One kernel. It adds narrower types in their own precision, which is too little.
        return torch.segment_reduce(rows.detach(), "sum", offsets=ptr, unsafe=True)
    return bag_sum(rows, torch.arange(rows.shape[0], device=rows.device), ptr)


def segment_chunks(ptr: Tensor, num_edges: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Divides segments of edges into consecutive chunks that fit a CPU cache; one chunk on other
    devices.

    Args:
        ptr: int64 [num_segments + 1], start of each segment's edges, from 0 to num_edges.
    Yields:
        The segments, their edges, and `ptr` of the segments counted from their first edge. Every
        segment is in one chunk, also without edges.
    """
    if ptr.device.type != "cpu":
        yield slice(0, ptr.numel() - 1), slice(0, num_edges), ptr
        return
    marks = range(_CHUNK_EDGES, num_edges, _CHUNK_EDGES)
    cuts = [0, *torch.searchsorted(ptr, ptr.new_tensor(marks)).tolist(), ptr.numel() - 1]
    for first, last in pairwise(cuts):
        if first < last:
            start, stop = int(ptr[first]), int(ptr[last])
            yield slice(first, last), slice(start, stop), ptr[first : last + 1] - start


def apply_eagerly(function: type[Function], *args: Any) -> Tensor:
    """Applies an autograd function over edges, uncompiled also in compiled models."""
    out: Tensor = _apply(function, args)
    return out


def break_graphs() -> None:
    """Lets torch.compile break its graphs at `apply_eagerly`. Call it before compiling.

    The functions are single kernels, and the transpose in their backward passes has a size that
    depends on data. torch would trace into them and give up at points that vary between batches and
    Python versions, sometimes with an error.
    """
    global _apply
    _apply = torch.compiler.disable(_applied)


def _applied(function: type[Function], args: tuple[Any, ...]) -> Any:
    return function.apply(*args)


_apply: Callable[[type[Function], tuple[Any, ...]], Any] = _applied


class _SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adjacency: Adjacency, edge_weight: Tensor | None) -> Tensor:
        ctx.adjacency = adjacency
        ctx.save_for_backward(edge_weight)
        return bag_sum(x, adjacency.src, adjacency.ptr, edge_weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (edge_weight,) = ctx.saved_tensors
        order, dst, ptr = ctx.adjacency.by_source
        weight = None if edge_weight is None else edge_weight[order]
        return bag_sum(grad, dst, ptr, weight), None, None


class _SegmentSumAndRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
        ctx.adjacency = adjacency
        return bag_sum(x, adjacency.src, adjacency.ptr), x[: adjacency.num_dst]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_sums: Tensor, grad_rows: Tensor) -> tuple[Tensor, None]:
        _, dst, ptr = ctx.adjacency.by_source
        grad = bag_sum(grad_sums, dst, ptr)
        grad[: ctx.adjacency.num_dst] += grad_rows
        return grad, None


class _SegmentMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adjacency: Adjacency) -> Tensor:
        out = x.new_empty(adjacency.num_dst, x.shape[1])
        for segments, edges, ptr in segment_chunks(adjacency.ptr, adjacency.num_edges):
            messages = x.index_select(0, adjacency.src[edges])
            out[segments] = torch.segment_reduce(messages, "max", offsets=ptr)
        out[adjacency.num_in_edges == 0] = 0
        ctx.adjacency = adjacency
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, out = ctx.saved_tensors
        src, dst, num_edges = ctx.adjacency.src, ctx.adjacency.dst, ctx.adjacency.num_edges
        num_largest = torch.empty_like(out)
        for segments, edges, ptr in segment_chunks(ctx.adjacency.ptr, num_edges):
            is_largest = x.index_select(0, src[edges]) == out.index_select(0, dst[edges])
            num_largest[segments] = row_sum(is_largest.to(out.dtype), ptr)
        share = grad / num_largest.clamp_(min=1)
        order, dst, src_ptr = ctx.adjacency.by_source
        src = src[order]
        grad_x = torch.empty_like(x)
        for segments, edges, ptr in segment_chunks(src_ptr, num_edges):
            is_largest = x.index_select(0, src[edges]) == out.index_select(0, dst[edges])
            grad_x[segments] = row_sum(share.index_select(0, dst[edges]).mul_(is_largest), ptr)
        return grad_x, None
