"""Attention over the edges of all types together: HGT and SimpleHGN."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.data.edge_types import EdgeType
from raygnn.errors import Problem
from raygnn.models import attention
from raygnn.models.encoder import Activation, Share, TypeRows, broken_heads
from raygnn.models.hetero_encoder import HeteroEncoder, HeteroOptions, block_of
from raygnn.models.segment import Adjacency, merge_edges, transform_first
from raygnn.models.sparse_input import ProjectedRows, formed, mapped_from
from raygnn.sampling.blocks import HeteroBlock

_NEGATIVE_SLOPE = 0.2  # of SimpleHGN, as in GAT


class HGTLayer(nn.Module):
    """PyG's `HGTConv` for equal widths, over destination-sorted blocks.

    Keys, queries and values are linear by node type; keys and values are then multiplied by a
    matrix per edge type and head. A destination attends to its in-edges of all types together.
    gelu, a linear layer and a learned skip connection by node type follow, also for zeros of nodes
    without in-edges.

    Attributes:
        key_relation, value_relation: [num_edge_types, num_heads, D, D] with D = channels / heads.
        prior: [num_edge_types, num_heads], a factor on the scores.
        skip: [num_node_types]; its sigmoid is the share of the new row.
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

    def forward(self, x_src: Mapping[str, Tensor | ProjectedRows], block: HeteroBlock) -> TypeRows:
        sources = {name: _Source(self, name, rows) for name, rows in x_src.items()}
        out: TypeRows = {}
        for i, name in enumerate(self.node_types):
            x_dst = formed(x_src[name][: block.num_dst.get(name, 0)])
            if not len(x_dst):
                out[name] = x_dst
                continue
            messages = self._attend(name, x_dst, sources, block)
            new = self.lin_out[name](functional.gelu(messages))
            share = self.skip[i].sigmoid()
            out[name] = share * new + (1 - share) * x_dst
        return out

    def _attend(
        self, name: str, x_dst: Tensor, sources: Mapping[str, _Source], block: HeteroBlock
    ) -> Tensor:
        into = [
            (i, sources[edge_type[0]], of_type)
            for i, edge_type in enumerate(self.edge_types)
            if edge_type[2] == name and (of_type := block_of(block, edge_type, x_dst)).num_edges
        ]
        if not into:
            return x_dst.new_zeros(len(x_dst), self.channels)
        query = functional.linear(x_dst, *sources[name].to_query).unflatten(1, (self.num_heads, -1))
        query = query / math.sqrt(self.channels // self.num_heads)
        scores = []
        for i, source, of_type in into:
            relation = self.key_relation[i] * self.prior[i].view(-1, 1, 1)
            scores.append(source.scores(query, relation, Adjacency.of(of_type)))
        out = torch.zeros_like(query)
        weights = attention.softmax_over_blocks(scores, [of_type for *_, of_type in into])
        for (i, source, of_type), weight in zip(into, weights, strict=True):
            weight = functional.dropout(weight, self.attn_dropout, self.training)
            out = out + source.sums(weight, self.value_relation[i], Adjacency.of(of_type))
        return out.flatten(1)


class _Source:
    """Source nodes of one type in a layer.

    q . (k R) is (q R^T) . k, and the sum of v R is the sum of v, times R. So an edge type's
    matrices multiply destination rows, which are fewer than source rows. With k = W x + b, q R^T W
    multiplies the rows x directly, and the sum of a_j v_j is W times that of a_j x_j. The sizes of
    a block decide which is cheaper. A column of ones in x stands for b.
    """

    def __init__(self, layer: HGTLayer, name: str, rows: Tensor | ProjectedRows) -> None:
        lin: Any = layer.lin_kqv[name]
        weights, biases = lin.weight.chunk(3), lin.bias.chunk(3)
        self.to_query = weights[1], biases[1]
        self._rows, self._heads = rows, layer.num_heads
        self._weights, self._biases = weights[::2], biases[::2]

    def scores(self, query: Tensor, relation: Tensor, adjacency: Adjacency) -> Tensor:
        """Attention scores [num_edges, heads]; query is [num_dst, heads, D]."""
        if self._multiplied_first(adjacency):
            of_query = torch.einsum("nhe,hde->nhd", query, relation.to(query.dtype))
            return attention.dot_scores(of_query, self._keys_values[0], adjacency)
        x, to_key, _ = self._with_ones
        to_key = torch.einsum("hdc,hde->hec", to_key, relation.to(to_key.dtype))
        of_query = torch.einsum("nhe,hec->nhc", query, to_key)
        return attention.dot_scores(of_query, x.to(of_query.dtype), adjacency)

    def sums(self, weight: Tensor, relation: Tensor, adjacency: Adjacency) -> Tensor:
        if self._multiplied_first(adjacency):
            sums = attention.weighted_segment_sum(self._keys_values[1], weight, adjacency)
            return torch.einsum("nhd,hde->nhe", sums, relation.to(sums.dtype))
        x, _, to_value = self._with_ones
        sums = attention.weighted_segment_sum(x, weight, adjacency)
        to_value = torch.einsum("hdc,hde->hce", to_value, relation.to(to_value.dtype))
        return torch.einsum("nhc,hce->nhe", sums, to_value.to(sums.dtype))

    def _multiplied_first(self, adjacency: Adjacency) -> bool:
        x, weight, _ = self._maps[0]
        return transform_first(adjacency, x.shape[1], len(weight), self._heads)

    @cached_property
    def _maps(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        both = zip(self._weights, self._biases, strict=True)
        return [mapped_from(self._rows, weight, bias) for weight, bias in both]

    @cached_property
    def _keys_values(self) -> list[Tensor]:
        return [functional.linear(*of).unflatten(1, (self._heads, -1)) for of in self._maps]

    @cached_property
    def _with_ones(self) -> tuple[Tensor, Tensor, Tensor]:
        """x with a column of ones, [num_src, 1, c + 1], and its maps by head, [heads, D, c + 1]."""
        x = functional.pad(self._maps[0][0], (0, 1), value=1.0).unsqueeze(1)
        to_key, to_value = (
            torch.cat([weight, bias.unsqueeze(1)], dim=1).unflatten(0, (self._heads, -1))
            for _, weight, bias in self._maps
        )
        return x, to_key, to_value


class HGTOptions(HeteroOptions):
    """Options shared by all encoders, plus:

    Attributes:
        num_heads: attention heads; `hidden_channels` is the width of all together.
        attn_dropout: on the attention weights.
    Raises:
        ConfigError: a value is out of range, or `num_heads` does not divide the width.
    """

    num_heads: PositiveInt = 8
    attn_dropout: Share = 0.0

    def broken_rules(self) -> Iterator[Problem]:
        return broken_heads(self)


class HGT(HeteroEncoder):
    """Heterogeneous Graph Transformer, arXiv:2003.01332.

    Takes the arguments of `HGTOptions`.
    """

    Options = HGTOptions
    options: HGTOptions
    row_biases = r"lin_out\..*\.bias"
    composes_inputs = True

    def build_layer(self, channels: int) -> nn.Module:
        return HGTLayer(
            self.node_types,
            self.edge_types,
            channels,
            self.options.num_heads,
            self.options.attn_dropout,
        )


class SimpleHGNLayer(nn.Module):
    """Attention over all in-edges together, with a learned vector per edge type in the scores.

        score_ij = leaky_relu(a_src . W x_j + a_dst . W x_i + a_edge . W_edge r_ij)
        out_i = sum_j softmax_j(score_ij) W x_j + W_res x_i + b

    r_ij is the vector of the edge's type. W is shared by all node types.
    """

    def __init__(
        self,
        node_types: Sequence[str],
        edge_types: Sequence[EdgeType],
        channels: int,
        num_heads: int,
        edge_type_channels: int,
        attn_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.node_types = list(node_types)
        self.edge_types = list(edge_types)
        self.num_heads = num_heads
        self.attn_dropout = attn_dropout
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

    def forward(self, x_src: Mapping[str, Tensor], block: HeteroBlock) -> TypeRows:
        values = {
            name: self.lin(x_src[name]).unflatten(1, (self.num_heads, -1))
            for name in self.node_types
        }
        of_edge_type = self.lin_edge(self.edge_type_rows).unflatten(1, (self.num_heads, -1))
        of_edge_type = (of_edge_type * self.att_edge).sum(dim=-1)
        out: TypeRows = {}
        for name in self.node_types:
            x_dst = x_src[name][: block.num_dst.get(name, 0)]
            out[name] = self.lin_res(x_dst)
            if len(x_dst):
                out[name] = out[name] + self._attend(name, values, of_edge_type, block)
        return out

    def _attend(
        self, name: str, values: Mapping[str, Tensor], of_edge_type: Tensor, block: HeteroBlock
    ) -> Tensor:
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
        score = attention.gather_src(of_src, adjacency) + attention.gather_dst(of_dst, adjacency)
        score = score + torch.cat(scores).index_select(0, merged.order)
        score = functional.leaky_relu(score, _NEGATIVE_SLOPE)
        weights = attention.segment_softmax(score, adjacency)
        weights = functional.dropout(weights, self.attn_dropout, self.training)
        return attention.weighted_segment_sum(value, weights, adjacency).flatten(1)


class SimpleHGNOptions(HGTOptions):
    """Options of HGT, plus:

    Attributes:
        edge_type_channels: width of the learned vector per edge type.
    """

    activation: Activation = "elu"
    edge_type_channels: PositiveInt = 64


class SimpleHGN(HeteroEncoder):
    """Are We Really Making Much Progress?, arXiv:2112.14936: its SimpleHGN.

    With learned edge types, residual connections of nodes, and (`normalize_output`) unit outputs.
    Omits the paper's residual connection of attention weights between layers, which would need the
    previous layer's weights of all edges and so prevent encoding layer by layer. Takes the
    arguments of `SimpleHGNOptions`.
    """

    Options = SimpleHGNOptions
    options: SimpleHGNOptions
    row_biases = r"lin_res\.bias"

    def build_layer(self, channels: int) -> nn.Module:
        return SimpleHGNLayer(
            self.node_types,
            self.edge_types,
            channels,
            self.options.num_heads,
            self.options.edge_type_channels,
            self.options.attn_dropout,
        )
