"""Reductions over the in-edges of each destination, without a tensor of messages.

PyG gathers a message per edge, [num_edges, channels], and scatters the messages into the
destinations. Here a destination's rows are reduced where they lie (a sum through `embedding_bag`),
and the backward pass of a sum is the same sum over the transposed edges. Every sum has one order,
so results are bit-identical from run to run with any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raygnn.models.adjacency import Adjacency
from raygnn.models.eager import apply_eagerly

# Where messages have to be formed, a CPU forms them for so many edges at a time: 256 float32 each
# then stay in a cache of 2 MB until they are reduced (5 times faster than all edges at once).
_CHUNK_EDGES = 2048


def segment_sum(x: Tensor, adjacency: Adjacency, edge_weight: Tensor | None = None) -> Tensor:
    """Sums the sources' rows into their destinations.

    Args:
        x: [num_src, channels].
        edge_weight: [num_edges], a factor on each edge's row; data, it gets no gradient.
    Returns:
        [num_dst, channels]; zeros where a destination has no edge.
    """
    out: Tensor = apply_eagerly(_SegmentSum, x, adjacency, edge_weight)
    return out


def segment_sum_and_rows(x: Tensor, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    """Sums the sources' rows, and gives the destinations their own, the first of the sources'.

    The same as `segment_sum(x, adjacency), x[:num_dst]`, but for the backward pass: that of a slice
    makes a second gradient of all sources, mostly zeros, and adds the two.
    """
    sums: Tensor
    rows: Tensor
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
    out: Tensor = apply_eagerly(_SegmentMax, x, adjacency)
    return out


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
