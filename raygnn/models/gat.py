"""Graph attention networks: GAT and GATv2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GATv2Conv

from raygnn.models.adjacency import Adjacency
from raygnn.models.attention import (
    additive_scores,
    gather_dst,
    gather_src,
    segment_softmax,
    weighted_segment_sum,
)
from raygnn.models.attention_encoder import AttentionEncoder

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block


class BlockGATConv(GATConv):
    """PyG's `GATConv`, parameters and result, over a destination-sorted block.

    As there each node attends to itself too: the block's destinations are its first sources, so
    destination i gets an edge from source i, and self-edges of the graph are dropped.
    """

    def forward(self, x_src: Tensor, block: Block) -> Tensor:
        """Returns [num_dst, heads * out_channels], or [num_dst, out_channels] of averaged heads."""
        adjacency = Adjacency.of(block).with_self_loops()
        values = self.lin(x_src).view(-1, self.heads, self.out_channels)
        of_src = (values * self.att_src).sum(dim=-1)
        of_dst = (values[: block.num_dst] * self.att_dst).sum(dim=-1)
        scores = gather_src(of_src, adjacency) + gather_dst(of_dst, adjacency)
        scores = functional.leaky_relu(scores, self.negative_slope)
        weights = segment_softmax(scores, adjacency)
        weights = functional.dropout(weights, self.dropout, self.training)
        return join_heads(weighted_segment_sum(values, weights, adjacency), self.concat) + self.bias


class BlockGATv2Conv(GATv2Conv):
    """PyG's `GATv2Conv`, parameters and result, over a destination-sorted block.

    Self-loops are added as in `BlockGATConv`.
    """

    def forward(self, x_src: Tensor, block: Block) -> Tensor:
        """Returns [num_dst, heads * out_channels], or [num_dst, out_channels] of averaged heads."""
        adjacency = Adjacency.of(block).with_self_loops()
        values = self.lin_l(x_src).view(-1, self.heads, self.out_channels)
        queries = self.lin_r(x_src[: block.num_dst]).view(-1, self.heads, self.out_channels)
        att = self.att[0].to(values.dtype)
        scores = additive_scores(values, queries, att, self.negative_slope, adjacency)
        weights = segment_softmax(scores, adjacency)
        weights = functional.dropout(weights, self.dropout, self.training)
        return join_heads(weighted_segment_sum(values, weights, adjacency), self.concat) + self.bias


def join_heads(x: Tensor, concat: bool) -> Tensor:
    """Concatenates or averages the heads of [num_nodes, heads, channels]."""
    return x.flatten(1) if concat else x.mean(dim=1)


class GAT(AttentionEncoder):
    """Graph Attention Networks, arXiv:1710.10903. Takes the arguments of `AttentionEncoder`."""

    def build_attention(
        self, in_channels: int, head_channels: int, heads: int, *, concat: bool
    ) -> nn.Module:
        """A `GATConv`."""
        return BlockGATConv(
            in_channels, head_channels, heads=heads, concat=concat, dropout=self.attn_dropout
        )


class GATv2(AttentionEncoder):
    """How Attentive are Graph Attention Networks?, arXiv:2105.14491.

    Takes the arguments of `AttentionEncoder`.
    """

    def build_attention(
        self, in_channels: int, head_channels: int, heads: int, *, concat: bool
    ) -> nn.Module:
        """A `GATv2Conv`."""
        return BlockGATv2Conv(
            in_channels, head_channels, heads=heads, concat=concat, dropout=self.attn_dropout
        )
