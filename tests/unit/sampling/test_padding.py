"""Padded samples hold what was sampled, in one of a few sizes."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest

from raygnn.sampling import LocalGraphStore, NeighborSampler
from raygnn.sampling.padding import NUM_SIZES, Padding
from raygnn.sampling.protocols import SampledSubgraph
from tests.small_graph import SmallGraph

FOLLOWS, BUYS, SELLS = ("user", "follows", "user"), ("user", "buys", "item"), ("item", "by", "user")
NUM_NODES = {"user": 80, "item": 50}
BATCH, NUM_BATCHES = 12, 60


@pytest.fixture(scope="module", params=["no loops", "loops", "no purchases"])
def samples(request: pytest.FixtureRequest) -> tuple[Padding, list[SampledSubgraph]]:
    """Samples of users, some of which repeat, in a graph with a hub."""
    rng = np.random.default_rng(0)
    edges = {}
    for edge_type, number in {FOLLOWS: 300, BUYS: 200, SELLS: 90}.items():
        source = rng.integers(0, NUM_NODES[edge_type[0]], number)
        target = rng.integers(0, NUM_NODES[edge_type[2]], number) * (rng.random(number) < 0.8)
        keep = np.full(number, edge_type != BUYS or request.param != "no purchases")
        if edge_type == FOLLOWS and request.param == "no loops":
            keep = source != target
        edges[edge_type] = source[keep], target[keep].astype(np.int64)
    graph = LocalGraphStore(SmallGraph(NUM_NODES, edges).bundle)
    sampler = NeighborSampler(graph, [4, 3, 2])
    made = [
        sampler.sample({"user": rng.integers(0, NUM_NODES["user"], BATCH)}, key)
        for key in range(NUM_BATCHES)
    ]
    smaller = sampler.sample({"user": np.arange(5)}, 0)
    return Padding(made[0], graph), [*made, smaller]


def test_sampled_nodes_and_edges_stay_in_their_order(samples):
    padding, made = samples
    for sample in made[:-1]:
        padded = padding(sample)
        assert padded.num_added_edges is not None
        place = {t: _places(sample, padded, t) for t in sample.node}
        for node_type, nodes in sample.node.items():
            assert np.array_equal(padded.node[node_type][place[node_type]], nodes)
        for edge_type, (row, col) in sample.edge_index.items():
            neighbor, _, sampler = edge_type
            new_row, new_col = padded.edge_index[edge_type]
            is_sampled = np.isin(new_col, place[sampler])
            assert np.array_equal(new_row[is_sampled], place[neighbor][row])
            assert np.array_equal(new_col[is_sampled], place[sampler][col])
            assert np.array_equal(padded.edge[edge_type][is_sampled], sample.edge[edge_type])
        assert np.array_equal(padded.seed_index["user"], sample.seed_index["user"])


def test_a_padded_sample_is_a_sample(samples):
    padding, made = samples
    for padded in map(padding, made[:-1]):
        for (neighbor, _, sampler), (row, col) in padded.edge_index.items():
            edge_type = neighbor, _, sampler
            counts = np.bincount(col, minlength=len(padded.dst_ptr[edge_type]) - 1)
            assert np.array_equal(np.diff(padded.dst_ptr[edge_type]), counts)
            assert (np.diff(col) >= 0).all()
            bounds = list(accumulate(padded.num_sampled_edges[edge_type], initial=0))
            for hop, (first, last) in enumerate(pairwise(bounds)):
                reached = sum(padded.num_sampled_nodes[neighbor][: hop + 2])
                assert (row[first:last] < reached).all()
                frontier = sum(padded.num_sampled_nodes[sampler][: hop + 1])
                assert (col[first:last] < frontier).all()
        for node_type, nodes in padded.node.items():
            assert len(nodes) == sum(padded.num_sampled_nodes[node_type])


def test_sizes_are_few_and_added_edges_are_counted(samples):
    padding, made = samples
    sizes = set()
    for sample in made[:-1]:
        padded = padding(sample)
        loops = {t: int((row == col).sum()) for t, (row, col) in padded.edge_index.items()}
        sizes.add(str((padded.num_sampled_nodes, padded.num_sampled_edges, loops[FOLLOWS])))
        total, before = (sum(map(len, each.edge.values())) for each in (padded, sample))
        assert padded.num_added_edges == total - before
    assert len(sizes) <= NUM_SIZES


def test_a_smaller_batch_stays_as_it_is(samples):
    padding, (*_, smaller) = samples
    assert padding(smaller) is smaller


def _places(sample: SampledSubgraph, padded: SampledSubgraph, node_type: str) -> np.ndarray:
    """int64 [num_nodes], places of sampled nodes among the padded ones."""
    have, want = (each.num_sampled_nodes[node_type] for each in (sample, padded))
    starts = accumulate(want, initial=0)
    return np.concatenate([start + np.arange(n) for start, n in zip(starts, have, strict=False)])
