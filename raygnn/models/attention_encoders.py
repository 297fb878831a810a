"""Encoders with attention heads: GAT, GATv2 and the graph transformer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from raygnn.errors import Problem
from raygnn.models import attention
from raygnn.models.edge_features import edge_attr_of, edge_dot, weighted_edge_sum, with_self_loops
from raygnn.models.encoder import Encoder, EncoderOptions, OverBlocks, Share, broken_heads
from raygnn.models.segment import Adjacency, transform_first
from raygnn.models.sparse_input import Features, apply_linear, linear
from raygnn.sampling.blocks import Block


class BlockGATConv(OverBlocks, GATConv):
    """PyG's `GATConv`, with its parameters and result, over a destination-sorted block.

    Each node also attends to itself (`add_self_loops`): destination i gets an edge from source i,
    and self-edges of the graph are dropped. A self-loop's features are the mean of the
    destination's other edges.
    """

    def forward(self, x_src: Features, block: Block, x_dst: Features | None = None) -> Tensor:
        """Returns [num_dst, heads * out_channels], or [num_dst, out_channels] of averaged heads.

        `x_dst`: rows of the destinations, if they differ from the sources'.
        """
        lin_src, lin_dst = (self.lin, self.lin) if x_dst is None else (self.lin_src, self.lin_dst)
        queries = x_src[: block.num_dst] if x_dst is None else x_dst
        of_src = self._scores(lin_src, self.att_src, x_src)
        of_dst = self._scores(lin_dst, self.att_dst, queries)
        adjacency, edge_attr = attended_edges(self, block, of_src)
        scores = attention.gather_src(of_src, adjacency) + attention.gather_dst(of_dst, adjacency)
        if edge_attr is not None:
            lin_edge = self.lin_edge.weight.unflatten(0, (self.heads, -1))
            of_edge = torch.einsum("hce,hc->he", lin_edge, self.att_edge[0])
            scores = scores + functional.linear(edge_attr, of_edge.to(edge_attr.dtype))
        scores = functional.leaky_relu(scores, self.negative_slope)
        weights = attention.segment_softmax(scores, adjacency)
        weights = functional.dropout(weights, self.dropout, self.training)
        out = join_heads(self._sums(lin_src, x_src, weights, adjacency), self.concat)
        return out if self.bias is None else out + self.bias

    def _scores(self, lin: nn.Module, att: Tensor, x: Features) -> Tensor:
        """att . W x per head, [num_rows, heads], without computing W x."""
        return linear(x, torch.einsum("hci,hc->hi", self._by_head(lin), att[0]))

    def _sums(self, lin: nn.Module, x: Features, weights: Tensor, adjacency: Adjacency) -> Tensor:
        """Weighted sums of W x over in-edges, [num_dst, heads, out_channels]."""
        width = self.heads * self.out_channels
        if not isinstance(x, Tensor) or transform_first(adjacency, x.shape[1], width, self.heads):
            values = apply_linear(lin, x).view(-1, self.heads, self.out_channels)
            return attention.weighted_segment_sum(values, weights, adjacency)
        sums = attention.weighted_segment_sum(x.unsqueeze(1), weights, adjacency)
        return torch.einsum("nhi,hci->nhc", sums, self._by_head(lin).to(sums.dtype))

    def _by_head(self, lin: Any) -> Tensor:
        weight: Tensor = lin.weight
        return weight.unflatten(0, (self.heads, self.out_channels))


class BlockGATv2Conv(OverBlocks, GATv2Conv):
    """PyG's `GATv2Conv`, with its parameters and result. Self-loops as in `BlockGATConv`."""

    def forward(self, x_src: Features, block: Block, x_dst: Features | None = None) -> Tensor:
        x_dst = x_src[: block.num_dst] if x_dst is None else x_dst
        values = apply_linear(self.lin_l, x_src).view(-1, self.heads, self.out_channels)
        queries = apply_linear(self.lin_r, x_dst).view(-1, self.heads, self.out_channels)
        adjacency, edge_attr = attended_edges(self, block, values)
        att = self.att[0].to(values.dtype)
        lin_edge = None if edge_attr is None else self.lin_edge.weight.to(values.dtype)
        scores = attention.additive_scores(
            values, queries, att, self.negative_slope, adjacency, edge_attr, lin_edge
        )
        weights = attention.segment_softmax(scores, adjacency)
        weights = functional.dropout(weights, self.dropout, self.training)
        out = join_heads(attention.weighted_segment_sum(values, weights, adjacency), self.concat)
        return out if self.bias is None else out + self.bias


def attended_edges(
    conv: GATConv | GATv2Conv, block: Block, like: Tensor
) -> tuple[Adjacency, Tensor | None]:
    """Edges that destinations attend to, and their features, if read, in the dtype of `like`."""
    adjacency = Adjacency.of(block)
    if conv.edge_dim is None:
        return adjacency.with_self_loops if conv.add_self_loops else adjacency, None
    edge_attr = edge_attr_of(block, conv.edge_dim, like)
    return with_self_loops(adjacency, edge_attr) if conv.add_self_loops else (adjacency, edge_attr)


def join_heads(x: Tensor, concat: bool) -> Tensor:
    """Concatenates or averages the heads of [num_nodes, heads, channels]."""
    return x.flatten(1) if concat else x.mean(dim=1)


class AttentionOptions(EncoderOptions):
    """Options shared by all encoders, plus:

    Attributes:
        num_heads: attention heads; `hidden_channels` is the width of all together.
        num_output_heads: heads of a last layer without `jump`. Default: `num_heads`.
        attn_dropout: on the attention weights.
        edge_dim: number of edge features that take part in attention; None leaves them out.
    Raises:
        ConfigError: a value is out of range, or `num_heads` does not divide the width.
    """

    num_heads: PositiveInt = 8
    num_output_heads: PositiveInt | None = None
    attn_dropout: Share = 0.0
    edge_dim: PositiveInt | None = None

    def broken_rules(self) -> Iterator[Problem]:
        return broken_heads(self)


class AttentionEncoder(Encoder):
    """An encoder whose layers have attention heads.

    Outputs of heads are concatenated, and averaged in a last layer without `jump`. Takes the
    arguments of `AttentionOptions`.

    Attributes:
        conv: layer class, with the arguments of PyG's `GATConv`.
    """

    Options = AttentionOptions
    options: AttentionOptions
    reads_edge_features = True
    takes_sparse_input = True
    row_biases = "bias"
    conv: ClassVar[Callable[..., nn.Module]]

    def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
        heads = self.options.num_heads
        if is_output and self.options.num_output_heads is not None:
            heads = self.options.num_output_heads
        return self.conv(
            in_channels,
            out_channels if is_output else out_channels // heads,
            heads=heads,
            concat=not is_output,
            dropout=self.options.attn_dropout,
            edge_dim=self.options.edge_dim,
        )


class GAT(AttentionEncoder):
    """Graph Attention Networks, arXiv:1710.10903.

    Takes the arguments of `AttentionOptions`.
    """

    conv = BlockGATConv


class GATv2(AttentionEncoder):
    """How Attentive are Graph Attention Networks?, arXiv:2105.14491.

    Takes the arguments of `AttentionOptions`.
    """

    conv = BlockGATv2Conv


class BlockTransformerConv(OverBlocks, TransformerConv):
    """PyG's `TransformerConv`, with its parameters and result, over a destination-sorted block.

    A node does not attend to itself; its own row enters through a linear skip connection.
    """

    def forward(self, x_src: Features, block: Block, x_dst: Features | None = None) -> Tensor:
        adjacency = Adjacency.of(block)
        x_dst = x_src[: block.num_dst] if x_dst is None else x_dst
        query = apply_linear(self.lin_query, x_dst).view(-1, self.heads, self.out_channels)
        key = apply_linear(self.lin_key, x_src).view(-1, self.heads, self.out_channels)
        value = apply_linear(self.lin_value, x_src).view(-1, self.heads, self.out_channels)
        scores = attention.dot_scores(query, key, adjacency)
        edge_attr, lin_edge = None, None
        if self.edge_dim is not None:
            # Keys and values are x_j + W e_ij. Products with W are taken by destination, not edge.
            edge_attr = edge_attr_of(block, self.edge_dim, key)
            lin_edge = self.lin_edge.weight.to(key.dtype).unflatten(0, (self.heads, -1))
            query_edge = torch.einsum("nhc,hce->nhe", query, lin_edge)
            scores = scores + edge_dot(query_edge, edge_attr, adjacency)
        weights = attention.segment_softmax(scores / math.sqrt(self.out_channels), adjacency)
        weights = functional.dropout(weights, self.dropout, self.training)
        summed = attention.weighted_segment_sum(value, weights, adjacency)
        if edge_attr is not None:
            edge_sum = weighted_edge_sum(weights, edge_attr, adjacency)
            summed = summed + torch.einsum("nhe,hce->nhc", edge_sum, lin_edge)
        out = join_heads(summed, self.concat)
        return out + apply_linear(self.lin_skip, x_dst) if self.root_weight else out


class Transformer(AttentionEncoder):
    """Masked Label Prediction (UniMP), arXiv:2009.03509, its attention layer.

    Takes the arguments of `AttentionOptions`.
    """

    conv = BlockTransformerConv
    # Attention sums to 1, so the values' bias is added to every row that has in-edges.
    row_biases = r"lin_(skip|value)\.bias"
