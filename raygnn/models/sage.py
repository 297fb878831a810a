"""GraphSAGE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from raygnn.models.adjacency import Adjacency
from raygnn.models.encoder import Encoder, EncoderOptions, OverBlocks
from raygnn.models.segment import (
    mean_of,
    scale_sampled,
    segment_max,
    segment_sum,
    segment_sum_and_rows,
    transform_first,
)
from raygnn.models.sparse_input import Features, dense, linear

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block

AGGREGATIONS = ("mean", "max", "sum")


class BlockSAGEConv(OverBlocks, SAGEConv):
    """PyG's `SAGEConv`, parameters and result, over a destination-sorted block."""

    def forward(self, x_src: Features, block: Block, x_dst: Tensor | None = None) -> Tensor:
        """Returns [num_dst, out_channels]; x_dst: the destinations' rows, if not the sources'."""
        adjacency = Adjacency.of(block)
        rows = x_src[: block.num_dst] if x_dst is None else x_dst
        out: Tensor
        if self.aggr == "max":
            rows_of_all = dense(x_src, self.lin_l.weight.dtype)
            out = self.lin_l(segment_max(rows_of_all, adjacency))
        elif not isinstance(x_src, Tensor) or transform_first(
            block, x_src.shape[1], self.out_channels
        ):
            transformed = linear(x_src, self.lin_l.weight)
            out = self._reduced(segment_sum(transformed, adjacency), block)
            out = out if self.lin_l.bias is None else out + self.lin_l.bias.to(out.dtype)
        elif x_dst is None:
            sums, rows = segment_sum_and_rows(x_src, adjacency)
            out = self.lin_l(self._reduced(sums, block))
        else:
            out = self.lin_l(self._reduced(segment_sum(x_src, adjacency), block))
        if self.root_weight:
            if not isinstance(rows, Tensor):
                return out + linear(rows, self.lin_r.weight)
            # Into the first product: no second one in memory, and no sum of the two. Autocast does
            # not see what happens in place.
            out = out.addmm_(rows.to(out.dtype), self.lin_r.weight.t().to(out.dtype))
        return out

    def _reduced(self, sums: Tensor, block: Block) -> Tensor:
        """What the sums over in-edges stand for: means, or sums over all in-edges."""
        is_mean = self.aggr == "mean"
        return mean_of(sums, Adjacency.of(block)) if is_mean else scale_sampled(sums, block)


class SAGEOptions(EncoderOptions):
    """Those of all encoders, and:

    Attributes:
        aggr: "mean", "max" or "sum". A sum over sampled neighbors is scaled by (in-degree / number
            sampled), so that it estimates the sum over all of them without bias.
    """

    aggr: Literal["mean", "max", "sum"] = "mean"


class GraphSAGE(Encoder):
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
        """A `SAGEConv`."""
        return BlockSAGEConv(in_channels, out_channels, aggr=self.options.aggr)
