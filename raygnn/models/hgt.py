"""HGT, the heterogeneous graph transformer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.data.edge_types import EdgeType
from raygnn.models.adjacency import Adjacency
from raygnn.models.arguments import check_attention, check_heads
from raygnn.models.attention import dot_scores, softmax_over_blocks, weighted_segment_sum
from raygnn.models.hetero_encoder import HeteroEncoder, HeteroOptions, Rows, block_of

if TYPE_CHECKING:
    from raygnn.sampling.blocks import HeteroBlock


class HGTLayer(nn.Module):
    """PyG's `HGTConv` for equal widths, over destination-sorted blocks.

    Keys, queries and values are linear by node type; keys and values are then multiplied by a
    matrix per edge type and head. A destination attends over all of its in-edges, of all types
    together. gelu, a linear layer and a learned skip connection follow, by node type; a node
    without in-edges passes them with zeros.

    Attributes:
        key_relation, value_relation: [num_edge_types, num_heads, D, D] with D = channels / heads.
        prior: [num_edge_types, num_heads], a factor on the scores.
        skip: [num_node_types]: its sigmoid is the share of the new row.
    """

    def __init__(
        self,
        node_types: Sequence[str],
        edge_types: Sequence[EdgeType],
        channels: int,
        num_heads: int,
        attn_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.node_types = list(node_types)
        self.edge_types = list(edge_types)
        self.channels = channels
        self.num_heads = num_heads
        self.attn_dropout = attn_dropout
        head_channels = channels // num_heads
        self.lin_kqv = ModuleDict({name: nn.Linear(channels, 3 * channels) for name in node_types})
        self.lin_out = ModuleDict({name: nn.Linear(channels, channels) for name in node_types})
        shape = (len(edge_types), num_heads, head_channels, head_channels)
        self.key_relation = nn.Parameter(torch.empty(shape))
        self.value_relation = nn.Parameter(torch.empty(shape))
        self.prior = nn.Parameter(torch.ones(len(edge_types), num_heads))
        self.skip = nn.Parameter(torch.ones(len(node_types)))
        bound = math.sqrt(3 / head_channels)  # Glorot's, of each matrix
        nn.init.uniform_(self.key_relation, -bound, bound)
        nn.init.uniform_(self.value_relation, -bound, bound)

    def forward(self, x_src: Mapping[str, Tensor], block: HeteroBlock) -> Rows:
        """Returns [num_dst, channels] by node type."""
        sources = {s for s, _, t in self.edge_types if block.num_dst.get(t, 0)}
        keys_values = {
            s: (self._projected(s, 0, x_src[s]), self._projected(s, 2, x_src[s]))
            for s in self.node_types
            if s in sources
        }
        out: Rows = {}
        for i, name in enumerate(self.node_types):
            x_dst = x_src[name][: block.num_dst.get(name, 0)]
            if not len(x_dst):
                out[name] = x_dst
                continue
            messages = self._attend(name, x_dst, keys_values, block)
            new = self.lin_out[name](functional.gelu(messages))
            share = self.skip[i].sigmoid()
            out[name] = share * new + (1 - share) * x_dst
        return out

    def _projected(self, name: str, which: int, x: Tensor) -> Tensor:
        """Keys (0), queries (1) or values (2) of rows of a node type, [num_rows, num_heads, D]."""
        lin: Any = self.lin_kqv[name]
        weight, bias = lin.weight.chunk(3)[which], lin.bias.chunk(3)[which]
        return functional.linear(x, weight, bias).unflatten(1, (self.num_heads, -1))

    def _attend(
        self,
        name: str,
        x_dst: Tensor,
        keys_values: Mapping[str, tuple[Tensor, Tensor]],
        block: HeteroBlock,
    ) -> Tensor:
        """[num_dst, channels], the weighted sum over all in-edges; zeros without any.

        q . (k R) is (q R^T) . k, and the sum of values v R that of v, times R. So an edge type's
        matrices multiply rows of destinations, which are fewer than the sources.
        """
        into = [
            (i, edge_type[0], of_type)
            for i, edge_type in enumerate(self.edge_types)
            if edge_type[2] == name and (of_type := block_of(block, edge_type, x_dst)).num_edges
        ]
        if not into:
            return x_dst.new_zeros(len(x_dst), self.channels)
        query = self._projected(name, 1, x_dst) / math.sqrt(self.channels // self.num_heads)
        scores = []
        for i, source, of_type in into:
            relation = self.key_relation[i] * self.prior[i].view(-1, 1, 1)
            of_query = torch.einsum("nhe,hde->nhd", query, relation.to(query.dtype))
            scores.append(dot_scores(of_query, keys_values[source][0], Adjacency.of(of_type)))
        out = torch.zeros_like(query)
        weights = softmax_over_blocks(scores, [of_type for *_, of_type in into])
        for (i, source, of_type), weight in zip(into, weights, strict=True):
            weight = functional.dropout(weight, self.attn_dropout, self.training)
            sums = weighted_segment_sum(keys_values[source][1], weight, Adjacency.of(of_type))
            relation = self.value_relation[i].to(sums.dtype)
            out = out + torch.einsum("nhd,hde->nhe", sums, relation)
        return out.flatten(1)


@dataclass(frozen=True, kw_only=True)
class HGTOptions(HeteroOptions):
    """Those of all encoders, and:

    Attributes:
        num_heads: attention heads; `hidden_channels` is the width of all together.
        attn_dropout: on the attention weights.
    Raises:
        ConfigError: one is out of range, or the width is not a multiple of the heads.
    """

    num_heads: int = 8
    attn_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attention(self.num_heads, self.attn_dropout)
        check_heads(self.num_heads, hidden_channels=self.hidden_channels)


class HGT(HeteroEncoder):
    """Heterogeneous Graph Transformer, arXiv:2003.01332.

    Takes the arguments of `HGTOptions`.
    """

    Options = HGTOptions
    options: HGTOptions
    row_biases = r"lin_out\..*\.bias"

    def build_layer(self, channels: int) -> nn.Module:
        """An `HGTLayer`."""
        return HGTLayer(
            self.node_types,
            self.edge_types,
            channels,
            self.options.num_heads,
            self.options.attn_dropout,
        )
