"""Layers of the homogeneous encoders, as convolutions between two node types."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from raygnn.models.gat import BlockGATConv, BlockGATv2Conv
from raygnn.models.gin import BlockGINConv
from raygnn.models.gine import BlockGINEConv
from raygnn.models.sage import BlockSAGEConv
from raygnn.models.transformer import BlockTransformerConv

#: (channels, num_heads, attn_dropout, edge_dim) -> a module called with (x_src, block, x_dst).
RelationConv = Callable[[int, int, float, int | None], nn.Module]


def _sage(channels: int, num_heads: int, attn_dropout: float, edge_dim: int | None) -> nn.Module:
    return BlockSAGEConv((channels, channels), channels, root_weight=False, bias=False)


def _gat(channels: int, num_heads: int, attn_dropout: float, edge_dim: int | None) -> nn.Module:
    return BlockGATConv(
        (channels, channels),
        channels // num_heads,
        heads=num_heads,
        dropout=attn_dropout,
        edge_dim=edge_dim,
        add_self_loops=False,
        bias=False,
    )


def _gatv2(channels: int, num_heads: int, attn_dropout: float, edge_dim: int | None) -> nn.Module:
    return BlockGATv2Conv(
        (channels, channels),
        channels // num_heads,
        heads=num_heads,
        dropout=attn_dropout,
        edge_dim=edge_dim,
        add_self_loops=False,
        bias=False,
    )


def _gin(channels: int, num_heads: int, attn_dropout: float, edge_dim: int | None) -> nn.Module:
    return BlockGINConv(_mlp(channels))


def _gine(channels: int, num_heads: int, attn_dropout: float, edge_dim: int | None) -> nn.Module:
    return (
        _gin(channels, num_heads, attn_dropout, None)
        if edge_dim is None
        else BlockGINEConv(_mlp(channels), edge_dim=edge_dim)
    )


def _transformer(
    channels: int, num_heads: int, attn_dropout: float, edge_dim: int | None
) -> nn.Module:
    conv = BlockTransformerConv(
        (channels, channels),
        channels // num_heads,
        heads=num_heads,
        dropout=attn_dropout,
        edge_dim=edge_dim,
        root_weight=False,
    )
    del conv.lin_skip  # PyG makes it all the same, and nothing would read it
    return conv


def _mlp(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))


#: By the name of the homogeneous encoder whose layer it is.
RELATION_CONVS: dict[str, RelationConv] = {
    "GraphSAGE": _sage,
    "GAT": _gat,
    "GATv2": _gatv2,
    "GIN": _gin,
    "GINE": _gine,
    "Transformer": _transformer,
}
#: Those that cut the width into heads.
WITH_HEADS = ("GAT", "GATv2", "Transformer")
#: Those that read edge features.
WITH_EDGE_FEATURES = ("GAT", "GATv2", "GINE", "Transformer")
