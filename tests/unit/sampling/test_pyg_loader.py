"""raygnn's sampler inside of PyG's own loader; x names the nodes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import BaseSampler, NegativeSampling, NodeSamplerInput

from raygnn.sampling import LocalGraphStore, NeighborSampler
from tests.errors import raises
from tests.small_graph import EDGE, NODE, SmallGraph, random_graph


def _edge_index(small: SmallGraph, edge_type: tuple[str, str, str]) -> torch.Tensor:
    """Edges in the order of e_id."""
    csc = small.bundle.csc(edge_type)
    target = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
    return torch.from_numpy(np.stack([csc.indices, target]).astype(np.int64))


BUYS, FOLLOWS = ("user", "buys", "item"), ("user", "follows", "user")


def _shop() -> tuple[SmallGraph, HeteroData]:
    rng = np.random.default_rng(0)
    edges = {
        FOLLOWS: (rng.integers(0, 40, 200), rng.integers(0, 40, 200)),
        BUYS: (rng.integers(0, 40, 90), rng.integers(0, 15, 90)),
    }
    small = SmallGraph({"user": 40, "item": 15}, edges)
    data = HeteroData()
    data["user"].x, data["item"].x = torch.arange(40), torch.arange(15)
    for edge_type in edges:
        data[edge_type].edge_index = _edge_index(small, edge_type)
    return small, data


def test_node_loader_of_data():
    small = random_graph()
    edge_index = _edge_index(small, EDGE)
    data = Data(x=torch.arange(200), edge_index=edge_index, edge_attr=torch.arange(2000))
    sampler = NeighborSampler(LocalGraphStore(small.bundle), [5, 3])
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
    other = NeighborSampler(LocalGraphStore(small.bundle), [5, 3], seed=1)
    loader = NodeLoader(data, other, input_nodes=torch.arange(0, 200, 2), batch_size=32)
    assert not torch.equal(next(iter(loader)).e_id, again.e_id)


def test_node_loader_of_hetero_data():
    small, data = _shop()
    sampler = NeighborSampler(
        LocalGraphStore(small.bundle), {BUYS: [3, 2], "user__follows__user": [2, 2]}
    )
    for batch in NodeLoader(data, sampler, input_nodes="item", batch_size=4):
        batch.validate()
        for node_type in ("user", "item"):
            assert torch.equal(batch[node_type].x, batch[node_type].n_id)
        for edge_type, (source, _, target) in ((et, et) for et in (FOLLOWS, BUYS)):
            row, col = batch[edge_type].edge_index
            taken = data[edge_type].edge_index[:, batch[edge_type].e_id]
            assert torch.equal(batch[source].n_id[row], taken[0])
            assert torch.equal(batch[target].n_id[col], taken[1])


def test_repeated_seeds_are_refused():
    sampler = NeighborSampler(LocalGraphStore(random_graph().bundle), [2])
    with raises("sampling-seeds-repeated", NODE):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([3, 3])))


@pytest.mark.parametrize("negatives", [None, ("binary", 1), ("binary", 0.5), ("triplet", 2)])
def test_link_loader_of_data(negatives):
    small = random_graph()
    edge_index = _edge_index(small, EDGE)
    data = Data(x=torch.arange(200), edge_index=edge_index)
    links, labels = edge_index[:, 100:190], torch.arange(90) % 4
    is_triplet = negatives is not None and negatives[0] == "triplet"
    loader = LinkLoader(
        data,
        NeighborSampler(LocalGraphStore(small.bundle), [5, 3]),
        edge_label_index=links,
        edge_label=None if is_triplet else labels,
        neg_sampling=None if negatives is None else NegativeSampling(*negatives),
        batch_size=32,
    )
    for number, batch in enumerate(loader):
        batch.validate()
        assert torch.equal(batch.x, batch.n_id)
        assert len(batch.n_id.unique()) == len(batch.n_id)
        assert torch.equal(batch.n_id[batch.edge_index], edge_index[:, batch.e_id])
        places = slice(32 * number, 32 * (number + 1))
        given, count = links[:, places], len(batch.input_id)
        if is_triplet:
            assert torch.equal(batch.n_id[batch.src_index], given[0])
            assert torch.equal(batch.n_id[batch.dst_pos_index], given[1])
            assert batch.dst_neg_index.shape == (count, 2)
            continue
        assert torch.equal(batch.n_id[batch.edge_label_index[:, :count]], given)
        # PyG makes room for 0, the label of the negatives
        assert torch.equal(batch.edge_label[:count], labels[places] + (negatives is not None))
        num_negatives = 0 if negatives is None else math.ceil(negatives[1] * count)
        assert batch.edge_label_index.shape == (2, count + num_negatives)
        assert not batch.edge_label[count:].any()
    again = next(iter(loader))
    assert len(again.input_id) == 32


@pytest.mark.parametrize("mode", [None, "binary", "triplet"])
def test_link_loader_of_hetero_data(mode):
    small, data = _shop()
    for linked in (BUYS, FOLLOWS):
        source, _, target = linked
        links = data[linked].edge_index[:, ::3]
        loader = LinkLoader(
            data,
            NeighborSampler(LocalGraphStore(small.bundle), [3, 2]),
            edge_label_index=(linked, links),
            neg_sampling=None if mode is None else NegativeSampling(mode),
            batch_size=8,
        )
        for number, batch in enumerate(loader):
            batch.validate()
            given, count = links[:, 8 * number : 8 * (number + 1)], len(batch[linked].input_id)
            assert torch.equal(batch["user"].x, batch["user"].n_id)
            if mode == "triplet":
                ends = batch[source].src_index, batch[target].dst_pos_index
                assert batch[target].dst_neg_index.shape == (count,)
            else:
                ends = batch[linked].edge_label_index[:, :count]
            found = torch.stack([batch[source].n_id[ends[0]], batch[target].n_id[ends[1]]])
            assert torch.equal(found, given)
