"""Edge features: layers that read them are PyG's."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv, GINEConv, TransformerConv

from raygnn.models import GAT, GINE, Encoder, GATv2, Transformer, segment
from tests.errors import raises
from tests.unit.models.conftest import assert_same_with_grads, random_graph

EDGE_DIM = 3
OF_PYG: dict[str, tuple[type[Encoder], type[nn.Module]]] = {
    "gat": (GAT, GATConv),
    "gatv2": (GATv2, GATv2Conv),
    "gine": (GINE, GINEConv),
    "transformer": (Transformer, TransformerConv),
}


def with_edge_attr(graph: Any, dtype: torch.dtype = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(graph.edge_index.shape[1], EDGE_DIM, generator=generator).to(dtype)
    block = dataclasses.replace(graph.block, edge_attr=rows)
    return dataclasses.replace(graph, block=block)


@pytest.mark.parametrize("chunk_edges", [7, 2048])
@pytest.mark.parametrize("self_edges", [False, True])
@pytest.mark.parametrize("name", OF_PYG)
def test_layers_are_pygs_on_the_full_graph(
    name: str, self_edges: bool, chunk_edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "_CHUNK_EDGES", chunk_edges)
    encoder_type, conv = OF_PYG[name]
    graph = with_edge_attr(random_graph(self_edges=self_edges), torch.float64)
    x = graph.x.double().requires_grad_()
    encoder = encoder_type(8, 3, 16, 2, edge_dim=EDGE_DIM).double()
    first, second = encoder.layers
    edges = graph.edge_index, graph.block.edge_attr
    expected = conv.forward(second, conv.forward(first, x, *edges).relu(), *edges)
    inputs = [x, *encoder.parameters()]
    assert_same_with_grads(encoder(x, [graph.block] * 2), expected, inputs)


@pytest.mark.parametrize("name", OF_PYG)
def test_they_run_in_half_precision_and_under_autocast(name: str) -> None:
    graph = with_edge_attr(random_graph(), torch.float16)
    encoder = OF_PYG[name][0](8, 3, 16, edge_dim=EDGE_DIM)
    reference = encoder(graph.x, [graph.block] * 2)
    with torch.autocast("cpu", torch.bfloat16):
        out = encoder(graph.x, [graph.block] * 2)
    out.float().sum().backward()
    torch.testing.assert_close(out.float(), reference, rtol=0.05, atol=0.05)
    half = encoder.to(torch.bfloat16)(graph.x, [graph.block] * 2)
    assert half.dtype == torch.bfloat16
    half.float().sum().backward()
    torch.testing.assert_close(half.float(), reference, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", OF_PYG)
def test_a_single_feature_may_come_without_its_dimension(name: str) -> None:
    graph = with_edge_attr(random_graph())
    column = graph.block.edge_attr[:, :1]
    encoder = OF_PYG[name][0](8, 3, 16, 1, edge_dim=1)
    one = dataclasses.replace(graph.block, edge_attr=column)
    flat = dataclasses.replace(graph.block, edge_attr=column[:, 0])
    assert torch.equal(encoder(graph.x, [one]), encoder(graph.x, [flat]))


def test_features_have_to_be_there() -> None:
    graph = random_graph()
    for encoder_type, _ in OF_PYG.values():
        with raises("model-edge-dim", 3, "none"):
            encoder_type(8, 3, 16, 1, edge_dim=3)(graph.x, [graph.block])
        with raises("model-edge-dim", 4, "3 per edge"):
            encoder_type(8, 3, 16, 1, edge_dim=4)(graph.x, [with_edge_attr(graph).block])
        with raises("model-argument", "edge_dim=0"):
            encoder_type(8, 3, 16, 1, edge_dim=0)
