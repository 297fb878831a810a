"""PyG's own modules give what our encoders give; what PyG lacks is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from raygnn.models import GAT, GCN, GIN, GINE, MLP, GATv2, GraphSAGE, LightGCN, Transformer
from raygnn.models.feature_layers import CategoryInputs
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.to_pyg import to_pyg
from raygnn.sampling.blocks import HeteroBlock
from tests.errors import raises
from tests.unit.models.conftest import random_graph

EDGE = ("user", "knows", "user")
HEADS = {"num_heads": 2}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 1},
    {"num_layers": 3, "norm": "batch", "activation": "elu", "dropout": 0.5},
    {"norm": "layer", "activation": "gelu", "input_dropout": 0.2},
]
JUMPS: list[dict[str, Any]] = [{"jump": jump, "num_layers": 3} for jump in ("last", "cat", "max")]


def trained(encoder: nn.Module) -> nn.Module:
    """An encoder whose parameters and running statistics are not those that it starts with."""
    with torch.no_grad():
        for name, value in encoder.state_dict().items():
            if value.is_floating_point():
                value.add_(0.3 * torch.rand_like(value) if "var" in name else 0.1)
    return encoder.eval()


@pytest.mark.parametrize("options", [*OPTIONS, *JUMPS, {"jump": "lstm", "num_layers": 2}])
@pytest.mark.parametrize(
    ("kind", "theirs", "own"),
    [
        (GCN, pyg.GCN, [{}]),
        (GraphSAGE, pyg.GraphSAGE, [{}, {"aggr": "max"}, {"aggr": "sum"}]),
        (GAT, pyg.GAT, [HEADS, {**HEADS, "attn_dropout": 0.4}]),
        (GATv2, pyg.GAT, [HEADS]),
        (GIN, pyg.GIN, [{}, {"train_eps": True}]),
    ],
)
def test_outputs_are_equal(kind, theirs, own, options):
    graph = random_graph()
    for extra in own:
        torch.manual_seed(0)
        encoder = trained(kind(8, 5, 12, **{**options, **extra}))
        module = to_pyg(GraphEncoder(encoder), kind.__name__)
        assert type(module) is theirs
        with torch.no_grad():
            expected = encoder(graph.x, [graph.block] * encoder.num_layers)
            found = module(graph.x, graph.edge_index)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", [GAT, GATv2])
def test_attention_reads_edges_and_has_other_heads_at_the_end(kind):
    from dataclasses import replace

    graph = random_graph()
    attributes = torch.randn(graph.edge_index.shape[1], 3)
    block = replace(graph.block, edge_attr=attributes)
    encoder = trained(kind(8, 5, 12, num_heads=4, num_output_heads=1, edge_dim=3))
    module = to_pyg(GraphEncoder(encoder), kind.__name__, ["edge_attr"])
    with torch.no_grad():
        found = module(graph.x, graph.edge_index, edge_attr=attributes)
        expected = encoder(graph.x, [block, block])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_perceptron_is_pygs(options):
    graph = random_graph()
    encoder = trained(MLP(8, 5, 12, **options))
    module = to_pyg(GraphEncoder(encoder), "MLP")
    assert type(module) is pyg.MLP
    with torch.no_grad():
        expected = encoder(graph.x, [graph.block] * encoder.num_layers)
        torch.testing.assert_close(module(graph.x), expected, atol=1e-6, rtol=1e-5)


def test_lightgcn_is_pygs():
    """On a graph that has each edge in both directions, as PyG's needs too."""
    from dataclasses import replace

    index = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])
    order = (index[1] * 5 + index[0]).argsort()
    index = index[:, order]
    degree = torch.bincount(index[1], minlength=5)
    block = replace(
        random_graph().block,
        edge_index=index,
        dst_ptr=torch.cat([degree.new_zeros(1), degree.cumsum(0)]),
        num_src=5,
        num_dst=5,
        src_degree=degree.float(),
        dst_degree=degree.float(),
    )
    encoder = trained(LightGCN({}, 6, 3, edge_types=[EDGE], num_nodes={"user": 5}))
    hetero = HeteroBlock(blocks={EDGE: block}, num_src={"user": 5}, num_dst={"user": 5})
    with torch.no_grad():
        expected = encoder({"user": torch.arange(5)}, [hetero] * 3)["user"]
        found = to_pyg(GraphEncoder(encoder), "LightGCN").get_embedding(index)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_weights_are_copies_and_the_mode_is_kept():
    encoder = GraphEncoder(GraphSAGE(4, 3, 8)).train()
    module = to_pyg(encoder, "GraphSAGE")
    assert module.training
    with torch.no_grad():
        next(module.parameters()).zero_()
    assert next(encoder.parameters()).any()
    own = pyg.GCN(4, 8, 2, 3)
    wrapped = to_pyg(GraphEncoder(own), "torch_geometric.nn.GCN")
    assert type(wrapped) is pyg.GCN
    assert wrapped is not own


@pytest.mark.parametrize(
    ("encoder", "edges", "named"),
    [
        (Transformer(4, 3, 8), [], "Transformer"),
        (GINE(4, 3, 8, edge_dim=2), ["edge_attr"], "GINE"),
        (GCN(4, 3, 8, residual=True), [], "residual"),
        (GCN(4, 3, 8, input_projection=True), [], "input_projection"),
        (GraphSAGE(4, 3, 8, normalize_output=True), [], "normalize_output"),
        (GraphSAGE(4, 3, 8, activation="prelu"), [], "prelu"),
        (MLP(4, 3, 8, jump="cat"), [], "jump"),
        (GCN(4, 3, 8), ["edge_weight"], "weights"),
    ],
)
def test_what_pyg_lacks_is_refused(encoder, edges, named):
    with raises("model-to-pyg", named):
        to_pyg(GraphEncoder(encoder), type(encoder).__name__, edges)


def test_categories_are_refused():
    inputs = CategoryInputs(2, {1: 4})
    encoder = GraphEncoder(GraphSAGE(inputs.out_channels, 3, 8), {"user": inputs})
    with raises("model-to-pyg", "categories"):
        to_pyg(encoder, "GraphSAGE")
