"""Exact embeddings of the nodes of a graph, for any encoder that goes layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.errors import ConfigError
from raygnn.models.encoder import Encoder
from raygnn.models.exact import RowComputation, compute_here, exact_inference
from raygnn.models.exact_hetero import TypedInEdges, exact_hetero_inference, identity_rows
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.hetero_encoder import HeteroEncoder
from raygnn.models.wrap import EDGE_ATTR, EDGE_WEIGHT
from raygnn.sampling.protocols import message_type
from raygnn.sampling.stores import LocalFeatureStore, LocalGraphStore


def check_exact(
    encoder: GraphEncoder,
    name: str,
    key: str = "training.eval",
    value: object = "exact",
    remedy: str = "Set it to sampled.",
) -> None:
    """Checks that a whole graph can be encoded layer by layer, as a setting asks.

    Args:
        name: of the model in the config.
    Raises:
        ConfigError: the encoder does not go layer by layer.
    """
    if not isinstance(encoder.module, Encoder | HeteroEncoder):
        raise ConfigError(
            f"{key}={value!r} is invalid: model.type={name!r} does not go layer by layer, as "
            f"raygnn's own models do. {remedy}"
        )


def encode_exactly(
    encoder: GraphEncoder,
    graph: LocalGraphStore,
    features: LocalFeatureStore,
    feature: str,
    node_types: Sequence[str],
    *,
    edge_columns: Mapping[str, str] = MappingProxyType({}),
    device: torch.device,
    chunk_size: int = 100_000,
    compute: RowComputation = compute_here,
) -> dict[str, Tensor]:
    """Embeds every node of some types from all of its edges, along the graph's direction.

    Args:
        encoder: one that `check_exact` takes.
        feature: column of the input.
        edge_columns: edge columns that the encoder reads; see `find_edge_columns`.
        chunk_size, compute: as in `exact_inference`.
    Returns:
        By node type, [num_nodes, channels] on the CPU.
    """
    module = encoder.module

    def rows_of(name: str, ids: np.ndarray) -> np.ndarray:
        return features.gather(name, feature, ids)

    columns = _EdgeColumns(graph, features, edge_columns)
    if isinstance(module, Encoder):
        (name,), (edge_type,) = graph.node_types, graph.edge_types
        adjacency = graph.adjacency(edge_type)
        rows = exact_inference(
            module,
            lambda ids: rows_of(name, ids),
            (adjacency.indptr, adjacency.indices),
            edge_weight=columns.rows(edge_type, EDGE_WEIGHT),
            edge_attr=columns.rows(edge_type, EDGE_ATTR),
            device=device,
            chunk_size=chunk_size,
            compute=compute,
        )
        return {name: rows}
    assert isinstance(module, HeteroEncoder)
    return exact_hetero_inference(
        module,
        identity_rows(module.embedded_types, rows_of),
        {message_type(t, graph.direction): columns.edges(t) for t in graph.edge_types},
        {name: graph.num_nodes(name) for name in graph.node_types},
        list(dict.fromkeys(node_types)),
        device=device,
        chunk_size=chunk_size,
        compute=compute,
    )


@dataclass(frozen=True)
class _EdgeColumns:
    graph: LocalGraphStore
    features: LocalFeatureStore
    names: Mapping[str, str]

    def edges(self, edge_type: EdgeType) -> TypedInEdges:
        """The edges of a type with their columns."""
        adjacency = self.graph.adjacency(edge_type)
        return TypedInEdges(
            indptr=adjacency.indptr,
            indices=adjacency.indices,
            edge_weight=self.rows(edge_type, EDGE_WEIGHT),
            edge_attr=self.rows(edge_type, EDGE_ATTR),
        )

    def rows(self, edge_type: EdgeType, name: str) -> _Rows | None:
        """The column of that name, of an edge type that has it."""
        for column, called in self.names.items():
            if called == name and column in self.features.columns(edge_type):
                e_id = self.graph.adjacency(edge_type).e_id
                return _Rows(self.features, edge_type, column, e_id)
        return None


@dataclass(frozen=True)
class _Rows:
    """A column by place in an adjacency; `EdgeRows` that are read when they are asked for."""

    features: LocalFeatureStore
    edge_type: EdgeType
    column: str
    e_id: np.ndarray | None

    def __getitem__(self, edges: slice) -> np.ndarray:
        ids = np.arange(edges.start, edges.stop) if self.e_id is None else self.e_id[edges]
        return self.features.gather(self.edge_type, self.column, ids.astype(np.int64))
