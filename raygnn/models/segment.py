"""Reductions over the in-edges of each destination, without a tensor of messages.

PyG gathers a message per edge, [num_edges, channels], and scatters the messages into the
destinations. Here sources are reduced directly (a sum with `embedding_bag`), and the backward pass
of a sum is the same sum over the transposed edges. Every sum has one order, so results are
bit-identical from run to run with any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from raygnn.models.adjacency import Adjacency

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block

# Where messages have to be formed, a CPU forms them for this many edges at a time: 256 float32 each
# then stay in a cache of 2 MB until they are reduced (5 times faster than all edges at once).
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
