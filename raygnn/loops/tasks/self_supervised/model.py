"""The encoder with the heads of its method."""

from __future__ import annotations

from torch import Tensor, nn

from raygnn.loops.tasks.self_supervised.methods import Method
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.sampling.batch import NodeBatch


class SelfSupervisedModel(nn.Module):
    """What is trained; of it, inference reads the encoder."""

    def __init__(self, encoder: GraphEncoder, method: Method) -> None:
        super().__init__()
        self.encoder = encoder
        self.method = method

    def forward(self, batch: NodeBatch) -> Tensor:
        """[num_seeds, channels], embeddings of the seeds in the batch as it is."""
        rows: Tensor = self.encoder(batch)[batch.node_type]
        return rows
