"""Encoders on a CUDA device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raygnn.models import GAT, GCN, GIN, MLP, Encoder, GATv2, GraphSAGE, Transformer
from raygnn.models.exact import ExactOptions, InEdges
from tests.unit.models.conftest import exact_rows, random_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CASES: list[tuple[type[Encoder], dict[str, Any]]] = [
    (GCN, {}),
    (GraphSAGE, {}),
    (GraphSAGE, {"aggr": "max"}),
    (GAT, {}),
    (GATv2, {}),
    (GIN, {}),
    (Transformer, {}),
    (MLP, {}),
]


@pytest.mark.parametrize(("encoder_type", "args"), CASES)
def test_rows_and_gradients_are_those_of_the_cpu_and_repeat(
    encoder_type: type[Encoder], args: dict[str, Any]
) -> None:
    graph = random_graph(num_nodes=300, num_edges=6000)
    encoder = encoder_type(8, 3, 16, **args)
    runs = []
    for device in ("cpu", "cuda", "cuda"):
        encoder.to(device)
        out = encoder(graph.x.to(device), [graph.block.to(device)] * 2)
        runs.append([out, *torch.autograd.grad(out.square().sum(), list(encoder.parameters()))])
    on_cpu, first, second = runs
    torch.testing.assert_close([t.cpu() for t in first], on_cpu, rtol=1e-3, atol=1e-3)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_exact_inference_runs_there() -> None:
    graph = random_graph()
    encoder = GCN(8, 3, 16).eval()
    expected = encoder(graph.x, [graph.block] * 2)
    edges = InEdges(indptr=graph.block.dst_ptr.numpy(), indices=graph.edge_index[0].numpy())
    options = ExactOptions(device=torch.device("cuda"), chunk_size=40)
    got = exact_rows(encoder.cuda(), lambda ids: graph.x[ids], edges, options)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-3)
