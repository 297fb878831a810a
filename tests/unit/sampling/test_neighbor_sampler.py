"""The sampler against its definition, and what holds of every sample."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.sampling import LocalGraphStore, NeighborSampler
from raygnn.sampling.protocols import PickRequest, SampledSubgraph
from raygnn.sampling.scratch import BufferPool
from tests.errors import raises
from tests.small_graph import EDGE, NODE, SmallGraph, random_graph
from tests.unit.sampling import reference

FOLLOWS, BUYS, SELLS = ("user", "follows", "user"), ("user", "buys", "item"), ("item", "by", "user")


def _edges(draw: st.DrawFn, num_src: int, num_dst: int) -> tuple[np.ndarray, np.ndarray]:
    """Few nodes, so that there are parallel edges and self-loops; often a hub."""
    if num_src == 0 or num_dst == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    source, target = st.integers(0, num_src - 1), st.integers(0, num_dst - 1)
    pairs = draw(st.lists(st.tuples(source, target), max_size=40))
    if draw(st.booleans()):
        pairs += [(i % num_src, 0) for i in range(draw(st.integers(0, 150)))]
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


@st.composite
def _small_graphs(draw: st.DrawFn) -> SmallGraph:
    if draw(st.booleans()):
        size = draw(st.integers(0, 12))
        small = SmallGraph({NODE: size}, {EDGE: _edges(draw, size, size)})
    else:
        sizes = {"user": draw(st.integers(1, 8)), "item": draw(st.integers(0, 8))}
        edges = {et: _edges(draw, sizes[et[0]], sizes[et[2]]) for et in (FOLLOWS, BUYS, SELLS)}
        small = SmallGraph(sizes, edges)
    small.index_dtype = draw(st.sampled_from(["int32", "int64"]))
    if draw(st.booleans()):
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        small.times = {et: rng.integers(0, 5, len(ends[0])) for et, ends in small.edges.items()}
    return small


def _expected(
    sampler: NeighborSampler, seeds: dict[str, list[int]], key: int, exclude: dict | None = None
) -> dict:
    """Of the graph without the excluded pairs."""
    graph = sampler.graph
    adjacency = {}
    for edge_type in graph.edge_types:
        indptr, indices, e_id = graph.adjacency(edge_type)
        e_id = np.arange(len(indices)) if e_id is None else e_id
        adjacency[edge_type] = [
            [(int(indices[i]), int(e_id[i])) for i in range(start, stop)]
            for start, stop in pairwise(indptr)
        ]
        for source, target in (exclude or {}).get(edge_type, np.empty((2, 0), np.int64)).T.tolist():
            own = adjacency[edge_type]
            own[target] = [edge for edge in own[target] if edge[0] != source]
    pairs = {et: (et[0], et[2]) for et in graph.edge_types}
    return reference.sample(adjacency, pairs, seeds, sampler.fanouts, key)


def _as_lists(subgraph: SampledSubgraph) -> dict:
    return {
        "node": {t: nodes.tolist() for t, nodes in subgraph.node.items()},
        "edges": {
            et: list(zip(*edge_index.tolist(), subgraph.edge[et].tolist(), strict=True))
            for et, edge_index in subgraph.edge_index.items()
        },
        "num_nodes": subgraph.num_sampled_nodes,
        "num_edges": subgraph.num_sampled_edges,
    }


@settings(max_examples=150)
@given(small=_small_graphs(), key=st.integers(0, 2**64 - 1), data=st.data())
def test_samples_are_those_of_the_definition(small, key, data):
    graph = LocalGraphStore(small.bundle)
    num_hops = data.draw(st.integers(1, 3))
    hops = st.lists(st.sampled_from([-1, 0, 1, 2, 3, 70]), min_size=num_hops, max_size=num_hops)
    fanouts = {et: data.draw(hops) for et in small.edges}
    seeds = {
        node_type: data.draw(st.lists(st.integers(0, size - 1), max_size=6))
        for node_type, size in small.nodes.items()
        if size
    }
    sampler = NeighborSampler(graph, fanouts)
    subgraph = sampler.sample({t: np.array(ids, np.int64) for t, ids in seeds.items()}, key)

    assert _as_lists(subgraph) == _expected(sampler, seeds, key)
    for node_type, ids in seeds.items():
        seed_index = subgraph.seed_index[node_type]
        assert subgraph.node[node_type][seed_index].tolist() == ids
    for edge_type, (_, col) in subgraph.edge_index.items():
        dst_ptr = subgraph.dst_ptr[edge_type]
        taker = edge_type[2]
        num_dst = sum(subgraph.num_sampled_nodes[taker][:-1])
        assert np.array_equal(dst_ptr, np.searchsorted(col, np.arange(num_dst + 1)))
        assert dst_ptr[-1] == len(col)


@settings(max_examples=150)
@given(small=_small_graphs(), key=st.integers(0, 2**64 - 1), data=st.data())
def test_excluding_pairs_is_sampling_from_the_graph_without_them(small, key, data):
    graph = LocalGraphStore(small.bundle)
    hops = st.lists(st.sampled_from([-1, 1, 2, 3, 70]), min_size=2, max_size=2)
    fanouts = {et: data.draw(hops) for et in small.edges}
    seeds = {t: list(range(min(size, 4))) for t, size in small.nodes.items()}
    exclude = {}
    for edge_type, (source, target) in small.edges.items():
        # of edges mostly, some twice, and of some nodes that have no edge
        share = data.draw(st.sampled_from([0.1, 0.5, 1.0]))
        taken = np.random.default_rng(key % 2**32).random(len(source)) < share
        given_pairs = np.stack([source[taken], target[taken]])
        if small.nodes[edge_type[0]] and small.nodes[edge_type[2]]:
            given_pairs = np.concatenate([given_pairs[:, ::-1], np.zeros((2, 1), np.int64)], 1)
        exclude[edge_type] = given_pairs
    sampler = NeighborSampler(graph, fanouts)
    arrays = {t: np.array(ids, np.int64) for t, ids in seeds.items()}
    subgraph = sampler.sample(arrays, key, exclude=exclude)
    assert _as_lists(subgraph) == _expected(sampler, seeds, key, exclude)


@pytest.mark.parametrize("fanouts", [[3, 2], [-1, -1], [60, 2]])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_isolated_seeds_are_as_those_without_edges(fanouts, share):
    small = random_graph()
    sampler = NeighborSampler(LocalGraphStore(small.bundle), fanouts)
    seeds, pairs = np.arange(0, 200, 3), np.stack(small.edges[EDGE])
    isolated = seeds[np.random.default_rng(0).random(len(seeds)) < share]
    found = sampler.sample({NODE: seeds}, 7, isolated={NODE: isolated})
    expected = sampler.sample(
        {NODE: seeds}, 7, exclude={EDGE: pairs[:, np.isin(pairs[1], isolated)]}
    )
    assert _as_lists(found) == _as_lists(expected)


def test_excluded_pairs_are_checked():
    sampler = NeighborSampler(LocalGraphStore(random_graph().bundle), [2])
    seeds = {NODE: np.arange(3)}
    with raises("sampling-seeds-range", "pairs of node__to__node", 1):
        sampler.sample(seeds, 1, exclude={EDGE: np.array([[0], [200]])})


@pytest.mark.parametrize("fanouts", [[15, 10], [5, -1], [100, 2]])
def test_what_holds_of_every_sample(fanouts):
    small = random_graph()
    csc = small.bundle.csc(EDGE)
    seeds = np.arange(0, 200, 9)
    sampler = NeighborSampler(LocalGraphStore(small.bundle), fanouts)
    subgraph = sampler.sample({NODE: seeds}, 5)
    nodes, (row, col) = subgraph.node[NODE], subgraph.edge_index[EDGE]
    e_id = subgraph.edge[EDGE]

    assert np.array_equal(nodes[: len(seeds)], seeds)
    assert len(np.unique(nodes)) == len(nodes) == sum(subgraph.num_sampled_nodes[NODE])
    assert np.array_equal(csc.indices[e_id], nodes[row])
    owner = np.repeat(np.arange(200), np.diff(csc.indptr))
    assert np.array_equal(owner[e_id], nodes[col])
    assert (np.diff(col) >= 0).all()
    degree = np.diff(csc.indptr)[nodes]
    first = 0
    for hop, fanout in enumerate(fanouts):
        last = first + subgraph.num_sampled_nodes[NODE][hop]
        taken = np.bincount(col, minlength=len(nodes))[first:last]
        most = len(e_id) if fanout == -1 else fanout
        assert np.array_equal(taken, np.minimum(degree[first:last], most))
        first = last
    assert len(np.unique(e_id)) == len(e_id)


@pytest.mark.parametrize("fanout", [3, 9, 60])
def test_each_edge_is_taken_equally_often(fanout):
    degree = 10 if fanout < 10 else 100
    ring = (np.arange(degree), np.zeros(degree, np.int64))
    small = SmallGraph({NODE: degree}, {EDGE: ring})
    graph = LocalGraphStore(small.bundle)
    num_rounds = 4000 if fanout < 10 else 1000
    node = np.zeros(1, np.int64)
    picks = np.stack(
        [graph.pick(EDGE, PickRequest(node, fanout, key, 0)).e_id for key in range(num_rounds)]
    )
    # The counts vary less than independent ones, by (1 - fanout / degree), which a comparison with
    # the plain law would hide.
    spread = (degree - fanout) / (degree - 1)
    counts = np.bincount(picks.ravel(), minlength=degree)
    reference.check_law(counts, num_rounds * fanout / degree, spread)


def test_pairs_of_edges_are_taken_equally_often():
    degree, num_rounds = 6, 6000
    small = SmallGraph({NODE: degree}, {EDGE: (np.arange(degree), np.zeros(degree, np.int64))})
    graph = LocalGraphStore(small.bundle)
    node = np.zeros(1, np.int64)
    counts = np.zeros((degree, degree))
    for key in range(num_rounds):
        a, b = sorted(graph.pick(EDGE, PickRequest(node, 2, key, 0)).e_id.tolist())
        counts[a, b] += 1
    pairs = counts[np.triu_indices(degree, 1)]
    reference.check_law(pairs, num_rounds / len(pairs))


def test_the_order_of_the_frontier_changes_no_pick():
    graph = LocalGraphStore(random_graph().bundle)
    nodes = np.arange(200)
    shuffled = np.random.default_rng(1).permutation(200)
    one, other = (graph.pick(EDGE, PickRequest(ids, 3, 7, 1)) for ids in (nodes, shuffled))
    taken = np.split(one.e_id, one.offsets[1:-1])
    again = np.split(other.e_id, other.offsets[1:-1])
    assert all(np.array_equal(taken[node], again[i]) for i, node in enumerate(shuffled))


def test_batches_of_any_size_follow_each_other():
    graph = LocalGraphStore(random_graph(20_000, 60_000).bundle)
    sampler = NeighborSampler(graph, [10, 10])
    for num_seeds in (0, 1, 5000, 2, 0):
        seeds = {NODE: np.arange(num_seeds)}
        fresh = NeighborSampler(graph, [10, 10]).sample(seeds, 1)
        assert _as_lists(sampler.sample(seeds, 1)) == _as_lists(fresh)


def test_threads_share_a_sampler():
    sampler = NeighborSampler(LocalGraphStore(random_graph(2000, 20_000).bundle), [10, 10])

    def sample(key: int) -> dict:
        return _as_lists(sampler.sample({NODE: np.arange(50) * (1 + key % 7)}, key))

    expected = [sample(key) for key in range(40)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(sample, range(40))) == expected


def test_a_pickled_sampler_gives_the_same():
    sampler = NeighborSampler(LocalGraphStore(random_graph().bundle), [4, 3])
    seeds = {NODE: np.arange(5)}
    expected = _as_lists(sampler.sample(seeds, 1))
    assert _as_lists(pickle.loads(pickle.dumps(sampler)).sample(seeds, 1)) == expected


def test_seeds_outside_of_the_graph_are_named():
    sampler = NeighborSampler(LocalGraphStore(random_graph().bundle), [2])
    for bad in (-1, 200):
        with raises("sampling-seeds-range", 1, 2, 200, f"[{bad}]"):
            sampler.sample({NODE: np.array([0, bad])}, 1)
    with raises("graph-node-type-unknown", "node type 'user'"):
        sampler.sample({"user": np.array([0])}, 1)
    for bad, shown in [(np.ones(3, bool), "bool of shape [3]"), (np.ones((1, 1)), "float64")]:
        with raises("sampling-seeds-type", shown):
            sampler.sample({NODE: bad}, 1)


def test_unknown_edge_type():
    graph = LocalGraphStore(random_graph().bundle)
    with raises("graph-edge-type-unknown", "user__buys__item", "node__to__node"):
        graph.pick(BUYS, PickRequest(np.arange(2), 1, 1, 0))


def test_memory_comes_back_with_the_last_tensor():
    pool = BufferPool()
    tensor = torch.from_numpy(pool.array((100, 4), np.float32))
    address = tensor.data_ptr()
    part = tensor[3:5]
    del tensor
    other = pool.array((100, 4), np.float32)
    assert other.ctypes.data != address
    del part
    again = pool.array((50, 8), np.int32)
    assert again.ctypes.data == address
    assert again.shape == (50, 8)
    assert again.dtype == np.int32


def test_larger_arrays_get_new_memory():
    pool = BufferPool()
    array = pool.array((10,), np.int64)
    array[:] = 1
    del array
    assert pool.array((1000,), np.int64).shape == (1000,)
    assert pool.array((0, 3), np.int64).shape == (0, 3)


def test_a_pickled_pool_starts_empty():
    pool = pickle.loads(pickle.dumps(BufferPool()))
    assert pool.array((2,), np.int8).shape == (2,)
