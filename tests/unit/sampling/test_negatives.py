"""Random negatives, and permutations of seeds with random access."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.links.supervision import KnownLinks, KnownPositives
from raygnn.sampling import LocalGraphStore
from raygnn.sampling.negatives import NONE, EvaluationCandidates, RandomNegatives
from raygnn.sampling.rng import seed_order, windowed_order
from tests.errors import raises
from tests.small_graph import EDGE, NODE, SmallGraph
from tests.unit.sampling import reference

DEGREES = np.array([0, 1, 5, 0, 81, 16, 2, 0])


def test_draws_are_those_of_the_definition():
    key = 12345
    start = reference.chain(key, reference.fnv1a("negatives"))
    bits = [reference.splitmix64((start + i * reference.GAMMA) & reference.MASK) for i in range(50)]
    assert RandomNegatives(7).draw(50, key).tolist() == [(bit * 7) >> 64 for bit in bits]
    weights = [round(float(degree) ** 0.75 * 1024) for degree in DEGREES]
    nodes = np.repeat(np.arange(8), weights)
    expected = [int(nodes[(bit * len(nodes)) >> 64]) for bit in bits]
    assert RandomNegatives(8, DEGREES).draw(50, key).tolist() == expected


@pytest.mark.parametrize("degrees", [None, DEGREES])
def test_nodes_come_as_often_as_they_should(degrees):
    negatives = RandomNegatives(8, degrees)
    probability = negatives.probability(np.arange(8))
    expected = np.ones(8) if degrees is None else degrees**0.75
    assert np.allclose(probability, expected / expected.sum(), atol=1e-3)
    num_draws = 20_000
    counts = np.bincount(negatives.draw(num_draws, 3), minlength=8)
    reference.check_law(counts, probability * num_draws)


def test_keys_and_counts():
    negatives = RandomNegatives(1000)
    assert not np.array_equal(negatives.draw(9, 1), negatives.draw(9, 2))
    assert np.array_equal(negatives.draw(9, 1), negatives.draw(20, 1)[:9])
    assert len(negatives.draw(0, 1)) == 0
    assert len(RandomNegatives(2).draw(50, 1)) == 50


def test_degrees_of_a_graph():
    buys = ("user", "buys", "item")
    source, target = np.array([0, 0, 0, 2]), np.array([1, 1, 1, 0])
    small = SmallGraph({"user": 3, "item": 2}, {buys: (source, target)})
    graph = LocalGraphStore(small.bundle)
    for node_type, counts in [("user", [3, 0, 1]), ("item", [1, 3])]:
        for edge_type in (buys, None):
            negatives = RandomNegatives.of_graph(graph, node_type, "degree", edge_type)
            expected = RandomNegatives(len(counts), np.array(counts))
            assert np.array_equal(negatives.draw(40, 1), expected.draw(40, 1))
    uniform = RandomNegatives.of_graph(graph, "user", "uniform")
    assert np.array_equal(uniform.draw(40, 1), RandomNegatives(3).draw(40, 1))


def test_what_cannot_be_drawn():
    none = SmallGraph({NODE: 0}, {EDGE: (np.empty(0, np.int64), np.empty(0, np.int64))})
    with raises("sampling-negatives-none"):
        RandomNegatives.of_graph(LocalGraphStore(none.bundle), NODE, "degree")
    with raises("sampling-negatives-none"):
        RandomNegatives(2, np.zeros(2, np.int64))


@settings(max_examples=50)
@given(st.integers(1, 30), st.integers(1, 20), st.integers(0, 100), st.booleans())
def test_no_candidate_of_a_link_is_known(num_nodes, wanted, key, is_one_type):
    """A link has as many distinct candidates as it can have, never its ends or known links."""
    rng = np.random.default_rng(key)
    known = [np.unique(rng.integers(0, num_nodes, rng.integers(0, 12))) for _ in range(num_nodes)]
    indptr = np.append(0, np.cumsum([len(row) for row in known]))
    links = KnownLinks((KnownPositives(indptr, np.concatenate(known)),), is_one_type)
    candidates = EvaluationCandidates(num_nodes, wanted, key, links, is_one_type=is_one_type)
    num = max(min(wanted, num_nodes - 1 - is_one_type), 0)
    assert candidates.num_candidates == num
    anchors, targets = rng.integers(0, num_nodes, (2, 25))
    nodes, chosen = candidates.choose(anchors, targets, None, anchors)
    assert chosen.shape == (25, num)
    assert len(nodes) <= max(2 * num, num + 2)
    for anchor, target, columns in zip(anchors, targets, chosen, strict=True):
        own = nodes[columns[columns != NONE]].tolist()
        assert len(set(own)) == len(own)
        others = set(known[anchor].tolist()) | {target} | ({anchor} if is_one_type else set())
        assert not set(own) & others
        assert (columns[len(own) :] == NONE).all()
        assert len(own) == num or set(own) == set(nodes.tolist()) - others
    if num > 0:
        wider, more = candidates.choose(anchors[:1], targets[:1], None, anchors[:1])
        alone, together = more[0], chosen[0]
        assert wider[alone[alone != NONE]].tolist() == nodes[together[together != NONE]].tolist()


@settings(max_examples=60)
@given(st.integers(0, 3000), st.integers(-(2**70), 2**70), st.integers(0, 2**40), st.data())
def test_it_is_a_bijection_with_random_access(num_seeds, seed, epoch, data):
    whole = seed_order(num_seeds, seed, epoch, 0, num_seeds)
    assert np.array_equal(np.sort(whole), np.arange(num_seeds))
    start = data.draw(st.integers(0, num_seeds))
    stop = data.draw(st.integers(start, num_seeds))
    assert np.array_equal(seed_order(num_seeds, seed, epoch, start, stop), whole[start:stop])


def test_it_differs_by_epoch_and_seed():
    orders = [seed_order(100, seed, epoch, 0, 100) for seed in range(3) for epoch in range(3)]
    assert len({order.tobytes() for order in orders}) == 9


def test_every_seed_comes_to_every_place():
    num_seeds, num_epochs = 7, 7000
    orders = np.stack([seed_order(num_seeds, 0, e, 0, num_seeds) for e in range(num_epochs)])
    counts = np.stack([np.bincount(column, minlength=num_seeds) for column in orders.T])
    expected = num_epochs / num_seeds
    chi2 = ((counts - expected) ** 2).sum() / expected
    dof = (num_seeds - 1) ** 2
    assert abs(chi2 - dof) < 4 * np.sqrt(2 * dof)
    # and in any order: 7! orders, each about as often as chance has it
    distinct = len(np.unique(orders, axis=0))
    assert abs(distinct - 5040 * (1 - np.exp(-num_epochs / 5040))) < 4 * np.sqrt(5040)


def test_huge_ranges_need_no_memory():
    positions = seed_order(2**50, 1, 2, 2**49, 2**49 + 1000)
    assert len(np.unique(positions)) == 1000
    assert positions.min() >= 0
    assert positions.max() < 2**50


_GROUP, _WINDOW = 1 << 14, 1 << 22


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 3 * _WINDOW), st.integers(0, 2**70), st.integers(0, 9), st.data())
def test_windows_are_a_bijection_with_random_access(num_rows, seed, epoch, data):
    whole = windowed_order(num_rows, seed, epoch, 0, num_rows)
    assert (np.bincount(whole, minlength=num_rows) == 1).all()
    start = data.draw(st.integers(0, num_rows))
    stop = data.draw(st.integers(start, num_rows))
    assert np.array_equal(windowed_order(num_rows, seed, epoch, start, stop), whole[start:stop])


def test_a_window_reads_few_groups():
    num_rows = 10**9
    windows = [windowed_order(num_rows, 0, 3, n * _WINDOW, (n + 1) * _WINDOW) for n in (0, 1, 237)]
    for rows in windows:
        jumps = np.flatnonzero(np.diff(np.sort(rows)) > 1)
        assert len(jumps) <= _WINDOW // _GROUP
        # groups come from everywhere, and their rows in any order
        assert np.ptp(rows) > 0.9 * num_rows
        assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 0.01
    first = windowed_order(num_rows, 0, 4, 0, _WINDOW)
    assert len(np.intersect1d(first, windows[0])) < _WINDOW / 20
