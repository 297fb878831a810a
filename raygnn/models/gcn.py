"""GCN on sampled blocks, normalised by the degrees of the whole graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch_geometric.nn.dense.linear import Linear

from raygnn.models.adjacency import Adjacency
from raygnn.models.encoder import Encoder
from raygnn.models.segment import scale_sampled, segment_sum, transform_first
from raygnn.models.sparse_input import Features, apply_linear

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block


class GCNLayer(nn.Module):
    """The graph convolution of arXiv:1609.02907, with self-loops, for bipartite blocks.

    With d = in-degree + 1 taken from the whole graph, and k_i sampled in-edges of the d_i - 1 that
    destination i has:

        out_i = W (x_i / d_i + (d_i - 1) / k_i * sum_j x_j / sqrt(d_i d_j)) + b

    which is PyG's `GCNConv` when all in-edges are present and the graph has no self-edges, and
    equals it in expectation over the samples otherwise. (PyG's own layer takes no bipartite input
    and would normalise by the degrees inside the sample.) A self-edge counts as one more neighbor.
    An edge weight, where the block has one, is a factor on the neighbor's row; degrees stay counts.

    Parameters are named and initialised as PyG's.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.lin = Linear(in_channels, out_channels, bias=False, weight_initializer="glorot")
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x_src: Features, block: Block) -> Tensor:
        """Returns [num_dst, out_channels]."""
        if not isinstance(x_src, Tensor) or transform_first(
            block, self.in_channels, self.out_channels
        ):
            return self._propagate(apply_linear(self.lin, x_src), block) + self.bias
        out: Tensor = self.lin(self._propagate(x_src, block)) + self.bias
        return out

    def _propagate(self, x: Tensor, block: Block) -> Tensor:
        assert block.src_in_degree is not None
        scaled = x * _inverse_sqrt(block.src_in_degree + 1, x.dtype)
        neighbors = segment_sum(scaled, Adjacency.of(block), block.edge_weight)
        both = scale_sampled(neighbors, block) + scaled[: block.num_dst]
        return both * _inverse_sqrt(block.dst_degree + 1, x.dtype)


def _inverse_sqrt(degree: Tensor, dtype: torch.dtype) -> Tensor:
    # Half precision cannot tell large degrees apart.
    precise = degree.to(torch.promote_types(dtype, torch.float32))
    return precise.rsqrt().to(dtype).unsqueeze(-1)


class GCN(Encoder):
    """Semi-Supervised Classification with Graph Convolutional Networks, arXiv:1609.02907."""

    reads_edge_weight = True
    takes_sparse_input = True
    overwrites_layer_outputs = True
    row_biases = "bias"

    def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
        """A graph convolution."""
        return GCNLayer(in_channels, out_channels)
