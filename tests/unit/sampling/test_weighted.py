"""Edges drawn in proportion to weights, against the law that they should have."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.edge_kernels import NO_EDGE, fill_alias
from raygnn.sampling import LocalGraphStore, NeighborSampler
from raygnn.sampling.exclusion import Exclusion
from raygnn.sampling.protocols import PickRequest
from tests.errors import raises
from tests.small_graph import EDGE, NODE, SmallGraph, random_graph
from tests.unit.sampling.reference import check_law, law_of_pairs

NODE_0 = np.zeros(1, np.int64)


def _star(weights: list[float]) -> LocalGraphStore:
    """Node 0 with an edge from each node."""
    size = len(weights)
    edges = {EDGE: (np.arange(size), np.zeros(size, np.int64))}
    stored = {EDGE: {"w": np.array(weights, np.float32)}}
    return LocalGraphStore(SmallGraph({NODE: size}, edges, stored=stored).bundle)


@settings(max_examples=100)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, 0.0, 1e-6, 0.3, 1.0, 7.5, 1e6]), max_size=9), max_size=4
    ),
    data=st.data(),
)
def test_alias_tables_hold_the_weights(rows, data):
    indptr = np.append(0, np.cumsum([len(row) for row in rows])).astype(np.int64)
    given_weights = np.array([w for row in rows for w in row])
    e_id = None
    weights = given_weights
    if data.draw(st.booleans()):
        order = np.array(data.draw(st.permutations(range(len(weights)))), np.int32)
        e_id, weights = (order, np.empty_like(weights)) if len(order) else (None, weights)
        if e_id is not None:
            weights[order] = given_weights
    table = np.empty(len(weights), np.int64)
    fill_alias(indptr, e_id, weights, table)
    for row, start in zip(rows, indptr, strict=False):
        found = np.zeros(len(row))
        for i, entry in enumerate(table[start : start + len(row)].tolist()):
            other, kept = entry >> 32, (entry & 0xFFFFFFFF) / 2**32
            if sum(row) == 0:
                assert other == NO_EDGE
                continue
            found[i] += kept / len(row)
            found[i + other] += (1 - kept) / len(row)
        if sum(row) > 0:
            assert np.allclose(found, np.array(row) / sum(row), atol=1e-8)
            assert not found[np.array(row) == 0].any()


@pytest.mark.parametrize(
    ("weights", "excluded"),
    [
        ([1, 2, 3, 0, 4], ()),  # keys alone
        ([1, 2, 3, 0, 4, 1, 1, 5, 0.5, 0, 2, 1], ()),  # draws
        ([1, 2, 3, 0, 4, 1, 1, 5, 0.5, 0, 2, 1], (4, 7, 3)),
        ([1e6, 1, 2, 1, 1, 1, 1, 1, 1, 1, 3], ()),  # draws, then keys
    ],
)
def test_pairs_are_drawn_one_after_the_other_by_weight(weights, excluded):
    graph, num_rounds = _star(weights), 6000
    exclude = None
    law = np.array(weights, float)
    if excluded:
        exclude = Exclusion.of(np.zeros(len(excluded), np.int64), np.array(excluded))
        law[list(excluded)] = 0
    expected, counts = num_rounds * law_of_pairs(law), np.zeros((len(law),) * 2)
    for key in range(num_rounds):
        picks = graph.pick(EDGE, PickRequest(NODE_0, 2, key, 0, weight="w", exclude=exclude))
        a, b = sorted(picks.e_id.tolist())
        counts[a, b] += 1
    upper = np.triu_indices(len(law), 1)
    # rare pairs together, as the law of chi-square is one of many expected
    found, hoped = counts[upper], expected[upper]
    rare = hoped < 5
    assert found[rare & (hoped == 0)].sum() == 0
    found = np.append(found[~rare], found[rare].sum())
    hoped = np.append(hoped[~rare], hoped[rare].sum())
    keep = hoped > 1
    check_law(found[keep], hoped[keep])


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    fanout=st.sampled_from([-1, 1, 2, 5, 60]),
    zeros=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    excluded=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_as_many_as_there_are(seed, fanout, zeros, excluded):
    small = random_graph(20, 300, seed)
    rng = np.random.default_rng(seed)
    weights = np.where(rng.random(300) < zeros, 0, rng.pareto(0.5, 300) + 1e-3)
    small.stored[EDGE]["w"] = weights.astype(rng.choice(["float64", "float32"]))
    graph = LocalGraphStore(small.bundle)
    nodes = np.arange(20)
    adjacency = graph.adjacency(EDGE)
    e_id = np.arange(300) if adjacency.e_id is None else adjacency.e_id
    taker = np.repeat(nodes, np.diff(adjacency.indptr))
    is_out = rng.random(300) < excluded
    pairs = Exclusion.of(taker[is_out], adjacency.indices[is_out].astype(np.int64))
    codes = taker * 20 + adjacency.indices
    allowed = (weights[e_id] > 0) & ~np.isin(codes, codes[is_out])
    request = PickRequest(nodes, fanout, seed, 0, weight="w", exclude=pairs)
    picks = graph.pick(EDGE, request)
    for node in nodes:
        own = picks.e_id[picks.offsets[node] : picks.offsets[node + 1]].tolist()
        choices = e_id[(taker == node) & allowed].tolist()
        assert set(own) <= set(choices)
        if fanout == -1:
            assert own == choices
        else:
            assert len(own) == len(set(own)) == min(fanout, len(choices))
    again = graph.pick(EDGE, dataclasses.replace(request, nodes=nodes[::-1].copy()))
    assert np.array_equal(np.diff(again.offsets), np.diff(picks.offsets)[::-1])
    assert sorted(again.e_id) == sorted(picks.e_id)


def test_types_without_weights_draw_uniformly():
    other = ("node", "other", "node")
    small = random_graph()
    small.edges[other] = small.edges[EDGE]
    graph = LocalGraphStore(small.bundle)
    seeds = {NODE: np.arange(9)}
    weighted = NeighborSampler(graph, {EDGE: [0], other: [3]}, weight="weight").sample(seeds, 1)
    plain = NeighborSampler(graph, {EDGE: [0], other: [3]}).sample(seeds, 1)
    assert np.array_equal(weighted.edge[other], plain.edge[other])
    by_weight = NeighborSampler(graph, {EDGE: [3], other: [0]}, weight="weight").sample(seeds, 1)
    uniform = NeighborSampler(graph, {EDGE: [3], other: [0]}).sample(seeds, 1)
    assert not np.array_equal(by_weight.edge[EDGE], uniform.edge[EDGE])
    # heavy edges come last in the CSC
    assert by_weight.edge[EDGE].mean() > uniform.edge[EDGE].mean()


def test_bad_weights_are_named():
    seeds = {NODE: np.arange(2)}
    with raises("sampling-weight-column", "w"):
        NeighborSampler(LocalGraphStore(random_graph().bundle), [2], weight="w")
    small = random_graph()
    columns = small.stored[EDGE]
    columns["w"] = np.ones(2000, np.float16)
    columns["w"][7] = np.nan
    columns["i"] = np.arange(2000) - 1
    columns["wide"] = np.ones((2000, 2))
    for name, message in [
        ("w", ("sampling-weight-values", 1, 2000, "nan", 7)),
        ("i", ("sampling-weight-values", 1, 2000)),
        ("wide", ("sampling-weight-width", "wide", "node__to__node")),
    ]:
        sampler = NeighborSampler(LocalGraphStore(small.bundle), [2], weight=name)
        with raises(*message):
            sampler.sample(seeds, 1)
    columns["w"][7] = 1
    mended = LocalGraphStore(dataclasses.replace(small).bundle)
    assert len(NeighborSampler(mended, [2], weight="w").sample(seeds, 1).edge)
