"""Any encoder on any batch, and what tasks make of its embeddings: predictions, scores of links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.models.category_inputs import CategoryInputs
from raygnn.models.decoders import Decoder
from raygnn.models.encoder import BlockEncoder, keep_in_graph
from raygnn.models.feature_interaction import FeatureInteraction
from raygnn.models.sparse_input import Features, dense
from raygnn.models.wrap import SubgraphModule
from raygnn.sampling.batch import Batch, NodeBatch
from raygnn.sampling.blocks import hetero_blocks_of


class GraphEncoder(nn.Module):
    """Hides from a task whether its graph has one node type or many.

    Args:
        encoder: one of raygnn's, computed over per-layer blocks; or any module with PyG's
            `forward(x, edge_index)`, computed over the whole sampled subgraph.
        categories: input layers of node types whose features hold numbers of categories; the
            encoder reads what they give.
        interactions: cross layers of node types, on their features or on what `categories` give.
    """

    def __init__(
        self,
        encoder: nn.Module,
        categories: Mapping[str, CategoryInputs] = MappingProxyType({}),
        interactions: Mapping[str, FeatureInteraction] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        is_ours = isinstance(encoder, BlockEncoder)
        self.module = encoder if is_ours else SubgraphModule(encoder)
        self.categories = ModuleDict(dict(categories))
        self.interactions = ModuleDict(dict(interactions))

    def forward(self, batch: Batch) -> dict[str, Any]:
        """Embeds the distinct seeds of a batch.

        Returns:
            By node type, [num_seeds of the type, channels], in the order of the batch's nodes.
            Where a user's model gives several named outputs, a dictionary of such.
        """
        found = self._encode(batch)
        return {name: _of_seeds(rows, batch.nodes[name].seed_index) for name, rows in found.items()}

    def _encode(self, batch: Batch) -> dict[str, Any]:
        module = self.module
        if isinstance(module, BlockEncoder):
            inputs: Mapping[str, Features] = module.inputs_of(batch)
            rows = {name: self.embed(name, x) for name, x in inputs.items()}
            found: dict[str, Tensor] = module(rows, hetero_blocks_of(batch))
            # A batch may lack a node type.
            own = [*self.categories.parameters(), *self.interactions.parameters()]
            return keep_in_graph(found, own)
        ((node_type, nodes),), (edges,) = batch.nodes.items(), batch.edges.values()
        x = self.embed(node_type, nodes.columns["x"])
        return {node_type: module(replace(nodes, columns={**nodes.columns, "x": x}), edges)}

    def embed(self, node_type: str, x: Features) -> Features:
        """The rows that the encoder reads, of a feature's rows."""
        for inputs in (self.categories, self.interactions):
            if node_type in inputs:
                x = inputs[node_type](dense(x))
        return x

    def reads_rows_as_they_are(self, node_type: str) -> bool:
        """Whether `embed` gives the rows of a type back."""
        return node_type not in self.categories and node_type not in self.interactions


def _of_seeds(rows: Any, seed_index: Tensor | None) -> Any:
    """The rows of the seeds, where these are not the first nodes, each once."""
    if seed_index is None:
        return rows
    if isinstance(rows, Mapping):
        return {name: _of_seeds(output, seed_index) for name, output in rows.items()}
    return rows[seed_index]


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

    def forward(self, batch: NodeBatch, *, with_embeddings: bool = False) -> Any:
        """Predicts the seeds of a batch, which may repeat.

        Returns:
            [num_seeds, num_outputs], or a dictionary of such where a user's model gives one; with
            the embeddings that it was read from, as a pair, where they are wanted.
        """
        nodes = batch.nodes[self._target]
        repeats = nodes.seed_index is None and nodes.num_seeds < len(batch.seed_index)
        rows = self.encoder(batch)[self._target]
        embeddings = _of_seeds(rows, batch.seed_index if repeats else None)
        prediction = self.readout(embeddings)
        return (prediction, embeddings) if with_embeddings else prediction

    def readout(self, embedding: Any) -> Any:
        """[num_nodes, width of the encoder] to [num_nodes, num_outputs]."""
        return self.head(embedding)


class LinkPredictor(nn.Module):
    """Embeds the nodes of a batch of links; the task scores them with `decoder`."""

    def __init__(self, encoder: GraphEncoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Gives [num_seeds, channels] by node type, in the order of the batch's nodes."""
        rows: dict[str, Tensor] = self.encoder(batch)
        return rows
