"""Reductions over the in-edges of each destination, without a tensor of messages.

PyG gathers a message per edge, [num_edges, channels], and scatters the messages into the
destinations. Here a destination's rows are reduced where they lie (a sum through `embedding_bag`),
and the backward pass of a sum is the same sum over the transposed edges. Every sum has one order,
so results are bit-identical from run to run with any number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raygnn.models.adjacency import Adjacency

# On a CPU messages are formed for so many edges at a time: rows of 256 float32 then stay in a 2 MB
# cache between being gathered and being reduced (measured: 5 times faster than all edges at once).
_EDGES_AT_A_TIME = 2048


def segment_sum(x: Tensor, adjacency: Adjacency, edge_weight: Tensor | None = None) -> Tensor:
    """Sums the sources' rows into their destinations.

    Args:
        x: [num_src, channels].
        edge_weight: [num_edges], a factor on each edge's row; data, it gets no gradient.
    Returns:
        [num_dst, channels]; zeros where a destination has no edge.
    """
    out: Tensor = _SegmentSum.apply(x, adjacency, edge_weight)
    return out


def segment_mean(x: Tensor, adjacency: Adjacency) -> Tensor:
    """Averages the sources' rows per destination; zeros where a destination has no edge."""
    count = adjacency.num_in_edges.clamp(min=1).to(x.dtype)
    return segment_sum(x, adjacency) / count.unsqueeze(-1)


def segment_max(x: Tensor, adjacency: Adjacency) -> Tensor:
    """Takes the largest entry per destination and channel; zeros where it has no edge.

    Equal largest entries share the gradient equally, as in PyG.
    """
    out: Tensor = _SegmentMax.apply(x, adjacency)
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


class _SegmentMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adjacency: Adjacency) -> Tensor:
        out = x.new_zeros(adjacency.num_dst, x.shape[1])
        ptr, src = adjacency.ptr, adjacency.src
        for first, last, start, stop in destination_ranges(adjacency):
            out[first:last] = torch.segment_reduce(
                x.index_select(0, src[start:stop]),
                "max",
                offsets=ptr[first : last + 1] - start,
                initial=None,
                unsafe=True,
            )
        out[adjacency.num_in_edges == 0] = 0
        ctx.adjacency = adjacency
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, out = ctx.saved_tensors
        src, dst, ptr = ctx.adjacency.src, ctx.adjacency.dst, ctx.adjacency.ptr
        is_largest = (x.index_select(0, src) == out.index_select(0, dst)).to(grad.dtype)
        every_edge = torch.arange(src.numel(), device=src.device)
        num_largest = bag_sum(is_largest, every_edge, ptr).clamp_(min=1)
        is_largest *= (grad / num_largest).index_select(0, dst)
        order, _, src_ptr = ctx.adjacency.by_source
        return bag_sum(is_largest, order, src_ptr), None


def edge_ranges(num_edges: int, device: torch.device) -> list[tuple[int, int]]:
    """Cuts the edges into ranges whose messages fit a CPU cache; one range on other devices."""
    step = _EDGES_AT_A_TIME if device.type == "cpu" else max(num_edges, 1)
    return [(start, min(start + step, num_edges)) for start in range(0, num_edges, step)]


def destination_ranges(adjacency: Adjacency) -> list[tuple[int, int, int, int]]:
    """Cuts the destinations into ranges of about as many edges as `edge_ranges`.

    Returns:
        (first destination, last + 1, first edge, last + 1), in order; destinations of a range have
        an edge unless they lie between others that do.
    """
    ptr = adjacency.ptr
    if ptr.device.type != "cpu":
        return [(0, adjacency.num_dst, 0, adjacency.num_edges)]
    marks = torch.arange(0, adjacency.num_edges, _EDGES_AT_A_TIME)
    cuts = [0, *torch.searchsorted(ptr, marks[1:]).tolist(), adjacency.num_dst]
    edges = ptr[cuts].tolist()
    return [
        (cuts[i], cuts[i + 1], edges[i], edges[i + 1])
        for i in range(len(cuts) - 1)
        if cuts[i] < cuts[i + 1]
    ]
