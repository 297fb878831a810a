"""What tests ask of batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from raygnn.data.links.supervision import SupervisionEdges
from raygnn.sampling import (
    LinkLoader,
    LinkPlan,
    LocalFeatureStore,
    LocalGraphStore,
    NeighborLoader,
    NeighborSampler,
)
from raygnn.sampling.batch import Batch, EdgeRecord, NodeBatch, NodeRecord
from raygnn.sampling.tensor_record import TensorRecord
from tests.small_graph import NODE, SmallGraph


def is_same(one: Any, other: Any) -> bool:
    """Whether two records hold the same, tensor by tensor."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, TensorRecord):
        names = [field.name for field in fields(one)]  # type: ignore[arg-type]
        return all(is_same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    return bool(one == other)


def check_ids(batch: Batch) -> None:
    """Local ids are those of nodes, and a row of each column belongs to each node or edge."""
    for nodes in batch.nodes.values():
        assert nodes.num_seeds <= len(nodes.n_id)
        assert all(len(column) == len(nodes.n_id) for column in nodes.columns.values())
    for (source, _, target), edges in batch.edges.items():
        row, col = edges.edge_index
        assert not len(row) or 0 <= row.min() <= row.max() < len(batch.nodes[source].n_id)
        assert not len(col) or 0 <= col.min() <= col.max() < len(batch.nodes[target].n_id)
        assert all(len(column) == len(row) for column in edges.columns.values())


def node_loader(
    small: SmallGraph,
    fanouts: Any = (4, 3),
    sampling: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> NeighborLoader:
    """Batches of eight nodes of a small graph, in their order. `sampling`: of the sampler."""
    graph = LocalGraphStore(small.bundle)
    settings = {
        "sampler": NeighborSampler(graph, fanouts, **sampling),
        "columns": {"x": "x"},
        "batch_size": 8,
        "split": "train",
        "seed": 0,
        "shuffle": False,
        **changes,
    }
    node_type = settings.pop("node_type", NODE)
    seeds = settings.pop("seeds", None)
    if seeds is None:
        seeds = np.arange(small.nodes[node_type])
    return NeighborLoader(graph, LocalFeatureStore(small.bundle), seeds, node_type, **settings)


def link_loader(
    small: SmallGraph,
    links: SupervisionEdges,
    fanouts: Any = (4, 3),
    sampling: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> LinkLoader:
    """Batches of sixteen links of a small graph. `sampling`: of the sampler."""
    graph = LocalGraphStore(small.bundle)
    settings = {
        "sampler": NeighborSampler(graph, fanouts, **sampling),
        "columns": {},
        "plan": LinkPlan(),
        "batch_size": 16,
        "split": "train",
        "seed": 0,
        "shuffle": True,
        **changes,
    }
    return LinkLoader(graph, LocalFeatureStore(small.bundle), links, **settings)


def batch_of(
    x: torch.Tensor, edge_index: torch.Tensor, num_seeds: int, **columns: torch.Tensor
) -> NodeBatch:
    """A batch of one node type; the first nodes are the seeds."""
    degree = torch.bincount(edge_index[1], minlength=len(x))
    nodes = NodeRecord(
        n_id=torch.arange(len(x)), num_seeds=num_seeds, num_sampled=None, columns={"x": x}
    )
    edges = EdgeRecord(
        edge_index=edge_index,
        dst_ptr=torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)]),
        e_id=None,
        num_sampled=None,
        dst_degree=degree.float(),
        columns=columns,
    )
    return NodeBatch(
        index=0,
        input_id=torch.arange(num_seeds),
        nodes={"node": nodes},
        edges={("node", "to", "node"): edges},
        node_type="node",
        seed_index=torch.arange(num_seeds),
        labels={},
    )
