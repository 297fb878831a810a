"""Encoders: their layers are PyG's, edge features included; their arguments do what they say."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    SAGEConv,
    TransformerConv,
)

from raygnn.models import GAT, GCN, GIN, GINE, MLP, Encoder, GATv2, GraphSAGE, Transformer, segment
from raygnn.sampling.blocks import Block, HeteroBlock
from tests.errors import raises
from tests.unit.models.conftest import assert_same_with_grads, outputs_and_grads, random_graph

ENCODERS: list[type[Encoder]] = [GCN, GraphSAGE, GAT, GATv2, GIN, Transformer, MLP]

#: The parameter of a layer that is added to every row of its output.
ROW_BIASES: dict[type[Encoder], str] = {
    GCN: "bias",
    GraphSAGE: "lin_l.bias",
    GAT: "bias",
    GATv2: "bias",
    GIN: "nn.3.bias",
    Transformer: "lin_skip.bias",
    MLP: "lin.bias",
}

OF_PYG: dict[str, tuple[type[Encoder], dict[str, Any], type[nn.Module]]] = {
    "sage-mean": (GraphSAGE, {}, SAGEConv),
    "sage-max": (GraphSAGE, {"aggr": "max"}, SAGEConv),
    "sage-sum": (GraphSAGE, {"aggr": "sum"}, SAGEConv),
    "gat": (GAT, {}, GATConv),
    "gat-one-output-head": (GAT, {"num_output_heads": 1}, GATConv),
    "gatv2": (GATv2, {"num_heads": 4}, GATv2Conv),
    "gin": (GIN, {"train_eps": True}, GINConv),
    "transformer": (Transformer, {}, TransformerConv),
}


@pytest.mark.parametrize("self_edges", [False, True])
@pytest.mark.parametrize("name", OF_PYG)
def test_layers_are_pygs_on_the_full_graph(name: str, self_edges: bool) -> None:
    encoder_type, args, conv = OF_PYG[name]
    graph = random_graph(self_edges=self_edges)
    x = graph.x.double().requires_grad_()
    encoder = encoder_type(8, 3, 16, 2, **args).double()
    # The layers hold PyG's own parameters, so PyG's own forward pass can run on them.
    first, second = encoder.layers
    hidden = conv.forward(first, x, graph.edge_index).relu()
    expected = conv.forward(second, hidden, graph.edge_index)
    inputs = [x, *encoder.parameters()]
    assert_same_with_grads(encoder(x, [graph.block] * 2), expected, inputs)


# Wide to narrow transforms first, narrow to wide sums the neighbors first.
@pytest.mark.parametrize(("hidden", "out"), [(2, 2), (16, 32)])
def test_gcn_is_pygs_on_a_graph_without_self_edges(hidden: int, out: int) -> None:
    graph = random_graph()
    x = graph.x.double().requires_grad_()
    encoder = GCN(8, out, hidden).double()
    convs = nn.ModuleList([GCNConv(8, hidden), GCNConv(hidden, out)]).double()
    for ours, theirs in zip(encoder.layers, convs, strict=True):
        nn.init.normal_(ours.bias)
        theirs.load_state_dict(ours.state_dict())
    expected = convs[1](convs[0](x, graph.edge_index).relu(), graph.edge_index)
    inputs = [[x, *layers.parameters()] for layers in (encoder.layers, convs)]
    assert_same_with_grads(encoder(x, [graph.block] * 2), expected, *inputs)


@pytest.mark.parametrize("encoder_type", ENCODERS)
def test_gradients_repeat_bit_for_bit(encoder_type: type[Encoder]) -> None:
    graph = random_graph(num_nodes=300, num_edges=6000)
    encoder = encoder_type(8, 3, 16, dropout=0.2)
    torch.set_num_threads(2)
    runs = []
    for _ in range(3):
        torch.manual_seed(0)
        out = encoder(graph.x, [graph.block] * 2)
        runs.append(outputs_and_grads(out, list(encoder.parameters())))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


@pytest.mark.parametrize("encoder_type", ENCODERS)
def test_every_option_trains(encoder_type: type[Encoder]) -> None:
    graph = random_graph()
    encoder = encoder_type(
        8,
        3,
        16,
        3,
        dropout=0.5,
        input_dropout=0.5,
        norm="batch",
        activation="elu",
        jump="lstm",
        normalize_output=True,
    )
    out = encoder(graph.x, [graph.block] * 3)
    torch.testing.assert_close(out.norm(dim=1), torch.ones(graph.num_nodes))
    out[:, 0].sum().backward()
    without = {name for name, p in encoder.named_parameters() if p.grad is None}
    further = {GIN: ["nn.0.bias"], Transformer: ["lin_value.bias"]}
    held = [ROW_BIASES[encoder_type], *further.get(encoder_type, [])]
    assert without == {f"layers.{i}.{name}" for i in range(3) for name in held}


@pytest.mark.parametrize("encoder_type", ENCODERS)
def test_a_bias_that_batch_norm_subtracts_gets_no_gradient(encoder_type: type[Encoder]) -> None:
    graph = random_graph()
    encoder = encoder_type(8, 3, 16, norm="batch").double()
    x = graph.x.double()
    layer, norm = encoder.layers[0], encoder.norms[0]
    bias = layer.get_parameter(ROW_BIASES[encoder_type])
    weight = torch.linspace(-1, 1, 16, dtype=torch.float64).square()
    _, plain = outputs_and_grads((norm(layer(x, graph.block)) * weight).tanh(), [bias])
    assert plain.abs().max() < 1e-12  # rounding alone
    whole = HeteroBlock(
        blocks={("node", "to", "node"): graph.block},
        num_src={"node": graph.num_nodes},
        num_dst={"node": graph.num_nodes},
    )
    out = encoder.forward_layer(0, {"node": x}, whole)["node"]
    torch.testing.assert_close(out, encoder.activations[0](norm(layer(x, graph.block))))
    out.square().sum().backward()
    assert bias.grad is None
    # The last layer has no norm after it.
    encoder(x, [graph.block] * 2).sum().backward()
    assert encoder.layers[1].get_parameter(ROW_BIASES[encoder_type]).grad is not None
    encoder.eval()
    encoder.forward_layer(0, {"node": x}, whole)["node"].sum().backward()
    assert bias.grad is not None  # the running mean is a constant


@pytest.mark.parametrize("encoder_type", ENCODERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_encoders_compute_in_the_type_of_their_parameters(
    encoder_type: type[Encoder], dtype: torch.dtype
) -> None:
    graph = random_graph()
    encoder = encoder_type(8, 3, 16, jump="max").to(dtype)
    out = encoder(graph.x, [graph.block] * 2)
    assert out.dtype == dtype
    out.float().sum().backward()
    reference = copy.deepcopy(encoder).float()(graph.x, [graph.block] * 2)
    torch.testing.assert_close(out.float(), reference, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("encoder_type", ENCODERS)
def test_encoders_run_under_autocast(encoder_type: type[Encoder]) -> None:
    graph = random_graph()
    encoder = encoder_type(8, 3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out = encoder(graph.x.half(), [graph.block] * 2)
    out.float().sum().backward()
    reference = encoder(graph.x, [graph.block] * 2)
    torch.testing.assert_close(out.float(), reference, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("norm", ["batch", "layer", None])
@pytest.mark.parametrize(
    ("encoder_type", "args", "conv"),
    [(GCN, {}, GCNConv), (GraphSAGE, {}, SAGEConv), (GAT, {"num_heads": 1}, GATConv)],
)
def test_a_tuned_encoder_is_that_of_classic_gnns_are_strong_baselines(
    encoder_type: type[Encoder],
    args: dict[str, Any],
    conv: Callable[[int, int], nn.Module],
    norm: str | None,
) -> None:
    """In training, with the same draws of dropout: arXiv:2406.08993, equation 3 and its code."""
    graph, rate = random_graph(), 0.4
    options = {"residual": True, "input_projection": True, "jump": "last", "dropout": rate}
    encoder = encoder_type(8, 3, 16, 3, norm=norm, **options, **args)
    convs = [conv(16, 16) for _ in range(3)]
    for plain, layer in zip(convs, encoder.layers, strict=True):
        plain.load_state_dict(layer.state_dict())
    torch.manual_seed(0)
    x = functional.dropout(encoder.input_projection(graph.x), rate)
    for plain, residual, normalize in zip(convs, encoder.residuals, encoder.norms, strict=True):
        x = normalize(plain(x, graph.edge_index) + residual(x)).relu()
        x = functional.dropout(x, rate)
    torch.manual_seed(0)
    found = encoder(graph.x, [graph.block] * 3)
    torch.testing.assert_close(found, encoder.head(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
def test_layers_whose_outputs_are_read_again_train(norm: str | None) -> None:
    class Bounded(nn.Module):
        def __init__(self, in_channels: int, out_channels: int) -> None:
            super().__init__()
            self.lin = nn.Linear(in_channels, out_channels)

        def forward(self, x_src: Tensor, block: Block) -> Tensor:
            return torch.tanh(self.lin(x_src[: block.num_dst]))

    class Own(Encoder):
        def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
            return Bounded(in_channels, out_channels)

    graph = random_graph()
    encoder = Own(8, 3, 16, 2, norm=norm)
    first, second = encoder.layers
    hidden = encoder.norms[0](first(graph.x, graph.block)).relu()
    parameters = list(encoder.parameters())
    found = encoder(graph.x, [graph.block] * 2)
    assert_same_with_grads(found, second(hidden, graph.block), parameters)


def test_batch_norm_takes_a_batch_of_one_seed() -> None:
    graph = random_graph()
    edges = (graph.edge_index[1] == 0).nonzero().flatten()
    block = Block(
        edge_index=graph.edge_index[:, edges],
        dst_ptr=torch.tensor([0, len(edges)]),
        num_src=graph.num_nodes,
        num_dst=1,
        src_in_degree=graph.block.src_in_degree,
        dst_degree=graph.block.dst_degree[:1],
    )
    encoder = GraphSAGE(8, 3, 16, 1, norm="batch", jump="cat")
    assert encoder(graph.x, [block]).shape == (1, 3)


def test_dropout_is_on_inner_inputs_and_input_dropout_on_features() -> None:
    graph = random_graph()
    plain = GraphSAGE(8, 3, 16, 2)
    encode = encoder_copy(plain, dropout=0.5)
    torch.manual_seed(0)
    hidden = nn.functional.dropout(plain.layers[0](graph.x, graph.block).relu(), 0.5)
    expected = plain.layers[1](hidden, graph.block)
    torch.manual_seed(0)
    assert torch.equal(encode(graph.x, [graph.block] * 2), expected)

    encode = encoder_copy(plain, input_dropout=0.5)
    torch.manual_seed(0)
    expected = plain(nn.functional.dropout(graph.x, 0.5), [graph.block] * 2)
    torch.manual_seed(0)
    assert torch.equal(encode(graph.x, [graph.block] * 2), expected)


def encoder_copy(encoder: GraphSAGE, **args: float) -> GraphSAGE:
    other = GraphSAGE(8, 3, 16, 2, **args)  # type: ignore[arg-type]
    other.load_state_dict(encoder.state_dict())
    return other


def test_attention_dropout_acts_in_training_only() -> None:
    graph = random_graph()
    for encoder_type in (GAT, GATv2, Transformer):
        encoder = encoder_type(8, 3, 16, 2, attn_dropout=0.5)
        blocks = [graph.block] * 2
        assert not torch.equal(encoder(graph.x, blocks), encoder(graph.x, blocks))
        encoder.eval()
        assert torch.equal(encoder(graph.x, blocks), encoder(graph.x, blocks))


def test_mlp_reads_no_row_but_the_seeds() -> None:
    graph = random_graph()
    x = graph.x.clone()
    x[4:] = torch.nan
    seeds = graph.edge_index[1] < 4
    block = Block(
        edge_index=graph.edge_index[:, seeds],
        dst_ptr=graph.block.dst_ptr[:5],
        num_src=graph.num_nodes,
        num_dst=4,
        src_in_degree=graph.block.src_in_degree,
        dst_degree=graph.block.dst_degree[:4],
    )
    assert MLP(8, 3, 16, 2)(x, [graph.block, block]).isfinite().all()


@pytest.mark.parametrize("encoder_type", ENCODERS)
def test_a_block_without_edges_gives_finite_rows(encoder_type: type[Encoder]) -> None:
    block = Block(
        edge_index=torch.empty(2, 0, dtype=torch.long),
        dst_ptr=torch.zeros(4, dtype=torch.long),
        num_src=5,
        num_dst=3,
        src_in_degree=torch.zeros(5),
        dst_degree=torch.zeros(3),
    )
    encoder = encoder_type(8, 3, 16, 1)
    out = encoder(torch.ones(5, 8), [block])
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in encoder.parameters())


def test_wrong_arguments_are_named() -> None:
    for kind, args, id, *shown in [
        (GCN, {"num_layers": 0}, "model-argument", "num_layers=0"),
        (GCN, {"hidden_channels": 1.5}, "model-argument", "hidden_channels=1.5"),
        (GCN, {"dropout": 1.0}, "model-argument", "dropout=1.0"),
        (GCN, {"norm": "group"}, "model-argument-choice", "norm='group'"),
        (GCN, {"activation": "sin"}, "model-argument-choice", "activation='sin'", "relu"),
        (GCN, {"jump": "sum"}, "model-argument-choice", "jump='sum'"),
        (GraphSAGE, {"aggr": "median"}, "model-argument-choice", "aggr='median'"),
        (GAT, {"hidden_channels": 30}, "model-heads", "hidden_channels=30", 8, "24 or 32"),
        (Transformer, {"hidden_channels": 4}, "model-heads", "hidden_channels=4", 8),
        (GATv2, {"num_output_heads": 0}, "model-argument", "num_output_heads=0"),
    ]:
        with raises(id, *shown):
            kind(8, 3, **args)


def test_as_many_blocks_as_layers_are_needed() -> None:
    graph = random_graph()
    with raises("model-layers-hops", 2, 3):
        GCN(8, 3)(graph.x, [graph.block] * 3)


# In-neighbors of the two destinations, 0 and 1, of a graph of six nodes.
NEIGHBORS = ([1, 2, 3, 5], [0, 3, 4])
DEGREE = torch.tensor([4.0, 3.0, 1.0, 2.0, 5.0, 2.0])


def block_of(chosen: tuple[tuple[int, ...], ...]) -> Block:
    src = [node for nodes in chosen for node in nodes]
    dst = [i for i, nodes in enumerate(chosen) for _ in nodes]
    counts = torch.tensor([0, *map(len, chosen)])
    return Block(
        edge_index=torch.tensor([src, dst]),
        dst_ptr=counts.cumsum(0),
        num_src=6,
        num_dst=2,
        src_in_degree=DEGREE,
        dst_degree=DEGREE[:2],
    )


def linear(encoder: Encoder) -> Encoder:
    """The activation inside GIN's MLP would make the expectation another."""
    for layer in encoder.layers:
        if isinstance(getattr(layer, "nn", None), nn.Sequential):
            layer.nn = nn.Linear(3, 2)
    return encoder.double()


@pytest.mark.parametrize("with_replacement", [False, True])
@pytest.mark.parametrize("fanout", [1, 2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage-mean", "sage-sum", "gin"])
def test_the_mean_over_all_samples_is_the_full_layer(
    name: str, fanout: int, with_replacement: bool
) -> None:
    encoder = {
        "gcn": lambda: GCN(3, 2, num_layers=1),
        "sage-mean": lambda: GraphSAGE(3, 2, num_layers=1),
        "sage-sum": lambda: GraphSAGE(3, 2, num_layers=1, aggr="sum"),
        "gin": lambda: GIN(3, 2, num_layers=1),
    }[name]()
    linear(encoder)
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def encode(*chosen: tuple[int, ...]) -> Tensor:
        return encoder(x, [block_of(chosen)])

    samples = [
        list(product(nodes, repeat=fanout) if with_replacement else combinations(nodes, fanout))
        for nodes in NEIGHBORS
    ]
    outputs = [encode(first, second) for first, second in product(*samples)]
    exact = encode(tuple(NEIGHBORS[0]), tuple(NEIGHBORS[1]))
    torch.testing.assert_close(torch.stack(outputs).mean(0), exact)
    if fanout < 3:
        assert not torch.allclose(outputs[0], exact)


EDGE_DIM = 3
WITH_EDGES: dict[str, tuple[type[Encoder], type[nn.Module]]] = {
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
@pytest.mark.parametrize("name", WITH_EDGES)
def test_layers_with_edge_features_are_pygs_on_the_full_graph(
    name: str, self_edges: bool, chunk_edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "_CHUNK_EDGES", chunk_edges)
    encoder_type, conv = WITH_EDGES[name]
    graph = with_edge_attr(random_graph(self_edges=self_edges), torch.float64)
    x = graph.x.double().requires_grad_()
    encoder = encoder_type(8, 3, 16, 2, edge_dim=EDGE_DIM).double()
    first, second = encoder.layers
    edges = graph.edge_index, graph.block.edge_attr
    expected = conv.forward(second, conv.forward(first, x, *edges).relu(), *edges)
    inputs = [x, *encoder.parameters()]
    assert_same_with_grads(encoder(x, [graph.block] * 2), expected, inputs)


@pytest.mark.parametrize("name", WITH_EDGES)
def test_they_run_in_half_precision_and_under_autocast(name: str) -> None:
    graph = with_edge_attr(random_graph(), torch.float16)
    encoder = WITH_EDGES[name][0](8, 3, 16, edge_dim=EDGE_DIM)
    reference = encoder(graph.x, [graph.block] * 2)
    with torch.autocast("cpu", torch.bfloat16):
        out = encoder(graph.x, [graph.block] * 2)
    out.float().sum().backward()
    torch.testing.assert_close(out.float(), reference, rtol=0.05, atol=0.05)
    half = encoder.to(torch.bfloat16)(graph.x, [graph.block] * 2)
    assert half.dtype == torch.bfloat16
    half.float().sum().backward()
    torch.testing.assert_close(half.float(), reference, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", WITH_EDGES)
def test_a_single_feature_may_come_without_its_dimension(name: str) -> None:
    graph = with_edge_attr(random_graph())
    column = graph.block.edge_attr[:, :1]
    encoder = WITH_EDGES[name][0](8, 3, 16, 1, edge_dim=1)
    one = dataclasses.replace(graph.block, edge_attr=column)
    flat = dataclasses.replace(graph.block, edge_attr=column[:, 0])
    assert torch.equal(encoder(graph.x, [one]), encoder(graph.x, [flat]))


def test_features_have_to_be_there() -> None:
    graph = random_graph()
    for encoder_type, _ in WITH_EDGES.values():
        with raises("model-edge-dim", 3, "none"):
            encoder_type(8, 3, 16, 1, edge_dim=3)(graph.x, [graph.block])
        with raises("model-edge-dim", 4, "3 per edge"):
            encoder_type(8, 3, 16, 1, edge_dim=4)(graph.x, [with_edge_attr(graph).block])
        with raises("model-argument", "edge_dim=0"):
            encoder_type(8, 3, 16, 1, edge_dim=0)
