"""Sums over segments of edges against PyG's, and in which order weights multiply."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.nn import GATConv, SAGEConv
from torch_geometric.utils import scatter, softmax

from raygnn.models import attention_encoders, segment
from raygnn.models.attention import (
    additive_scores,
    dot_scores,
    gather_dst,
    gather_src,
    segment_softmax,
    weighted_segment_sum,
)
from raygnn.models.attention_encoders import BlockGATConv
from raygnn.models.convolutions import BlockSAGEConv
from raygnn.models.segment import (
    Adjacency,
    segment_chunks,
    segment_max,
    segment_mean,
    segment_sum,
    segment_sum_and_rows,
    transform_first,
)
from raygnn.sampling.blocks import Block
from tests.unit.models.conftest import assert_same_with_grads, random_graph

SMALL = st.integers(0, 6)


@st.composite
def adjacencies(draw: st.DrawFn) -> Adjacency:
    num_src, num_dst = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    dst = sorted(draw(st.lists(st.integers(0, num_dst - 1), max_size=14)))
    src = draw(st.lists(st.integers(0, num_src - 1), min_size=len(dst), max_size=len(dst)))
    return adjacency_of(src, dst, num_src, num_dst)


def adjacency_of(src: list[int], dst: list[int], num_src: int, num_dst: int) -> Adjacency:
    into = torch.tensor(dst, dtype=torch.long)
    ptr = torch.searchsorted(into, torch.arange(num_dst + 1))
    return Adjacency(torch.tensor(src, dtype=torch.long), into, ptr, num_src)


@pytest.fixture(autouse=True)
def _several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_CHUNK_EDGES", 3)


def rows(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def check_same(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs)
    grad = rows(*ours.shape, seed=9).detach()
    for mine, other in zip(
        torch.autograd.grad(ours, inputs, grad),
        torch.autograd.grad(theirs, inputs, grad, materialize_grads=True, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)


@given(adjacencies())
@pytest.mark.parametrize(
    ("ours", "reduce"), [(segment_sum, "sum"), (segment_mean, "mean"), (segment_max, "max")]
)
def test_reductions_are_pygs(ours: type[segment_sum], reduce: str, adjacency: Adjacency) -> None:
    x = rows(adjacency.num_src, 3)
    theirs = scatter(x[adjacency.src], adjacency.dst, 0, adjacency.num_dst, reduce)
    check_same(ours(x, adjacency), theirs, x)


@given(adjacencies())
def test_equal_largest_entries_share_the_gradient(adjacency: Adjacency) -> None:
    # No entry is 0: torch counts the 0 that it starts from as one of the equals.
    x = (rows(adjacency.num_src, 3).detach().round() + 0.25).requires_grad_()
    theirs = scatter(x[adjacency.src], adjacency.dst, 0, adjacency.num_dst, "max")
    check_same(segment_max(x, adjacency), theirs, x)


@given(adjacencies())
def test_edge_weights_are_factors(adjacency: Adjacency) -> None:
    x, weight = rows(adjacency.num_src, 3), rows(adjacency.num_edges, seed=1).detach()
    messages = weight.unsqueeze(1) * x[adjacency.src]
    theirs = scatter(messages, adjacency.dst, 0, adjacency.num_dst, "sum")
    check_same(segment_sum(x, adjacency, weight), theirs, x)


@given(adjacencies())
def test_gathers_are_indexing(adjacency: Adjacency) -> None:
    of_src, of_dst = rows(adjacency.num_src, 2), rows(adjacency.num_dst, 2)
    check_same(gather_src(of_src, adjacency), of_src[adjacency.src], of_src)
    check_same(gather_dst(of_dst, adjacency), of_dst[adjacency.dst], of_dst)


@given(adjacencies())
def test_softmax_is_pygs(adjacency: Adjacency) -> None:
    scores = rows(adjacency.num_edges, 2)
    theirs = softmax(scores, adjacency.dst, num_nodes=adjacency.num_dst)
    check_same(segment_softmax(scores, adjacency), theirs, scores)


def test_softmax_leaves_out_edges_of_score_minus_infinity() -> None:
    adjacency = adjacency_of([0, 1, 2], [0, 0, 1], 3, 2)
    scores = torch.tensor([[0.0], [-torch.inf], [-torch.inf]])
    assert segment_softmax(scores, adjacency).tolist() == [[1.0], [0.0], [0.0]]


def test_softmax_works_in_float32_on_half_precision_scores() -> None:
    adjacency = adjacency_of([0, 1], [0, 0], 2, 1)
    assert segment_softmax(torch.zeros(2, 1).bfloat16(), adjacency).dtype == torch.float32


@given(adjacencies())
def test_weighted_sum_is_a_scatter_of_weighted_messages(adjacency: Adjacency) -> None:
    x, weight = rows(adjacency.num_src, 2, 3), rows(adjacency.num_edges, 2, seed=1)
    messages = weight.unsqueeze(-1) * x[adjacency.src]
    theirs = scatter(messages, adjacency.dst, 0, adjacency.num_dst, "sum")
    check_same(weighted_segment_sum(x, weight, adjacency), theirs, x, weight)


@given(adjacencies())
def test_dot_scores_are_products_of_the_ends(adjacency: Adjacency) -> None:
    query, key = rows(adjacency.num_dst, 2, 3), rows(adjacency.num_src, 2, 3, seed=1)
    theirs = (query[adjacency.dst] * key[adjacency.src]).sum(-1)
    check_same(dot_scores(query, key, adjacency), theirs, query, key)


@given(adjacencies())
def test_heads_may_share_the_rows_of_sources(adjacency: Adjacency) -> None:
    query, shared = rows(adjacency.num_dst, 2, 3), rows(adjacency.num_src, 1, 3, seed=1)
    weight = rows(adjacency.num_edges, 2, seed=2)
    messages = weight.unsqueeze(-1) * shared[adjacency.src]
    sums = scatter(messages, adjacency.dst, 0, adjacency.num_dst, "sum")
    check_same(weighted_segment_sum(shared, weight, adjacency), sums, shared, weight)
    theirs = (query[adjacency.dst] * shared[adjacency.src]).sum(-1)
    check_same(dot_scores(query, shared, adjacency), theirs, query, shared)


def test_dot_scores_of_half_precision_are_sums_in_float32() -> None:
    adjacency = adjacency_of([0, 1, 1], [0, 0, 1], 2, 2)
    query, key = rows(2, 2, 300).bfloat16(), rows(2, 2, 300, seed=1).bfloat16()
    exact = (query.double()[adjacency.dst] * key.double()[adjacency.src]).sum(-1)
    scores = dot_scores(query, key, adjacency)
    assert scores.dtype == torch.bfloat16
    torch.testing.assert_close(scores, exact.bfloat16(), rtol=0.01, atol=0)


def test_dot_scores_take_more_edges_than_pairs() -> None:
    adjacency = adjacency_of([0, 0, 0], [0, 0, 0], 1, 1)
    query, key = rows(1, 1, 3), rows(1, 1, 3, seed=1)
    torch.testing.assert_close(
        dot_scores(query, key, adjacency), (query * key).sum(-1).expand(3, 1)
    )


@given(adjacencies(), st.integers(1, 3), st.booleans())
def test_edges_by_head_are_each_segments_once_per_head(
    adjacency: Adjacency, heads: int, own_rows: bool
) -> None:
    edges = adjacency.by_head(heads, own_rows=own_rows)
    assert edges is adjacency.by_head(heads, own_rows=own_rows)
    assert edges.order[edges.place].tolist() == list(range(adjacency.num_edges * heads))
    for node in range(adjacency.num_dst):
        first, last = adjacency.ptr[node], adjacency.ptr[node + 1]
        for head in range(heads):
            at = slice(edges.ptr[node * heads + head], edges.ptr[node * heads + head + 1])
            assert edges.order[at].tolist() == [e * heads + head for e in range(first, last)]
            src = adjacency.src[first:last]
            assert edges.rows[at].tolist() == (src * heads + head if own_rows else src).tolist()


@given(adjacencies())
def test_additive_scores_are_those_of_gatv2(adjacency: Adjacency) -> None:
    x_src, x_dst = rows(adjacency.num_src, 2, 3), rows(adjacency.num_dst, 2, 3, seed=1)
    att = rows(2, 3, seed=2)
    summed = x_src[adjacency.src] + x_dst[adjacency.dst]
    theirs = (torch.nn.functional.leaky_relu(summed, 0.2) * att).sum(-1)
    check_same(additive_scores(x_src, x_dst, att, 0.2, adjacency), theirs, x_src, x_dst, att)


@given(adjacencies())
def test_by_source_lists_each_sources_edges_in_order(adjacency: Adjacency) -> None:
    order, dst, ptr = adjacency.by_source
    for node in range(adjacency.num_src):
        edges = order[ptr[node] : ptr[node + 1]]
        assert edges.tolist() == (adjacency.src == node).nonzero().flatten().tolist()
        assert dst[ptr[node] : ptr[node + 1]].tolist() == adjacency.dst[edges].tolist()


@given(adjacencies())
def test_self_loops_replace_self_edges(adjacency: Adjacency) -> None:
    num_dst = min(adjacency.num_src, adjacency.num_dst)
    pairs = [
        (s, d)
        for s, d in zip(adjacency.src.tolist(), adjacency.dst.tolist(), strict=True)
        if d < num_dst
    ]
    cut = adjacency_of([s for s, _ in pairs], [d for _, d in pairs], adjacency.num_src, num_dst)
    looped = cut.with_self_loops
    for node in range(num_dst):
        start, stop = looped.ptr[node], looped.ptr[node + 1]
        expected = [s for s, d in pairs if d == node and s != node] + [node]
        assert looped.src[start:stop].tolist() == expected
        assert looped.dst[start:stop].tolist() == [node] * len(expected)
    assert looped.num_edges == looped.ptr[-1]


@given(adjacencies())
def test_chunks_cover_segments_and_edges_once(adjacency: Adjacency) -> None:
    chunks = list(segment_chunks(adjacency.ptr, adjacency.num_edges))
    segments = [i for part, _, _ in chunks for i in range(part.start, part.stop)]
    edges = [i for _, part, _ in chunks for i in range(part.start, part.stop)]
    assert segments == list(range(adjacency.num_dst))
    assert edges == list(range(adjacency.num_edges))
    for part, its_edges, ptr in chunks:
        expected = adjacency.ptr[part.start : part.stop + 1] - its_edges.start
        assert ptr.tolist() == expected.tolist()


@given(adjacencies())
def test_sums_with_own_rows_equal_a_sum_and_a_slice(adjacency):
    x = rows(max(adjacency.num_src, adjacency.num_dst), 3)
    adjacency.num_src = len(x)
    sums, own = segment_sum_and_rows(x, adjacency)
    assert torch.equal(sums, segment_sum(x, adjacency))
    assert torch.equal(own, x[: adjacency.num_dst])
    check_same(sums * own.exp(), segment_sum(x, adjacency) * x[: adjacency.num_dst].exp(), x)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("aggr", ["mean", "sum"])
@pytest.mark.parametrize("order", [True, False])
def test_both_orders_are_pygs_layer(
    monkeypatch: pytest.MonkeyPatch, order: bool, aggr: str, bias: bool
) -> None:
    graph = random_graph()
    taken = []
    monkeypatch.setattr(segment, "transform_first", lambda *_: taken.append(order) or order)
    ours = BlockSAGEConv(8, 3, aggr=aggr, bias=bias)
    plain = SAGEConv(8, 3, aggr=aggr, bias=bias)
    plain.load_state_dict(ours.state_dict())
    x = graph.x.clone().requires_grad_()
    found, expected = ours(x, graph.block), plain(x, graph.edge_index)
    assert taken == [order]
    inputs = [[x, *layer.parameters()] for layer in (ours, plain)]
    assert_same_with_grads(found, expected, *inputs)


@pytest.mark.parametrize("order", [True, False])
@pytest.mark.parametrize("between_types", [False, True])
def test_both_orders_of_attention_are_pygs_layer(
    monkeypatch: pytest.MonkeyPatch, order: bool, between_types: bool
) -> None:
    torch.manual_seed(0)
    graph = random_graph()
    taken = []
    monkeypatch.setattr(
        attention_encoders, "transform_first", lambda *_: taken.append(order) or order
    )
    widths = (8, 6) if between_types else 8
    ours = BlockGATConv(widths, 4, heads=3, add_self_loops=not between_types)
    plain = GATConv(widths, 4, heads=3, add_self_loops=not between_types)
    plain.load_state_dict(ours.state_dict())
    rows = [graph.x, *([torch.randn(graph.block.num_dst, 6)] if between_types else [])]
    rows = [x.clone().requires_grad_() for x in rows]
    found = ours(rows[0], graph.block, *rows[1:])
    assert taken == [order]
    expected = plain(tuple(rows) if between_types else rows[0], graph.edge_index)
    inputs = [[*rows, *layer.parameters()] for layer in (ours, plain)]
    assert_same_with_grads(found, expected, *inputs, rtol=1e-4, atol=1e-5)


def _block(num_src: int, num_dst: int, num_edges: int) -> Block:
    none = torch.empty(0)
    return Block(
        edge_index=torch.empty(2, num_edges, dtype=torch.int64),
        num_src=num_src,
        num_dst=num_dst,
        dst_ptr=none,
        src_in_degree=none,
        dst_degree=none,
    )


def test_the_order_is_the_one_that_was_faster() -> None:
    """Blocks of Facebook pages, 4,714 features, as measured; see docs/decisions.md."""
    for size, out_channels, is_first in [
        ((11_830, 5_596, 28_000), 16, True),
        ((11_830, 5_596, 28_000), 64, True),
        ((5_000, 1_653, 8_225), 16, True),
        ((5_000, 1_653, 8_225), 64, False),
        ((19_292, 9_178, 252_364), 64, True),
        ((22_470, 22_470, 341_646), 64, True),
    ]:
        assert transform_first(_block(*size), 4714, out_channels) == is_first
    assert not transform_first(_block(71_000, 25_600, 110_000), 128, 256)
