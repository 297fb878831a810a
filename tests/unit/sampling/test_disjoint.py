"""A neighborhood for each seed: nothing is shared, and each is what its seed alone would have."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.bundle import SeedRows
from raygnn.data.links.supervision import SupervisionEdges
from raygnn.models import GraphSAGE
from raygnn.sampling import LocalGraphStore, NeighborLoader, NeighborSampler, blocks_of
from raygnn.sampling.loader import RowPlan
from raygnn.sampling.temporal import Temporal
from tests.batches import check_ids, link_loader, node_loader
from tests.errors import raises
from tests.small_graph import EDGE, NODE, SmallGraph, random_graph


def _edges_of_seeds(subgraph: Any, num_seeds: int) -> list[Counter]:
    """Edges of each seed's neighborhood as (hop, taker, e_id)."""
    nodes, seed = subgraph.node[NODE], subgraph.seed[NODE]
    row, col = subgraph.edge_index[EDGE]
    assert np.array_equal(seed[row], seed[col])
    hops = np.repeat(np.arange(10), np.pad(subgraph.num_sampled_edges[EDGE], (0, 10))[:10])
    found = [Counter() for _ in range(num_seeds)]
    for edge, taker, hop in zip(subgraph.edge[EDGE], col, hops, strict=True):
        found[seed[taker]][int(hop), int(nodes[taker]), int(edge)] += 1
    return found


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    fanouts=st.lists(st.sampled_from([-1, 1, 3]), min_size=1, max_size=3),
    weighted=st.booleans(),
)
def test_each_seed_has_what_it_would_have_alone(seed, fanouts, weighted):
    small = random_graph(30, 120, seed)
    graph = LocalGraphStore(small.bundle)
    weight = "weight" if weighted else None
    seeds = np.random.default_rng(seed).integers(0, 30, 5)
    apart = NeighborSampler(graph, fanouts, weight=weight, disjoint=True)
    subgraph = apart.sample({NODE: seeds}, seed)
    pairs = list(zip(subgraph.node[NODE].tolist(), subgraph.seed[NODE].tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert np.array_equal(subgraph.seed_index[NODE], np.arange(5))
    assert np.array_equal(subgraph.node[NODE][:5], seeds)
    assert np.array_equal(subgraph.seed[NODE][:5], np.arange(5))
    # Draws differ, their numbers do not; of all neighbors the very edges are the same.
    shared = NeighborSampler(graph, fanouts, weight=weight)
    for number, found in enumerate(_edges_of_seeds(subgraph, 5)):
        assert set(found.values()) <= {1}
        alone = shared.sample({NODE: seeds[number : number + 1]}, seed)
        if fanouts == [-1] * len(fanouts):
            edges = Counter(e for _, _, e in found.elements())
            assert edges == Counter(alone.edge[EDGE].tolist())
        assert sum(hop == 0 for hop, _, _ in found) == alone.num_sampled_edges[EDGE][0]


def test_copies_of_a_node_draw_for_themselves():
    size = 202
    source = np.concatenate([np.arange(2, size), [2, 2]])
    target = np.concatenate([np.full(200, 2), [0, 1]])
    graph = LocalGraphStore(SmallGraph({NODE: size}, {EDGE: (source, target)}).bundle)
    subgraph = NeighborSampler(graph, [1, 20], disjoint=True).sample({NODE: np.arange(2)}, 7)
    first, second = ({e for _, _, e in found} for found in _edges_of_seeds(subgraph, 2))
    assert len(first) == len(second) == 21
    assert len(first & second) < 12


def _loader(
    small: SmallGraph, fanouts: list[int], leaves: frozenset[str] = frozenset(), **options: Any
) -> NeighborLoader:
    changes = {"seeds": np.arange(0, 200, 3), "batch_size": 16, "shuffle": True}
    return node_loader(small, fanouts, sampling=options, shared_leaves=leaves, **changes)


def test_batches_say_whose_each_node_is_and_encode_alike():
    small = random_graph()
    torch.manual_seed(0)
    encoder = GraphSAGE(3, 4, 8, 2).eval()
    both = zip(
        _loader(small, [-1, -1], disjoint=True).iterate(0),
        _loader(small, [-1, -1]).iterate(0),
        strict=True,
    )
    for apart, shared in both:
        check_ids(apart)
        nodes = apart.nodes[NODE]
        assert nodes.num_seeds == len(apart.input_id)
        assert torch.equal(nodes.seed[: nodes.num_seeds], torch.arange(nodes.num_seeds))
        assert torch.equal(nodes.columns["x"][:, 0], nodes.n_id.float())
        assert len(nodes.n_id) > len(shared.nodes[NODE].n_id)
        assert shared.nodes[NODE].seed is None
        with torch.no_grad():
            rows = [
                encoder(batch.nodes[NODE].columns["x"], blocks_of(batch))
                for batch in (apart, shared)
            ]
        torch.testing.assert_close(rows[0], rows[1][shared.seed_index])


def test_shared_leaves_are_in_a_batch_once_and_change_no_bit():
    small = random_graph()
    torch.manual_seed(0)
    encoder = GraphSAGE(3, 4, 8, 2).eval()
    both = zip(
        _loader(small, [4, 3], disjoint=True).iterate(0),
        _loader(small, [4, 3], frozenset([NODE]), disjoint=True).iterate(0),
        strict=True,
    )
    for apart, shared in both:
        nodes, edges = shared.nodes[NODE], shared.edges[EDGE]
        leaves = nodes.n_id[sum(nodes.num_sampled[:2]) :]
        assert len(leaves) == len(leaves.unique()) < apart.nodes[NODE].num_sampled[2]
        assert torch.equal(edges.e_id, apart.edges[EDGE].e_id)
        source = apart.nodes[NODE].n_id[apart.edges[EDGE].edge_index[0]]
        assert torch.equal(nodes.n_id[edges.edge_index[0]], source)
        with torch.no_grad():
            rows = [
                encoder(batch.nodes[NODE].columns["x"], blocks_of(batch))
                for batch in (apart, shared)
            ]
        assert torch.equal(*rows)


def test_in_time_too():
    small = random_graph(25, 300)
    small.roles = {"time": "time"}
    small.times = {EDGE: np.arange(300) % 10}
    graph = LocalGraphStore(small.bundle)
    sampler = NeighborSampler(graph, [-1, 2], temporal=Temporal(), disjoint=True)
    times = np.array([5, 5, 2])
    subgraph = sampler.sample({NODE: np.array([4, 4, 4])}, 1, times={NODE: times})
    assert np.array_equal(subgraph.seed_time[NODE], times[subgraph.seed[NODE]])
    col = subgraph.edge_index[EDGE][1]
    late = small.bundle.column(EDGE, "time")[subgraph.edge[EDGE]] > subgraph.seed_time[NODE][col]
    assert not late.any()
    found = [
        Counter({each: n for each, n in of.items() if each[0] == 0})
        for of in _edges_of_seeds(subgraph, 3)
    ]
    assert found[0] == found[1] != found[2]


def _neighborhoods(loader: NeighborLoader) -> dict[tuple[int, int], set[tuple[Any, ...]]]:
    """By epoch and row, the neighborhoods that its batches have."""
    found: dict[tuple[int, int], set[tuple[Any, ...]]] = {}
    for epoch in (0, 1):
        for batch in loader.iterate(epoch):
            nodes, edges = batch.nodes[NODE], batch.edges[EDGE]
            taker = edges.edge_index[1]
            for number, row in enumerate(batch.input_id.tolist()):
                own = nodes.seed[taker] == number
                pairs = zip(nodes.n_id[taker[own]].tolist(), edges.e_id[own].tolist(), strict=True)
                found.setdefault((epoch, row), set()).add(tuple(sorted(pairs)))
    return found


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    sampling=st.sampled_from([{}, {"labor": True}, {"weight": "weight"}]),
    timed=st.booleans(),
    batch_size=st.integers(1, 9),
)
def test_outside_training_a_row_has_one_neighborhood(seed, sampling, timed, batch_size):
    """In any order, repeated, in batches of any size and split, of this table or another."""
    rng = np.random.default_rng(seed)
    small = random_graph(30, 400, seed)
    small.times = {EDGE: rng.integers(0, 10, 400)} if timed else {}
    node, time = rng.integers(0, 30, 12), rng.integers(4, 9, 12)
    sampling = {**sampling, "disjoint": True, "temporal": Temporal() if timed else None}

    def of_rows(chosen: np.ndarray, positions: np.ndarray, **changes: Any) -> Any:
        at = time[chosen].astype(rng.choice([np.int64, np.float64]))
        rows = SeedRows("rows", NODE, len(chosen), node[chosen], at, None, None, {})
        options = {"seeds": positions, "plan": RowPlan(rows), **changes}
        return _neighborhoods(node_loader(small, [2, 2], sampling=sampling, **options))

    every = of_rows(np.arange(12), np.arange(12), split="val")
    chosen, positions = rng.integers(0, 12, 9), rng.integers(0, 9, 14)
    found = of_rows(chosen, positions, split="infer", batch_size=batch_size)
    for (epoch, position), neighborhoods in found.items():
        assert neighborhoods == every[epoch, chosen[position]] == every[0, chosen[position]]
    trained = of_rows(np.arange(12), np.arange(12), shuffle=True)
    assert any(trained[0, row] != trained[1, row] for row in range(12))


def test_rows_of_a_node_draw_for_themselves():
    """At other times, and other nodes than the seed: a hub is sampled anew for each."""
    size = 202
    source = np.concatenate([np.arange(2, size), [2, 2]])
    target = np.concatenate([np.full(200, 2), [0, 1]])
    small = SmallGraph({NODE: size}, {EDGE: (source, target)})
    small.times, small.roles = {EDGE: np.zeros(size, np.int64)}, {"time": "time"}
    rows = SeedRows("r", NODE, 3, np.array([0, 1, 1]), np.array([1, 1, 2]), None, None, {})
    sampling = {"temporal": Temporal(), "disjoint": True}
    options = {"seeds": np.arange(3), "plan": RowPlan(rows), "columns": {}}
    found = _neighborhoods(node_loader(small, [1, 20], sampling=sampling, **options))
    first, second, third = ({e for _, e in next(iter(found[0, row]))} for row in range(3))
    assert len(first & second) < 12
    assert len(second & third) < 12


def test_links_share_their_nodes():
    small = random_graph()
    links = SupervisionEdges(NODE, NODE, EDGE, *(np.array(rows) for rows in ([0], [0, 1], [1])))
    with raises("sampling-disjoint-links"):
        link_loader(small, links, sampling={"disjoint": True})
