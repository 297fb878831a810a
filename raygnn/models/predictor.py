"""From a sampled batch to one prediction per seed, for any encoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from raygnn.models.encoder import Encoder
from raygnn.models.wrap import SubgraphModule
from raygnn.sampling.blocks import blocks_of


class NodePredictor(nn.Module):
    """An encoder, and a linear head where the encoder's width is not the number of outputs.

    Args:
        encoder: one of raygnn's, computed over per-layer blocks; or any module with PyG's
            `forward(x, edge_index)`, computed over the whole sampled subgraph.
        head_channels: (width of the encoder's output, number of outputs), None without a head.
    """

    def __init__(self, encoder: nn.Module, head_channels: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.encoder = encoder if isinstance(encoder, Encoder) else SubgraphModule(encoder)
        self.head = nn.Identity() if head_channels is None else nn.Linear(*head_channels)

    def forward(self, batch: Any) -> Any:
        """Predicts the seeds of a batch.

        Returns:
            [num_seeds, num_outputs], or a dictionary of such where a user's model gives one.
        """
        if isinstance(self.encoder, Encoder):
            return self.readout(self.encoder(batch.x, blocks_of(batch)))
        return self.readout(self.encoder(batch))

    def readout(self, embedding: Any) -> Tensor:
        """[num_nodes, width of the encoder] to [num_nodes, num_outputs]."""
        return self.head(embedding)
