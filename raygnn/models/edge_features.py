"""Differentiable operations on edge features.

As in `raygnn.models.segment`, no step stores a tensor of all messages. Edge features get no
gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raygnn.errors import ConfigError
from raygnn.models.segment import Adjacency, apply_eagerly, bag_sum, row_sum, segment_chunks

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block


def edge_attr_of(block: Block, edge_dim: int, like: Tensor) -> Tensor:
    """Edge features of a block, [num_edges, edge_dim], in the dtype of `like`.

    Raises a ConfigError if they are missing, or have another width.
    """
    edge_attr = block.edge_attr
    if edge_attr is None and block.num_edges == 0:
        return like.new_zeros(0, edge_dim)
    if edge_attr is not None and edge_attr.dim() == 1:
        edge_attr = edge_attr.unsqueeze(1)
    if edge_attr is None or edge_attr.shape[1] != edge_dim:
        width = "none" if edge_attr is None else f"{edge_attr.shape[1]} per edge"
        raise ConfigError(
            f"model.args.edge_dim={edge_dim!r} is invalid: edge features of the batch: {width}. "
            "Set it to their number, or to null to leave them out. [model-edge-dim]"
        )
    return edge_attr.detach().to(like.dtype)


def with_self_loops(adjacency: Adjacency, edge_attr: Tensor) -> tuple[Adjacency, Tensor]:
    """Adds self-loops, whose features are the mean of the destination's other edges.

    Takes and returns [num_edges, edge_dim], next to `Adjacency.with_self_loops`.
    """
    edges, places = adjacency.without_self_edges
    looped, edge_attr = edges.with_self_loops, edge_attr if places is None else edge_attr[places]
    every = edge_attr.new_empty(looped.num_edges, edge_attr.shape[1])
    every[torch.arange(edges.num_edges, device=edges.dst.device) + edges.dst] = edge_attr
    count = edges.num_in_edges.clamp(min=1).to(edge_attr.dtype)
    every[looped.ptr[1:] - 1] = row_sum(edge_attr, edges.ptr) / count.unsqueeze(-1)
    return looped, every


def edge_dot(query: Tensor, edge_attr: Tensor, adjacency: Adjacency) -> Tensor:
    """Scores each edge by the product of its features with its destination's row: [num_edges,
    heads].

    Args:
        query: [num_dst, heads, edge_dim].
        edge_attr: [num_edges, edge_dim].
    """
    return apply_eagerly(_EdgeDot, query, edge_attr, adjacency)


def weighted_edge_sum(weight: Tensor, edge_attr: Tensor, adjacency: Adjacency) -> Tensor:
    """Sums edge features into destinations by edge and head: [num_dst, heads, edge_dim].

    Args:
        weight: [num_edges, heads].
        edge_attr: [num_edges, edge_dim].
    """
    return apply_eagerly(_WeightedEdgeSum, weight.to(edge_attr.dtype), edge_attr, adjacency)


def relu_edge_sum(
    x: Tensor, edge_attr: Tensor, weight: Tensor, bias: Tensor, adjacency: Adjacency
) -> Tensor:
    """Sums relu(x_j + W e_ij + b) into the destinations (GINE): [num_dst, channels].

    Args:
        x: [num_src, channels].
        edge_attr: e, [num_edges, edge_dim].
        weight: W, [channels, edge_dim].
        bias: b, [channels].
    """
    return apply_eagerly(_ReluEdgeSum, x, edge_attr, weight, bias, adjacency)


class _EdgeDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, edge_attr: Tensor, adjacency: Adjacency) -> Tensor:
        ctx.adjacency = adjacency
        ctx.save_for_backward(edge_attr)
        return _dot(query, edge_attr, adjacency)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (edge_attr,) = ctx.saved_tensors
        return _sum(grad, edge_attr, ctx.adjacency), None, None


class _WeightedEdgeSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, edge_attr: Tensor, adjacency: Adjacency) -> Tensor:
        ctx.adjacency = adjacency
        ctx.save_for_backward(edge_attr)
        return _sum(weight, edge_attr, adjacency)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (edge_attr,) = ctx.saved_tensors
        return _dot(grad, edge_attr, ctx.adjacency), None, None


class _ReluEdgeSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, edge_attr: Tensor, weight: Tensor, bias: Tensor, adjacency: Adjacency
    ) -> Tensor:
        out = x.new_empty(adjacency.num_dst, x.shape[1])
        for segments, edges, ptr in segment_chunks(adjacency.ptr, adjacency.num_edges):
            message = _message(x, adjacency.src[edges], edge_attr[edges], weight, bias)
            out[segments] = row_sum(message.relu_(), ptr)
        ctx.adjacency = adjacency
        ctx.save_for_backward(x, edge_attr, weight, bias)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # The messages are formed again, once in the order of each sum.
        x, edge_attr, weight, bias = ctx.saved_tensors
        adjacency = ctx.adjacency
        grad_x = torch.empty_like(x)
        grad_weight, grad_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        order, dst, src_ptr = adjacency.by_source
        src, edge_attr = adjacency.src[order], edge_attr[order]
        for segments, edges, ptr in segment_chunks(src_ptr, adjacency.num_edges):
            message = _message(x, src[edges], edge_attr[edges], weight, bias)
            grad_message = grad.index_select(0, dst[edges]).mul_(message > 0)
            grad_x[segments] = row_sum(grad_message, ptr)
            grad_weight += grad_message.T @ edge_attr[edges]
            grad_bias += grad_message.sum(dim=0)
        return grad_x, None, grad_weight, grad_bias, None


def _message(x: Tensor, src: Tensor, edge_attr: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, edge_attr, weight.T).add_(x.index_select(0, src))


def _dot(query: Tensor, edge_attr: Tensor, adjacency: Adjacency) -> Tensor:
    out = query.new_empty(adjacency.num_edges, query.shape[1])
    for _, edges, _ in segment_chunks(adjacency.ptr, adjacency.num_edges):
        product = query.index_select(0, adjacency.dst[edges])
        out[edges] = product.mul_(edge_attr[edges].unsqueeze(1)).sum(dim=-1)
    return out


def _sum(weight: Tensor, edge_attr: Tensor, adjacency: Adjacency) -> Tensor:
    index = torch.arange(adjacency.num_edges, device=edge_attr.device)
    heads = [
        bag_sum(edge_attr, index, adjacency.ptr, weight[:, head]) for head in range(weight.shape[1])
    ]
    return torch.stack(heads, dim=1)
