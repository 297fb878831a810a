"""Views of a batch: pure functions of its key, on which encoders compute as on other batches."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from raygnn.data.hashing import splitmix64_array
from raygnn.models.convolutions import GCN
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.sampling import LocalFeatureStore, LocalGraphStore
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.sparse_features import SparseFeatures
from raygnn.sampling.views import (
    drawn,
    drop_edges,
    mask_features,
    places_drawn,
    view_key,
    with_hop_of_seeds,
)
from raygnn.sampling.whole_graph import WholeGraph, WholeGraphLoader
from tests.batches import check_ids, is_same, node_loader
from tests.small_graph import EDGE, NODE, random_graph

SMALL = random_graph()
KEY = (1 << 64) - 12345


def _sampled(fanouts: list[int], num_seeds: int = 8) -> NodeBatch:
    changes = {"seeds": np.arange(100), "shuffle": True, "batch_size": num_seeds}
    columns = {"weight": "edge_weight"}
    return node_loader(SMALL, fanouts, edge_columns=columns, **changes).make(0, 0)


def _whole(epoch: int = 0) -> NodeBatch:
    whole = WholeGraph(
        LocalGraphStore(SMALL.bundle),
        LocalFeatureStore(SMALL.bundle),
        {EDGE: [-1, -1]},
        columns={"x": "x"},
        edge_columns={"weight": "edge_weight"},
        device=torch.device("cpu"),
        src_degrees=True,
    )
    return WholeGraphLoader(whole, np.array([5, 3]), NODE, split="train", seed=0).make(epoch, 0)


def _pairs(batch: NodeBatch) -> list[tuple[int, int]]:
    """Edges by dense ids."""
    (edges,), n_id = batch.edges.values(), batch.nodes[NODE].n_id
    return [tuple(pair) for pair in n_id[edges.edge_index].T.tolist()]


def test_draws_are_the_hash_of_the_package():
    ids = torch.tensor([0, 1, 2, 12345678901, -1])
    expected = (splitmix64_array(ids.numpy(), KEY) >> np.uint64(11)) * 2.0**-53
    for share in (0.1, 0.5, 0.9):
        assert drawn(ids, share, KEY).tolist() == (expected < share).tolist()


def test_draws_are_uniform():
    ids = torch.arange(100_000)
    assert float(drawn(ids, 0.3, KEY).double().mean()) == pytest.approx(0.3, abs=0.006)
    places = places_drawn(ids, 10, KEY)
    assert torch.bincount(places, minlength=10).tolist() == pytest.approx([10_000] * 10, abs=400)


@pytest.mark.parametrize("make", [lambda: _sampled([4, 3]), _whole])
def test_a_view_has_some_of_the_edges(make):
    batch = make()
    view = drop_edges(batch, 0.4, KEY)
    check_ids(view)
    (before,), (edges,) = batch.edges.values(), view.edges.values()
    assert edges.edge_index.shape[1] == pytest.approx(0.6 * before.edge_index.shape[1], rel=0.3)
    assert set(_pairs(view)) < set(_pairs(batch))
    positions = {int(e): i for i, e in enumerate(before.e_id)}
    kept = [positions[int(e)] for e in edges.e_id]
    assert kept == sorted(kept)
    assert torch.equal(edges.columns["edge_weight"], before.columns["edge_weight"][kept])
    assert torch.equal(edges.edge_index, before.edge_index[:, kept])
    counts = torch.bincount(edges.edge_index[1], minlength=len(edges.dst_ptr) - 1)
    assert torch.equal(edges.dst_ptr.diff(), counts)
    assert sum(edges.num_sampled) == len(kept)
    bounds = np.cumsum([0, *before.num_sampled])
    inside = [sum(a <= k < b for k in kept) for a, b in pairwise(bounds)]
    assert edges.num_sampled == inside
    assert is_same(view.nodes, batch.nodes)


def test_the_same_edge_is_dropped_wherever_it_is_drawn():
    """By its place in the graph, so that a neighborhood is one of the graph without it."""
    small, large = (drop_edges(_sampled([4, 3], n), 0.5, KEY) for n in (8, 100))
    kept = set(next(iter(large.edges.values())).e_id.tolist())
    every = set(next(iter(_sampled([4, 3], 100).edges.values())).e_id.tolist())
    for e in next(iter(small.edges.values())).e_id.tolist():
        assert e in kept or e not in every


def test_degrees_on_the_whole_graph_are_those_of_the_view():
    view = drop_edges(_whole(), 0.4, KEY)
    (edges,) = view.edges.values()
    src, dst = edges.edge_index
    assert torch.equal(edges.dst_degree, torch.bincount(dst, minlength=200).float())
    assert torch.equal(edges.src_degree, torch.bincount(src, minlength=200).float())


def test_degrees_of_a_sample_are_estimated():
    batch = _sampled([4, 3])
    view = drop_edges(batch, 0.25, KEY)
    (before,), (edges,) = batch.edges.values(), view.edges.values()
    num_dst = len(edges.dst_ptr) - 1
    left = edges.dst_ptr.diff() / before.dst_ptr.diff().clamp(min=1)
    assert torch.allclose(edges.dst_degree[:num_dst], before.dst_degree[:num_dst] * left)
    assert torch.equal(edges.dst_degree[num_dst:], before.dst_degree[num_dst:] * 0.75)


def test_an_encoder_gives_the_rows_of_the_graph_without_the_edges():
    view = drop_edges(_whole(), 0.5, KEY)
    encoder = GraphEncoder(GCN(3, 4, hidden_channels=8, num_layers=2))
    found = encoder(view)[NODE]
    again = encoder(replace(view, blocks=view.blocks))[NODE]
    assert torch.equal(found, again)
    (edges,) = view.edges.values()
    x, weights = view.nodes[NODE].columns["x"], edges.columns["edge_weight"]
    for i, layer in enumerate(encoder.module.layers):
        degree = edges.dst_degree + 1
        src, dst = edges.edge_index
        messages = (x / degree.sqrt()[:, None])[src] * weights[:, None]
        sums = torch.zeros_like(x).index_add(0, dst, messages) + x / degree.sqrt()[:, None]
        x = sums / degree.sqrt()[:, None] @ layer.lin.weight.T + layer.bias
        x = x.relu() if i == 0 else x
    torch.testing.assert_close(found, x[[5, 3]], rtol=1e-4, atol=1e-3)


def test_columns_are_hidden_for_all_nodes_alike_also_of_sparse_rows():
    dense = torch.rand(20, 50) + 0.1
    batch = _whole()
    shown = []
    for x in (dense, _sparse(dense)):
        nodes = {NODE: replace(batch.nodes[NODE], columns={"x": x})}
        view = mask_features(replace(batch, nodes=nodes), 0.4, KEY).nodes[NODE].columns["x"]
        shown.append(view.to_dense() if isinstance(view, SparseFeatures) else view)
    assert torch.equal(shown[0], shown[1])
    hidden = (shown[0] == 0).all(dim=0)
    assert 10 <= int(hidden.sum()) <= 30
    assert torch.equal(shown[0][:, ~hidden], dense[:, ~hidden])


def _sparse(x: torch.Tensor) -> SparseFeatures:
    rows, columns = x.shape
    return SparseFeatures(
        indptr=torch.arange(rows + 1) * columns,
        indices=torch.arange(columns).repeat(rows),
        values=x.flatten(),
        width=columns,
    )


def test_views_are_other_ones_in_each_epoch_and_of_each_number():
    first, second = _whole(0), _whole(1)
    assert first.key != second.key
    keys = {view_key(batch, number) for batch in (first, second) for number in range(4)}
    assert len(keys) == 8
    kept = [tuple(_pairs(drop_edges(first, 0.3, view_key(first, n)))) for n in (0, 0, 1)]
    assert kept[0] == kept[1] != kept[2]


def test_the_seeds_and_their_neighbors_become_seeds():
    batch = _sampled([4, 3, 2])
    grown = with_hop_of_seeds(batch)
    nodes = batch.nodes[NODE]
    encoder = GraphEncoder(GCN(3, 4, hidden_channels=8, num_layers=2))
    rows = encoder(grown)[NODE]
    assert len(rows) == sum(nodes.num_sampled[:2])
    assert len(encoder(with_hop_of_seeds(_whole()))[NODE]) == 200


def test_no_share_is_the_batch_itself():
    batch = _whole()
    assert drop_edges(batch, 0.0, KEY) is batch
    assert mask_features(batch, 0.0, KEY) is batch
