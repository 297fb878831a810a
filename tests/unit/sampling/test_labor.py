"""LABOR sampling against its definition, the law of its draws, and how many nodes it gives."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.sampling import LocalGraphStore, NeighborSampler
from raygnn.sampling.exclusion import Exclusion
from raygnn.sampling.protocols import PickRequest
from raygnn.sampling.temporal import Horizon, Temporal
from tests.small_graph import EDGE, NODE, SmallGraph, random_graph
from tests.unit.sampling.reference import chain, check_law, fnv1a

NODE_0 = np.zeros(1, np.int64)
_MASK = 2**32 - 1


def _mixed(bits: int) -> int:
    bits = ((bits ^ (bits >> 16)) * 0x85EBCA6B) & _MASK
    bits = ((bits ^ (bits >> 13)) * 0xC2B2AE35) & _MASK
    return bits ^ (bits >> 16)


def _rank(key: int, neighbor: int, copy: int) -> int:
    low, high = key & _MASK, key >> 32
    rank = _mixed(_mixed(neighbor ^ low) ^ high)
    for _ in range(copy):
        rank = _mixed(rank ^ high ^ 0x9E3779B1)
    return rank


def _expected(key: int, neighbors: list[int], left: list[bool], fanout: int) -> list[int]:
    """Numbers of the edges that a node takes: those of the largest ranks, in their order."""
    seen: dict[int, int] = defaultdict(int)
    ranked = []
    for edge, (neighbor, is_left) in enumerate(zip(neighbors, left, strict=True)):
        if is_left:
            ranked.append((_rank(key, neighbor, seen[neighbor]), edge))
        seen[neighbor] += 1
    if fanout != -1:
        ranked = sorted(ranked)[max(len(ranked) - fanout, 0) :]
    return sorted(edge for _, edge in ranked)


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.sampled_from([(3, 40), (12, 300), (200, 1500)]),
    index_dtype=st.sampled_from(["int32", "int64"]),
    has_times=st.booleans(),
    fanout=st.sampled_from([-1, 1, 2, 7, 90]),
    excluded=st.sampled_from([0.0, 0.1, 0.8]),
)
def test_nodes_take_the_edges_of_the_largest_ranks(
    seed, sizes, index_dtype, has_times, fanout, excluded
):
    rng = np.random.default_rng(seed)
    num_nodes, num_edges = sizes
    small = random_graph(num_nodes, num_edges, seed, index_dtype)
    small.edges = {EDGE: (rng.integers(0, num_nodes, num_edges), small.edges[EDGE][1] // 4)}
    if has_times:
        small.times = {EDGE: rng.integers(0, 9, num_edges)}
    graph = LocalGraphStore(small.bundle)
    adjacency, nodes = graph.adjacency(EDGE), rng.permutation(num_nodes)
    pairs = set(
        zip(*(ids[rng.random(num_edges) < excluded] for ids in small.edges[EDGE]), strict=False)
    )
    exclude = None
    if pairs:
        both = np.array(list(pairs))
        exclude = Exclusion.of(both[:, 1].copy(), both[:, 0].copy())
    picks = graph.pick(EDGE, PickRequest(nodes, fanout, seed, 2, exclude=exclude, by_neighbor=True))
    key = chain(seed, fnv1a("__".join(EDGE)), 2)
    for i, (first, last) in enumerate(pairwise(picks.offsets)):
        start, stop = adjacency.indptr[nodes[i] : nodes[i] + 2]
        neighbors = adjacency.indices[start:stop].tolist()
        left = [(n, nodes[i]) not in pairs for n in neighbors]
        edges = start + np.array(_expected(key, neighbors, left, fanout), np.int64)
        e_id = edges if adjacency.e_id is None else adjacency.e_id[edges]
        assert picks.e_id[first:last].tolist() == e_id.tolist()
        assert picks.neighbors[first:last].tolist() == adjacency.indices[edges].tolist()


def _star(neighbors: list[int], times: list[int] | None = None) -> LocalGraphStore:
    """Node 0 with edges from some nodes."""
    edges = {EDGE: (np.array(neighbors), np.zeros(len(neighbors), np.int64))}
    small = SmallGraph({NODE: max(neighbors) + 1}, edges)
    if times is not None:
        small.times = {EDGE: np.array(times)}
    return LocalGraphStore(small.bundle)


@pytest.mark.parametrize("times", [None, [3, 1, 2, 0, 5, 4]])
def test_each_set_of_edges_is_as_likely_as_any_other(times):
    """Also where some are parallel."""
    graph, num_rounds = _star([1, 2, 2, 2, 4, 5], times), 6000
    counts = dict.fromkeys(combinations(range(6), 3), 0)
    for key in range(num_rounds):
        request = PickRequest(NODE_0, 3, key, 0, by_neighbor=True)
        counts[tuple(graph.pick(EDGE, request).e_id.tolist())] += 1
    check_law(np.array(list(counts.values())), num_rounds / len(counts))


def test_means_have_the_expectation_and_variance_of_uniform_draws():
    values = np.array([0.0, 1.0, 5.0, -2.0, 3.0, 3.0, 8.0])
    degree, fanout, num_rounds = len(values), 3, 20_000
    graph = _star(list(range(degree)))
    subsets = list(combinations(values, fanout))
    assert len(subsets) == comb(degree, fanout)
    law = np.mean(subsets, axis=1)
    means = np.empty(num_rounds)
    for key in range(num_rounds):
        request = PickRequest(NODE_0, fanout, key, 0, by_neighbor=True)
        means[key] = values[graph.pick(EDGE, request).neighbors].mean()
    assert abs(means.mean() - values.mean()) < 4 * law.std() / np.sqrt(num_rounds)
    assert means.var() == pytest.approx(law.var(), rel=0.04)


def test_nodes_with_the_same_neighbors_take_the_same():
    source, target = np.arange(20).repeat(20), np.tile(np.arange(20), 20)
    graph = LocalGraphStore(SmallGraph({NODE: 20}, {EDGE: (source, target)}).bundle)
    nodes = np.arange(20)
    picks = graph.pick(EDGE, PickRequest(nodes, 4, 3, 0, by_neighbor=True))
    assert len(set(map(tuple, picks.neighbors.reshape(20, 4).tolist()))) == 1
    # of more edges a node takes those that it would take of fewer
    more = graph.pick(EDGE, PickRequest(nodes[:1], 9, 3, 0, by_neighbor=True))
    assert set(picks.neighbors[:4].tolist()) < set(more.neighbors.tolist())
    other = graph.pick(EDGE, PickRequest(nodes[:1], 9, 3, 1, by_neighbor=True))
    assert more.neighbors.tolist() != other.neighbors.tolist(), "hops draw for themselves"


def test_a_batch_has_fewer_nodes_and_as_many_edges_of_its_seeds():
    graph = LocalGraphStore(random_graph(2000, 60_000).bundle)
    uniform, labor = (NeighborSampler(graph, [10, 10], labor=on) for on in (False, True))
    seeds = {NODE: np.arange(200)}
    one, other = uniform.sample(seeds, 1), labor.sample(seeds, 1)
    assert one.num_sampled_edges[EDGE][0] == other.num_sampled_edges[EDGE][0]
    assert other.num_sampled_nodes[NODE][1] < 0.8 * one.num_sampled_nodes[NODE][1]
    again = labor.sample(seeds, 2)
    assert again.edge[EDGE].tolist() != other.edge[EDGE].tolist(), "each batch draws anew"


def test_disjoint_neighborhoods_draw_for_themselves():
    graph = LocalGraphStore(random_graph(100, 4000).bundle)
    sampler = NeighborSampler(graph, [5, 3], labor=True, disjoint=True)
    subgraph = sampler.sample({NODE: np.array([7, 7])}, 5)
    row, col = subgraph.edge_index[EDGE]
    taken = [set(subgraph.node[NODE][row[col == seed]].tolist()) for seed in (0, 1)]
    assert taken[0] != taken[1]


def test_times_narrow_what_is_drawn_from():
    graph = _star(list(range(1, 41)), times=list(range(40)))
    horizon = Horizon(Temporal(), np.array([19]))
    request = PickRequest(NODE_0, 5, 3, 0, horizon=horizon, by_neighbor=True)
    picks = graph.pick(EDGE, request)
    assert len(picks.neighbors) == 5
    assert picks.neighbors.max() <= 20


def test_relations_draw_for_themselves():
    """So that sums over relations have the variance of uniform draws."""
    types = [(NODE, name, NODE) for name in ("likes", "follows")]
    both = np.arange(60), np.zeros(60, np.int64)
    graph = LocalGraphStore(SmallGraph({NODE: 60}, dict.fromkeys(types, both)).bundle)
    likes, follows = (graph.pick(t, PickRequest(NODE_0, 9, 0, 0, by_neighbor=True)) for t in types)
    assert likes.neighbors.tolist() != follows.neighbors.tolist()
