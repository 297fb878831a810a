"""SimpleHGN: graph attention that knows the type of an edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from raygnn.data.edge_types import EdgeType
from raygnn.models.adjacency import Adjacency, merge_edges
from raygnn.models.attention import (
    gather_dst,
    gather_src,
    segment_softmax,
    weighted_segment_sum,
)
from raygnn.models.encoder import Activation, Rows
from raygnn.models.hetero_encoder import HeteroEncoder, block_of
from raygnn.models.hgt import HGTOptions

if TYPE_CHECKING:
    from raygnn.sampling.blocks import HeteroBlock


class SimpleHGNLayer(nn.Module):
    """Attention over all in-edges together, with a learned vector per edge type in the scores.

        score_ij = leaky_relu(a_src . W x_j + a_dst . W x_i + a_edge . W_edge r_ij)
        out_i = sum_j softmax_j(score_ij) W x_j + W_res x_i + b

    with r_ij the vector of the edge's type; W is shared by all node types.
    """

    def __init__(
        self,
        node_types: Sequence[str],
        edge_types: Sequence[EdgeType],
        channels: int,
        num_heads: int,
        edge_type_channels: int,
        attn_dropout: float = 0.0,
        negative_slope: float = 0.2,
    ) -> None:
        super().__init__()
        self.node_types = list(node_types)
        self.edge_types = list(edge_types)
        self.num_heads = num_heads
        self.attn_dropout = attn_dropout
        self.negative_slope = negative_slope
        self.lin = nn.Linear(channels, channels, bias=False)
        self.lin_res = nn.Linear(channels, channels)
        self.lin_edge = nn.Linear(edge_type_channels, num_heads * edge_type_channels, bias=False)
        self.edge_type_rows = nn.Parameter(torch.empty(len(edge_types), edge_type_channels))
        self.att_src = nn.Parameter(torch.empty(num_heads, channels // num_heads))
        self.att_dst = nn.Parameter(torch.empty(num_heads, channels // num_heads))
        self.att_edge = nn.Parameter(torch.empty(num_heads, edge_type_channels))
        for parameter in (self.lin.weight, self.lin_res.weight, self.lin_edge.weight):
            nn.init.xavier_normal_(parameter, gain=nn.init.calculate_gain("relu"))
        for parameter in (self.att_src, self.att_dst, self.att_edge):
            nn.init.xavier_normal_(parameter, gain=nn.init.calculate_gain("relu"))
        nn.init.normal_(self.edge_type_rows)

    def forward(self, x_src: Mapping[str, Tensor], block: HeteroBlock) -> Rows:
        """Returns [num_dst, channels] by node type."""
        values = {
            name: self.lin(x_src[name]).unflatten(1, (self.num_heads, -1))
            for name in self.node_types
        }
        of_edge_type = self.lin_edge(self.edge_type_rows).unflatten(1, (self.num_heads, -1))
        of_edge_type = (of_edge_type * self.att_edge).sum(dim=-1)
        out: Rows = {}
        for name in self.node_types:
            x_dst = x_src[name][: block.num_dst.get(name, 0)]
            out[name] = self.lin_res(x_dst)
            if len(x_dst):
                out[name] = out[name] + self._attend(name, values, of_edge_type, block)
        return out

    def _attend(
        self,
        name: str,
        values: Mapping[str, Tensor],
        of_edge_type: Tensor,
        block: HeteroBlock,
    ) -> Tensor:
        """[num_dst, channels], the weighted sum over all in-edges; zeros without any."""
        num_dst = block.num_dst[name]
        blocks, scores = [], []
        for i, edge_type in enumerate(self.edge_types):
            of_type = block_of(block, edge_type, of_edge_type)
            if edge_type[2] == name and of_type.num_edges:
                blocks.append((edge_type[0], of_type))
                scores.append(of_edge_type[i].expand(of_type.num_edges, -1))
        if not blocks:
            return values[name].new_zeros(num_dst, values[name][0].numel())
        # The rows of a node type are read by several edge types, but held once.
        sources = list(dict.fromkeys(source for source, _ in blocks))
        offsets, num_src = {}, 0
        for source in sources:
            offsets[source] = num_src
            num_src += len(values[source])
        merged = merge_edges([of_type for _, of_type in blocks])
        src = torch.cat([of_type.edge_index[0] + offsets[source] for source, of_type in blocks])
        adjacency = Adjacency(src[merged.order], merged.dst, merged.ptr, num_src)
        value = torch.cat([values[source] for source in sources])
        of_src = (value * self.att_src).sum(dim=-1)
        of_dst = (values[name][:num_dst] * self.att_dst).sum(dim=-1)
        score = gather_src(of_src, adjacency) + gather_dst(of_dst, adjacency)
        score = score + torch.cat(scores).index_select(0, merged.order)
        score = functional.leaky_relu(score, self.negative_slope)
        weights = segment_softmax(score, adjacency)
        weights = functional.dropout(weights, self.attn_dropout, self.training)
        return weighted_segment_sum(value, weights, adjacency).flatten(1)


class SimpleHGNOptions(HGTOptions):
    """Those of HGT, and:

    Attributes:
        edge_type_channels: width of the learned vector per edge type.
    """

    activation: Activation = "elu"
    edge_type_channels: PositiveInt = 64


class SimpleHGN(HeteroEncoder):
    """Are We Really Making Much Progress?, arXiv:2112.14936: its SimpleHGN.

    With learned edge types, residual connections of nodes, and (`normalize_output`) unit outputs.
    The paper's residual connection of attention weights between layers is left out: it would need
    the weights of all edges of the layer before, which layer-by-layer encoding does not keep.
    Takes the arguments of `SimpleHGNOptions`.
    """

    Options = SimpleHGNOptions
    options: SimpleHGNOptions
    row_biases = r"lin_res\.bias"

    def build_layer(self, channels: int) -> nn.Module:
        """A `SimpleHGNLayer`."""
        return SimpleHGNLayer(
            self.node_types,
            self.edge_types,
            channels,
            self.options.num_heads,
            self.options.edge_type_channels,
            self.options.attn_dropout,
        )
