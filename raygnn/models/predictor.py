"""From a sampled batch to one prediction per seed."""

from __future__ import annotations

from typing import Any

from torch import nn

from raygnn.models.graph_encoder import GraphEncoder


class NodePredictor(nn.Module):
    """An encoder, and a linear head where the encoder's width is not the number of outputs.

    Args:
        target: node type of the seeds.
        head_channels: (width of the encoder's output, number of outputs), None without a head.
    """

    def __init__(
        self, encoder: GraphEncoder, target: str, head_channels: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Identity() if head_channels is None else nn.Linear(*head_channels)
        self._target = target

    def forward(self, batch: Any, *, with_embeddings: bool = False) -> Any:
        """Predicts the seeds of a batch.

        Returns:
            [num_seeds, num_outputs], or a dictionary of such where a user's model gives one; with
            the embeddings that it was read from, as a pair, where they are wanted.
        """
        embeddings = self.encoder(batch)[self._target]
        prediction = self.readout(embeddings)
        return (prediction, embeddings) if with_embeddings else prediction

    def readout(self, embedding: Any) -> Any:
        """[num_nodes, width of the encoder] to [num_nodes, num_outputs]."""
        return self.head(embedding)
