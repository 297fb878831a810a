"""From the embeddings of both ends of an edge, and its own features, to what is predicted of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raygnn.models.graph_encoder import GraphEncoder
from raygnn.sampling.batch import EdgeBatch


class EdgeHead(nn.Module):
    """A perceptron with one hidden layer on source, target, their product, and own features.

    Args:
        in_channels: width of an embedding, and of the hidden layer.
        num_inputs: width of the edges' own features.
    """

    def __init__(self, in_channels: int, num_inputs: int, out_channels: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(3 * in_channels + num_inputs, in_channels)
        self.out = nn.Linear(in_channels, out_channels)

    def forward(self, source: Tensor, target: Tensor, inputs: Tensor | None) -> Tensor:
        """[num_edges, out_channels] of [num_edges, in_channels] of both ends."""
        own = [] if inputs is None else [inputs.to(source.dtype)]
        rows = torch.cat([source, target, source * target, *own], dim=1)
        out: Tensor = self.out(self.hidden(rows).relu())
        return out


class EdgePredictor(nn.Module):
    """Embeds both ends of the edges of a batch, and predicts the edges.

    Args:
        ends: node types of sources and targets.
    """

    def __init__(self, encoder: GraphEncoder, head: EdgeHead, ends: tuple[str, str]) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self._source_type, self._target_type = ends

    def forward(self, batch: EdgeBatch) -> tuple[Tensor, Tensor]:
        """Gives [num_edges, num_outputs], and [num_edges, 2 * channels] of both ends."""
        rows: dict[str, Tensor] = self.encoder(batch)
        source, target = batch.end_index
        ends = rows[self._source_type][source], rows[self._target_type][target]
        return self.of_ends(*ends, batch.inputs)

    def of_ends(
        self, source: Tensor, target: Tensor, inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The same, of the embeddings of both ends."""
        return self.head(source, target, inputs), torch.cat([source, target], dim=1)
