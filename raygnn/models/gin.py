"""GIN, the graph isomorphism network, and GINE, the same with edge features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PositiveInt
from torch import Tensor, nn
from torch_geometric.nn import GINConv, GINEConv

from raygnn.models.adjacency import Adjacency
from raygnn.models.edge_features import edge_attr_of, relu_edge_sum
from raygnn.models.encoder import (
    ACTIVATIONS,
    Encoder,
    EncoderOptions,
    OverBlocks,
    build_norm,
    call_before_norm,
)
from raygnn.models.segment import scale_sampled, segment_sum
from raygnn.models.sparse_input import Features, linear
from raygnn.sampling.sparse_features import SparseFeatures

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block


class BlockGINConv(OverBlocks, GINConv):
    """PyG's `GINConv`, parameters and result, over a destination-sorted block.

    Sparse rows are summed after the first layer of an `_MLP`.
    """

    def forward(self, x_src: Features, block: Block, x_dst: Tensor | None = None) -> Tensor:
        """Returns [num_dst, out_channels]; x_dst: the destinations' rows, if not the sources'."""

        def summed(rows: Tensor) -> Tensor:
            own = rows[: block.num_dst] if x_dst is None else x_dst
            neighbors = scale_sampled(segment_sum(rows, Adjacency.of(block)), block)
            return neighbors + (1 + self.eps) * own

        out: Tensor = (
            self.nn(summed(x_src)) if isinstance(x_src, Tensor) else self.nn(x_src, summed)
        )
        return out


class _LinearThenSum(nn.Module):
    """W summed(x) + b of sparse rows, computed as summed(W x) + b."""

    def __init__(self, first: nn.Linear, summed: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = first
        self.summed = summed

    def forward(self, x: SparseFeatures) -> Tensor:
        out = self.summed(linear(x, self.first.weight))
        return out + self.first.bias.to(out.dtype)


class _MLP(nn.Sequential):
    """A linear layer, its norm, and what follows."""

    def forward(self, x: Features, summed: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Applies all to x, or to summed(x) of sparse rows."""
        first, norm, *others = self
        assert isinstance(first, nn.Linear)
        layer = first if summed is None else _LinearThenSum(first, summed)
        rows: Tensor = norm(call_before_norm(layer, norm, r"(first\.)?bias", x))
        for module in others:
            rows = module(rows)
        return rows


class GINOptions(EncoderOptions):
    """Those of all encoders, and:

    Attributes:
        train_eps: learns eps, from 0, instead of keeping it 0.
    """

    train_eps: bool = False


class GIN(Encoder):
    """How Powerful are Graph Neural Networks?, arXiv:1810.00826.

    Each layer is MLP((1 + eps) x_i + sum_j x_j) over the in-neighbors j of i. A sum over sampled
    neighbors is scaled by (in-degree / number sampled), so that it estimates the sum over all of
    them without bias. The MLP has one hidden layer, with the encoder's norm and activation. Takes
    the arguments of `GINOptions`.
    """

    Options: ClassVar[type[GINOptions]] = GINOptions
    options: GINOptions
    takes_sparse_input = True
    row_biases = r"nn\.3\.bias"

    def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
        """A `GINConv` with its MLP."""
        mlp = _MLP(
            nn.Linear(in_channels, self.hidden_channels),
            build_norm(self.options.norm, self.hidden_channels),
            ACTIVATIONS[self.options.activation](),
            nn.Linear(self.hidden_channels, out_channels),
        )
        return self.build_conv(mlp)

    def build_conv(self, mlp: nn.Sequential) -> nn.Module:
        """A `GINConv` of that MLP."""
        return BlockGINConv(mlp, train_eps=self.options.train_eps)


class BlockGINEConv(OverBlocks, GINEConv):
    """PyG's `GINEConv`, parameters and result, over a destination-sorted block."""

    def forward(self, x_src: Tensor, block: Block, x_dst: Tensor | None = None) -> Tensor:
        """Returns [num_dst, out_channels]; x_dst: the destinations' rows, if not the sources'."""
        x_dst = x_src[: block.num_dst] if x_dst is None else x_dst
        edge_attr = edge_attr_of(block, self.lin.in_channels, x_src)
        weight, bias = self.lin.weight.to(x_src.dtype), self.lin.bias.to(x_src.dtype)
        neighbors = relu_edge_sum(x_src, edge_attr, weight, bias, Adjacency.of(block))
        out: Tensor = self.nn(scale_sampled(neighbors, block) + (1 + self.eps) * x_dst)
        return out


class GINEOptions(GINOptions):
    """Those of GIN, and:

    Attributes:
        edge_dim: number of features of an edge.
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
        """A `GINEConv`."""
        return BlockGINEConv(mlp, train_eps=self.options.train_eps, edge_dim=self.options.edge_dim)
