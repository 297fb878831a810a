"""GraphSAGE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from raygnn.models.adjacency import Adjacency
from raygnn.models.arguments import check_choice
from raygnn.models.encoder import Encoder
from raygnn.models.segment import mean_of, segment_max, segment_sum, segment_sum_and_rows
from raygnn.models.unbiased import scale_sampled

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block

AGGREGATIONS = ("mean", "max", "sum")


class BlockSAGEConv(SAGEConv):
    """PyG's `SAGEConv`, parameters and result, over a destination-sorted block."""

    def forward(self, x_src: Tensor, block: Block, x_dst: Tensor | None = None) -> Tensor:
        """Returns [num_dst, out_channels]; x_dst: the destinations' rows, if not the sources'."""
        adjacency = Adjacency.of(block)
        if self.aggr == "max":
            neighbors = segment_max(x_src, adjacency)
            rows = x_src[: block.num_dst] if x_dst is None else x_dst
        else:
            if x_dst is None:
                sums, rows = segment_sum_and_rows(x_src, adjacency)
            else:
                sums, rows = segment_sum(x_src, adjacency), x_dst
            is_mean = self.aggr == "mean"
            neighbors = mean_of(sums, adjacency) if is_mean else scale_sampled(sums, block)
        out: Tensor = self.lin_l(neighbors)
        if self.root_weight:
            # Into the first product: no second one in memory, and no sum of the two. Autocast does
            # not see what happens in place.
            out = out.addmm_(rows.to(out.dtype), self.lin_r.weight.t().to(out.dtype))
        return out


class GraphSAGE(Encoder):
    """Inductive Representation Learning on Large Graphs, arXiv:1706.02216.

    Each layer is W_1 x_i + W_2 aggr_j x_j + b over the in-neighbors j of i.

    Args:
        aggr: "mean", "max" or "sum". A sum over sampled neighbors is scaled by (in-degree / number
            sampled), so that it estimates the sum over all of them without bias.
        ...: see `Encoder`.
    """

    overwrites_layer_outputs = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 256,
        num_layers: int = 2,
        *,
        aggr: str = "mean",
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        norm: str | None = None,
        activation: str = "relu",
        jump: str | None = None,
        normalize_output: bool = False,
    ) -> None:
        check_choice("aggr", aggr, AGGREGATIONS)
        self.aggr = aggr  # before the base, which builds the layers
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
        """A `SAGEConv`."""
        return BlockSAGEConv(in_channels, out_channels, aggr=self.aggr)
