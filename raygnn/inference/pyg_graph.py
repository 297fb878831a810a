"""A graph as a model reads it, as PyG's `Data` or `HeteroData`."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from raygnn.data.bundle import Bundle
from raygnn.loops.model_spec import ModelSpec
from raygnn.sampling.protocols import message_type
from raygnn.sampling.stores import LocalFeatureStore


def pyg_graph(bundle: Bundle, spec: ModelSpec, direction: str) -> Data | HeteroData:
    """All nodes and edges of a graph; features standardized, edges along the messages.

    Args:
        bundle: the part of the graph that the model reads.
        direction: `in` or `out`, as `sampling.direction`.
    """
    features, graph = LocalFeatureStore(bundle, spec.standardization), HeteroData()
    for name in bundle.node_types:
        graph[name].num_nodes = bundle.num_nodes(name)
        if spec.feature in bundle.columns(name) and name not in spec.embedded_types:
            rows = features.gather(name, spec.feature, np.arange(bundle.num_nodes(name)))
            graph[name].x = torch.from_numpy(np.array(rows))
    for edge_type in bundle.edge_types:
        csc, store = bundle.csc(edge_type), graph[message_type(edge_type, direction)]
        targets = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
        ends = np.stack([csc.indices.astype(np.int64), targets])
        store.edge_index = torch.from_numpy(ends if direction == "in" else ends[::-1].copy())
        for column, called in spec.edge_inputs.items():
            if column in bundle.columns(edge_type):
                rows = features.gather(edge_type, column, np.arange(len(targets)))
                store[called] = torch.from_numpy(np.array(rows))
    if len(graph.node_types) > 1 or len(graph.edge_types) > 1:
        return graph
    (nodes,), edges = graph.node_stores, graph.edge_stores
    return Data(**nodes, **(edges[0] if edges else {}))
