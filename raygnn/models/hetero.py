"""A convolution of a homogeneous encoder per edge type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import ConfigError
from raygnn.models.arguments import check_choice, check_heads, check_positive, check_probability
from raygnn.models.hetero_encoder import HeteroEncoder, Rows, block_of
from raygnn.models.relation_convs import RELATION_CONVS, WITH_EDGE_FEATURES, WITH_HEADS

if TYPE_CHECKING:
    from raygnn.sampling.blocks import HeteroBlock


class HeteroLayer(nn.Module):
    """W_t x_i + b_t + the sum or mean over edge types r into t of conv_r(neighbors of i, x_i).

    As PyG's `HeteroConv`, but that the own row is transformed once per node type t and not once per
    edge type, so a node type that no edge type leads to has a row too. Convolutions are between
    two node types: no self-loops.

    Args:
        edge_dims: number of edge features by edge type, where a convolution reads them.
    """

    def __init__(
        self,
        node_types: Sequence[str],
        edge_types: Sequence[EdgeType],
        channels: int,
        conv: str,
        aggr: str,
        num_heads: int,
        attn_dropout: float,
        edge_dims: Mapping[EdgeType, int],
    ) -> None:
        super().__init__()
        self.edge_types = list(edge_types)
        self.num_into = {
            name: sum(target == name for *_, target in edge_types) if aggr == "mean" else 1
            for name in node_types
        }
        self.lin_self = ModuleDict({name: nn.Linear(channels, channels) for name in node_types})
        build = RELATION_CONVS[conv]
        self.convs = ModuleDict(
            {
                edge_type: build(channels, num_heads, attn_dropout, edge_dims.get(edge_type))
                for edge_type in self.edge_types
            }
        )

    def forward(self, x_src: Mapping[str, Tensor], block: HeteroBlock) -> Rows:
        """Returns [num_dst, channels] by node type."""
        x_dst = {name: x[: block.num_dst.get(name, 0)] for name, x in x_src.items()}
        out = {name: self.lin_self[name](x) for name, x in x_dst.items()}
        for edge_type in self.edge_types:
            source, _, target = edge_type
            if not len(x_dst[target]):
                continue
            of_type = block_of(block, edge_type, x_dst[target])
            messages = self.convs[edge_type](x_src[source], of_type, x_dst[target])
            out[target] = out[target] + messages / self.num_into[target]
        return out


class Hetero(HeteroEncoder):
    """Any homogeneous layer, once per edge type, as PyG's `to_hetero` and `HeteroConv` do.

    Args:
        conv: whose layer: GraphSAGE, GAT, GATv2, GIN, GINE or Transformer.
        aggr: "sum" or "mean" over the edge types into a node type.
        num_heads: of GAT, GATv2 and Transformer; `hidden_channels` is the width of all together.
        attn_dropout: on the attention weights, of the same.
        edge_dims: number of edge features that take part, by edge type (a triple, or
            src__rel__dst); others' are not read. For GAT, GATv2, GINE and Transformer.
        ...: see `HeteroEncoder`.
    Raises:
        ConfigError: an argument is out of range or unknown.
    """

    reads_edge_features = True

    def __init__(
        self,
        in_channels: Mapping[str, int],
        out_channels: int,
        hidden_channels: int = 256,
        num_layers: int = 2,
        *,
        edge_types: Sequence[EdgeType],
        num_nodes: Mapping[str, int] | None = None,
        conv: str = "GraphSAGE",
        aggr: str = "sum",
        num_heads: int = 8,
        edge_dims: Mapping[EdgeType, int] | Mapping[str, int] | None = None,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        attn_dropout: float = 0.0,
        norm: str | None = None,
        activation: str = "relu",
        jump: str | None = None,
        normalize_output: bool = False,
        sparse_embeddings: bool = False,
    ) -> None:
        check_choice("conv", conv, tuple(RELATION_CONVS))
        check_choice("aggr", aggr, ("sum", "mean"))
        check_positive(num_heads=num_heads)
        check_probability(attn_dropout=attn_dropout)
        if conv in WITH_HEADS:
            check_heads(num_heads, hidden_channels=hidden_channels)
        # Before the base, which builds the layers.
        self.conv = conv
        self.aggr = aggr
        self.num_heads = num_heads
        self.attn_dropout = attn_dropout
        self.edge_dims = _checked_edge_dims(conv, edge_types, edge_dims or {})
        super().__init__(
            in_channels,
            out_channels,
            hidden_channels,
            num_layers,
            edge_types=edge_types,
            num_nodes=num_nodes,
            dropout=dropout,
            input_dropout=input_dropout,
            norm=norm,
            activation=activation,
            jump=jump,
            normalize_output=normalize_output,
            sparse_embeddings=sparse_embeddings,
        )

    @classmethod
    def needs_edge_features(cls, args: Mapping[str, Any]) -> bool:
        """GINE's convolution does, others where they are built for edge features."""
        return args.get("conv") == "GINE" or super().needs_edge_features(args)

    def build_layer(self, channels: int) -> nn.Module:
        """A `HeteroLayer`."""
        return HeteroLayer(
            self.node_types,
            self.edge_types,
            channels,
            self.conv,
            self.aggr,
            self.num_heads,
            self.attn_dropout,
            self.edge_dims,
        )


def _checked_edge_dims(
    conv: str, edge_types: Sequence[EdgeType], edge_dims: Mapping[EdgeType, int] | Mapping[str, int]
) -> dict[EdgeType, int]:
    names = {edge_type_name(edge_type): edge_type for edge_type in edge_types}
    checked: dict[EdgeType, int] = {}
    for key, edge_dim in edge_dims.items():
        name = key if isinstance(key, str) else edge_type_name(key)
        if name not in names:
            raise ConfigError(
                f"model.args.edge_dims={name!r} is invalid: there is no such edge type. Set one of "
                f"{', '.join(names)}."
            )
        check_positive(**{f"edge_dims.{name}": edge_dim})
        checked[names[name]] = edge_dim
    if checked and conv not in WITH_EDGE_FEATURES:
        raise ConfigError(
            f"model.args.edge_dims is invalid: {conv} reads no edge features. Set model.args.conv "
            f"to one of {', '.join(WITH_EDGE_FEATURES)}, or remove edge_dims."
        )
    return checked
