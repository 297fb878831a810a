"""The sampler on a device gives the samples of `NeighborSampler`, here on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raygnn.sampling import LocalGraphStore, NeighborSampler
from raygnn.sampling.device_sampler import Capacities, DeviceSampler, why_not
from raygnn.sampling.protocols import SampledSubgraph, SampleRequest
from tests.small_graph import EDGE, NODE, SmallGraph, random_graph

CPU = torch.device("cpu")
FOLLOWS, BUYS, SELLS = ("user", "follows", "user"), ("user", "buys", "item"), ("item", "by", "user")


def _graph(kind: str) -> LocalGraphStore:
    """With parallel edges, self-loops, hubs, and nodes without edges."""
    rng = np.random.default_rng(0)
    if kind == "one type":
        return LocalGraphStore(random_graph(60, 900).bundle)
    sizes, edges = {"user": 50, "item": 20, "shop": 3}, {}
    for (source, name, target), number in {FOLLOWS: 400, BUYS: 150, SELLS: 40}.items():
        target_ids = rng.integers(0, sizes[target], number)
        target_ids[: number // 3] %= 2
        edges[source, name, target] = rng.integers(0, sizes[source], number), target_ids
    edges["shop", "near", "user"] = np.empty((2, 0), np.int64)
    return LocalGraphStore(SmallGraph(sizes, edges, "int64").bundle)


def _requests(graph: LocalGraphStore) -> list[SampleRequest]:
    """Seeds that repeat, with and without excluded edges and isolated seeds."""
    rng, requests = np.random.default_rng(1), []
    for number in range(6):
        seeds = {t: rng.integers(0, graph.num_nodes(t), 8) for t in graph.node_types}
        exclude, isolated = None, None
        if number >= 2:
            exclude = {}
            for edge_type in graph.edge_types:
                ends = [rng.integers(0, graph.num_nodes(t), 200) for t in edge_type[::2]]
                exclude[edge_type] = np.stack(ends)
        if number >= 4:
            isolated = {t: ids[:3] for t, ids in seeds.items()}
        key = int(rng.integers(0, 2**64, dtype=np.uint64))
        requests.append(SampleRequest(seeds, key, exclude=exclude, isolated=isolated))
    return requests


def _room(samples: list[SampledSubgraph]) -> Capacities:
    every = [Capacities.of(sample, spare=0.0) for sample in samples]
    nodes, edges = (
        {t: np.max([of_type[t] for of_type in part], axis=0).tolist() for t in part[0]}
        for part in ([each.nodes for each in every], [each.edges for each in every])
    )
    return Capacities(nodes, edges)


@pytest.mark.parametrize("kind", ["one type", "several types"])
@pytest.mark.parametrize(("replace", "fanouts"), [(False, [5, 3, 60]), (True, [4, 0, 3])])
def test_samples_are_those_of_a_host(kind, replace, fanouts):
    graph = _graph(kind)
    sampler = NeighborSampler(graph, fanouts, replace=replace)
    requests = _requests(graph)
    expected = [sampler.sample(**request.arguments) for request in requests]
    on_device = DeviceSampler(sampler, _room(expected), CPU)
    for request, sample in zip(requests, expected, strict=True):
        found = on_device.sample(request).on_host()
        np.testing.assert_equal(vars(found), vars(sample))


def test_what_does_not_fit_is_flagged_and_leaves_no_trace():
    graph = _graph("several types")
    sampler = NeighborSampler(graph, [5, 3])
    requests = _requests(graph)
    expected = [sampler.sample(**request.arguments) for request in requests]
    room = _room(expected)
    median = np.median([sample.num_sampled_edges[FOLLOWS] for sample in expected], axis=0)
    smaller = {**room.edges, FOLLOWS: median.astype(int).tolist()}
    tight = DeviceSampler(sampler, Capacities(room.nodes, smaller), CPU)
    fit = 0
    for request, sample in zip(requests, expected, strict=True):
        found = tight.sample(request).on_host()
        has_room = all(
            n <= size
            for t, hops in sample.num_sampled_edges.items()
            for n, size in zip(hops, smaller[t], strict=True)
        )
        assert (found is not None) == has_room
        if found is not None:
            np.testing.assert_equal(vars(found), vars(sample))
        fit += has_room
    assert 0 < fit < len(requests)


def test_a_device_names_what_only_a_host_samples():
    graph = LocalGraphStore(random_graph().bundle)
    assert why_not(NeighborSampler(graph, [3, 2], replace=True)) is None
    assert why_not(NeighborSampler(graph, [3, -1])) == "sampling.fanouts with -1"
    assert why_not(NeighborSampler(graph, [3], weight="weight")) == "sampling.weight='weight'"
    assert why_not(NeighborSampler(graph, [3], labor=True)) == "sampling.type='labor'"
    assert why_not(NeighborSampler(graph, {EDGE: [3]}, disjoint=True)) == "sampling.disjoint"
    assert NODE in graph.node_types
