"""From a sampled subgraph to a batch: PyG's `Data`, or `HeteroData` for several types."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import DataError
from raygnn.sampling.protocols import FeatureStore, GraphStore, ends, message_type
from raygnn.sampling.scratch import BufferPool
from raygnn.sampling.subgraph import SampledSubgraph


class BatchAssembler:
    """Joins sampled nodes and edges with their columns; arrays become tensors without a copy.

    A graph of one node type and one edge type gives `Data`, any other `HeteroData` with the same
    attributes by type. Against the direction of the edges (`out`), an edge type (src, rel, dst) is
    (dst, rev_rel, src) there: messages go from row to column.

    Attributes of a batch:
        edge_index, n_id, e_id, num_sampled_nodes, num_sampled_edges, dst_ptr: as in
            `SampledSubgraph`; n_id and e_id are dense ids and CSC positions.
        batch_size: distinct seeds, the first nodes; of each node type that has seeds.
        seed_time: [num_nodes], with temporal sampling only: the time of the seed whose neighborhood
            a node is in. A node is there once for each.
        batch: int64 [num_nodes], with disjoint sampling only: the number of the seed whose
            neighborhood a node is in.
        degree: float32 [num_nodes], in-degrees in the whole graph (out-degrees in direction `out`);
            only in `Data`. With temporal sampling, of the edges that are not later.
        dst_degree, src_degree: float32, only in `HeteroData`, of an edge type: in the whole graph,
            how many edges of the type lead to each node that took edges, [num_dst], and go out from
            each node of the source type, [num_src].
        columns: of features [num_nodes, ...], of each node type that has them; a type without
            features is known by its n_id alone. Labels come with the seeds: `add_seeds`.
        edge columns: [num_edges, ...], of each edge type that has them.

    Args:
        columns: which columns of the nodes a batch has, and under what names.
        edge_columns: the same of the edges.
    Raises:
        DataError: a column is one that no type of the graph has.
    """

    def __init__(
        self,
        graph: GraphStore,
        features: FeatureStore,
        columns: Mapping[str, str],
        edge_columns: Mapping[str, str],
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
        self._is_one_graph = len(graph.node_types) == 1 and len(graph.edge_types) == 1

    def assemble(self, subgraph: SampledSubgraph) -> Data | HeteroData:
        """The batch of a subgraph."""
        batch = Data() if self._is_one_graph else HeteroData()
        direction = self._graph.direction
        for node_type in subgraph.node:
            store = batch if self._is_one_graph else batch[node_type]
            for name, value in self._node_values(subgraph, node_type):
                store[name] = _tensor(value)
        for edge_type in subgraph.edge_index:
            store = batch if self._is_one_graph else batch[message_type(edge_type, direction)]
            for name, value in self._edge_values(subgraph, edge_type):
                store[name] = _tensor(value)
        return batch

    def add_seeds(
        self, batch: Data | HeteroData, subgraph: SampledSubgraph, node_type: str, seeds: np.ndarray
    ) -> None:
        """Adds what is known of the seeds, and their labels.

        Attributes:
            num_seeds: seeds as given.
            input_id: int64 [num_seeds], dense ids of the seeds as given.
            seed_index: int64 [num_seeds], their positions among the nodes.
            columns: of labels [num_seeds, ...]; of no other node are labels read.
        """
        store = batch if self._is_one_graph else batch[node_type]
        store.num_seeds = len(seeds)
        store.input_id = torch.from_numpy(seeds)
        store.seed_index = torch.from_numpy(subgraph.seed_index[node_type])
        have = self._features.columns(node_type)
        for column, name in self._columns.items():
            if column in have and have[column].role == "label":
                store[name] = torch.from_numpy(self._rows(node_type, column, seeds))

    def _node_values(self, subgraph: SampledSubgraph, node_type: str) -> Iterator[tuple[str, Any]]:
        nodes = subgraph.node[node_type]
        yield "n_id", nodes
        if node_type in subgraph.num_sampled_nodes:
            yield "num_sampled_nodes", subgraph.num_sampled_nodes[node_type]
        yield "num_nodes", len(nodes)
        if subgraph.seed_time is not None:
            yield "seed_time", subgraph.seed_time[node_type]
        if subgraph.seed is not None:
            yield "batch", subgraph.seed[node_type]
        if node_type in subgraph.seed_index:
            # distinct seeds have the local ids 0, 1, 2...
            yield "batch_size", int(subgraph.seed_index[node_type].max(initial=-1)) + 1
        have = self._features.columns(node_type)
        for column, name in self._columns.items():
            if column in have and have[column].role != "label":
                yield name, self._rows(node_type, column, nodes)

    def _edge_values(
        self, subgraph: SampledSubgraph, edge_type: EdgeType
    ) -> Iterator[tuple[str, Any]]:
        yield "edge_index", subgraph.edge_index[edge_type]
        yield "dst_ptr", subgraph.dst_ptr[edge_type]
        if edge_type in subgraph.num_sampled_edges:
            yield "num_sampled_edges", subgraph.num_sampled_edges[edge_type]
        if edge_type in subgraph.edge:
            yield "e_id", subgraph.edge[edge_type]
        have = self._features.columns(edge_type)
        for column, name in self._edge_columns.items():
            if column in have:
                yield name, self._edge_column(subgraph, edge_type, column)
        yield from self._degrees(subgraph, edge_type)

    def _degrees(
        self, subgraph: SampledSubgraph, edge_type: EdgeType
    ) -> Iterator[tuple[str, np.ndarray]]:
        neighbor_type, destination_type = ends(edge_type, self._graph.direction)
        destinations = subgraph.node[destination_type]
        if self._is_one_graph:
            latest = subgraph.horizon(destination_type, len(destinations))
            yield "degree", self._graph.degrees(edge_type, destinations, latest).astype(np.float32)
            return
        destinations = destinations[: len(subgraph.dst_ptr[edge_type]) - 1]
        latest = subgraph.horizon(destination_type, len(destinations))
        yield "dst_degree", self._graph.degrees(edge_type, destinations, latest).astype(np.float32)
        neighbors = subgraph.node[neighbor_type]
        latest = subgraph.horizon(neighbor_type, len(neighbors))
        counts = self._graph.neighbor_degrees(edge_type, neighbors, latest)
        yield "src_degree", counts.astype(np.float32)

    def _edge_column(
        self, subgraph: SampledSubgraph, edge_type: EdgeType, column: str
    ) -> np.ndarray:
        if edge_type not in subgraph.edge:
            raise DataError(
                f"column {column!r} of {edge_type_name(edge_type)} cannot be had: the sampler of "
                "sampling.type does not say which edges it took. Fill edge in its SamplerOutput.",
                id="sampling-edge-ids-missing",
            )
        return self._rows(edge_type, column, subgraph.edge[edge_type])

    def _rows(self, type_: str | EdgeType, column: str, ids: np.ndarray) -> np.ndarray:
        shape, dtype = self._features.row_layout(type_, column)
        out = self._buffers[type_, column].array((len(ids), *shape), dtype)
        return self._features.gather(type_, column, ids, out)


def _check_columns(
    kind: str, wanted: Mapping[str, str], have: Mapping[str, Mapping[str, ColumnInfo]]
) -> None:
    for column in wanted:
        if not any(column in columns for columns in have.values()):
            shown = {name: sorted(columns) for name, columns in have.items()}
            raise DataError(
                f"column {column!r} of a batch is invalid: no {kind} type has it; there are "
                f"{shown}. Use one of these, or declare the column in graph.yaml.",
                id="sampling-batch-column",
            )


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
