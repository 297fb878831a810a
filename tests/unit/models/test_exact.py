"""Encoding a whole graph layer by layer gives the full-graph forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raygnn.models import GAT, GCN, GIN, MLP, Encoder, GATv2, GraphSAGE, Transformer
from raygnn.models.exact import ExactOptions, InEdges, compute_here, destination_chunks
from tests.unit.models.conftest import exact_rows, random_graph

ENCODERS: list[type[Encoder]] = [GCN, GraphSAGE, GAT, GATv2, GIN, Transformer, MLP]


def in_edges_of(graph: Any, dtype: type[np.integer] = np.int64, **columns: np.ndarray) -> InEdges:
    indices = graph.edge_index[0].numpy().astype(dtype)
    return InEdges(indptr=graph.block.dst_ptr.numpy(), indices=indices, **columns)


@pytest.mark.parametrize("jump", [None, "last", "cat", "max", "lstm"])
@pytest.mark.parametrize("encoder_type", ENCODERS)
def test_it_is_the_full_graph_forward_pass(encoder_type: type[Encoder], jump: str | None) -> None:
    graph = random_graph(self_edges=True)
    options = {"residual": True, "input_projection": True} if jump == "last" else {}
    encoder = encoder_type(
        8, 3, 16, 3, jump=jump, norm="batch", normalize_output=True, dropout=0.5, **options
    )
    encoder(graph.x, [graph.block] * 3)  # moves the running statistics
    asked: list[np.ndarray] = []

    def rows_of(ids: np.ndarray) -> np.ndarray:
        asked.append(ids)
        return graph.x.numpy()[ids]

    got = exact_rows(encoder, rows_of, in_edges_of(graph, np.int32), ExactOptions(chunk_size=40))
    assert encoder.training
    encoder.eval()
    torch.testing.assert_close(got, encoder(graph.x, [graph.block] * 3))
    assert not got.requires_grad
    assert len(asked) > 2
    assert all(len(np.unique(ids)) == len(ids) for ids in asked)


@pytest.mark.parametrize("chunk_size", [1, 7, 1000])
def test_any_chunk_size_gives_the_same(chunk_size: int) -> None:
    graph = random_graph()
    encoder = GCN(8, 3, 16).eval()
    got = exact_rows(
        encoder, lambda ids: graph.x[ids], in_edges_of(graph), ExactOptions(chunk_size=chunk_size)
    )
    torch.testing.assert_close(got, encoder(graph.x, [graph.block] * 2))
    assert not encoder.training


def test_nothing_is_kept_for_another_graph_by_default() -> None:
    encoder = GCN(8, 3, 16).eval()
    for graph in (random_graph(40), random_graph(20), random_graph(50)):
        got = exact_rows(encoder, lambda ids, x=graph.x: x[ids], in_edges_of(graph))
        torch.testing.assert_close(got, encoder(graph.x, [graph.block] * 2))


def test_features_may_be_stored_in_half_precision() -> None:
    graph = random_graph()
    x = graph.x.half().numpy()
    encoder = GraphSAGE(8, 3, 16).eval()
    got = exact_rows(encoder, lambda ids: x[ids], in_edges_of(graph))
    torch.testing.assert_close(got, encoder(torch.from_numpy(x), [graph.block] * 2))
    assert got.dtype == torch.float32


def test_given_degrees_and_weights_take_part() -> None:
    graph = random_graph()
    degrees = graph.block.dst_degree.numpy() + 3
    weight = np.linspace(0.5, 2, graph.edge_index.shape[1], dtype=np.float32)
    encoder = GCN(8, 3, 16).eval()
    block = graph.block
    block = type(block)(
        edge_index=block.edge_index,
        dst_ptr=block.dst_ptr,
        num_src=block.num_src,
        num_dst=block.num_dst,
        src_in_degree=torch.from_numpy(degrees).float(),
        dst_degree=torch.from_numpy(degrees).float(),
        edge_weight=torch.from_numpy(weight),
    )
    got = exact_rows(
        encoder,
        lambda ids: graph.x[ids],
        in_edges_of(graph, dst_degree=degrees, edge_weight=weight),
        ExactOptions(chunk_size=25),
    )
    torch.testing.assert_close(got, encoder(graph.x, [block] * 2))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 30))
def test_chunks_cover_all_nodes_within_their_size(degrees: list[int], chunk_size: int) -> None:
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    chunks = list(destination_chunks(indptr, chunk_size))
    assert [i for first, last in chunks for i in range(first, last)] == list(range(len(degrees)))
    for first, last in chunks:
        assert last - first + indptr[last] - indptr[first] <= chunk_size or last - first == 1


def test_each_computation_says_which_layer_it_is() -> None:
    graph, asked = random_graph(), []

    def compute(chunks: Any, rows_of: Any, width: int, what: str) -> torch.Tensor:
        asked.append(what)
        return compute_here(chunks, rows_of, width)

    encoder = GCN(8, 3, 16, 3)
    exact_rows(encoder, lambda ids: graph.x[ids], in_edges_of(graph), ExactOptions(compute=compute))
    assert asked == ["layer 1 of 3", "layer 2 of 3", "layer 3 of 3"]
