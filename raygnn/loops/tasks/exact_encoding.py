"""Exact embeddings of a graph's nodes, for any layer-by-layer encoder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.data.time_units import AsOf
from raygnn.device_memory import copied
from raygnn.errors import ConfigError
from raygnn.loops.model_spec import ModelSpec
from raygnn.models.encoder import BlockEncoder
from raygnn.models.exact import IN_THIS_PROCESS, ExactOptions, exact_inference
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.in_edges import InEdges
from raygnn.models.sparse_input import Features
from raygnn.models.subgraph_module import EDGE_ATTR, EDGE_WEIGHT
from raygnn.sampling.batch_assembler import gather_rows_for_device
from raygnn.sampling.protocols import (
    EdgeValues,
    FeatureStore,
    GraphStore,
    LazyRows,
    PickRequest,
    Picks,
)
from raygnn.sampling.temporal import Horizon


def check_exact(
    encoder: GraphEncoder,
    name: str,
    setting: str = "training.eval='exact'",
    remedy: str = "Set it to sampled.",
) -> None:
    """Raises a ConfigError for a setting unless model `name` can encode a graph layer by layer."""
    if encoder.relative_time is not None:
        raise ConfigError(
            f"{setting} is invalid: the model reads times relative to each seed. {remedy} "
            "[model-relative-time-exact]"
        )
    if not is_layerwise(encoder):
        raise _not_layerwise(name, setting, remedy)


def check_exact_class(model_class: object, name: str) -> None:
    """Raises a ConfigError for `training.eval: exact` unless a class is a layer-by-layer encoder.

    The driver calls it before `run.overwrite` removes the previous run.
    """
    if not (isinstance(model_class, type) and issubclass(model_class, BlockEncoder)):
        raise _not_layerwise(name)


def _not_layerwise(
    name: str, setting: str = "training.eval='exact'", remedy: str = "Set it to sampled."
) -> ConfigError:
    return ConfigError(
        f"{setting} is invalid: model.type={name!r} does not work layer by layer. {remedy} "
        "[model-not-layerwise]"
    )


def is_layerwise(encoder: GraphEncoder) -> bool:
    return isinstance(encoder.module, BlockEncoder) and encoder.relative_time is None


def encode_exactly(
    encoder: GraphEncoder,
    graph: GraphStore,
    features: FeatureStore,
    spec: ModelSpec,
    node_types: Sequence[str],
    *,
    as_of: AsOf | None = None,
    options: ExactOptions = IN_THIS_PROCESS,
) -> dict[str, Tensor]:
    """Embeds every node of some types from all of its in-edges.

    Args:
        encoder: accepted by `check_exact`.
        as_of: excludes later edges and neighbors; None includes all.
    Returns:
        By node type, [num_nodes, channels]; see `exact_inference`.
    """
    module = encoder.module
    assert isinstance(module, BlockEncoder)

    def rows_of(name: str, ids: np.ndarray) -> Features:
        rows: Any = features.gather_sparse(name, spec.feature, ids)
        if rows is None:
            rows = gather_rows_for_device(features, name, spec.feature, ids)
        if isinstance(rows, Tensor):
            rows = copied(rows, options.device)
        else:
            rows = rows.apply(lambda tensor: copied(tensor, options.device)).computed()
        return rows if encoder.reads_rows_as_they_are(name) else encoder.embed(name, rows)

    def edges_of(edge_type: EdgeType) -> InEdges:
        edges = _MessageEdges(graph, edge_type, as_of)
        columns = {
            called: LazyRows(partial(edges.rows, features, column))
            for column, called in spec.edge_inputs.items()
            if column in features.columns(edge_type)
        }
        return InEdges(
            indptr=edges.indptr,
            indices=edges.indices,
            src_degree=edges.src_degrees() if module.reads_src_degree else None,
            edge_weight=columns.get(EDGE_WEIGHT),
            edge_attr=columns.get(EDGE_ATTR),
        )

    return exact_inference(
        module,
        rows_of,
        {t: edges_of(t) for t in graph.edge_types},
        {name: graph.num_nodes(name) for name in graph.node_types},
        list(dict.fromkeys(node_types)),
        options,
    )


def target_attributes(
    features: FeatureStore, spec: ModelSpec, node_type: str, num_nodes: int
) -> np.ndarray | None:
    """Dense features of all nodes of a type, float32 [num_nodes, num_columns]; None without any."""
    if spec.feature not in features.columns(node_type):
        return None
    every = np.arange(num_nodes)
    if features.gather_sparse(node_type, spec.feature, every[:1]) is not None:
        return None
    return features.gather(node_type, spec.feature, every).astype(np.float32)


def both_ways(graph: GraphStore) -> tuple[sparse.csr_matrix, dict[str, int]]:
    """Edges of all types between nodes of all types, in both directions.

    Returns:
        float32 [num_nodes, num_nodes], a count of edges, and the first row of each node type.
    """
    numbers = [graph.num_nodes(name) for name in graph.node_types]
    first = dict(zip(graph.node_types, np.cumsum([0, *numbers]).tolist(), strict=False))
    size = sum(numbers)
    edges = sparse.csr_matrix((size, size), dtype=np.float32)
    for edge_type in graph.edge_types:
        of, by = (first[name] for name in edge_type[::2])
        found = graph.adjacency(edge_type)
        neighbors = np.asarray(found.indices[0 : int(found.indptr[-1])]).astype(np.int64) + of
        nodes = np.repeat(np.arange(len(found.indptr) - 1), np.diff(found.indptr)) + by
        weights = np.ones(len(nodes), np.float32)
        edges += sparse.csr_matrix((weights, (nodes, neighbors)), (size, size))
    return (edges + edges.T).tocsr(), first


class _MessageEdges:
    """The edges of a type by the sampling node, all or those as of a moment.

    The latter are sampled for each requested range of nodes: a worker stores a number per node, and
    no copy of the graph.
    """

    def __init__(self, graph: GraphStore, edge_type: EdgeType, as_of: AsOf | None) -> None:
        self._graph, self._edge_type, self._as_of = graph, edge_type, as_of
        self._neighbor_type, _, destination_type = edge_type
        if as_of is None:
            adjacency = graph.adjacency(edge_type)
            self.indptr, self._e_id = adjacency.indptr, adjacency.e_id
            self.indices: EdgeValues = adjacency.indices
            return
        destinations = np.arange(graph.num_nodes(destination_type))
        degrees = graph.degrees(edge_type, destinations, Horizon.as_of(as_of, len(destinations)))
        self.indptr = np.concatenate([[0], np.cumsum(degrees)])
        self.indices = LazyRows(lambda edges: self._pick(edges).neighbors)

    def src_degrees(self) -> np.ndarray | None:
        if self._as_of is None and isinstance(self.indices, np.ndarray):
            return None
        neighbors = np.arange(self._graph.num_nodes(self._neighbor_type))
        horizon = None if self._as_of is None else Horizon.as_of(self._as_of, len(neighbors))
        return self._graph.neighbor_degrees(self._edge_type, neighbors, horizon)

    def rows(self, features: FeatureStore, column: str, edges: slice) -> np.ndarray:
        if self._as_of is not None:
            ids = self._pick(edges).e_id
        else:
            ids = np.arange(edges.start, edges.stop) if self._e_id is None else self._e_id[edges]
        return features.gather(self._edge_type, column, ids.astype(np.int64))

    def _pick(self, edges: slice) -> Picks:
        assert self._as_of is not None
        first = int(np.searchsorted(self.indptr, edges.start, side="right")) - 1
        last = int(np.searchsorted(self.indptr, edges.stop, side="left"))
        nodes = np.arange(first, max(first, last))
        horizon = Horizon.as_of(self._as_of, len(nodes))
        request = PickRequest(nodes, fanout=-1, key=0, hop=0, horizon=horizon)
        picks = self._graph.pick(self._edge_type, request)
        assert picks.offsets[-1] == edges.stop - edges.start
        return picks
