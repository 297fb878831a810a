"""Draws that may not move: who changes them raises `RNG_VERSION`, and notes it in CHANGELOG.md.

The values were computed by the plain Python of tests/unit/sampling/reference.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from raygnn.sampling import LocalGraphStore, NeighborSampler
from raygnn.sampling.negatives import RandomNegatives
from raygnn.sampling.pick import draw_below
from raygnn.sampling.protocols import PickRequest
from raygnn.sampling.rng import RNG_VERSION, batch_key, hop_key, mix, seed_order
from tests.small_graph import EDGE, NODE, SmallGraph


def test_version():
    assert RNG_VERSION == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, "train", 0, 0), 17484663007283919324),
        ((1, "val", 2, 3), 3475425293857608511),
        ((-1, "é", 2**40, 7), 13669001693378053887),
    ],
)
def test_batch_keys(arguments, expected):
    assert batch_key(*arguments) == expected


@pytest.mark.parametrize(
    ("number", "bound", "expected"),
    [
        (0, 10, 2),
        (1, 10, 4),
        (2, 1000, 48),
        (3, 2**40, 441070928661),
        (0, 2**63 - 1, 2353131464243033309),
    ],
)
def test_draws(number, bound, expected):
    start = np.uint64(mix(hop_key(12345, 1, EDGE) ^ 678))
    assert draw_below(start, number, bound) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((10, 0, 0, 0, 10), [9, 7, 6, 4, 8, 5, 1, 0, 2, 3]),
        ((10, 0, 1, 0, 10), [8, 6, 4, 2, 7, 3, 1, 5, 0, 9]),
        (
            (10**6, 42, 3, 999_990, 10**6),
            [225755, 699625, 490084, 565366, 551189, 312854, 864623, 22980, 988920, 204560],
        ),
    ],
)
def test_seed_orders(arguments, expected):
    assert seed_order(*arguments).tolist() == expected


def _small_graph() -> SmallGraph:
    source = [(7 * i + 3 * (i // 5)) % 12 for i in range(60)]
    target = [i % 12 if i < 24 else i % 4 for i in range(60)]
    return SmallGraph({NODE: 12}, {EDGE: (np.array(source), np.array(target))})


def test_a_batch():
    sampler = NeighborSampler(LocalGraphStore(_small_graph().bundle), [3, 2])
    subgraph = sampler.sample({NODE: np.array([4, 1, 11])}, batch_key(0, "train", 0, 0))
    assert subgraph.node[NODE].tolist() == [4, 1, 11, 10, 5, 2, 8]
    e_id = [44, 45, 14, 19, 15, 58, 59, 56, 57, 46, 47]
    assert subgraph.edge[EDGE].tolist() == e_id


@pytest.mark.parametrize(
    ("fanout", "e_id"),
    [
        (2, [5, 10, 11, 19, 27, 32, 38, 40, 44, 45]),
        (3, [5, 10, 6, 11, 19, 13, 27, 32, 25, 38, 40, 39, 44, 45]),
    ],
)
def test_weighted_draws(fanout, e_id):
    small = _small_graph()
    small.stored = {EDGE: {"w": np.arange(60) % 7 * 1.0}}
    graph = LocalGraphStore(small.bundle)
    picks = graph.pick(EDGE, PickRequest(np.arange(5), fanout, 99, 1, weight="w"))
    assert picks.e_id.tolist() == e_id


def test_random_negatives():
    assert RandomNegatives(1000).draw(5, 7).tolist() == [516, 617, 615, 932, 993]
    by_degree = RandomNegatives(6, np.array([0, 1, 2, 30, 4, 100]))
    assert by_degree.draw(8, 7).tolist() == [5, 5, 5, 5, 5, 3, 5, 2]
