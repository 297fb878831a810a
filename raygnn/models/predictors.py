"""Heads on any encoder: predictions of nodes and edges, and embeddings for link scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.models.decoders import Decoder
from raygnn.models.graph_encoder import GraphEncoder, of_seeds
from raygnn.models.label_propagation import LabelScores
from raygnn.sampling.batch import Batch, EdgeBatch, NodeBatch

if TYPE_CHECKING:
    from raygnn.recommender.recommender import LinearRecommender


class NodePredictor(nn.Module):
    """An encoder, with a linear head if its width differs from the number of outputs.

    Args:
        target: node type of the seeds.
        head_channels: (width of the encoder's output, number of outputs); None without a head.
        labels: classes of the training nodes around each node, which the task adds.
    """

    def __init__(
        self,
        encoder: GraphEncoder,
        target: str,
        head_channels: tuple[int, int] | None = None,
        labels: LabelScores | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.labels = labels
        self.head = nn.Identity() if head_channels is None else nn.Linear(*head_channels)
        self._target = target

    def forward(self, batch: NodeBatch, *, with_embeddings: bool = False) -> Any:
        """Predicts the seeds of a batch, which may repeat.

        Returns:
            [num_seeds, num_outputs], or a dictionary of these from a user's model. With
            `with_embeddings`, a pair with the embeddings.
        """
        nodes = batch.nodes[self._target]
        # Seeds may repeat, or be followed by added nodes.
        differ = nodes.num_seeds < len(batch.seed_index) or batch.num_added_edges is not None
        is_indexed = nodes.seed_index is not None
        rows = self.encoder(batch)[self._target]
        embeddings = of_seeds(rows, batch.seed_index if differ and not is_indexed else None)
        prediction = self.readout(embeddings)
        return (prediction, embeddings) if with_embeddings else prediction

    def readout(self, embedding: Any) -> Any:
        """Predictions [num_nodes, num_outputs] from embeddings [num_nodes, encoder's width]."""
        return self.head(embedding)


class LinkPredictor(nn.Module):
    """Embeds the nodes of a batch of links; the task scores them with `decoder`.

    Args:
        factors: blended with embeddings of the whole graph. A training batch has
            only rows of the encoder.
    """

    def __init__(
        self, encoder: GraphEncoder, decoder: Decoder, factors: LinearRecommender | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.factors = factors

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        rows: dict[str, Tensor] = self.encoder(batch)
        return rows


class FactorizedEdges(nn.Module):
    """Predicts values of edges from biases and factors of both ends, which `factorize` computes.

    They are stored as parameters that do not train, because buffers are averaged over ranks, which
    rounds. `num_nodes`: of sources and of targets.
    """

    def __init__(self, num_nodes: tuple[int, int], channels: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(1), requires_grad=False)
        for name, num in zip(_ENDS, num_nodes, strict=True):
            rows = nn.Parameter(torch.zeros(num, 1 + channels), requires_grad=False)
            self.register_parameter(name, rows)

    @torch.no_grad()
    def fill(self, mean: float, rows: Sequence[np.ndarray]) -> None:
        """Sets the mean, and the rows of sources and of targets."""
        self.mean.fill_(mean)
        for name, values in zip(_ENDS, rows, strict=True):
            self.get_parameter(name).copy_(torch.from_numpy(values))

    def forward(self, ids: Tensor) -> Tensor:
        """Predicts edges from dense ids of their ends.

        Args:
            ids: int64 [2, num_edges]. An unknown end is -1 and adds nothing.
        Returns:
            float [num_edges, 1].
        """
        source, target = (self._rows(name, of) for name, of in zip(_ENDS, ids, strict=True))
        products = (source[:, 1:] * target[:, 1:]).sum(dim=1)
        return (self.mean + source[:, 0] + target[:, 0] + products).unsqueeze(1)

    def _rows(self, name: str, ids: Tensor) -> Tensor:
        rows = self.get_parameter(name)
        return rows[ids.clamp(min=0)] * (ids >= 0).unsqueeze(1)


_ENDS = ("sources", "targets")


class EdgeHead(nn.Module):
    """A perceptron with one hidden layer on source, target, their product, and edge features.

    Args:
        in_channels: width of an embedding, and of the hidden layer.
        num_inputs: width of the edge features.
        start: values that the perceptron adds to.
    """

    def __init__(
        self,
        in_channels: int,
        num_inputs: int,
        out_channels: int,
        start: FactorizedEdges | None = None,
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(3 * in_channels + num_inputs, in_channels)
        self.out = nn.Linear(in_channels, out_channels)
        self.start = start
        if start is not None:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, source: Tensor, target: Tensor, inputs: Tensor | None) -> Tensor:
        """Predicts edges, [num_edges, out_channels], from [num_edges, in_channels] of both ends."""
        attr = [] if inputs is None else [inputs.to(source.dtype)]
        rows = torch.cat([source, target, source * target, *attr], dim=1)
        out: Tensor = self.out(self.hidden(rows).relu())
        return out


class EdgePredictor(nn.Module):
    """Embeds the `ends` (source and target types) of a batch's edges, and predicts the edges."""

    def __init__(self, encoder: GraphEncoder, head: EdgeHead, ends: tuple[str, str]) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self._source_type, self._target_type = ends

    def forward(self, batch: EdgeBatch) -> tuple[Tensor, Tensor]:
        """Returns [num_edges, num_outputs], and both ends' rows, [num_edges, 2 * channels]."""
        rows: dict[str, Tensor] = self.encoder(batch)
        source, target = batch.end_index
        ends = rows[self._source_type][source], rows[self._target_type][target]
        return self.of_ends(*ends, batch.inputs, batch.end_id)

    def of_ends(
        self, source: Tensor, target: Tensor, inputs: Tensor | None, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Predictions from the embeddings and the ids (`EdgeBatch.end_id`) of both ends.

        In training the start of the head is left out, because it knows the labels.
        """
        scores = self.head(source, target, inputs)
        if self.head.start is not None and not self.training:
            scores = scores + self.head.start(ids).to(scores.dtype)
        return scores, torch.cat([source, target], dim=1)
