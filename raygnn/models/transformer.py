"""The graph transformer: scaled dot-product attention over neighbors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import TransformerConv

from raygnn.models.adjacency import Adjacency
from raygnn.models.attention import dot_scores, segment_softmax, weighted_segment_sum
from raygnn.models.edge_features import edge_attr_of, edge_dot, weighted_edge_sum
from raygnn.models.encoder import OverBlocks
from raygnn.models.gat import AttentionEncoder, join_heads
from raygnn.models.sparse_input import Features, apply_linear

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block


class BlockTransformerConv(OverBlocks, TransformerConv):
    """PyG's `TransformerConv`, parameters and result, over a destination-sorted block.

    A node does not attend to itself; its own row comes in through a linear skip connection.
    """

    def forward(self, x_src: Features, block: Block, x_dst: Features | None = None) -> Tensor:
        """Returns [num_dst, heads * out_channels], or [num_dst, out_channels] of averaged heads.

        x_dst are the destinations' rows, if not the sources'.
        """
        adjacency = Adjacency.of(block)
        x_dst = x_src[: block.num_dst] if x_dst is None else x_dst
        query = apply_linear(self.lin_query, x_dst).view(-1, self.heads, self.out_channels)
        key = apply_linear(self.lin_key, x_src).view(-1, self.heads, self.out_channels)
        value = apply_linear(self.lin_value, x_src).view(-1, self.heads, self.out_channels)
        scores = dot_scores(query, key, adjacency)
        edge_attr, lin_edge = None, None
        if self.edge_dim is not None:
            # Keys and values are x_j + W e_ij. Products with W are taken by destination, not edge.
            edge_attr = edge_attr_of(block, self.edge_dim, key)
            lin_edge = self.lin_edge.weight.to(key.dtype).unflatten(0, (self.heads, -1))
            query_edge = torch.einsum("nhc,hce->nhe", query, lin_edge)
            scores = scores + edge_dot(query_edge, edge_attr, adjacency)
        weights = segment_softmax(scores / math.sqrt(self.out_channels), adjacency)
        weights = functional.dropout(weights, self.dropout, self.training)
        summed = weighted_segment_sum(value, weights, adjacency)
        if edge_attr is not None:
            edge_sum = weighted_edge_sum(weights, edge_attr, adjacency)
            summed = summed + torch.einsum("nhe,hce->nhc", edge_sum, lin_edge)
        out = join_heads(summed, self.concat)
        return out + apply_linear(self.lin_skip, x_dst) if self.root_weight else out


class Transformer(AttentionEncoder):
    """Masked Label Prediction (UniMP), arXiv:2009.03509, its attention layer.

    Takes the arguments of `AttentionOptions`.
    """

    takes_sparse_input = True
    # Attention sums to 1: the values' bias is added to every row but those without in-edges.
    row_biases = r"lin_(skip|value)\.bias"

    def build_attention(
        self, in_channels: int, head_channels: int, heads: int, *, concat: bool
    ) -> nn.Module:
        """A `TransformerConv`."""
        return BlockTransformerConv(
            in_channels,
            head_channels,
            heads=heads,
            concat=concat,
            dropout=self.options.attn_dropout,
            edge_dim=self.options.edge_dim,
        )
