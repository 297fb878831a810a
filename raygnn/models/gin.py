"""GIN, the graph isomorphism network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch_geometric.nn import GINConv

from raygnn.models.adjacency import Adjacency
from raygnn.models.encoder import ACTIVATIONS, Encoder, build_norm
from raygnn.models.segment import segment_sum
from raygnn.models.unbiased import scale_sampled

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block


class BlockGINConv(GINConv):
    """PyG's `GINConv`, parameters and result, over a destination-sorted block."""

    def forward(self, x_src: Tensor, block: Block, x_dst: Tensor | None = None) -> Tensor:
        """Returns [num_dst, out_channels]; x_dst: the destinations' rows, if not the sources'."""
        x_dst = x_src[: block.num_dst] if x_dst is None else x_dst
        neighbors = scale_sampled(segment_sum(x_src, Adjacency.of(block)), block)
        out: Tensor = self.nn(neighbors + (1 + self.eps) * x_dst)
        return out


class GIN(Encoder):
    """How Powerful are Graph Neural Networks?, arXiv:1810.00826.

    Each layer is MLP((1 + eps) x_i + sum_j x_j) over the in-neighbors j of i. A sum over sampled
    neighbors is scaled by (in-degree / number sampled), so that it estimates the sum over all of
    them without bias. The MLP has one hidden layer, with the encoder's norm and activation.

    Args:
        train_eps: learns eps, from 0, instead of keeping it 0.
        ...: see `Encoder`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 256,
        num_layers: int = 2,
        *,
        train_eps: bool = False,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        norm: str | None = None,
        activation: str = "relu",
        jump: str | None = None,
        normalize_output: bool = False,
    ) -> None:
        self.train_eps = train_eps  # before the base, which builds the layers
        super().__init__(
            in_channels,
            out_channels,
            hidden_channels,
            num_layers,
            dropout=dropout,
            input_dropout=input_dropout,
            norm=norm,
            activation=activation,
            jump=jump,
            normalize_output=normalize_output,
        )

    def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
        """A `GINConv` with its MLP."""
        mlp = nn.Sequential(
            nn.Linear(in_channels, self.hidden_channels),
            build_norm(self.norm, self.hidden_channels),
            ACTIVATIONS[self.activation](),
            nn.Linear(self.hidden_channels, out_channels),
        )
        return self.build_conv(mlp)

    def build_conv(self, mlp: nn.Sequential) -> nn.Module:
        """A `GINConv` of that MLP."""
        return BlockGINConv(mlp, train_eps=self.train_eps)
