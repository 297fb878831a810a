"""An encoder, and a decoder that scores pairs of what it gives."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from raygnn.models.decoders import Decoder
from raygnn.models.graph_encoder import GraphEncoder


class LinkPredictor(nn.Module):
    """Embeds the nodes of a batch of links; the task scores them with `decoder`."""

    def __init__(self, encoder: GraphEncoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Gives [num_seeds, channels] by node type, in the order of the batch's nodes."""
        rows: dict[str, Tensor] = self.encoder(batch)
        return rows
