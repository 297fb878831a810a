"""Neighborhoods by personalised PageRank against networkx."""

from __future__ import annotations

import pickle
from itertools import pairwise

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.config.loader_section import PprSampling
from raygnn.data.pagerank_graph import PAGERANK, pagerank_graph, push_all
from raygnn.sampling import LocalGraphStore, NeighborSampler
from tests.errors import raises
from tests.small_graph import EDGE, NODE, SmallGraph, random_graph

PRECISE = PprSampling(top_k=4, alpha=0.25, epsilon=1e-8)


def _reference(small: SmallGraph, alpha: float) -> np.ndarray:
    """[num_nodes, num_nodes], the PageRank of each node for the walks of each."""
    num_nodes = small.nodes[NODE]
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(range(num_nodes))
    source, target = small.edges[EDGE]
    graph.add_edges_from(zip(target.tolist(), source.tolist(), strict=True))
    found = np.zeros((num_nodes, num_nodes))
    for node in range(num_nodes):
        ranks = networkx.pagerank(
            graph, 1 - alpha, personalization={node: 1}, tol=1e-14, max_iter=1000
        )
        found[node] = [ranks[other] for other in range(num_nodes)]
    return found


def _rows(small: SmallGraph, wanted: PprSampling) -> list[dict[int, float]]:
    """The weights of each node's neighbors, whose mean is 1."""
    made = pagerank_graph(small.bundle, wanted)
    csc, weights = made.csc(EDGE), made.column(EDGE, PAGERANK)
    assert made.num_edges(EDGE) == len(csc.indices) == len(weights) == csc.indptr[-1]
    rows = []
    for first, last in pairwise(csc.indptr):
        neighbors = csc.indices[first:last]
        assert (np.diff(neighbors) > 0).all(), "neighbors ascend, each once"
        assert first == last or weights[first:last].mean() == pytest.approx(1, abs=1e-5)
        rows.append(dict(zip(neighbors.tolist(), weights[first:last].tolist(), strict=True)))
    return rows


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_nodes=st.integers(1, 14),
    num_edges=st.integers(0, 40),
    alpha=st.sampled_from([0.1, 0.25, 0.6]),
)
def test_a_node_gets_those_of_the_most_pagerank(seed, num_nodes, num_edges, alpha):
    """Parallel edges, self-edges and nodes without edges among them."""
    rng = np.random.default_rng(seed)
    small = SmallGraph({NODE: num_nodes}, {EDGE: tuple(rng.integers(0, num_nodes, (2, num_edges)))})
    expected = _reference(small, alpha)
    np.fill_diagonal(expected, 0)
    for node, row in enumerate(_rows(small, PprSampling(top_k=4, alpha=alpha, epsilon=1e-8))):
        assert len(row) <= 4
        assert node not in row
        largest = np.sort(expected[node])[::-1]
        mean = largest[: len(row)].mean() if row else 0
        for neighbor, weight in row.items():
            assert weight * mean == pytest.approx(expected[node, neighbor], abs=1e-5)
            assert expected[node, neighbor] > largest[len(row) - 1] - 1e-5
        assert len(row) == 4 or largest[len(row) :].sum() < 1e-5


def test_what_is_found_falls_short_by_epsilon_for_each_edge():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 60, (2, 150))
    both = np.concatenate([one, other]), np.concatenate([other, one])
    small = SmallGraph({NODE: 60}, {EDGE: both})
    degrees, epsilon = np.bincount(both[0], minlength=60), 1e-3
    expected = _reference(small, 0.2)
    csc, slots = small.bundle.csc(EDGE), np.zeros(60, np.int32)
    neighbors, weights = np.zeros((60, 60), np.int32), np.zeros((60, 60), np.float32)
    counts, given = np.empty(60, np.int64), (60, 0.2, epsilon)
    push_all(csc.indptr, csc.indices, np.arange(60), given, slots, neighbors, weights, counts)
    found = np.zeros((60, 60))
    for node, count in enumerate(counts):
        found[node, neighbors[node, :count]] = weights[node, :count]
    assert not slots.any()
    short = expected - found
    np.fill_diagonal(short, 0)
    assert short.min() > -1e-6
    assert (short <= epsilon * degrees + 1e-6).all()
    assert short.max() > 1e-5, "epsilon is in use"


def test_hubs_get_neighbors_too():
    """One whose residual is not above epsilon for each of its edges."""
    source = np.arange(1, 2001)
    small = SmallGraph({NODE: 2001}, {EDGE: (source, np.zeros(2000, np.int64))})
    rows = _rows(small, PprSampling(top_k=3, epsilon=0.01))
    assert list(rows[0]) == [1, 2, 3], "of equal PageRank the lower nodes"
    assert not rows[1]


def test_it_is_a_graph_to_sample_from(monkeypatch):
    small = random_graph(50, 400)
    made = pagerank_graph(small.bundle, PRECISE)
    csc = made.csc(EDGE)
    seeds = np.arange(0, 50, 7)
    whole = NeighborSampler(LocalGraphStore(made), [-1]).sample({NODE: seeds}, 1)
    for i, seed in enumerate(seeds):
        own = whole.node[NODE][whole.edge_index[EDGE][0][whole.edge_index[EDGE][1] == i]]
        assert set(own) == set(csc.indices[csc.indptr[seed] : csc.indptr[seed + 1]])
    drawn = NeighborSampler(LocalGraphStore(made), [2], weight=PAGERANK).sample({NODE: seeds}, 1)
    assert set(np.diff(drawn.dst_ptr[EDGE])) <= {0, 1, 2}
    assert list(made.columns(EDGE)) == [PAGERANK]
    assert made.columns(NODE) == small.bundle.columns(NODE)
    for same in (pickle.loads(pickle.dumps(made)), made.of_types([NODE], [EDGE])):
        assert np.array_equal(same.csc(EDGE).indices, csc.indices)
    # out-neighbors and alias tables are not those of the graph itself
    assert len(small.bundle.csr(EDGE).indices) == 400
    assert len(made.csr(EDGE).indices) == made.num_edges(EDGE)


def test_it_is_made_once_for_each_of_its_settings():
    small, said = random_graph(50, 400), []
    first = pagerank_graph(small.bundle, PRECISE, said.append)
    again = pagerank_graph(small.bundle, PRECISE, said.append)
    assert np.array_equal(first.csc(EDGE).indices, again.csc(EDGE).indices)
    assert len(said) == 1
    fewer = pagerank_graph(small.bundle, PprSampling(top_k=2, epsilon=1e-8), said.append)
    assert len(said) == 2
    assert 90 < fewer.num_edges(EDGE) <= 100


def test_a_graph_of_several_types_is_refused():
    types = [("user", "buys", "item"), ("item", "by", "user")]
    none = np.empty(0, np.int64), np.empty(0, np.int64)
    small = SmallGraph({"user": 2, "item": 2}, dict.fromkeys(types, none))
    with raises("sampling-ppr-types", "user__buys__item"):
        pagerank_graph(small.bundle, PRECISE)
