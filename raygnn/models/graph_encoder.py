"""Any encoder on any batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.data.edge_types import EdgeType
from raygnn.models.encoder import BlockEncoder, keep_in_graph
from raygnn.models.feature_layers import CategoryInputs, CrossNetwork
from raygnn.models.relative_time import RelativeTime
from raygnn.models.sparse_input import Features, dense
from raygnn.models.subgraph_module import SubgraphModule, TypedSubgraphModule, takes_dictionaries
from raygnn.sampling.batch import Batch
from raygnn.sampling.blocks import hetero_blocks_of


class GraphEncoder(nn.Module):
    """Hides from a task whether its graph has one node type or many.

    Args:
        encoder: one of raygnn's, computed over per-layer blocks; or any module with PyG's
            `forward(x, edge_index)` or `forward(x_dict, edge_index_dict)`, computed over the
            sampled subgraph.
        widths: input width of each node type, for `forward(x_dict, edge_index_dict)`.
        edge_types: message types, for the same.
        categories: input layers of node types whose features contain category codes.
        interactions: cross layers by node type, on features or on the output of `categories`.
        relative_time: columns of time and counts appended to the features.
    """

    def __init__(
        self,
        encoder: nn.Module,
        categories: Mapping[str, CategoryInputs] = MappingProxyType({}),
        interactions: Mapping[str, CrossNetwork] = MappingProxyType({}),
        relative_time: RelativeTime | None = None,
        *,
        widths: Mapping[str, int] = MappingProxyType({}),
        edge_types: Sequence[EdgeType] = (),
    ) -> None:
        super().__init__()
        self.relative_time = relative_time
        if isinstance(encoder, BlockEncoder):
            self.module: nn.Module = encoder
        elif takes_dictionaries(type(encoder)):
            self.module = TypedSubgraphModule(encoder, widths, edge_types)
        else:
            self.module = SubgraphModule(encoder)
        self.categories = ModuleDict(dict(categories))
        self.interactions = ModuleDict(dict(interactions))

    def forward(self, batch: Batch) -> dict[str, Any]:
        """Embeds the distinct seeds of a batch.

        Returns:
            By node type, [num_seeds of the type, channels], in the order of the batch's nodes. A
            dictionary of these if a user's model returns several named outputs.
        """
        out = self._encode(batch)
        return {name: of_seeds(rows, batch.nodes[name].seed_index) for name, rows in out.items()}

    def _encode(self, batch: Batch) -> dict[str, Any]:
        module, rows = self.module, self.rows_without_times(batch)
        rows |= self._with_times(batch, rows)
        if isinstance(module, BlockEncoder):
            embeddings: dict[str, Tensor] = module(rows, hetero_blocks_of(batch))
            # A batch may lack a node type.
            parameters = [*self.categories.parameters(), *self.interactions.parameters()]
            return keep_in_graph(embeddings, parameters)
        encoded: dict[str, Any] = module(batch, rows)
        return encoded

    def rows_without_times(self, batch: Batch) -> dict[str, Features]:
        """The input rows of a batch by node type, without the columns of `relative_time`."""
        module = self.module
        if isinstance(module, BlockEncoder):
            inputs: Mapping[str, Features] = module.inputs_of(batch)
            return {name: self.embed(name, x) for name, x in inputs.items()}
        return {n: self.embed(n, v.columns["x"]) for n, v in batch.nodes.items() if v.columns}

    def _with_times(self, batch: Batch, rows: Mapping[str, Features]) -> dict[str, Tensor]:
        times = self.relative_time
        if times is None:
            return {}
        read = [name for name in times.node_types if name in batch.nodes]
        return {name: times.joined(batch, name, rows) for name in read}

    def embed(self, node_type: str, x: Features) -> Features:
        """The encoder's input from feature rows."""
        for inputs in (self.categories, self.interactions):
            if node_type in inputs:
                x = inputs[node_type](dense(x))
        return x

    def reads_rows_as_they_are(self, node_type: str) -> bool:
        """Whether `embed` returns the rows of a type unchanged."""
        return node_type not in self.categories and node_type not in self.interactions


def of_seeds(rows: Any, seed_index: Tensor | None) -> Any:
    if seed_index is None:
        return rows
    if isinstance(rows, Mapping):
        return {name: of_seeds(output, seed_index) for name, output in rows.items()}
    return rows[seed_index]
