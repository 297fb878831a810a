"""Sampling in time, against what each edge and each node may be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.links.supervision import SupervisionEdges
from raygnn.sampling import LinkPlan, LocalGraphStore, NeighborLoader, NeighborSampler, blocks_of
from raygnn.sampling.temporal import Temporal
from tests.batches import link_loader, node_loader
from tests.errors import raises
from tests.small_graph import EDGE, NODE, SmallGraph, random_graph

TIMES = {"y": "label", "time": "time"}
IN_TIME = {"temporal": Temporal()}


def _small_graph(seed: int, dtype: str, edge_times: bool, node_times: bool) -> SmallGraph:
    small = random_graph(25, 300, seed)
    rng = np.random.default_rng(seed)
    small.roles = TIMES
    if edge_times:
        small.times = {EDGE: rng.integers(-5, 15, 300).astype(dtype)}
    if node_times:
        small.stored[NODE]["time"] = rng.integers(-5, 15, 25).astype(dtype)
    return small


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtypes=st.tuples(*[st.sampled_from(["int64", "float64"])] * 2),
    has=st.sampled_from([(True, False), (False, True), (True, True)]),
    strategy=st.sampled_from(["uniform", "last", "labor"]),
    fanouts=st.lists(st.sampled_from([-1, 1, 3, 60]), min_size=1, max_size=3),
    weighted=st.booleans(),
    excluded=st.sampled_from([0.0, 0.4]),
    window=st.sampled_from([None, 1, 4, 4.5]),
)
def test_nothing_is_later_or_older_than_its_seed_allows(
    seed, dtypes, has, strategy, fanouts, weighted, excluded, window
):
    small = _small_graph(seed, dtypes[0], *has)
    rng = np.random.default_rng(seed)
    small.stored[EDGE]["weight"] = np.where(rng.random(300) < 0.3, 0, rng.random(300))
    weight = "weight" if weighted and strategy == "uniform" else None
    graph = LocalGraphStore(small.bundle)
    labor = strategy == "labor"
    temporal = Temporal(strategy=strategy.replace("labor", "uniform"), window=window)
    sampler = NeighborSampler(graph, fanouts, weight=weight, temporal=temporal, labor=labor)
    seeds = rng.integers(0, 25, 6)
    times = rng.integers(-8, 18, 6).astype(dtypes[1]) + (0.5 if dtypes[1] == "float64" else 0)
    source, target = small.edges[EDGE]
    out = rng.random(300) < excluded
    pairs = np.stack([source[out], target[out]])
    subgraph = sampler.sample({NODE: seeds}, seed, exclude={EDGE: pairs}, times={NODE: times})

    nodes, node_time = subgraph.node[NODE], subgraph.seed_time[NODE]
    assert len(set(zip(nodes.tolist(), node_time.tolist(), strict=True))) == len(nodes)
    assert np.array_equal(nodes[subgraph.seed_index[NODE]], seeds)
    assert np.array_equal(node_time[subgraph.seed_index[NODE]], times)
    row, col = subgraph.edge_index[EDGE]
    assert np.array_equal(node_time[row], node_time[col])

    csc = small.bundle.csc(EDGE)
    ends = [csc.indices, np.repeat(np.arange(25), np.diff(csc.indptr))]
    neighbor, taker = ends
    edge_time = small.bundle.column(EDGE, "time") if has[0] else np.full(300, -np.inf)
    born_at = small.stored[NODE]["time"] if has[1] else np.full(25, -np.inf)
    born = born_at[neighbor]
    codes = ends[0] * 25 + ends[1]
    is_there = ~np.isin(codes, pairs[0] * 25 + pairs[1])
    if weight:
        is_there &= small.stored[EDGE]["weight"] > 0
    e_id, dst_ptr = subgraph.edge[EDGE], subgraph.dst_ptr[EDGE]
    assert np.array_equal(neighbor[e_id], nodes[row])
    assert np.array_equal(taker[e_id], nodes[col])
    hops = np.repeat(np.arange(len(fanouts)), subgraph.num_sampled_nodes[NODE][:-1])
    for place, hop in enumerate(hops):
        own = e_id[dst_ptr[place] : dst_ptr[place + 1]]
        limit = node_time[place]
        may = (taker == nodes[place]) & (edge_time <= limit) & (born <= limit) & is_there
        if window is not None:  # an edge without a time is as old as the younger of its ends
            may &= (edge_time if has[0] else np.maximum(born, born_at[taker])) >= limit - window
        fanout = fanouts[hop]
        count = may.sum() if fanout == -1 else min(may.sum(), fanout)
        assert len(set(own.tolist())) == len(own) == count
        assert may[own].all()
        if strategy == "last" and has[0]:
            assert sorted(edge_time[own]) == sorted(edge_time[may])[len(edge_time[may]) - count :]


@pytest.mark.parametrize("has", [(True, False), (False, True)])
def test_seeds_of_one_time_do_not_know_of_others(has):
    small = _small_graph(3, "int64", *has)
    sampler = NeighborSampler(LocalGraphStore(small.bundle), [3, 3], temporal=Temporal())
    seeds, times = np.array([4, 4, 9, 1]), np.array([12, 3, 12, 3])

    def edges(seeds: np.ndarray, times: np.ndarray) -> set[tuple[int, int, int]]:
        found = sampler.sample({NODE: seeds}, 8, times={NODE: times})
        nodes, clock = found.node[NODE], found.seed_time[NODE]
        col = found.edge_index[EDGE][1]
        ids = zip(clock[col].tolist(), nodes[col].tolist(), found.edge[EDGE].tolist(), strict=True)
        return set(ids)

    together = edges(seeds, times)
    apart = [edges(seeds[times == time], times[times == time]) for time in (3, 12)]
    assert together == apart[0] | apart[1]
    assert apart[0]


def _loader(small: SmallGraph) -> NeighborLoader:
    columns = {"x": "x", "y": "y"}
    return node_loader(small, sampling=IN_TIME, columns=columns, shuffle=True)


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
def test_nodes_are_loaded_as_of_their_own_time(dtype):
    small = _small_graph(1, dtype, edge_times=True, node_times=True)
    own = torch.from_numpy(small.stored[NODE]["time"])
    edge_time = torch.from_numpy(small.bundle.column(EDGE, "time"))
    for batch in _loader(small).iterate(0):
        nodes, edges = batch.nodes[NODE], batch.edges[EDGE]
        assert nodes.seed_time[batch.seed_index].tolist() == own[batch.input_id].tolist()
        assert (edge_time[edges.e_id] <= nodes.seed_time[edges.edge_index[1]]).all()
        assert torch.equal(nodes.columns["x"][:, 0], nodes.n_id.float())
        assert torch.equal(batch.y, batch.input_id % 7)
        assert blocks_of(batch)[-1].num_dst == nodes.num_seeds


def _links(small: SmallGraph) -> tuple[SupervisionEdges, np.ndarray]:
    """The pairs of a small as links, each anchor with a hard negative, and their times."""
    csc, time = small.bundle.csc(EDGE), small.bundle.column(EDGE, "time")
    target = np.repeat(np.arange(25), np.diff(csc.indptr))
    pairs, first = np.unique(np.stack([csc.indices, target]), axis=1, return_index=True)
    anchors, begins = np.unique(pairs[0], return_index=True)
    indptr = np.append(begins, pairs.shape[1]).astype(np.int64)
    hard = SupervisionEdges(
        NODE, NODE, None, anchors, np.arange(len(anchors) + 1), np.full(len(anchors), 3)
    )
    times = time[first]
    return SupervisionEdges(NODE, NODE, EDGE, anchors, indptr, pairs[1], times, hard), times


def test_links_are_loaded_as_of_the_earliest_of_their_group():
    small = _small_graph(2, "int64", edge_times=True, node_times=False)
    links, times_of_links = _links(small)
    time = small.bundle.column(EDGE, "time")
    plan = LinkPlan(num_negatives=200, max_labels_per_anchor=3, in_batch=True)
    loader = link_loader(small, links, [-1, 2], sampling=IN_TIME, plan=plan, batch_size=80)
    for batch in loader.iterate(0):
        nodes, edges = batch.nodes[NODE], batch.edges[EDGE]
        times = torch.from_numpy(times_of_links)[batch.links.position]
        num_groups = min(32, len(times))
        assert (times.diff() >= 0).all()
        assert batch.links.group.unique().tolist() == list(range(num_groups))
        assert batch.links.group.bincount().diff().abs().max() <= 1
        earliest = torch.stack([times[batch.links.group == i].min() for i in range(num_groups)])
        of_links, of_random = earliest[batch.links.group], earliest[batch.links.random.group]
        assert torch.equal(nodes.n_id[batch.links.index], batch.links.id)
        assert torch.equal(nodes.seed_time[batch.links.index], of_links.expand(2, -1))
        assert torch.equal(nodes.n_id[batch.links.random.index], batch.links.random.id)
        assert torch.equal(nodes.seed_time[batch.links.random.index], of_random)
        assert batch.links.random.group.bincount().min() >= 200 // num_groups
        assert (torch.from_numpy(time)[edges.e_id] <= nodes.seed_time[edges.edge_index[1]]).all()
        # each anchor of a group has its hard negatives, as of then
        assert batch.links.hard.id.tolist() == [3] * len(batch.links.query.unique())
        for query in batch.links.query.unique():
            (when,) = of_links[batch.links.query == query].unique()
            hard = batch.links.hard.index[batch.links.hard.query == query]
            assert nodes.seed_time[hard].tolist() == [when]


def test_evaluation_goes_in_the_order_of_time():
    small = _small_graph(2, "int64", edge_times=True, node_times=False)
    links, times = _links(small)
    plan = LinkPlan(num_negatives=7, is_evaluation=True)
    changes = {"plan": plan, "batch_size": 80, "shuffle": False}
    batches = list(link_loader(small, links, [-1, 2], sampling=IN_TIME, **changes).iterate(0))
    order = torch.cat([batch.links.position for batch in batches])
    assert order.tolist() == np.argsort(times, kind="stable").tolist()
    for batch in batches:
        of_links = batch.nodes[NODE].seed_time[batch.links.index[0]]
        assert len(of_links.unique()) <= 8
        assert (of_links <= torch.from_numpy(times)[batch.links.position]).all()
        chosen = batch.links.random.index[batch.links.candidate]
        assert chosen.shape == (len(of_links), 7)
        assert torch.equal(batch.nodes[NODE].seed_time[chosen], of_links.unsqueeze(1).expand(-1, 7))
        # the same nodes at each time, and distinct ones
        ids = batch.links.random.id.view(int(batch.links.group.max()) + 1, -1)
        assert (ids == ids[0]).all()
        assert len(ids[0].unique()) == ids.shape[1]


def test_temporal_links_have_times():
    small = _small_graph(2, "int64", edge_times=True, node_times=False)
    links, _ = _links(small)
    with raises("links-no-times"):
        link_loader(small, replace(links, times=None), sampling=IN_TIME)


def test_what_is_refused():
    graph = LocalGraphStore(_small_graph(0, "int64", edge_times=True, node_times=False).bundle)
    with raises("sampling-time-column", "when"):
        NeighborSampler(graph, [2], temporal=Temporal("when"))
    sampler = NeighborSampler(graph, [2], temporal=Temporal())
    with raises("sampling-seed-times-missing"):
        sampler.sample({NODE: np.arange(2)}, 1)
    with raises("sampling-time-column", "node"):
        _loader(_small_graph(0, "int64", edge_times=True, node_times=False))
