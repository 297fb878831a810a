"""The whole graph as a batch: x names the nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from raygnn.data.edge_types import EdgeType
from raygnn.models.segment import Adjacency
from raygnn.sampling import LocalFeatureStore, LocalGraphStore, blocks_of, hetero_blocks_of
from raygnn.sampling.whole_graph import WholeGraph, WholeGraphLoader
from tests.batches import check_ids
from tests.errors import raises
from tests.small_graph import EDGE, NODE, SmallGraph, random_graph

SEEDS = np.array([7, 3, 150, 42])


def _whole(small: SmallGraph, **fanouts: list[int]) -> WholeGraph:
    hops = {t: fanouts.get(t[1], [-1, -1, -1]) for t in small.bundle.edge_types}
    return WholeGraph(
        LocalGraphStore(small.bundle),
        LocalFeatureStore(small.bundle),
        hops,
        columns={"x": "x", "y": "y"} if NODE in small.bundle.node_types else {},
        edge_columns={"weight": "edge_weight"} if NODE in small.bundle.node_types else {},
        device=torch.device("cpu"),
    )


def _loader(whole: WholeGraph, seeds: np.ndarray = SEEDS, **share: Any) -> WholeGraphLoader:
    return WholeGraphLoader(whole, seeds, NODE, split="train", seed=0, **share)


def test_it_has_all_nodes_and_edges():
    small = random_graph()
    (batch,) = _loader(_whole(small)).iterate(5)
    check_ids(batch)
    nodes = batch.nodes[NODE]
    ((edge_type, edges),) = batch.edges.items()
    assert edge_type == EDGE
    assert torch.equal(nodes.n_id, torch.arange(200))
    assert torch.equal(nodes.columns["x"][:, 0], torch.arange(200.0))
    sources, targets = small.edges[EDGE]
    found = sorted(zip(*edges.edge_index.tolist(), strict=True))
    assert found == sorted(zip(*(ends.tolist() for ends in (sources, targets)), strict=True))
    weight = torch.from_numpy(small.stored[EDGE]["weight"])
    assert torch.equal(edges.columns["edge_weight"], weight[edges.e_id])
    degree = torch.bincount(torch.from_numpy(targets), minlength=200)
    assert torch.equal(edges.dst_degree, degree.float())


def test_seeds_and_labels_are_those_of_the_split():
    small = random_graph()
    (batch,) = _loader(_whole(small)).iterate(0)
    assert torch.equal(batch.input_id, torch.from_numpy(SEEDS))
    assert torch.equal(batch.nodes[NODE].n_id[batch.seed_index], batch.input_id)
    assert torch.equal(batch.y, torch.from_numpy(small.stored[NODE]["y"][SEEDS]))
    assert "y" not in batch.nodes[NODE].columns


def test_it_is_made_once_for_all_splits_and_epochs():
    whole = _whole(random_graph())
    train, val = _loader(whole), _loader(whole, np.array([1, 2]))
    (first,), (second,), (other,) = train.iterate(0), train.iterate(1), val.iterate(0)
    assert first.key != second.key
    for name in ("nodes", "edges", "blocks", "labels", "seed_index"):
        assert getattr(first, name) is getattr(second, name)
    assert first.to("cpu") is first
    assert other.nodes[NODE].columns["x"] is first.nodes[NODE].columns["x"]
    assert other.edges is first.edges
    assert other.nodes[NODE].seed_index.tolist() == [1, 2]
    layers = {id(Adjacency.of(block)) for batch in (first, other) for block in blocks_of(batch)}
    assert len(layers) == 1


def test_every_layer_reads_and_writes_all_nodes():
    (batch,) = _loader(_whole(random_graph())).iterate(0)
    blocks = blocks_of(batch)
    assert [(block.num_src, block.num_dst, block.num_edges) for block in blocks] == [
        (200, 200, 2000)
    ] * 3


def test_one_rank_has_it():
    whole = _whole(random_graph())
    loaders = [_loader(whole, rank=rank, world_size=3) for rank in range(3)]
    assert [len(list(loader.iterate(0))) for loader in loaders] == [1, 0, 0]
    assert {loader.num_batches for loader in loaders} == {1}


def test_edge_types_of_fanout_0_carry_no_messages():
    likes: EdgeType = ("user", "likes", "item")
    liked: EdgeType = ("item", "liked", "user")
    edges = {
        likes: (np.array([0, 1, 1]), np.array([2, 0, 1])),
        liked: (np.array([2, 0, 1]), np.array([0, 1, 1])),
    }
    small = SmallGraph({"user": 2, "item": 3}, edges)
    whole = _whole(small, liked=[0, 0, 0])
    block = hetero_blocks_of(whole.batch("item", np.array([1])))[0]
    assert {edge_type: each.num_edges for edge_type, each in block.blocks.items()} == {
        likes: 3,
        liked: 0,
    }
    assert block.blocks[liked].dst_ptr.tolist() == [0, 0, 0]
    assert (block.num_src, block.num_dst) == ({"user": 2, "item": 3},) * 2


def test_seeds_outside_of_the_graph_are_refused():
    with raises("sampling-seeds-range", 200):
        _loader(_whole(random_graph()), np.array([200]))
