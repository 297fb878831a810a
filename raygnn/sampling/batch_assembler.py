"""Builds the nodes and edges of a batch from a sampled subgraph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.past_labels import PAST, PastLabels
from raygnn.errors import DataError
from raygnn.sampling.batch import EdgeRecord, NodeRecord
from raygnn.sampling.protocols import FeatureStore, GraphStore, SampledSubgraph
from raygnn.sampling.scratch import BufferPool
from raygnn.sampling.stores import as_tensor
from raygnn.sampling.tensor_record import StoredRows


class BatchAssembler:
    """Joins sampled nodes and edges with their columns. Arrays become tensors without a copy.

    Args:
        columns: node columns to read, and their names in the batch.
        edge_columns: the same for edges.
        src_degrees: whether edges have the out-degrees of their sources.
        past: node type and its past labels, for the column `PAST` of its nodes.
    Raises:
        DataError: no type of the graph has a column.
    """

    def __init__(
        self,
        graph: GraphStore,
        features: FeatureStore,
        columns: Mapping[str, str],
        edge_columns: Mapping[str, str],
        *,
        src_degrees: bool = False,
        past: tuple[str, PastLabels] | None = None,
    ) -> None:
        _check_columns("node", columns, {t: features.columns(t) for t in graph.node_types})
        _check_columns(
            "edge", edge_columns, {edge_type_name(t): features.columns(t) for t in graph.edge_types}
        )
        self._graph = graph
        self._features = features
        self._columns = dict(columns)
        self._edge_columns = dict(edge_columns)
        self._buffers: dict[tuple[str | EdgeType, str], BufferPool] = defaultdict(BufferPool)
        self._src_degrees = src_degrees
        self.past = past

    def nodes(self, subgraph: SampledSubgraph) -> dict[str, NodeRecord]:
        return {node_type: self._nodes(subgraph, node_type) for node_type in subgraph.node}

    def edges(self, subgraph: SampledSubgraph) -> dict[EdgeType, EdgeRecord]:
        return {edge_type: self._edges(subgraph, edge_type) for edge_type in subgraph.edge_index}

    def labels(self, node_type: str, seeds: np.ndarray) -> dict[str, Tensor]:
        return self._columns_of(node_type, self._wanted(node_type, labels=True), seeds)

    def columns_of_host(self) -> list[str]:
        """Names of the columns whose rows a batch does not find on the device."""
        held = {key for key, on in self._features.device_columns.items() if on.rows is not None}
        wanted: list[tuple[str | EdgeType, str]] = [
            (t, c) for t in self._graph.node_types for c in self._wanted(t, labels=False)
        ]
        for edge_type in self._graph.edge_types:
            columns = self._features.columns(edge_type)
            wanted += [(edge_type, column) for column in self._edge_columns if column in columns]
        return sorted({column for key in wanted if key not in held for column in key[1:]})

    def _nodes(self, subgraph: SampledSubgraph, node_type: str) -> NodeRecord:
        nodes = subgraph.node[node_type]
        seed_index = subgraph.seed_index.get(node_type, np.empty(0, np.int64))
        of_seed, times = subgraph.seed, subgraph.seed_time
        columns = self._columns_of(node_type, self._wanted(node_type, labels=False), nodes)
        num_sampled = subgraph.num_sampled_nodes[node_type]
        # distinct seeds have the local ids 0, 1, 2...
        num_seeds = int(seed_index.max(initial=-1)) + 1
        if subgraph.num_added_edges is not None:
            num_seeds = num_sampled[0]
        if self.past is not None and node_type == self.past[0]:
            assert times is not None
            columns[PAST] = torch.from_numpy(self.past[1].columns(nodes, times[node_type]))
        return NodeRecord(
            n_id=torch.from_numpy(nodes),
            num_seeds=num_seeds,
            num_sampled=num_sampled,
            columns=columns,
            seed=None if of_seed is None else torch.from_numpy(of_seed[node_type]),
            seed_time=None if times is None else torch.from_numpy(times[node_type]),
        )

    def _edges(self, subgraph: SampledSubgraph, edge_type: EdgeType) -> EdgeRecord:
        e_id = subgraph.edge[edge_type]
        return EdgeRecord(
            edge_index=torch.from_numpy(subgraph.edge_index[edge_type]),
            dst_ptr=torch.from_numpy(subgraph.dst_ptr[edge_type]),
            e_id=torch.from_numpy(e_id),
            num_sampled=subgraph.num_sampled_edges[edge_type],
            dst_degree=self._dst_degree(subgraph, edge_type),
            columns=self._columns_of(edge_type, self._edge_columns, e_id),
            src_degree=self._src_degree(subgraph, edge_type) if self._src_degrees else None,
        )

    def _dst_degree(self, subgraph: SampledSubgraph, edge_type: EdgeType) -> Tensor:
        neighbor_type, _, destination_type = edge_type
        nodes = subgraph.node[destination_type]
        if neighbor_type != destination_type:
            nodes = nodes[: len(subgraph.dst_ptr[edge_type]) - 1]
        latest = subgraph.horizon(destination_type, len(nodes))
        return _floats(self._graph.degrees(edge_type, nodes, latest))

    def _src_degree(self, subgraph: SampledSubgraph, edge_type: EdgeType) -> Tensor:
        neighbors = subgraph.node[edge_type[0]]
        latest = subgraph.horizon(edge_type[0], len(neighbors))
        return _floats(self._graph.neighbor_degrees(edge_type, neighbors, latest))

    def _wanted(self, node_type: str, *, labels: bool) -> dict[str, str]:
        have = self._features.columns(node_type)
        return {
            column: name
            for column, name in self._columns.items()
            if column in have and (have[column].role == "label") == labels
        }

    def _columns_of(
        self, type_: str | EdgeType, wanted: Mapping[str, str], ids: np.ndarray
    ) -> dict[str, Any]:
        have = self._features.columns(type_)
        return {
            name: self._rows(type_, column, ids)
            for column, name in wanted.items()
            if column in have
        }

    def _rows(self, type_: str | EdgeType, column: str, ids: np.ndarray) -> Any:
        sparse = None  # columns of edges are dense
        if isinstance(type_, str):
            sparse = self._features.gather_sparse(type_, column, ids)
        if sparse is not None:
            return sparse
        empty = self._buffers[type_, column].array
        return gather_rows_for_device(self._features, type_, column, ids, empty)


def gather_rows_for_device(
    features: FeatureStore,
    type_: str | EdgeType,
    column: str,
    ids: np.ndarray,
    empty: Callable[[tuple[int, ...], np.dtype], np.ndarray] = np.empty,
) -> Tensor | StoredRows:
    """Rows of a dense column: as models read them, or what the device computes these from.

    The latter are ids, where the device holds the column; else the rows as stored.

    Args:
        empty: makes the array that is filled.
    """
    info, on_device = features.columns(type_)[column], features.device_columns.get((type_, column))
    if on_device is not None and on_device.rows is not None:
        return StoredRows(data=torch.from_numpy(ids), column=on_device, width=info.width)
    shape, dtype = features.row_layout(type_, column)
    stored = dtype if on_device is None else np.dtype(info.dtype)
    rows = as_tensor(features.gather(type_, column, ids, empty((len(ids), *shape), stored)))
    if on_device is None:
        return rows
    return StoredRows(data=rows, column=on_device, width=info.width)


def _check_columns(
    kind: str, wanted: Mapping[str, str], have: Mapping[str, Mapping[str, ColumnInfo]]
) -> None:
    for column in wanted:
        if not any(column in columns for columns in have.values()):
            shown = {name: sorted(columns) for name, columns in have.items()}
            raise DataError(
                f"column {column!r} of a batch is invalid: no {kind} type has it; there are "
                f"{shown}. Use one of these, or declare it in graph.yaml. [sampling-batch-column]"
            )


def _floats(counts: np.ndarray) -> Tensor:
    return torch.from_numpy(counts.astype(np.float32))
