"""R-GCN, the relational graph convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from raygnn.data.edge_types import EdgeType
from raygnn.models.adjacency import Adjacency
from raygnn.models.arguments import check_positive
from raygnn.models.hetero_encoder import HeteroEncoder, Rows, block_of
from raygnn.models.segment import segment_mean

if TYPE_CHECKING:
    from raygnn.sampling.blocks import HeteroBlock


class RGCNLayer(nn.Module):
    """PyG's `RGCNConv` over destination-sorted blocks: W_0 x_i + b + sum_r mean_j W_r x_j.

    W_0 and b are shared by all node types. With `num_bases` each W_r is a combination of that many
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

    def forward(self, x_src: Mapping[str, Tensor], block: HeteroBlock) -> Rows:
        """Returns [num_dst, channels] by node type."""
        weight: Tensor = self.weight
        if self.comp is not None:
            weight = torch.einsum("rb,bio->rio", self.comp, weight)
        out = {
            name: x[: block.num_dst.get(name, 0)] @ self.root + self.bias
            for name, x in x_src.items()
        }
        for i, (source, relation, target) in enumerate(self.edge_types):
            of_type = block_of(block, (source, relation, target), self.root)
            if of_type.num_edges:
                mean = segment_mean(x_src[source], Adjacency.of(of_type))
                out[target] = out[target] + mean @ weight[i]
        return out


class RGCN(HeteroEncoder):
    """Modeling Relational Data with Graph Convolutional Networks, arXiv:1703.06103.

    Args:
        num_bases: shares that many matrices between the edge types; None gives each its own.
        ...: see `HeteroEncoder`.
    """

    def __init__(
        self,
        in_channels: Mapping[str, int],
        out_channels: int,
        hidden_channels: int = 256,
        num_layers: int = 2,
        *,
        edge_types: Sequence[EdgeType],
        num_nodes: Mapping[str, int] | None = None,
        num_bases: int | None = None,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        norm: str | None = None,
        activation: str = "relu",
        jump: str | None = None,
        normalize_output: bool = False,
        sparse_embeddings: bool = False,
    ) -> None:
        if num_bases is not None:
            check_positive(num_bases=num_bases)
        self.num_bases = num_bases  # before the base, which builds the layers
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

    def build_layer(self, channels: int) -> nn.Module:
        """An `RGCNLayer`."""
        return RGCNLayer(self.edge_types, channels, self.num_bases)
