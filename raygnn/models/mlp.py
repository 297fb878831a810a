"""A multi-layer perceptron on the features alone: the baseline that a GNN has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from raygnn.models.encoder import Encoder

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block


class _NodeLinear(nn.Module):
    """A linear layer on the destinations' own rows."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, x_src: Tensor, block: Block) -> Tensor:
        out: Tensor = self.lin(x_src[: block.num_dst])
        return out


class MLP(Encoder):
    """Ignores the edges. Takes the arguments of `Encoder`."""

    def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
        """A linear layer."""
        return _NodeLinear(in_channels, out_channels)

    def forward(self, x: Tensor, blocks: Sequence[Block]) -> Tensor:
        """Encodes the seeds; reads no other row."""
        return super().forward(x[: blocks[-1].num_dst], blocks)
