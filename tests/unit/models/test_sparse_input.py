"""Encoders give of sparse features what they give of the same rows with all of their zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from raygnn.models import (
    GAT,
    GCN,
    GIN,
    GINE,
    HGT,
    MLP,
    RGCN,
    Encoder,
    GATv2,
    GraphSAGE,
    Hetero,
    HeteroEncoder,
    SimpleHGN,
    Transformer,
)
from raygnn.models.exact import ExactOptions, InEdges, exact_inference
from raygnn.models.sparse_input import apply_linear, dropout, linear
from raygnn.sampling import SparseFeatures
from tests.unit.models.conftest import assert_same_with_grads, exact_rows, random_graph
from tests.unit.models.hetero_graph import EDGE_TYPES, IN_CHANNELS, NUM_NODES, random_hetero_graph

WIDTH = 40
ENCODERS: list[tuple[type[Encoder], dict[str, Any]]] = [
    (GCN, {}),
    (GraphSAGE, {}),
    (GraphSAGE, {"aggr": "sum"}),
    (GraphSAGE, {"aggr": "max"}),
    (GAT, {"num_heads": 2}),
    (GATv2, {"num_heads": 2}),
    (GIN, {"train_eps": True}),
    (Transformer, {"num_heads": 2}),
    (MLP, {}),
]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"input_projection": True},
    {"residual": True, "norm": "batch"},
    {"jump": "cat", "norm": "layer"},
]


def random_rows(
    num_rows: int, width: int = WIDTH, *, values: bool = True, seed: int = 0
) -> SparseFeatures:
    """About 4 entries a row, some of them in one place; the first and last row have none."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 8, num_rows)
    counts[[0, -1]] = 0
    size = int(counts.sum())
    return SparseFeatures(
        indptr=torch.from_numpy(np.concatenate([[0], counts.cumsum()])),
        indices=torch.from_numpy(rng.integers(0, width, size)),
        values=torch.from_numpy(rng.normal(size=size).astype(np.float32)) if values else None,
        width=width,
    )


def assert_same(sparse: Tensor, full: Tensor, parameters: Sequence[Tensor]) -> None:
    assert_same_with_grads(sparse, full, parameters, rtol=1e-5, atol=1e-5)


@st.composite
def csr(draw: st.DrawFn) -> SparseFeatures:
    width = draw(st.integers(1, 6))
    entry = st.tuples(st.integers(0, width - 1), st.integers(-3, 3))
    rows = draw(st.lists(st.lists(entry, max_size=4), max_size=5))
    entries = [each for row in rows for each in row]
    has_values = draw(st.booleans())
    return SparseFeatures(
        indptr=torch.tensor([0, *np.cumsum([len(row) for row in rows])], dtype=torch.int64),
        indices=torch.tensor([index for index, _ in entries], dtype=torch.int64),
        values=torch.tensor([float(v) for _, v in entries]) if has_values else None,
        width=width,
    )


def brute_force(x: SparseFeatures) -> Tensor:
    rows = torch.zeros(x.shape)
    for i in range(len(x)):
        for j in range(int(x.indptr[i]), int(x.indptr[i + 1])):
            rows[i, x.indices[j]] += 1 if x.values is None else x.values[j]
    return rows


@settings(max_examples=60)
@given(x=csr(), out_channels=st.integers(1, 5), has_bias=st.booleans(), count=st.integers(0, 6))
def test_products_and_gradients_are_those_of_dense_rows(x, out_channels, has_bias, count):
    rows = brute_force(x)
    assert torch.equal(x.to_dense(), rows)
    assert torch.equal(x.to_coo().to_dense(), rows)
    x, rows = x[:count], rows[:count]
    assert torch.equal(x.to_dense(), rows)
    layer = nn.Linear(x.width, out_channels, bias=has_bias)
    assert_same(apply_linear(layer, x), layer(rows), list(layer.parameters()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("values", [True, False])
def test_products_are_in_the_type_of_the_weights(dtype, values):
    x = random_rows(30, values=values)
    weight = torch.randn(7, WIDTH).to(dtype).requires_grad_()
    out = linear(x, weight)
    assert out.dtype == dtype
    expected = functional.linear(x.to_dense(), weight.float())
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.05)
    out.float().sum().backward()
    assert weight.grad.dtype == dtype
    torch.testing.assert_close(
        weight.grad.float(), x.to_dense().sum(0).expand(7, -1), rtol=0.02, atol=0.05
    )


def test_autocast_holds_for_products():
    x, layer = random_rows(30), nn.Linear(WIDTH, 5)
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = apply_linear(layer, x), layer(x.to_dense())
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected, rtol=0.02, atol=0.05)
    out.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_gradients_repeat_bit_for_bit():
    x, weight = random_rows(3000, 5), torch.randn(16, 5, requires_grad=True)
    found = []
    for num_threads in (1, 2, 2):
        torch.set_num_threads(num_threads)
        found.append(torch.autograd.grad(linear(x, weight).square().sum(), weight)[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])


def test_dropout_keeps_zeros_and_the_expected_value():
    x = random_rows(200, values=False)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x
    torch.manual_seed(0)
    dropped = dropout(x, 0.5, training=True)
    assert set(dropped.values.tolist()) == {0.0, 2.0}
    assert dropped.values.mean() == pytest.approx(1.0, abs=0.1)
    assert torch.equal(dropped.to_dense() != 0, (dropped.to_dense() != 0) & (x.to_dense() != 0))
    assert x.values is None


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("encoder_type", "args"), ENCODERS)
@pytest.mark.parametrize("num_dst", [30, 11, 1])
def test_encoders(
    encoder_type: type[Encoder], args: dict[str, Any], variant: dict[str, Any], num_dst: int
) -> None:
    assert encoder_type.takes_sparse_input
    torch.manual_seed(0)
    graph, x = random_graph(), random_rows(30)
    encoder = encoder_type(WIDTH, 3, 8, **args, **variant).double()
    block = _first_destinations(graph.block, num_dst)
    full = encoder(x.to_dense(), [graph.block, block])
    assert_same(encoder(x, [graph.block, block]), full, list(encoder.parameters()))


@pytest.mark.parametrize(("encoder_type", "args"), ENCODERS)
def test_encoders_are_exact_on_the_whole_graph(
    encoder_type: type[Encoder], args: dict[str, Any]
) -> None:
    graph, x = random_graph(), random_rows(30)
    encoder = encoder_type(WIDTH, 3, 8, residual=True, **args)
    edges = InEdges(indptr=graph.block.dst_ptr.numpy(), indices=graph.block.edge_index[0].numpy())
    options = ExactOptions(chunk_size=20)
    found = exact_rows(encoder, lambda ids: _taken(x, ids), edges, options)
    expected = encoder.eval()(x.to_dense(), [graph.block] * 2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_input_dropout_is_reproducible() -> None:
    graph, x = random_graph(), random_rows(30)
    encoder = GraphSAGE(WIDTH, 3, 8, input_dropout=0.5, dropout=0.5)
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(encoder(x, [graph.block] * 2))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_what_does_not_begin_with_a_linear_map_takes_dense_rows():
    assert not GINE.takes_sparse_input
    assert not Encoder.takes_sparse_input


def test_layers_of_ones_own_take_dense_rows_until_their_class_says_otherwise():
    class Renamed(GraphSAGE):
        pass

    class OwnLayers(GraphSAGE):
        def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
            return nn.Identity()

    class OwnSparseLayers(OwnLayers):
        takes_sparse_input = True

    assert Renamed.takes_sparse_input
    assert not OwnLayers.takes_sparse_input
    assert OwnSparseLayers.takes_sparse_input


@pytest.mark.parametrize("encoder_type", [Hetero, HGT, RGCN, SimpleHGN])
def test_hetero_encoders(encoder_type: type[HeteroEncoder]) -> None:
    assert encoder_type.takes_sparse_input
    graph = random_hetero_graph()
    encoder = encoder_type(IN_CHANNELS, 3, 8, edge_types=EDGE_TYPES, num_nodes=NUM_NODES)
    nodes, blocks = graph.blocks({"user": torch.arange(4), "item": torch.arange(3)}, 2)
    sparse = {name: random_rows(NUM_NODES[name], width) for name, width in IN_CHANNELS.items()}
    full = {name: rows.to_dense() for name, rows in sparse.items()}
    got, expected = (
        encoder({**{n: _taken(x, nodes[n]) for n, x in rows.items()}, "tag": nodes["tag"]}, blocks)
        for rows in (sparse, full)
    )
    assert_same(got, expected, list(encoder.parameters()))
    in_edges = graph.in_edges()
    exact = [
        exact_inference(
            encoder,
            lambda name, ids, x=x: _taken(x[name], ids),
            in_edges,
            NUM_NODES,
            options=ExactOptions(chunk_size=7),
        )
        for x in (sparse, full)
    ]
    for name in NUM_NODES:
        torch.testing.assert_close(exact[0][name], exact[1][name], rtol=1e-5, atol=1e-5)


def test_a_hetero_encoder_of_one_type_takes_rows_alone() -> None:
    graph, x = random_graph(), random_rows(30)
    encoder = Hetero({"n": WIDTH}, 3, 8, edge_types=[("n", "to", "n")])
    got, full = encoder(x, [graph.block] * 2), encoder(x.to_dense(), [graph.block] * 2)
    assert_same(got, full, list(encoder.parameters()))


def _taken(x: SparseFeatures | Tensor, ids: np.ndarray | Tensor) -> SparseFeatures | Tensor:
    """The rows of these ids; ids themselves stay."""
    ids = torch.as_tensor(ids)
    if isinstance(x, Tensor):
        return x[ids]
    bounds = [(int(x.indptr[i]), int(x.indptr[i + 1])) for i in ids]
    entries = torch.tensor([j for a, b in bounds for j in range(a, b)], dtype=torch.int64)
    counts = torch.tensor([0, *(b - a for a, b in bounds)])
    values = None if x.values is None else x.values[entries]
    return SparseFeatures(
        indptr=counts.cumsum(0), indices=x.indices[entries], values=values, width=x.width
    )


def _first_destinations(block: Any, num_dst: int) -> Any:
    num_edges = int(block.dst_ptr[num_dst])
    return replace(
        block,
        edge_index=block.edge_index[:, :num_edges],
        num_dst=num_dst,
        dst_ptr=block.dst_ptr[: num_dst + 1],
        dst_degree=block.dst_degree[:num_dst],
    )
