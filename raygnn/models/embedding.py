"""The shallow encoder: a learned row per node, and no messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt
from torch import Tensor, nn

from raygnn.data.edge_types import EdgeType
from raygnn.models.hetero_encoder import HeteroEncoder

if TYPE_CHECKING:
    from raygnn.sampling.blocks import HeteroBlock


class Embedding(HeteroEncoder):
    """A learned row per node of every type, and nothing else: knowledge graph embeddings.

    Neither features nor messages are read, and batches sample no neighbors, whatever
    `sampling.fanouts` says. A node without links of training keeps the row that it started with.

    Args:
        in_channels: not read; there so that all models are built alike.
        out_channels: width of the rows.
        num_layers: not read.
        edge_types: not read.
        num_nodes: nodes in the whole graph, of every node type.
        dropout: on the rows.
        normalize_output: scales each row to unit L2 norm.
        sparse_embeddings: gradients of learned rows are sparse; SparseAdam, Adagrad,
            RowWiseAdagrad and plain SGD take them.
    Raises:
        ConfigError: an argument is out of range.
    """

    reads_node_features = False
    reads_messages = False
    keeps_links = True

    def __init__(
        self,
        in_channels: Mapping[str, int] | int | None,
        out_channels: PositiveInt,
        num_layers: int = 1,
        *,
        edge_types: Sequence[EdgeType],
        num_nodes: Mapping[str, int],
        dropout: float = 0.0,
        normalize_output: bool = False,
        sparse_embeddings: bool = False,
    ) -> None:
        super().__init__(
            {},
            out_channels,
            out_channels,
            1,
            edge_types=(),
            num_nodes=num_nodes,
            dropout=dropout,
            normalize_output=normalize_output,
            sparse_embeddings=sparse_embeddings,
        )
        self.activations = nn.ModuleList([nn.Identity()])
        del self.heads

    def build_layer(self, channels: int) -> nn.Module:
        """One that gives the nodes' own rows."""
        return _OwnRows()

    def readout_of(self, name: str, rows: list[Tensor]) -> Tensor:
        """The rows; see `BlockEncoder`."""
        return rows[-1]


class _OwnRows(nn.Module):
    def forward(self, x_src: Mapping[str, Tensor], block: HeteroBlock) -> dict[str, Any]:
        return dict(x_src)
