"""GINE: the graph isomorphism network with edge features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch_geometric.nn import GINEConv

from raygnn.models.adjacency import Adjacency
from raygnn.models.arguments import check_positive
from raygnn.models.edge_features import edge_attr_of, relu_edge_sum
from raygnn.models.gin import GIN
from raygnn.models.unbiased import scale_sampled

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block


class BlockGINEConv(GINEConv):
    """PyG's `GINEConv`, parameters and result, over a destination-sorted block."""

    def forward(self, x_src: Tensor, block: Block, x_dst: Tensor | None = None) -> Tensor:
        """Returns [num_dst, out_channels]; x_dst: the destinations' rows, if not the sources'."""
        x_dst = x_src[: block.num_dst] if x_dst is None else x_dst
        edge_attr = edge_attr_of(block, self.lin.in_channels, x_src)
        weight, bias = self.lin.weight.to(x_src.dtype), self.lin.bias.to(x_src.dtype)
        neighbors = relu_edge_sum(x_src, edge_attr, weight, bias, Adjacency.of(block))
        out: Tensor = self.nn(scale_sampled(neighbors, block) + (1 + self.eps) * x_dst)
        return out


class GINE(GIN):
    """Strategies for Pre-training Graph Neural Networks, arXiv:1905.12265: GIN with edge features.

    Each layer is MLP((1 + eps) x_i + sum_j relu(x_j + W e_ij + b)) over the in-edges of i.

    Args:
        edge_dim: number of features of an edge.
        ...: see `GIN`.
    Raises:
        ConfigError: an argument is out of range.
    """

    reads_edge_features = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 256,
        num_layers: int = 2,
        *,
        edge_dim: int,
        train_eps: bool = False,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        norm: str | None = None,
        activation: str = "relu",
        jump: str | None = None,
        normalize_output: bool = False,
    ) -> None:
        check_positive(edge_dim=edge_dim)
        self.edge_dim = edge_dim  # before the base, which builds the layers
        super().__init__(
            in_channels,
            out_channels,
            hidden_channels,
            num_layers,
            train_eps=train_eps,
            dropout=dropout,
            input_dropout=input_dropout,
            norm=norm,
            activation=activation,
            jump=jump,
            normalize_output=normalize_output,
        )

    @classmethod
    def needs_edge_features(cls, args: Mapping[str, Any]) -> bool:
        """Always."""
        return True

    def build_conv(self, mlp: nn.Sequential) -> nn.Module:
        """A `GINEConv`."""
        return BlockGINEConv(mlp, train_eps=self.train_eps, edge_dim=self.edge_dim)
