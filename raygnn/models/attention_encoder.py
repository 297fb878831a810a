"""What encoders with attention heads share: their arguments and the widths of their heads."""

from __future__ import annotations

from abc import abstractmethod

from torch import nn

from raygnn.models.arguments import check_heads, check_positive, check_probability
from raygnn.models.encoder import Encoder


class AttentionEncoder(Encoder):
    """An encoder whose layers have attention heads.

    The heads' outputs are concatenated, and averaged in a last layer without `jump`.

    Args:
        num_heads: attention heads; `hidden_channels` is the width of all together.
        num_output_heads: heads of a last layer without `jump`; None takes `num_heads`.
        attn_dropout: on the attention weights.
        edge_dim: number of edge features that take part in attention; None leaves them out.
        ...: see `Encoder`.
    Raises:
        ConfigError: an argument is out of range, or the width is no multiple of the heads.
    """

    reads_edge_features = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 256,
        num_layers: int = 2,
        *,
        num_heads: int = 8,
        num_output_heads: int | None = None,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        attn_dropout: float = 0.0,
        edge_dim: int | None = None,
        norm: str | None = None,
        activation: str = "relu",
        jump: str | None = None,
        normalize_output: bool = False,
    ) -> None:
        num_output_heads = num_heads if num_output_heads is None else num_output_heads
        check_positive(num_heads=num_heads, num_output_heads=num_output_heads)
        check_probability(attn_dropout=attn_dropout)
        check_heads(num_heads, hidden_channels=hidden_channels)
        if edge_dim is not None:
            check_positive(edge_dim=edge_dim)
        # Before the base, which builds the layers.
        self.num_heads = num_heads
        self.num_output_heads = num_output_heads
        self.attn_dropout = attn_dropout
        self.edge_dim = edge_dim
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
        """An attention layer."""
        heads = self.num_output_heads if is_output else self.num_heads
        width = out_channels if is_output else out_channels // heads
        return self.build_attention(in_channels, width, heads, concat=not is_output)

    @abstractmethod
    def build_attention(
        self, in_channels: int, head_channels: int, heads: int, *, concat: bool
    ) -> nn.Module:
        """One layer; its output is `heads * head_channels` wide, else `head_channels`."""
