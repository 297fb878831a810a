"""The graph transformer: scaled dot-product attention over neighbors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import TransformerConv

from raygnn.models.adjacency import Adjacency
from raygnn.models.attention import dot_scores, segment_softmax, weighted_segment_sum
from raygnn.models.attention_encoder import AttentionEncoder
from raygnn.models.gat import join_heads

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block


class BlockTransformerConv(TransformerConv):
    """PyG's `TransformerConv`, parameters and result, over a destination-sorted block.

    A node does not attend to itself; its own row comes in through a linear skip connection.
    """

    def forward(self, x_src: Tensor, block: Block) -> Tensor:
        """Returns [num_dst, heads * out_channels], or [num_dst, out_channels] of averaged heads."""
        adjacency = Adjacency.of(block)
        x_dst = x_src[: block.num_dst]
        query = self.lin_query(x_dst).view(-1, self.heads, self.out_channels)
        key = self.lin_key(x_src).view(-1, self.heads, self.out_channels)
        value = self.lin_value(x_src).view(-1, self.heads, self.out_channels)
        scores = dot_scores(query, key, adjacency) / math.sqrt(self.out_channels)
        weights = segment_softmax(scores, adjacency)
        weights = functional.dropout(weights, self.dropout, self.training)
        out = join_heads(weighted_segment_sum(value, weights, adjacency), self.concat)
        return out + self.lin_skip(x_dst)


class Transformer(AttentionEncoder):
    """Masked Label Prediction (UniMP), arXiv:2009.03509, its attention layer.

    Takes the arguments of `AttentionEncoder`.
    """

    def build_attention(
        self, in_channels: int, head_channels: int, heads: int, *, concat: bool
    ) -> nn.Module:
        """A `TransformerConv`."""
        return BlockTransformerConv(
            in_channels, head_channels, heads=heads, concat=concat, dropout=self.attn_dropout
        )
