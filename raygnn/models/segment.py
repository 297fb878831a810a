"""Reductions over the in-edges of each destination, without a tensor of messages.

PyG gathers a message per edge, [num_edges, channels], and scatters the messages into the
destinations. Here a destination's rows are reduced where they lie (a sum through `embedding_bag`),
and the backward pass of a sum is the same sum over the transposed edges. Every sum has one order,
so results are bit-identical from run to run with any number of threads.
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
    """Sums the sources' rows into their destinations.

    Args:
        x: [num_src, channels].
        edge_weight: [num_edges], a factor on each edge's row; data, it gets no gradient.
    Returns:
        [num_dst, channels]; zeros where a destination has no edge.
    """
    return apply_eagerly(_SegmentSum, x, adjacency, edge_weight)


def segment_sum_and_rows(x: Tensor, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    """Sums the sources' rows, and gives the destinations their own, the first of the sources'.

    The same as `segment_sum(x, adjacency), x[:num_dst]`, but for the backward pass: that of a slice
    makes a second gradient of all sources, mostly zeros, and adds the two.
    """
    sums, rows = apply_eagerly(_SegmentSumAndRows, x, adjacency)
    return sums, rows


def segment_mean(x: Tensor, adjacency: Adjacency) -> Tensor:
    """Averages the sources' rows per destination; zeros where a destination has no edge."""
    return mean_of(segment_sum(x, adjacency), adjacency)


def mean_of(sums: Tensor, adjacency: Adjacency) -> Tensor:
    """Divides sums over in-edges by their number; [num_dst, channels]."""
    count = adjacency.num_in_edges.clamp(min=1).to(sums.dtype)
    return sums / count.unsqueeze(-1)


def segment_max(x: Tensor, adjacency: Adjacency) -> Tensor:
    """Takes the largest entry per destination and channel; zeros where it has no edge.

    Equal largest entries share the gradient equally, as in PyG.
    """
    return apply_eagerly(_SegmentMax, x, adjacency)


def scale_sampled(neighbor_sum: Tensor, block: Block) -> Tensor:
    """Scales each destination's sum over its sampled in-edges by (in-degree / in-edges sampled).

    Uniform sampling, with or without replacement, takes each in-edge equally often, so the expected
    value of the scaled sum is the sum over all in-edges. Where all were taken the factor is 1.
    Draws by weight take some more often, and the others make up for links that a batch leaves out.

    Args:
        neighbor_sum: [num_dst, channels].
    """
    num_sampled = (block.dst_ptr[1:] - block.dst_ptr[:-1]).clamp(min=1)
    dtype = torch.promote_types(neighbor_sum.dtype, torch.float32)
    factor = block.dst_degree.to(dtype) / num_sampled
    return neighbor_sum * factor.to(neighbor_sum.dtype).unsqueeze(-1)


def transform_first(
    block: Block | Adjacency, in_channels: int, out_channels: int, heads: int = 1
) -> bool:
    """Whether A (x W) takes less time than (A x) W, the same up to rounding.

    The first sums narrower rows where W narrows them, the second multiplies fewer: those of
    the destinations, not those of all sources.

    Args:
        out_channels: of all heads together.
        heads: of attention; each has an A of its own, which the second applies to whole rows.
    """
    weights = in_channels * out_channels
    first = block.num_src * weights + _EDGE_COST * block.num_edges * out_channels
    last = block.num_dst * weights + _EDGE_COST * block.num_edges * in_channels * heads
    return first < last


def bag_sum(rows: Tensor, index: Tensor, ptr: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sums `rows[index[ptr[i]:ptr[i + 1]]]` for each i, times `weight` by edge; no gradient.

    Returns:
        [len(ptr) - 1, channels].
    """
    if weight is not None:
        weight = weight.detach().to(rows.dtype).contiguous()
    out: Tensor = torch.embedding_bag(
        rows.detach().contiguous(), index, ptr, False, 0, False, weight, True
    )[0]
    return out


def row_sum(rows: Tensor, ptr: Tensor) -> Tensor:
    """Sums `rows[ptr[i]:ptr[i + 1]]` for each i; no gradient."""
    return bag_sum(rows, torch.arange(rows.shape[0], device=rows.device), ptr)


def segment_chunks(ptr: Tensor, num_edges: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Cuts segments of edges into consecutive chunks that fit a CPU cache; one on other devices.

    Args:
        ptr: int64 [num_segments + 1], where each segment's edges begin: from 0 to num_edges.
    Yields:
        The segments, their edges, and `ptr` of these segments counted from their first edge. Every
        segment is in one chunk, those without edges too.
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
    """Applies an autograd function over edges, in compiled models too as it is."""
    out: Tensor = _apply(function, args)
    return out


def break_graphs() -> None:
    """Lets torch.compile break its graphs at `apply_eagerly`; called before it compiles.

    The functions are single kernels, and the size of the transpose in their backward passes depends
    on data: torch traced into them only to give up at points that differed from batch to
    batch and from one Python to the next, and sometimes by an error.
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
