"""Any encoder on any batch: the embeddings of the seeds, by node type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import HeteroData

from raygnn.models.encoder import Encoder
from raygnn.models.hetero_encoder import HeteroEncoder
from raygnn.models.wrap import SubgraphModule
from raygnn.sampling.blocks import blocks_of


class GraphEncoder(nn.Module):
    """Hides from a task whether its graph has one node type or many.

    Args:
        encoder: one of raygnn's, computed over per-layer blocks; or any module with PyG's
            `forward(x, edge_index)`, computed over the whole sampled subgraph.
        node_types: of the graph.
    """

    def __init__(self, encoder: nn.Module, node_types: Sequence[str]) -> None:
        super().__init__()
        is_ours = isinstance(encoder, Encoder | HeteroEncoder)
        self.module = encoder if is_ours else SubgraphModule(encoder)
        self._only_type = node_types[0]

    def forward(self, batch: Any) -> dict[str, Any]:
        """Embeds the distinct seeds of a batch.

        Returns:
            By node type, [num_seeds of the type, channels], in the order of the batch's nodes.
            Where a user's model gives several named outputs, a dictionary of such.
        """
        module = self.module
        if isinstance(batch, HeteroData):
            assert isinstance(module, HeteroEncoder)
            found: dict[str, Tensor] = module(module.inputs_of(batch), blocks_of(batch))
            return found
        if isinstance(module, HeteroEncoder):
            x = batch.n_id if module.embedded_types else batch.x
            return {self._only_type: module(x, blocks_of(batch))}
        if isinstance(module, Encoder):
            return {self._only_type: module(batch.x, blocks_of(batch))}
        return {self._only_type: module(batch)}
