"""Differentiable steps of graph attention over destination-sorted edges.

As in `raygnn.models.segment`, no step stores a tensor of all messages, [num_edges, heads,
channels], and every sum has one order. Only scores, [num_edges, heads], are stored for the backward
pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raygnn.models import segment

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block

leaky_relu_backward = torch.ops.aten.leaky_relu_backward


def gather_src(values: Tensor, adjacency: segment.Adjacency) -> Tensor:
    """Reads each edge's source row: [num_src, heads] to [num_edges, heads]."""
    return segment.apply_eagerly(_GatherSrc, values, adjacency)


def gather_dst(values: Tensor, adjacency: segment.Adjacency) -> Tensor:
    """Reads each edge's destination row: [num_dst, heads] to [num_edges, heads]."""
    return segment.apply_eagerly(_GatherDst, values, adjacency)


def segment_softmax(scores: Tensor, adjacency: segment.Adjacency | segment.MergedEdges) -> Tensor:
    """Normalizes scores over each destination's in-edges, per head, at least in float32.

    `scores`: [num_edges, heads]; -inf excludes an edge.
    """
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    return segment.apply_eagerly(_SegmentSoftmax, scores, adjacency)


def softmax_over_blocks(scores: Sequence[Tensor], blocks: Sequence[Block]) -> Sequence[Tensor]:
    """`segment_softmax` over a destination's in-edges in all blocks together.

    Args:
        scores: by block, [num_edges, heads], as the result.
        blocks: at least one, all with the same destinations.
    """
    merged = segment.merge_edges(blocks)
    weights = segment_softmax(torch.cat(list(scores)).index_select(0, merged.order), merged)
    return weights.index_select(0, merged.position).split([block.num_edges for block in blocks])


def weighted_segment_sum(x: Tensor, weight: Tensor, adjacency: segment.Adjacency) -> Tensor:
    """Sums sources into destinations, weighted by edge and head: [num_dst, heads, channels].

    Args:
        x: [num_src, heads, channels], or [num_src, 1, channels] shared by all heads.
        weight: [num_edges, heads].
    """
    return segment.apply_eagerly(_WeightedSegmentSum, x, weight.to(x.dtype), adjacency)


def dot_scores(query: Tensor, key: Tensor, adjacency: segment.Adjacency) -> Tensor:
    """Scores each edge by the scalar product of its ends, per head: [num_edges, heads].

    Args:
        query: [num_dst, heads, channels].
        key: [num_src, heads, channels], or [num_src, 1, channels] shared by all heads.
    """
    return segment.apply_eagerly(_DotScores, query, key, adjacency)


def additive_scores(
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    negative_slope: float,
    adjacency: segment.Adjacency,
    edge_attr: Tensor | None = None,
    edge_weight: Tensor | None = None,
) -> Tensor:
    """Scores each edge by att . leaky_relu(x_src_j + x_dst_i + W e_ij), per head (GATv2).

    Args:
        x_src: [num_src, heads, channels].
        x_dst: [num_dst, heads, channels].
        att: [heads, channels].
        edge_attr: e, [num_edges, edge_dim] or None. Gets no gradient.
        edge_weight: W, [heads * channels, edge_dim], given with `edge_attr`.
    Returns:
        [num_edges, heads].
    """
    return segment.apply_eagerly(
        _AdditiveScores, x_src, x_dst, att, negative_slope, adjacency, edge_attr, edge_weight
    )


class _GatherSrc(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, adjacency: segment.Adjacency) -> Tensor:
        ctx.adjacency = adjacency
        return values.index_select(0, adjacency.src)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        order, _, ptr = ctx.adjacency.by_source
        return segment.bag_sum(grad, order, ptr), None


class _GatherDst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, adjacency: segment.Adjacency) -> Tensor:
        ctx.adjacency = adjacency
        return values.index_select(0, adjacency.dst)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return segment.row_sum(grad, ctx.adjacency.ptr), None


class _SegmentSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, adjacency: segment.Adjacency) -> Tensor:
        largest = torch.segment_reduce(scores, "max", offsets=adjacency.ptr)
        # A destination all of whose edges are taken out has -inf and 0 here; its weights are 0.
        # Otherwise the total is at least 1, because the largest score adds exp(0).
        largest.clamp_(min=torch.finfo(largest.dtype).min)
        out = (scores - largest.index_select(0, adjacency.dst)).exp_()
        total = segment.row_sum(out, adjacency.ptr).clamp_(min=1)
        out /= total.index_select(0, adjacency.dst)
        ctx.adjacency = adjacency
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        weighted = grad * out
        total = segment.row_sum(weighted, ctx.adjacency.ptr)
        return weighted - out * total.index_select(0, ctx.adjacency.dst), None


class _WeightedSegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, adjacency: segment.Adjacency) -> Tensor:
        ctx.adjacency = adjacency
        ctx.save_for_backward(x, weight)
        return _sum_in(x, weight, adjacency)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = _sum_out(grad, weight, ctx.adjacency, own_rows=x.shape[1] > 1)
        if ctx.needs_input_grad[1]:
            grad_weight = _dot(grad, x, ctx.adjacency)
        return grad_x, grad_weight, None


class _DotScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, adjacency: segment.Adjacency) -> Tensor:
        ctx.adjacency = adjacency
        ctx.save_for_backward(query, key)
        return _dot(query, key, adjacency)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        query, key = ctx.saved_tensors
        grad_query = grad_key = None
        if ctx.needs_input_grad[0]:
            grad_query = _sum_in(key, grad, ctx.adjacency)
        if ctx.needs_input_grad[1]:
            grad_key = _sum_out(query, grad, ctx.adjacency, own_rows=key.shape[1] > 1)
        return grad_query, grad_key, None


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_src: Tensor,
        x_dst: Tensor,
        att: Tensor,
        negative_slope: float,
        adjacency: segment.Adjacency,
        edge_attr: Tensor | None,
        edge_weight: Tensor | None,
    ) -> Tensor:
        src, dst = adjacency.src, adjacency.dst
        out = x_src.new_empty(adjacency.num_edges, x_src.shape[1])
        for _, edges, _ in segment.segment_chunks(adjacency.ptr, adjacency.num_edges):
            summed = _sum_ends(x_src, x_dst, src[edges], dst[edges])
            summed = _add_edges(summed, edge_attr, edge_weight, edges)
            active = functional.leaky_relu(summed, negative_slope, inplace=True)
            out[edges] = active.mul_(att).sum(dim=-1)
        ctx.adjacency, ctx.negative_slope = adjacency, negative_slope
        ctx.save_for_backward(x_src, x_dst, att, edge_attr, edge_weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # The messages are formed again, once in the order of each sum, so that no tensor of all of
        # them is needed.
        x_src, x_dst, att, edge_attr, edge_weight = ctx.saved_tensors
        adjacency, negative_slope = ctx.adjacency, ctx.negative_slope
        order, dst, src_ptr = adjacency.by_source
        grad_src, grad_dst = torch.empty_like(x_src), torch.empty_like(x_dst)
        grad_att = torch.zeros_like(att)
        grad_weight = None if edge_weight is None else torch.zeros_like(edge_weight)
        for segments, edges, ptr in segment.segment_chunks(adjacency.ptr, adjacency.num_edges):
            summed = _sum_ends(x_src, x_dst, adjacency.src[edges], adjacency.dst[edges])
            summed = _add_edges(summed, edge_attr, edge_weight, edges)
            scale = grad[edges].unsqueeze(-1)
            grad_summed = leaky_relu_backward(scale * att, summed, negative_slope, False)
            grad_dst[segments] = _row_sum_heads(grad_summed, ptr)
            if grad_weight is not None:
                grad_weight += grad_summed.flatten(1).T @ edge_attr[edges]
            active = functional.leaky_relu(summed, negative_slope, inplace=True)
            grad_att += active.mul_(scale).sum(dim=0)
        if grad.device.type != "cpu":  # one chunk, so all of them are at hand
            grad_src = segment.bag_sum(grad_summed.flatten(1), order, src_ptr).view_as(x_src)
            return grad_src, grad_dst, grad_att, None, None, None, grad_weight
        grad, src = grad[order], adjacency.src[order]
        edge_attr = None if edge_attr is None else edge_attr[order]
        for segments, edges, ptr in segment.segment_chunks(src_ptr, adjacency.num_edges):
            summed = _sum_ends(x_src, x_dst, src[edges], dst[edges])
            summed = _add_edges(summed, edge_attr, edge_weight, edges)
            scale = grad[edges].unsqueeze(-1)
            grad_summed = leaky_relu_backward(scale * att, summed, negative_slope, False)
            grad_src[segments] = _row_sum_heads(grad_summed, ptr)
        return grad_src, grad_dst, grad_att, None, None, None, grad_weight


def _sum_ends(x_src: Tensor, x_dst: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return x_src.index_select(0, src).add_(x_dst.index_select(0, dst))


def _add_edges(
    summed: Tensor, edge_attr: Tensor | None, edge_weight: Tensor | None, edges: slice
) -> Tensor:
    if edge_attr is None or edge_weight is None:
        return summed
    return summed.add_((edge_attr[edges] @ edge_weight.T).view_as(summed))


def _row_sum_heads(rows: Tensor, ptr: Tensor) -> Tensor:
    return segment.row_sum(rows.flatten(1), ptr).view(-1, *rows.shape[1:])


def _dot(query: Tensor, key: Tensor, adjacency: segment.Adjacency) -> Tensor:
    # `key` may have one head that all share.
    num_entries = query.shape[0] * key.shape[0] * key.shape[1]  # a sparse tensor holds no more
    if query.device.type == "cpu" and adjacency.num_edges <= num_entries:
        return _sampled_products(query, key, adjacency)
    product = query.index_select(0, adjacency.dst) * key.index_select(0, adjacency.src)
    return product.sum(dim=-1)


def _sampled_products(query: Tensor, key: Tensor, adjacency: segment.Adjacency) -> Tensor:
    # `_dot` without a tensor of messages: each edge and head is an entry of a sparse matrix.
    heads = query.shape[1]
    edges = adjacency.by_head(heads, own_rows=key.shape[1] > 1)
    queries, keys = (
        rows.reshape(-1, rows.shape[-1]).to(torch.promote_types(rows.dtype, torch.float32))
        for rows in (query, key)
    )
    _hide_beta_warning()
    products = torch.sparse_csr_tensor(
        edges.ptr,
        edges.rows,
        queries.new_zeros(len(edges.rows)),
        (len(queries), len(keys)),
        check_invariants=False,
    )
    torch.sparse.sampled_addmm(products, queries, keys.T, beta=0, out=products)
    return products.values().index_select(0, edges.place).view(-1, heads).to(query.dtype)


@cache
def _hide_beta_warning() -> None:
    # torch gives it once a process, of the first sparse tensor of this kind.
    with warnings.catch_warnings(action="ignore"):
        none = torch.zeros(0, dtype=torch.int64)
        torch.sparse_csr_tensor(none.new_zeros(1), none, torch.zeros(0), (0, 0))


def _sum_in(x: Tensor, weight: Tensor, adjacency: segment.Adjacency) -> Tensor:
    # [num_dst, heads, channels] of the sources' rows; `x` may have one head that all share.
    if x.device.type != "cpu":
        return _sum_messages(x, weight, adjacency.src, adjacency.ptr)
    edges = adjacency.by_head(weight.shape[1], own_rows=x.shape[1] > 1)
    return _sum_by_head(x, weight, edges)


def _sum_out(x: Tensor, weight: Tensor, adjacency: segment.Adjacency, *, own_rows: bool) -> Tensor:
    # The transpose of `_sum_in`: [num_src, heads, channels], or of all heads together, where they
    # share a row.
    heads = weight.shape[1]
    order, dst, ptr = adjacency.by_source
    weight = weight.index_select(0, order)
    if x.device.type != "cpu":
        sums = _sum_messages(x, weight, dst, ptr)
        return sums if own_rows else sums.sum(dim=1, keepdim=True)
    if own_rows:
        return _sum_by_head(x, weight, adjacency.by_head(heads, own_rows=True, transposed=True))
    at = dst.unsqueeze(1) * heads + torch.arange(heads)
    sums = segment.bag_sum(x.reshape(-1, x.shape[-1]), at.flatten(), ptr * heads, weight.flatten())
    return sums.unsqueeze(1)


def _sum_messages(x: Tensor, weight: Tensor, index: Tensor, ptr: Tensor) -> Tensor:
    # On a GPU, forming all messages takes less time than launching the kernels that avoid it.
    messages = x.index_select(0, index) * weight.unsqueeze(-1)
    return _row_sum_heads(messages, ptr)


def _sum_by_head(x: Tensor, weight: Tensor, edges: segment.HeadEdges) -> Tensor:
    weights = weight.flatten().index_select(0, edges.order)
    sums = segment.bag_sum(x.reshape(-1, x.shape[-1]), edges.rows, edges.ptr, weights)
    return sums.view(-1, weight.shape[1], x.shape[-1])
