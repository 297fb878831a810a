"""Encoders without attention: GCN, GraphSAGE, GIN and GINE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch_geometric.nn import GINConv, GINEConv, SAGEConv
from torch_geometric.nn.dense.linear import Linear

from raygnn.models import encoder, segment
from raygnn.models.edge_features import edge_attr_of, relu_edge_sum
from raygnn.models.sparse_input import Features, apply_linear, dense, linear
from raygnn.sampling.blocks import Block
from raygnn.sampling.sparse_features import SparseFeatures


class GCNLayer(nn.Module):
    """The graph convolution of arXiv:1609.02907, with self-loops, for bipartite blocks.

    With d = in-degree + 1 in the whole graph, and k_i sampled of d_i - 1 in-edges of destination i:

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
        if not isinstance(x_src, Tensor) or segment.transform_first(
            block, self.in_channels, self.out_channels
        ):
            return self._propagate(apply_linear(self.lin, x_src), block) + self.bias
        out: Tensor = self.lin(self._propagate(x_src, block)) + self.bias
        return out

    def _propagate(self, x: Tensor, block: Block) -> Tensor:
        assert block.src_in_degree is not None
        scaled = x * segment.inverse_sqrt(block.src_in_degree + 1, x.dtype)
        neighbors = segment.segment_sum(scaled, segment.Adjacency.of(block), block.edge_weight)
        both = segment.scale_sampled(neighbors, block) + scaled[: block.num_dst]
        return both * segment.inverse_sqrt(block.dst_degree + 1, x.dtype)


class GCN(encoder.Encoder):
    """Semi-Supervised Classification with Graph Convolutional Networks, arXiv:1609.02907."""

    reads_edge_weight = True
    takes_sparse_input = True
    overwrites_layer_outputs = True
    row_biases = "bias"

    def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
        return GCNLayer(in_channels, out_channels)


class BlockSAGEConv(encoder.OverBlocks, SAGEConv):
    """PyG's `SAGEConv`, with its parameters and result, over a destination-sorted block."""

    def forward(self, x_src: Features, block: Block, x_dst: Tensor | None = None) -> Tensor:
        """Returns [num_dst, out_channels]. `x_dst`: rows of destinations, if not the sources'."""
        adjacency = segment.Adjacency.of(block)
        rows = x_src[: block.num_dst] if x_dst is None else x_dst
        out: Tensor
        if self.aggr == "max":
            rows_of_all = dense(x_src, self.lin_l.weight.dtype)
            out = self.lin_l(segment.segment_max(rows_of_all, adjacency))
        elif not isinstance(x_src, Tensor) or segment.transform_first(
            block, x_src.shape[1], self.out_channels
        ):
            transformed = linear(x_src, self.lin_l.weight)
            out = self._reduced(segment.segment_sum(transformed, adjacency), block)
            out = out if self.lin_l.bias is None else out + self.lin_l.bias.to(out.dtype)
        elif x_dst is None:
            sums, rows = segment.segment_sum_and_rows(x_src, adjacency)
            out = self.lin_l(self._reduced(sums, block))
        else:
            out = self.lin_l(self._reduced(segment.segment_sum(x_src, adjacency), block))
        if self.root_weight:
            if not isinstance(rows, Tensor):
                return out + linear(rows, self.lin_r.weight)
            # Into the first product: no second one in memory, and no sum of the two. Autocast does
            # not see what happens in place.
            out = out.addmm_(rows.to(out.dtype), self.lin_r.weight.t().to(out.dtype))
        return out

    def _reduced(self, sums: Tensor, block: Block) -> Tensor:
        is_mean = self.aggr == "mean"
        return (
            segment.mean_of(sums, segment.Adjacency.of(block))
            if is_mean
            else segment.scale_sampled(sums, block)
        )


class SAGEOptions(encoder.EncoderOptions):
    """Options shared by all encoders, plus:

    Attributes:
        aggr: "mean", "max" or "sum". A sum over sampled neighbors is scaled by (in-degree / number
            sampled), an unbiased estimate of the sum over all.
    """

    aggr: Literal["mean", "max", "sum"] = "mean"


class GraphSAGE(encoder.Encoder):
    """Inductive Representation Learning on Large Graphs, arXiv:1706.02216.

    Each layer is W_1 x_i + W_2 aggr_j x_j + b over the in-neighbors j of i.

    Takes the arguments of `SAGEOptions`.
    """

    Options = SAGEOptions
    options: SAGEOptions
    takes_sparse_input = True
    overwrites_layer_outputs = True
    row_biases = r"lin_l\.bias"

    def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
        return BlockSAGEConv(in_channels, out_channels, aggr=self.options.aggr)


class BlockGINConv(encoder.OverBlocks, GINConv):
    """PyG's `GINConv`, with its parameters and result, over a destination-sorted block.

    Sparse rows are summed after the first layer of an `_MLP`.
    """

    def forward(self, x_src: Features, block: Block, x_dst: Tensor | None = None) -> Tensor:
        def summed(rows: Tensor) -> Tensor:
            dst_rows = rows[: block.num_dst] if x_dst is None else x_dst
            neighbors = segment.scale_sampled(
                segment.segment_sum(rows, segment.Adjacency.of(block)), block
            )
            return neighbors + (1 + self.eps) * dst_rows

        out: Tensor = (
            self.nn(summed(x_src)) if isinstance(x_src, Tensor) else self.nn(x_src, summed)
        )
        return out


class _LinearThenSum(nn.Module):
    def __init__(self, first: nn.Linear, summed: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = first
        self.summed = summed

    def forward(self, x: SparseFeatures) -> Tensor:
        out = self.summed(linear(x, self.first.weight))
        return out + self.first.bias.to(out.dtype)


class _MLP(nn.Sequential):
    def forward(self, x: Features, summed: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Applies all layers to x, or to summed(x) for sparse rows."""
        first, norm, *others = self
        assert isinstance(first, nn.Linear)
        layer = first if summed is None else _LinearThenSum(first, summed)
        rows: Tensor = norm(encoder.call_before_norm(layer, norm, r"(first\.)?bias", x))
        for module in others:
            rows = module(rows)
        return rows


class GINOptions(encoder.EncoderOptions):
    """Options shared by all encoders, plus:

    Attributes:
        train_eps: learns eps, starting at 0. Otherwise it stays 0.
    """

    train_eps: bool = False


class GIN(encoder.Encoder):
    """How Powerful are Graph Neural Networks?, arXiv:1810.00826.

    Each layer is MLP((1 + eps) x_i + sum_j x_j) over the in-neighbors j of i. A sum over sampled
    neighbors is scaled by (in-degree / number sampled), an unbiased estimate of the sum over all.
    The MLP has one hidden layer, with the encoder's norm and activation. Takes the arguments of
    `GINOptions`.
    """

    Options: ClassVar[type[GINOptions]] = GINOptions
    options: GINOptions
    takes_sparse_input = True
    row_biases = r"nn\.3\.bias"

    def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
        mlp = _MLP(
            nn.Linear(in_channels, self.hidden_channels),
            encoder.build_norm(self.options.norm, self.hidden_channels),
            encoder.ACTIVATIONS[self.options.activation](),
            nn.Linear(self.hidden_channels, out_channels),
        )
        return self.build_conv(mlp)

    def build_conv(self, mlp: nn.Sequential) -> nn.Module:
        return BlockGINConv(mlp, train_eps=self.options.train_eps)


class BlockGINEConv(encoder.OverBlocks, GINEConv):
    """PyG's `GINEConv`, with its parameters and result, over a destination-sorted block."""

    def forward(self, x_src: Tensor, block: Block, x_dst: Tensor | None = None) -> Tensor:
        x_dst = x_src[: block.num_dst] if x_dst is None else x_dst
        edge_attr = edge_attr_of(block, self.lin.in_channels, x_src)
        weight, bias = self.lin.weight.to(x_src.dtype), self.lin.bias.to(x_src.dtype)
        neighbors = relu_edge_sum(x_src, edge_attr, weight, bias, segment.Adjacency.of(block))
        out: Tensor = self.nn(segment.scale_sampled(neighbors, block) + (1 + self.eps) * x_dst)
        return out


class GINEOptions(GINOptions):
    """Options of GIN, plus:

    Attributes:
        edge_dim: number of edge features.
    """

    edge_dim: PositiveInt


class GINE(GIN):
    """Strategies for Pre-training Graph Neural Networks, arXiv:1905.12265: GIN with edge features.

    Each layer is MLP((1 + eps) x_i + sum_j relu(x_j + W e_ij + b)) over the in-edges of i. Takes
    the arguments of `GINEOptions`.
    """

    Options = GINEOptions
    options: GINEOptions
    reads_edge_features = True

    @classmethod
    def needs_edge_features(cls, args: Mapping[str, Any]) -> bool:
        """Always."""
        return True

    def build_conv(self, mlp: nn.Sequential) -> nn.Module:
        return BlockGINEConv(mlp, train_eps=self.options.train_eps, edge_dim=self.options.edge_dim)
