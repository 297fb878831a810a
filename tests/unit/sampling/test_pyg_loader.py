"""raygnn's sampler inside of PyG's own loader; x names the nodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NodeSamplerInput

from raygnn.errors import DataError
from raygnn.sampling import LocalGraphStore, NeighborSampler
from tests.unit.sampling.memory_bundle import EDGE, NODE, MemoryBundle, random_bundle


def _edge_index(bundle: MemoryBundle, edge_type: tuple[str, str, str]) -> torch.Tensor:
    """Edges in the order of e_id."""
    csc = bundle.csc(edge_type)
    target = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
    return torch.from_numpy(np.stack([csc.indices, target]).astype(np.int64))


def test_node_loader_of_data():
    bundle = random_bundle()
    edge_index = _edge_index(bundle, EDGE)
    data = Data(x=torch.arange(200), edge_index=edge_index, edge_attr=torch.arange(2000))
    sampler = NeighborSampler(LocalGraphStore(bundle), [5, 3])
    assert isinstance(sampler, BaseSampler)
    loader = NodeLoader(data, sampler, input_nodes=torch.arange(0, 200, 2), batch_size=32)
    seen = []
    for batch in loader:
        batch.validate()
        assert torch.equal(batch.x, batch.n_id)
        assert torch.equal(batch.edge_attr, batch.e_id)
        assert torch.equal(batch.n_id[batch.edge_index], edge_index[:, batch.e_id])
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges
        seen += batch.n_id[: batch.batch_size].tolist()
    assert seen == list(range(0, 200, 2))
    again = next(iter(loader))
    assert torch.equal(again.e_id, next(iter(loader)).e_id)
    other = NeighborSampler(LocalGraphStore(bundle), [5, 3], seed=1)
    loader = NodeLoader(data, other, input_nodes=torch.arange(0, 200, 2), batch_size=32)
    assert not torch.equal(next(iter(loader)).e_id, again.e_id)


def test_node_loader_of_hetero_data():
    buys, follows = ("user", "buys", "item"), ("user", "follows", "user")
    rng = np.random.default_rng(0)
    edges = {
        follows: (rng.integers(0, 40, 200), rng.integers(0, 40, 200)),
        buys: (rng.integers(0, 40, 90), rng.integers(0, 15, 90)),
    }
    bundle = MemoryBundle({"user": 40, "item": 15}, edges)
    data = HeteroData()
    data["user"].x, data["item"].x = torch.arange(40), torch.arange(15)
    for edge_type in edges:
        data[edge_type].edge_index = _edge_index(bundle, edge_type)
    sampler = NeighborSampler(
        LocalGraphStore(bundle), {buys: [3, 2], "user__follows__user": [2, 2]}
    )
    for batch in NodeLoader(data, sampler, input_nodes="item", batch_size=4):
        batch.validate()
        for node_type in ("user", "item"):
            assert torch.equal(batch[node_type].x, batch[node_type].n_id)
        for edge_type, (source, _, target) in ((et, et) for et in edges):
            row, col = batch[edge_type].edge_index
            taken = data[edge_type].edge_index[:, batch[edge_type].e_id]
            assert torch.equal(batch[source].n_id[row], taken[0])
            assert torch.equal(batch[target].n_id[col], taken[1])


def test_repeated_seeds_are_refused():
    sampler = NeighborSampler(LocalGraphStore(random_bundle()), [2])
    with pytest.raises(DataError, match=f"node type '{NODE}' are invalid: PyG's loaders take"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([3, 3])))


def test_links_are_not_offered():
    sampler = NeighborSampler(LocalGraphStore(random_bundle()), [2])
    ends = torch.tensor([0])
    with pytest.raises(NotImplementedError):
        sampler.sample_from_edges(EdgeSamplerInput(None, ends, ends))
