"""Batches of edges: what they have of their seeds, and no message that repeats one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raygnn.data.edge_types import EdgeType
from raygnn.data.links.supervision import SeedEdges
from raygnn.sampling.edge_loader import EdgeLoader, EdgePlan
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.stores import LocalFeatureStore, LocalGraphStore
from raygnn.sampling.temporal import Temporal
from tests.errors import raises
from tests.small_graph import SmallGraph

RATES, RATED_BY, KNOWS = ("user", "rates", "film"), ("film", "rated", "user"), ("user", "k", "user")
NUM = 9


def _graph(edge_type: EdgeType, *, timed: bool = False) -> SmallGraph:
    rng = np.random.default_rng(5)
    pairs = rng.integers(0, NUM, (2, 60))
    edges = {edge_type: (pairs[0], pairs[1])}
    reverses = {}
    if edge_type == RATES:
        edges[RATED_BY] = (pairs[1], pairs[0])
        reverses = {RATES: RATED_BY, RATED_BY: RATES}
    times = {et: rng.integers(0, 30, 60) for et in edges} if timed else {}
    return SmallGraph({"user": NUM, "film": NUM}, edges, reverses=reverses, times=times)


def _loader(
    graph: SmallGraph, edge_type: EdgeType, of_seeds: dict | None = None, **changes
) -> EdgeLoader:
    bundle = graph.bundle
    store = LocalGraphStore(bundle)
    edges = SeedEdges.of_bundle(bundle, edge_type, label_edges=False)
    temporal = Temporal("time", "uniform") if graph.times else None
    settings = {
        "sampler": NeighborSampler(store, [-1, -1], temporal=temporal),
        "columns": {},
        "edge_columns": {},
        "batch_size": 4,
        "split": "train",
        "seed": 0,
        "shuffle": True,
        **changes,
    }
    given = {"edges": edges, "labels": {"y": np.arange(60)}, **(of_seeds or {})}
    plan = EdgePlan(seeds=np.arange(60), reverse_types=graph.reverses, **given)
    return EdgeLoader(store, LocalFeatureStore(bundle), plan, **settings)


@pytest.mark.parametrize("edge_type", [RATES, KNOWS])
def test_seeds_and_their_reverses_carry_no_message(edge_type):
    graph = _graph(edge_type)
    loader = _loader(graph, edge_type)
    csc = {et: graph.bundle.csc(et) for et in graph.edges}
    seen = set()
    for index in range(loader.num_batches):
        batch = loader.build(0, index)
        source, target = batch.end_index.numpy()
        ids = {name: nodes.n_id.numpy() for name, nodes in batch.nodes.items()}
        sources, targets = ids[edge_type[0]][source], ids[edge_type[2]][target]
        expected = loader.plan.edges.ends(batch.input_id.numpy())
        np.testing.assert_array_equal([sources, targets], expected)
        np.testing.assert_array_equal(batch.y, batch.input_id)
        seen.update(batch.input_id.tolist())

        seeds = set(zip(sources.tolist(), targets.tolist(), strict=True))
        reverses = {(b, a) for a, b in seeds}
        for found_type, edges in batch.edges.items():
            row, col = edges.edge_index.numpy()
            taken = set(
                zip(ids[found_type[0]][row].tolist(), ids[found_type[2]][col].tolist(), strict=True)
            )
            banned = seeds | reverses if edge_type == KNOWS else seeds
            banned = reverses if found_type == RATED_BY else banned
            assert not taken & banned
            # All other in-edges of the seeds' ends are there.
            ends = set((sources if found_type[2] == edge_type[0] else targets).tolist())
            ends |= set(targets.tolist()) if edge_type == KNOWS else set()
            indptr, indices = csc[found_type].indptr, csc[found_type].indices
            every = {(int(s), v) for v in ends for s in indices[indptr[v] : indptr[v + 1]]}
            assert every - banned <= taken
    assert seen == set(range(60))


def test_each_edge_is_encoded_just_before_its_own_time():
    graph = _graph(RATES, timed=True)
    loader = _loader(graph, RATES)
    batch = loader.build(0, 1)
    assert loader.plan.edges.times is not None
    expected = loader.plan.edges.times[batch.input_id.numpy()] - 1
    for name, local in zip(("user", "film"), batch.end_index, strict=True):
        seed_time = batch.nodes[name].seed_time
        assert seed_time is not None
        np.testing.assert_array_equal(seed_time[local], expected)
    as_of = _loader(graph, RATES, of_seeds={"as_of": 7}).build(0, 1)
    assert set(as_of.nodes["user"].seed_time.tolist()) == {7}


@pytest.mark.parametrize("edge_type", [RATES, KNOWS])
def test_an_edge_sees_all_earlier_edges_of_its_ends_and_neither_itself_nor_later_ones(edge_type):
    graph = _graph(edge_type, timed=True)
    store = LocalGraphStore(graph.bundle)
    sampler = NeighborSampler(store, [-1], temporal=Temporal(), disjoint=True)
    batch = _loader(graph, edge_type, sampler=sampler, batch_size=60, shuffle=False).build(0, 0)
    source, target = SeedEdges.of_bundle(graph.bundle, edge_type, label_edges=False).ends(
        np.arange(60)
    )
    num_seen = 0
    for found_type, edges in batch.edges.items():
        is_reverse = found_type == RATED_BY
        time = np.asarray(graph.bundle.column(found_type, "time"))
        csc = graph.bundle.csc(found_type)
        into = np.repeat(np.arange(NUM), np.diff(csc.indptr))
        seed = batch.nodes[found_type[2]].seed[edges.edge_index[1]].numpy()
        own = np.asarray(graph.bundle.column(edge_type, "time"))
        for i in range(60):
            ends = [(60 + i, target[i])] if not is_reverse else [(i, source[i])]
            ends += [(i, source[i])] if edge_type == KNOWS else []
            for number, node in ends:
                earlier = np.flatnonzero((into == node) & (time < own[i]))
                np.testing.assert_array_equal(np.sort(edges.e_id[seed == number]), earlier)
                num_seen += len(earlier)
    assert num_seen > 100


def test_edges_without_times_are_refused():
    graph = _graph(RATES, timed=True)
    timeless = SeedEdges.of_pairs(RATES, np.arange(60) % NUM, np.arange(60) % NUM)
    with raises("links-no-times"):
        _loader(graph, RATES, of_seeds={"edges": timeless})


def test_features_of_the_seeds_are_concatenated():
    graph = _graph(RATES)
    wide, one = np.arange(120.0, dtype=np.float32).reshape(60, 2), np.arange(60, dtype=np.float32)
    graph.stored[RATES] = {"wide": wide, "one": one}
    graph.roles |= {"wide": "feature", "one": "feature"}
    batch = _loader(graph, RATES, of_seeds={"inputs": ["one", "wide"]}).build(0, 2)
    places = batch.input_id.numpy()
    np.testing.assert_array_equal(batch.inputs, np.column_stack([one[places], wide[places]]))
    assert _loader(graph, RATES).build(0, 2).inputs is None


@pytest.mark.parametrize("edge_type", [RATES, KNOWS])
def test_disjoint_edges_are_left_out_of_their_own_neighborhoods_alone(edge_type):
    """Each end takes what a sample of its edge alone takes, whatever else is in the batch."""
    graph = _graph(edge_type)
    store = LocalGraphStore(graph.bundle)
    sampler = NeighborSampler(store, [-1, -1, -1], disjoint=True)
    wide = _loader(graph, edge_type, sampler=sampler, batch_size=20, shuffle=False)
    single = _loader(graph, edge_type, sampler=sampler, batch_size=1, shuffle=False)
    shared = _loader(
        graph, edge_type, sampler=NeighborSampler(store, [-1, -1, -1]), batch_size=1, shuffle=False
    )
    for index in range(wide.num_batches):
        batch = wide.build(0, index)
        num = len(batch.input_id)
        for i, position in enumerate(batch.input_id.tolist()):
            alone, together = single.build(0, position), shared.build(0, position)
            both = [_edges_of(batch, number) for number in (i, num + i)]
            assert both == [_edges_of(alone, number) for number in (0, 1)]
            # What both ends take is what they take of the graph without the edge.
            assert both[0] | both[1] == _edges_of(together, None)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("edge_type", [RATES, KNOWS])
def test_outside_training_an_edge_has_one_neighborhood(edge_type, timed):
    """In any order, repeated, and in batches of any size and split."""
    graph = _graph(edge_type, timed=timed)
    temporal = Temporal("time", "uniform") if timed else None
    sampler = NeighborSampler(
        LocalGraphStore(graph.bundle), [2, 2], temporal=temporal, disjoint=True
    )
    plan = _loader(graph, edge_type).plan
    found: dict[int, set[tuple]] = {}
    for split, size in (("val", 20), ("infer", 7), ("infer", 1)):
        loader = _loader(
            graph, edge_type, sampler=sampler, split=split, batch_size=size, shuffle=False
        )
        loader.plan = replace(plan, seeds=np.random.default_rng(size).integers(0, 60, 60))
        for batch in loader.iterate(0):
            num = len(batch.input_id)
            for i, position in enumerate(batch.input_id.tolist()):
                ends = (tuple(sorted(_edges_of(batch, number))) for number in (i, num + i))
                found.setdefault(position, set()).add(tuple(ends))
    assert {len(neighborhoods) for neighborhoods in found.values()} == {1}


def _edges_of(batch, number: int | None) -> set[tuple]:
    """Edges in the neighborhood of a seed, by their type and position."""
    found = set()
    for edge_type, edges in batch.edges.items():
        e_id = edges.e_id
        if number is not None:
            e_id = e_id[batch.nodes[edge_type[2]].seed[edges.edge_index[1]] == number]
        found |= {(edge_type, position) for position in e_id.tolist()}
    return found
