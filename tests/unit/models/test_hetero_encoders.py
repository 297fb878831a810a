"""Encoders of several node types: their layers are PyG's or their formula, on any block."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import HGTConv, LGConv, RGCNConv

from raygnn.models import HGT, RGCN, Hetero, HeteroEncoder, LightGCN, SimpleHGN, hetero_attention
from raygnn.models.exact import ExactOptions, exact_inference
from raygnn.models.hetero import RGCNLayer
from raygnn.models.hetero_attention import HGTLayer, SimpleHGNLayer
from raygnn.models.segment import merge_edges
from raygnn.sampling.batch import Batch, NodeRecord
from raygnn.sampling.blocks import HeteroBlock
from tests.errors import raises
from tests.unit.models.conftest import assert_same_with_grads, random_graph
from tests.unit.models.hetero_graph import (
    EDGE_DIMS,
    EDGE_TYPES,
    IN_CHANNELS,
    NUM_NODES,
    random_hetero_graph,
)

GRAPH = random_hetero_graph()
TYPES: dict[str, Any] = {"edge_types": EDGE_TYPES, "num_nodes": NUM_NODES}
CONVS = ["GraphSAGE", "GAT", "GATv2", "GIN", "GINE", "Transformer"]
ENCODERS: dict[str, Callable[..., HeteroEncoder]] = {
    "hgt": partial(HGT, num_heads=2),
    "rgcn": partial(RGCN),
    "rgcn-bases": partial(RGCN, num_bases=2),
    "simple_hgn": partial(SimpleHGN, num_heads=2),
    "lightgcn": partial(LightGCN),
    **{conv: partial(Hetero, conv=conv, num_heads=2) for conv in (*CONVS, "MLP")},
    **{
        f"{conv}-edges": partial(Hetero, conv=conv, num_heads=2, aggr="mean", edge_dims=EDGE_DIMS)
        for conv in ("GAT", "GATv2", "GINE", "Transformer")
    },
}


def build(name: str, num_layers: int = 2, **args: Any) -> HeteroEncoder:
    torch.manual_seed(0)
    if name == "lightgcn":
        return ENCODERS[name](IN_CHANNELS, 3, num_layers, **TYPES, **args)
    return ENCODERS[name](IN_CHANNELS, 3, 8, num_layers, **TYPES, **args)


def rows_for(encoder: HeteroEncoder, nodes: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: ids if name in encoder.embedded_types else GRAPH.x[name][ids]
        for name, ids in nodes.items()
    }


def every_node() -> dict[str, Tensor]:
    return {name: torch.arange(num) for name, num in NUM_NODES.items()}


def hidden_rows(channels: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(num, channels, generator=generator, dtype=torch.float64).requires_grad_()
        for name, num in NUM_NODES.items()
    }


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("seeds", [{"user": [3, 11, 0]}, {"item": [8, 2], "tag": [1]}])
def test_blocks_give_the_rows_of_the_full_graph(name: str, seeds: dict[str, list[int]]) -> None:
    encoder = build(name, norm="layer") if name != "lightgcn" else build(name)
    ids = {name: torch.tensor(of_type) for name, of_type in seeds.items()}
    nodes, blocks = GRAPH.blocks(ids, 2)
    got = encoder(rows_for(encoder, nodes), blocks)
    whole = encoder(rows_for(encoder, every_node()), GRAPH.whole(2))
    for node_type in NUM_NODES:
        expected = whole[node_type][ids.get(node_type, torch.empty(0).long())]
        torch.testing.assert_close(got[node_type], expected)


@pytest.mark.parametrize("jump", [None, "cat", "lstm"])
@pytest.mark.parametrize("name", ENCODERS)
def test_exact_inference_is_the_full_graph_forward_pass(name: str, jump: str | None) -> None:
    args = {} if name == "lightgcn" else {"jump": jump, "norm": "batch", "dropout": 0.5}
    encoder = build(name, 3, normalize_output=True, **args)
    encoder(rows_for(encoder, every_node()), GRAPH.whole(3))  # moves the running statistics
    asked: list[int] = []

    def features(node_type: str, ids: Any) -> Any:
        asked.append(len(ids))
        return GRAPH.x[node_type].numpy()[ids]

    edges = GRAPH.in_edges()
    got = exact_inference(encoder, features, edges, NUM_NODES, options=ExactOptions(chunk_size=15))
    assert encoder.training
    encoder.eval()
    expected = encoder(rows_for(encoder, every_node()), GRAPH.whole(3))
    for node_type in NUM_NODES:
        torch.testing.assert_close(got[node_type], expected[node_type])
        assert not got[node_type].requires_grad
    (only,) = exact_inference(encoder, features, edges, NUM_NODES, ["item"]).values()
    torch.testing.assert_close(only, expected["item"])
    assert not encoder.training


@pytest.mark.parametrize("name", [name for name in ENCODERS if name != "lightgcn"])
def test_biases_that_batch_norm_subtracts_get_a_gradient_of_exactly_0(name: str) -> None:
    encoder = build(name, 2, norm="batch").double()
    rows = {
        node_type: x.double() if x.is_floating_point() else x
        for node_type, x in rows_for(encoder, every_node()).items()
    }
    held = {
        parameter
        for layer in encoder.layers
        for parameter_name, parameter in layer.named_parameters()
        if re.fullmatch(encoder.row_biases, parameter_name)
    }
    assert len(held) >= 2
    total = sum(
        (x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)).sum()
        for x in encoder(rows, GRAPH.whole(2)).values()
    )
    total.backward()
    assert all(not parameter.grad.any() for parameter in held)
    # Without their norms in the way, those of the last layer are told by how they act.
    before = encoder.layers[1](encoder.encode_inputs(rows), GRAPH.whole(2)[1])
    for parameter in held:
        parameter.data += 1.0
    after = encoder.layers[1](encoder.encode_inputs(rows), GRAPH.whole(2)[1])
    for node_type, x in before.items():
        moved = after[node_type] - x
        torch.testing.assert_close(moved, moved[:1].expand_as(moved))


@pytest.mark.parametrize("name", ENCODERS)
def test_a_batch_may_lack_types_and_every_parameter_gets_a_gradient(name: str) -> None:
    encoder = build(name)
    # Three users without any neighbor: no items, no tags, no edge types in the batch.
    block = HeteroBlock(blocks={}, num_src={"user": 3}, num_dst={"user": 3})
    out = encoder({"user": rows_for(encoder, every_node())["user"][:3]}, [block, block])
    assert out["user"].shape == (3, 3)
    assert out["item"].shape == (0, 3)
    out["user"].sum().backward()
    for parameter in encoder.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    encoder.zero_grad()
    out = encoder({}, [HeteroBlock(blocks={}, num_src={}, num_dst={})] * 2)
    sum(rows.sum() for rows in out.values()).backward()
    assert all(not parameter.grad.any() for parameter in encoder.parameters())


@pytest.mark.parametrize("name", ENCODERS)
def test_an_edge_type_without_edges_may_be_left_out(name: str) -> None:
    encoder = build(name, 1)
    (whole,) = GRAPH.whole(1)
    blocks = {t: b for t, b in whole.blocks.items() if b.num_edges}
    assert len(blocks) == len(EDGE_TYPES) - 1
    fewer = HeteroBlock(blocks=blocks, num_src=whole.num_src, num_dst=whole.num_dst)
    x = rows_for(encoder, every_node())
    for node_type, rows in encoder(x, [whole]).items():
        assert torch.equal(rows, encoder(x, [fewer])[node_type])


@pytest.mark.parametrize("name", ENCODERS)
def test_they_run_under_autocast(name: str) -> None:
    encoder = build(name)
    x, blocks = rows_for(encoder, every_node()), GRAPH.whole(2)
    reference = encoder(x, blocks)
    with torch.autocast("cpu", torch.bfloat16):
        out = encoder(x, blocks)
    sum(rows.float().sum() for rows in out.values()).backward()
    for node_type, rows in out.items():
        torch.testing.assert_close(rows.float(), reference[node_type], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", [n for n in ENCODERS if n != "lightgcn"])
def test_every_option_trains(name: str) -> None:
    encoder = build(
        name,
        dropout=0.3,
        input_dropout=0.3,
        norm="batch",
        activation="prelu",
        jump="max",
        normalize_output=True,
    )
    out = encoder(rows_for(encoder, every_node()), GRAPH.whole(2))
    torch.testing.assert_close(out["user"].norm(dim=1), torch.ones(12))
    out["user"][:, 0].sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())


@pytest.mark.parametrize("multiplied_first", [False, True])
def test_hgt_is_pygs(multiplied_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hetero_attention, "transform_first", lambda *_: multiplied_first)
    ours = HGTLayer(list(NUM_NODES), EDGE_TYPES, 8, num_heads=2).double()
    theirs = HGTConv(8, 8, (list(NUM_NODES), EDGE_TYPES), heads=2).double()
    nn.init.normal_(ours.prior)
    nn.init.normal_(ours.skip)
    with torch.no_grad():
        for i, name in enumerate(NUM_NODES):
            key, query, value = ours.lin_kqv[name].weight.chunk(3)
            of_key, of_query, of_value = ours.lin_kqv[name].bias.chunk(3)
            lin = theirs.kqv_lin.lins[name]
            lin.weight.copy_(torch.cat([key, query, value]))
            lin.bias.copy_(torch.cat([of_key, of_query, of_value]))
            theirs.out_lin.lins[name].weight.copy_(ours.lin_out[name].weight)
            theirs.out_lin.lins[name].bias.copy_(ours.lin_out[name].bias)
            theirs.skip[name].copy_(ours.skip[i])
        for i, edge_type in enumerate(EDGE_TYPES):
            theirs.p_rel["__".join(edge_type)].copy_(ours.prior[i])
            for head in range(2):
                at = head * len(EDGE_TYPES) + i
                theirs.k_rel.weight[at].copy_(ours.key_relation[i, head])
                theirs.v_rel.weight[at].copy_(ours.value_relation[i, head])
    x = hidden_rows(8)
    expected = theirs(x, GRAPH.edge_index)
    got = ours(x, GRAPH.whole(1)[0])
    # PyG gives no row to types that no edge type leads to.
    assert set(got) - set(expected) == {"tag"}
    del got["tag"]
    assert_same_with_grads(got, expected, list(x.values()))


@pytest.mark.parametrize(
    ("name", "multiplied_first"),
    [("hgt", False), ("hgt", True), *((conv, None) for conv in ("GraphSAGE", "MLP", "GAT"))],
)
def test_inputs_are_composed_with_the_first_layer(
    name: str, multiplied_first: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hetero_attention, "transform_first", lambda *_: multiplied_first)
    args = {"jump": "cat"} if name == "hgt" else {"jump": "cat", "aggr": "mean", "norm": "batch"}
    encoder, formed_first = (build(name, **args).double() for _ in range(2))
    formed_first.composes_inputs = False  # type: ignore[misc]
    x = rows_for(encoder, every_node())
    assert_same_with_grads(
        encoder(x, GRAPH.whole(2)),
        formed_first(x, GRAPH.whole(2)),
        list(encoder.parameters()),
        list(formed_first.parameters()),
    )


def test_layers_of_a_subclass_get_formed_rows() -> None:
    class OwnLayer(nn.Module):
        def forward(self, x_src: dict[str, Tensor], block: HeteroBlock) -> dict[str, Tensor]:
            return {name: rows[: block.num_dst[name]] * 2 for name, rows in x_src.items()}

    class OwnLayers(HGT):
        def build_layer(self, channels: int) -> nn.Module:
            return OwnLayer()

    encoder = OwnLayers(IN_CHANNELS, 3, 8, 1, **TYPES)
    out = encoder(rows_for(encoder, every_node()), GRAPH.whole(1))
    assert {name: tuple(rows.shape) for name, rows in out.items()} == {
        name: (num, 3) for name, num in NUM_NODES.items()
    }


@pytest.mark.parametrize("num_bases", [None, 3])
def test_rgcn_is_pygs(num_bases: int | None) -> None:
    ours = RGCNLayer(EDGE_TYPES, 8, num_bases).double()
    nn.init.normal_(ours.bias)
    theirs = RGCNConv(8, 8, len(EDGE_TYPES), num_bases=num_bases).double()
    theirs.load_state_dict(ours.state_dict())
    x = hidden_rows(8)
    first = dict(zip(NUM_NODES, [0, 12, 21], strict=True))
    edges, kinds = [], []
    for i, (source, relation, target) in enumerate(EDGE_TYPES):
        of_type = GRAPH.edge_index[source, relation, target]
        edges.append(of_type + torch.tensor([[first[source]], [first[target]]]))
        kinds.append(torch.full((of_type.shape[1],), i))
    out = theirs(torch.cat(list(x.values())), torch.cat(edges, dim=1), torch.cat(kinds))
    expected = dict(zip(NUM_NODES, out.split(list(NUM_NODES.values())), strict=True))
    assert_same_with_grads(ours(x, GRAPH.whole(1)[0]), expected, list(x.values()))


@pytest.mark.parametrize("aggr", ["sum", "mean"])
@pytest.mark.parametrize("conv", CONVS)
def test_hetero_sums_pygs_convolutions(conv: str, aggr: str) -> None:
    edge_dims = EDGE_DIMS if conv in ("GAT", "GATv2", "GINE", "Transformer") else {}
    encoder = Hetero(
        IN_CHANNELS, 3, 8, 1, **TYPES, conv=conv, aggr=aggr, num_heads=2, edge_dims=edge_dims
    )
    (layer,) = encoder.double().layers
    x = hidden_rows(8)
    (block,) = GRAPH.whole(1)
    expected = {name: layer.lin_self[name](rows) for name, rows in x.items()}
    for edge_type in EDGE_TYPES:
        source, _, target = edge_type
        # The layers hold PyG's own parameters, so PyG's own forward pass can run on them.
        module = layer.convs[edge_type]
        inputs = [(x[source], x[target]), GRAPH.edge_index[edge_type]]
        if edge_type in edge_dims:
            inputs.append(GRAPH.edge_attr[edge_type].double())
        kinds = type(module).__mro__
        of_pyg = next(kind for kind in kinds if kind.__module__.startswith("torch_geometric"))
        messages = of_pyg.forward(module, *inputs)
        share = {"user": 3, "item": 2}[target] if aggr == "mean" else 1
        expected[target] = expected[target] + messages / share
    inputs = [*x.values(), *layer.parameters()]
    assert_same_with_grads(layer(x, block), expected, inputs)


def test_simple_hgn_is_its_formula() -> None:
    layer = SimpleHGNLayer(list(NUM_NODES), EDGE_TYPES, 8, 2, edge_type_channels=5).double()
    x = hidden_rows(8)
    value = {name: layer.lin(rows).view(-1, 2, 4) for name, rows in x.items()}
    expected = {name: layer.lin_res(rows) for name, rows in x.items()}
    for target, num in NUM_NODES.items():
        for i in range(num):
            scores, values = [], []
            for relation, edge_type in enumerate(EDGE_TYPES):
                src, dst = GRAPH.edge_index[edge_type]
                if edge_type[2] != target:
                    continue
                edge = layer.lin_edge(layer.edge_type_rows[relation]).view(2, 5) * layer.att_edge
                for j in src[dst == i].tolist():
                    v = value[edge_type[0]][j]
                    score = (v * layer.att_src).sum(1) + (value[target][i] * layer.att_dst).sum(1)
                    scores.append(nn.functional.leaky_relu(score + edge.sum(1), 0.2))
                    values.append(v)
            if scores:
                weight = torch.stack(scores).softmax(dim=0).unsqueeze(-1)
                row = (weight * torch.stack(values)).sum(dim=0).flatten()
                at = torch.arange(num).unsqueeze(1) == i
                expected[target] = expected[target] + at * row
    inputs = [*x.values(), *layer.parameters()]
    assert_same_with_grads(layer(x, GRAPH.whole(1)[0]), expected, inputs)


def lightgcn_types() -> dict[str, Any]:
    """Users and items, each edge in both directions."""
    both = [("user", "buys", "item"), ("item", "rev_buys", "user")]
    return {"edge_types": both, "num_nodes": {"user": 12, "item": 9}}


def test_lightgcn_is_pygs_on_the_union_of_both_types() -> None:
    encoder = LightGCN(None, 4, 3, **lightgcn_types())
    (block,) = GRAPH.whole(1)
    kept = {t: block.blocks[t] for t in encoder.edge_types}
    users_items = {"user": 12, "item": 9}
    block = HeteroBlock(blocks=kept, num_src=users_items, num_dst=users_items)
    ids = {"user": torch.arange(12), "item": torch.arange(9)}
    got = encoder(ids, [block] * 3)
    tables = encoder.inputs.tables
    h = torch.cat([tables["user"].rows.weight, tables["item"].rows.weight])
    edge_index = GRAPH.edge_index["user", "buys", "item"] + torch.tensor([[0], [12]])
    edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    layers = [h]
    for _ in range(3):
        layers.append(LGConv()(layers[-1], edge_index))
    expected = torch.stack(layers).mean(dim=0)
    outputs = dict(zip(("user", "item"), expected.split([12, 9]), strict=True))
    assert_same_with_grads(got, outputs, list(encoder.parameters()))
    assert len(list(encoder.parameters())) == 2


@pytest.mark.parametrize("encoder_type", [HGT, RGCN, SimpleHGN, Hetero, LightGCN])
def test_a_graph_of_one_type_needs_no_dictionaries(encoder_type: type[HeteroEncoder]) -> None:
    graph = random_graph()
    types: dict[str, Any] = {"edge_types": [("a", "to", "a")], "num_nodes": {"a": 30}}
    encoder = encoder_type({"a": 8}, 3, **types)
    x = torch.arange(30) if encoder.embedded_types else graph.x
    out = encoder(x, [graph.block] * encoder.num_layers)
    wrapped = HeteroBlock(
        blocks={("a", "to", "a"): graph.block}, num_src={"a": 30}, num_dst={"a": 30}
    )
    assert torch.equal(out, encoder({"a": x}, [wrapped] * encoder.num_layers)["a"])


def test_inputs_of_a_batch_are_features_or_ids() -> None:
    counts: dict[str, Any] = {"num_seeds": 0, "num_sampled": None}
    nodes = {
        "user": NodeRecord(n_id=torch.tensor([0, 1]), columns={"x": GRAPH.x["user"][:2]}, **counts),
        "tag": NodeRecord(n_id=torch.tensor([4]), columns={}, **counts),
    }
    batch = Batch(index=0, input_id=torch.arange(0), nodes=nodes, edges={})
    inputs = build("rgcn").inputs_of(batch)
    assert inputs.keys() == {"user", "tag"}
    assert torch.equal(inputs["user"], GRAPH.x["user"][:2])
    assert inputs["tag"].tolist() == [4]
    assert build("lightgcn").inputs_of(batch)["user"].tolist() == [0, 1]


def test_embeddings_may_have_sparse_gradients() -> None:
    encoder = build("rgcn", sparse_embeddings=True)
    table = encoder.inputs.tables["tag"]
    assert table.sparse
    assert table.num_nodes == 5
    nodes, blocks = GRAPH.blocks({"item": torch.arange(8)}, 2)
    encoder(rows_for(encoder, nodes), blocks)["item"].sum().backward()
    grad = table.rows.weight.grad
    assert grad.is_sparse
    dense = build("rgcn")
    dense(rows_for(dense, nodes), blocks)["item"].sum().backward()
    torch.testing.assert_close(grad.to_dense(), dense.inputs.tables["tag"].rows.weight.grad)
    # A batch without tags leaves the table without a gradient, a sparse or dense one.
    encoder.zero_grad()
    block = HeteroBlock(blocks={}, num_src={"user": 1}, num_dst={"user": 1})
    encoder({"user": GRAPH.x["user"][:1]}, [block] * 2)["user"].sum().backward()
    grad = table.rows.weight.grad
    assert grad is None or grad.is_sparse


def test_merged_edges_are_sorted_by_destination_and_stable() -> None:
    (whole,) = GRAPH.whole(1)
    into_users = [t for t in EDGE_TYPES if t[2] == "user"]
    blocks = [whole.blocks[t] for t in into_users]
    merged = merge_edges(blocks)
    dst = torch.cat([block.edge_index[1] for block in blocks])
    order = dst.argsort(stable=True)
    assert torch.equal(merged.order, order)
    assert torch.equal(merged.position, order.argsort())
    assert torch.equal(merged.dst, dst[order])
    assert torch.equal(merged.ptr.diff(), torch.bincount(dst, minlength=12))


def test_embedding_rows_start_with_unit_length_on_average() -> None:
    torch.manual_seed(0)
    encoder = LightGCN({}, 64, edge_types=[("a", "to", "a")], num_nodes={"a": 2000})
    weight = encoder.inputs.tables["a"].rows.weight.detach()
    assert float(weight.square().sum(dim=1).mean()) == pytest.approx(1, abs=0.05)
    assert math.isclose(float(weight.mean()), 0, abs_tol=0.01)


def test_wrong_arguments_are_named() -> None:
    unread = {"tag__marks__item": 2}
    for kind, args, id, *shown in [
        (RGCN, {"num_bases": 0}, "model-argument", "num_bases=0"),
        (HGT, {"hidden_channels": 30}, "model-heads", "hidden_channels=30", 8, "24 or 32"),
        (SimpleHGN, {"edge_type_channels": 0}, "model-argument", "edge_type_channels=0"),
        (Hetero, {"conv": "GCN"}, "model-argument-choice", "conv='GCN'", "GraphSAGE"),
        (Hetero, {"aggr": "max"}, "model-argument-choice", "aggr='max'", "sum, mean"),
        (
            Hetero,
            {"conv": "GAT", "edge_dims": {"a__b__c": 2}},
            "model-edge-dims-unknown",
            "a__b__c",
        ),
        (Hetero, {"conv": "GIN", "edge_dims": unread}, "model-edge-dims-unread", "GIN"),
    ]:
        with raises(id, *shown):
            kind(IN_CHANNELS, 3, **TYPES, **args)
    with raises("model-no-edge-types"):
        RGCN(IN_CHANNELS, 3, edge_types=[])
    with raises("model-node-inputs-missing", "tag", "tag__marks__item"):
        RGCN(IN_CHANNELS, 3, edge_types=EDGE_TYPES)
    with raises("model-layers-hops", 2, 1):
        build("rgcn")({}, GRAPH.whole(1))
    with raises("model-batch-types", "RGCN"):
        build("rgcn")(torch.ones(3, 4), [])


def test_wrong_inputs_are_named() -> None:
    encoder = build("rgcn")
    with raises("model-node-type-unknown", "shop"):
        encoder.encode_inputs({"shop": torch.ones(1, 2)})
    with raises("model-node-input", "tag"):
        encoder.encode_inputs({"tag": torch.ones(1, 2)})
    with raises("model-node-input", "user", 6):
        encoder.encode_inputs({"user": torch.ones(1, 2)})
