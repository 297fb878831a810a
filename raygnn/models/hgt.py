"""HGT, the heterogeneous graph transformer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.data.edge_types import EdgeType
from raygnn.models.adjacency import merge_edges
from raygnn.models.arguments import check_attention, check_heads
from raygnn.models.attention import dot_scores, segment_softmax, weighted_segment_sum
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
        parts = {name: self._keys_queries_values(name, x_src[name]) for name in self.node_types}
        out: Rows = {}
        for i, name in enumerate(self.node_types):
            x_dst = x_src[name][: block.num_dst.get(name, 0)]
            if not len(x_dst):
                out[name] = x_dst
                continue
            messages = self._attend(name, parts, block)
            new = self.lin_out[name](functional.gelu(messages))
            share = self.skip[i].sigmoid()
            out[name] = share * new + (1 - share) * x_dst
        return out

    def _keys_queries_values(self, name: str, x: Tensor) -> tuple[Tensor, ...]:
        parts = self.lin_kqv[name](x).chunk(3, dim=1)
        return tuple(part.unflatten(1, (self.num_heads, -1)) for part in parts)

    def _attend(
        self, name: str, parts: Mapping[str, tuple[Tensor, ...]], block: HeteroBlock
    ) -> Tensor:
        """[num_dst, channels], the weighted sum over all in-edges; zeros without any."""
        num_dst = block.num_dst[name]
        query = parts[name][1][:num_dst]
        blocks, offsets, keys, values, num_src = [], [], [], [], 0
        for i, edge_type in enumerate(self.edge_types):
            if edge_type[2] != name:
                continue
            of_type = block_of(block, edge_type, query)
            if not of_type.num_edges:
                continue
            key, _, value = parts[edge_type[0]]
            relation = self.key_relation[i] * self.prior[i].view(-1, 1, 1)
            keys.append(torch.einsum("nhd,hde->nhe", key, relation.to(key.dtype)))
            values.append(torch.einsum("nhd,hde->nhe", value, self.value_relation[i].to(key.dtype)))
            blocks.append(of_type)
            offsets.append(num_src)
            num_src += len(key)
        if not blocks:
            return query.new_zeros(num_dst, self.channels)
        adjacency = merge_edges(blocks, offsets, num_src).adjacency
        scores = dot_scores(query, torch.cat(keys), adjacency) / math.sqrt(query.shape[-1])
        weights = segment_softmax(scores, adjacency)
        weights = functional.dropout(weights, self.attn_dropout, self.training)
        return weighted_segment_sum(torch.cat(values), weights, adjacency).flatten(1)


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
