"""Encoders with layers per edge type: a homogeneous convolution for each, and RGCN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import ConfigError, Problem
from raygnn.models.attention_encoders import BlockGATConv, BlockGATv2Conv, BlockTransformerConv
from raygnn.models.convolutions import BlockGINConv, BlockGINEConv, BlockSAGEConv
from raygnn.models.encoder import Share, TypeRows, broken_heads
from raygnn.models.hetero_encoder import HeteroEncoder, HeteroOptions, block_of
from raygnn.models.segment import Adjacency, positions, segment_mean
from raygnn.models.sparse_input import ProjectedRows, formed

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block, HeteroBlock


class PerTypeOptions(HeteroOptions):
    """Options shared by all encoders, plus:

    Attributes:
        conv: layer type: GraphSAGE, GAT, GATv2, GIN, GINE or Transformer; or MLP, which reads no
            neighbors and is the baseline for a GNN.
        aggr: "sum" or "mean" over the edge types into a node type.
        num_heads: heads of GAT, GATv2 and Transformer; `hidden_channels` is the width of all
            together.
        attn_dropout: on the attention weights of these.
        edge_dims: number of edge features by edge type (a triple, or src__rel__dst), for GAT,
            GATv2, GINE and Transformer. Other edge types' features are not read.
    Raises:
        ConfigError: a value is out of range or unknown.
    """

    conv: Literal["GraphSAGE", "GAT", "GATv2", "GIN", "GINE", "Transformer", "MLP"] = "GraphSAGE"
    aggr: Literal["sum", "mean"] = "sum"
    num_heads: PositiveInt = 8
    attn_dropout: Share = 0.0
    edge_dims: Mapping[EdgeType, PositiveInt] | Mapping[str, PositiveInt] | None = None

    def broken_rules(self) -> Iterator[Problem]:
        return broken_heads(self) if self.conv in WITH_HEADS else iter(())


#: (channels, options, edge_dim) -> a module called with (x_src, block, x_dst).
RelationConv = Callable[[int, PerTypeOptions, int | None], nn.Module]


def _sage(channels: int, options: PerTypeOptions, edge_dim: int | None) -> nn.Module:
    return BlockSAGEConv((channels, channels), channels, root_weight=False, bias=False)


def _attention(
    conv: Callable[..., nn.Module], channels: int, options: PerTypeOptions, edge_dim: int | None
) -> nn.Module:
    return conv(
        (channels, channels),
        channels // options.num_heads,
        heads=options.num_heads,
        dropout=options.attn_dropout,
        edge_dim=edge_dim,
    )


def _transformer(channels: int, options: PerTypeOptions, edge_dim: int | None) -> nn.Module:
    build = partial(BlockTransformerConv, root_weight=False)
    conv = _attention(build, channels, options, edge_dim)
    del conv.lin_skip  # PyG makes it all the same, and nothing would read it
    return conv


def _gin(channels: int, options: PerTypeOptions, edge_dim: int | None) -> nn.Module:
    return BlockGINConv(_mlp(channels))


def _gine(channels: int, options: PerTypeOptions, edge_dim: int | None) -> nn.Module:
    if edge_dim is None:
        return BlockGINConv(_mlp(channels))
    return BlockGINEConv(_mlp(channels), edge_dim=edge_dim)


def _mlp(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))


_BETWEEN_TYPES: dict[str, Any] = {"add_self_loops": False, "bias": False}
#: By the name of the homogeneous encoder whose layer it is.
RELATION_CONVS: dict[str, RelationConv] = {
    "GraphSAGE": _sage,
    "GAT": partial(_attention, partial(BlockGATConv, **_BETWEEN_TYPES)),
    "GATv2": partial(_attention, partial(BlockGATv2Conv, **_BETWEEN_TYPES)),
    "GIN": _gin,
    "GINE": _gine,
    "Transformer": _transformer,
}
#: Values of `conv`.
CONVS = (*RELATION_CONVS, "MLP")
#: Convolutions that divide the width by heads.
WITH_HEADS = ("GAT", "GATv2", "Transformer")
#: Convolutions that read edge features.
WITH_EDGE_FEATURES = ("GAT", "GATv2", "GINE", "Transformer")


class HeteroLayer(nn.Module):
    """W_t x_i + b_t + the sum or mean over edge types r into t of conv_r(neighbors of i, x_i).

    Unlike PyG's `HeteroConv`, the own row is transformed once per node type t instead of once per
    edge type, so node types without incoming edge types also have rows. Convolutions connect two
    node types and have no self-loops.

    If x_j = U z_j is still a projection of narrower features z_j, GraphSAGE multiplies the mean of
    z_j by W_r U, and all such terms of a node type are one product.

    Args:
        edge_dims: number of edge features by edge type, for convolutions that read them.
    """

    def __init__(
        self,
        node_types: Sequence[str],
        edge_types: Sequence[EdgeType],
        channels: int,
        options: PerTypeOptions,
        edge_dims: Mapping[EdgeType, int],
    ) -> None:
        super().__init__()
        self.edge_types = [] if options.conv == "MLP" else list(edge_types)
        self.composes = options.conv in ("GraphSAGE", "MLP")
        self.num_into = {
            name: sum(target == name for *_, target in edge_types) if options.aggr == "mean" else 1
            for name in node_types
        }
        self.lin_self = ModuleDict({name: nn.Linear(channels, channels) for name in node_types})
        self.convs = ModuleDict(
            {
                edge_type: RELATION_CONVS[options.conv](channels, options, edge_dims.get(edge_type))
                for edge_type in self.edge_types
            }
        )

    def forward(self, x_src: Mapping[str, Tensor | ProjectedRows], block: HeteroBlock) -> TypeRows:
        x = x_src if self.composes else {name: formed(rows) for name, rows in x_src.items()}
        return {
            name: self._rows_of(name, rows[: block.num_dst.get(name, 0)], x, block)
            for name, rows in x.items()
        }

    def _rows_of(
        self,
        target: str,
        x_dst: Tensor | ProjectedRows,
        x_src: Mapping[str, Tensor | ProjectedRows],
        block: HeteroBlock,
    ) -> Tensor:
        lin, num_into = self.lin_self[target], self.num_into[target]
        rows, weights, messages = [], [], []
        if isinstance(x_dst, ProjectedRows):
            rows, weights = [x_dst.with_ones], [lin.weight @ x_dst.weight]
        else:
            rows, weights = [x_dst], [lin.weight]
        for edge_type in self.edge_types if len(x_dst) else ():
            if edge_type[2] != target:
                continue
            conv, x = self.convs[edge_type], x_src[edge_type[0]]
            of_type = block_of(block, edge_type, lin.weight)
            if isinstance(x, ProjectedRows):
                rows.append(segment_mean(x.with_ones, Adjacency.of(of_type)))
                weights.append(conv.lin_l.weight @ x.weight / num_into)
            else:
                messages.append(conv(x, of_type, x_dst))
        if len(rows) > 1:
            rows, weights = [torch.cat(rows, dim=1)], [torch.cat(weights, dim=1)]
        out: Tensor = functional.linear(rows[0], weights[0], lin.bias)
        for each in messages:
            out = out.add(each, alpha=1 / num_into)
        return out


class Hetero(HeteroEncoder):
    """Any homogeneous layer, once per edge type, as PyG's `to_hetero` and `HeteroConv` do.

    Takes the arguments of `PerTypeOptions`.
    """

    Options = PerTypeOptions
    options: PerTypeOptions
    reads_edge_features = True
    composes_inputs = True
    row_biases = r"lin_self\..*\.bias|convs\..*\.nn\.2\.bias"  # the second: of GIN and GINE

    @classmethod
    def needs_edge_features(cls, args: Mapping[str, Any]) -> bool:
        """True for GINE, and for other convolutions built with edge features."""
        return args.get("conv") == "GINE" or super().needs_edge_features(args)

    def build_layer(self, channels: int) -> nn.Module:
        return HeteroLayer(
            self.node_types,
            self.edge_types,
            channels,
            self.options,
            _checked_edge_dims(self.options, self.edge_types),
        )


def _checked_edge_dims(
    options: PerTypeOptions, edge_types: Sequence[EdgeType]
) -> dict[EdgeType, int]:
    names = {edge_type_name(edge_type): edge_type for edge_type in edge_types}
    checked: dict[EdgeType, int] = {}
    for key, edge_dim in (options.edge_dims or {}).items():
        name = key if isinstance(key, str) else edge_type_name(key)
        if name not in names:
            rule, remedy = "the graph has no such edge type", f"Set one of {', '.join(names)}"
            key = "model.args.edge_dims"
            raise ConfigError.invalid(key, name, rule, remedy, id="model-edge-dims-unknown")
        checked[names[name]] = edge_dim
    if checked and options.conv not in WITH_EDGE_FEATURES:
        raise ConfigError(
            f"model.args.edge_dims is invalid: {options.conv} reads no edge features. Set conv to "
            f"one of {', '.join(WITH_EDGE_FEATURES)}. [model-edge-dims-unread]"
        )
    return checked


class RGCNLayer(nn.Module):
    """PyG's `RGCNConv` over destination-sorted blocks: W_0 x_i + b + sum_r mean_j W_r x_j.

    All node types share W_0 and b. With `num_bases`, each W_r is a combination of that many
    matrices.

    Attributes:
        weight: [num_edge_types or num_bases, channels, channels].
        comp: [num_edge_types, num_bases], or None.
        root: W_0, [channels, channels].
    """

    def __init__(
        self, edge_types: Sequence[EdgeType], channels: int, num_bases: int | None = None
    ) -> None:
        super().__init__()
        self.edge_types = list(edge_types)
        num_matrices = len(edge_types) if num_bases is None else num_bases
        self.weight = nn.Parameter(torch.empty(num_matrices, channels, channels))
        self.comp: nn.Parameter | None = None
        if num_bases is not None:
            self.comp = nn.Parameter(torch.empty(len(edge_types), num_bases))
            nn.init.xavier_uniform_(self.comp)
        self.root = nn.Parameter(torch.empty(channels, channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        for matrix in (*self.weight, self.root):
            nn.init.xavier_uniform_(matrix)

    def forward(self, x_src: Mapping[str, Tensor], block: HeteroBlock) -> TypeRows:
        weight: Tensor = self.weight
        if self.comp is not None:
            weight = torch.einsum("rb,bio->rio", self.comp, weight)
        out = {
            name: x[: block.num_dst.get(name, 0)] @ self.root + self.bias
            for name, x in x_src.items()
        }
        offsets, every = _stacked(x_src)
        for target in dict.fromkeys(edge_type[2] for edge_type in self.edge_types):
            outputs = [
                (i, offsets[edge_type[0]], block_of(block, edge_type, self.root))
                for i, edge_type in enumerate(self.edge_types)
                if edge_type[2] == target
            ]
            outputs = [each for each in outputs if each[2].num_edges]
            if outputs:
                messages, dst = _messages(every, outputs, weight)
                out[target] = out[target].index_add(0, dst, messages.to(out[target].dtype))
        return out


def _stacked(x_src: Mapping[str, Tensor]) -> tuple[dict[str, int], Tensor]:
    starts = accumulate((len(x) for x in x_src.values()), initial=0)
    rows = list(x_src.values())
    return dict(zip(x_src, starts, strict=False)), rows[0] if len(rows) == 1 else torch.cat(rows)


def _messages(
    x: Tensor, blocks: Sequence[tuple[int, int, Block]], weight: Tensor
) -> tuple[Tensor, Tensor]:
    """W_r times the mean of the neighbors along r, for each pair of r and a node with neighbors.

    With hundreds of edge types most pairs have no neighbors, and are neither stored nor multiplied.

    Args:
        blocks: number of the edge type, offset of its sources in x, and its edges.
    Returns:
        [num_pairs, channels], and int64 [num_pairs], the node of each.
    """
    sources, counts, nodes = [], [], []
    for _, offset, of_type in blocks:
        num_in_edges = of_type.dst_ptr.diff()
        num_reached = None if of_type.counts is None else of_type.counts.num_reached
        if num_reached is None:
            num_reached = int(num_in_edges.count_nonzero())
        if num_reached == len(num_in_edges):
            has_any = torch.arange(num_reached, device=num_in_edges.device)
        else:
            has_any = positions(num_in_edges > 0, num_reached)
        sources.append(of_type.edge_index[0] + offset)
        counts.append(num_in_edges[has_any])
        nodes.append(has_any)
    num_edges = torch.cat(counts)
    pairs = torch.arange(len(num_edges), device=x.device)
    total = sum(of_type.num_edges for *_, of_type in blocks)
    pair_of_edge = pairs.repeat_interleave(num_edges, output_size=total)
    ptr = functional.pad(num_edges.cumsum(0), (1, 0))
    mean = segment_mean(x, Adjacency(torch.cat(sources), pair_of_edge, ptr, len(x)))
    parts = mean.split([len(of_type) for of_type in counts])
    matrices = weight.unbind(0)  # indexing would make a whole gradient for each
    products = [part @ matrices[i] for part, (i, *_) in zip(parts, blocks, strict=True)]
    return torch.cat(products), torch.cat(nodes)


class RGCNOptions(HeteroOptions):
    """Options shared by all encoders, plus:

    Attributes:
        num_bases: number of matrices shared by the edge types; None gives each its own.
    """

    num_bases: PositiveInt | None = None


class RGCN(HeteroEncoder):
    """Modeling Relational Data with Graph Convolutional Networks, arXiv:1703.06103.

    Takes the arguments of `RGCNOptions`.
    """

    Options = RGCNOptions
    options: RGCNOptions
    row_biases = "bias"

    def build_layer(self, channels: int) -> nn.Module:
        return RGCNLayer(self.edge_types, channels, self.options.num_bases)
