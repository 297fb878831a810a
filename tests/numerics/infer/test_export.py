"""A model as a program: the same values, from torch alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import raygnn
import raygnn.train
from tests.errors import raises
from tests.small_runs import small_config
from tests.tiers import slow

try:
    import onnxruntime
except ImportError:  # an extra
    onnxruntime = None
needs_onnx = pytest.mark.skipif(onnxruntime is None, reason="the extra onnx is not installed")

RUNS_ALONE = """
import json, sys
import torch

note = {"raygnn.json": ""}
program = torch.export.load(sys.argv[1], extra_files=note).module()
graph = torch.load(sys.argv[2])
torch.save(program(graph["x"], graph["edge_index"]), sys.argv[3])
assert not {"raygnn", "torch_geometric"} & set(sys.modules)
print(note["raygnn.json"])
"""


def random_graph(num_nodes: int, num_edges: int, target: str = "class") -> Data:
    draw = torch.Generator().manual_seed(num_nodes)
    edges = torch.randint(num_nodes, (2, num_edges), generator=draw)
    edges = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
    x = 100 * torch.randn(num_nodes, 4, generator=draw) + 30
    y = torch.randint(3, (num_nodes,), generator=draw) if target == "class" else 1e4 + 9 * x[:, 0]
    return Data(x=x, y=y, edge_index=edges)


def trained(tmp_path: Path, graph: Data, **changes) -> raygnn.TrainedModel:
    config = small_config(
        tmp_path,
        scaling__num_workers=0,
        metrics=[],
        data__splits={"type": "hash"},
        task={"type": "node_classification", "args": {"blend": False, "propagate_labels": False}},
        **{"model__args": {"hidden_channels": 8}, **changes},
    )
    return raygnn.train.fit(config, data=graph).model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "args"),
    [("GCN", {"out_channels": 5}), ("GAT", {"num_heads": 2}), ("GIN", {}), ("MLP", {})],
)
def test_programs_give_what_models_predict(tmp_path, model, args):
    args = {"hidden_channels": 8, **args}
    found = trained(tmp_path, random_graph(120, 600), model__type=model, model__args=args)
    found.export(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for size in (33, 7):
        other = random_graph(size, 4 * size)
        expected = found.open(other, exact=True).predict(what="probabilities")["probability"]
        probability = program(other.x, other.edge_index).detach().softmax(1)
        np.testing.assert_allclose(probability.numpy(), expected, atol=1e-5)


def test_a_program_needs_torch_alone_and_says_what_it_gives(tmp_path):
    args = {"hidden_channels": 8, "norm": "batch", "jump": "cat"}
    model = trained(tmp_path, random_graph(120, 600), model__args=args)
    model.export(tmp_path / "model.pt2")
    other = random_graph(20, 60)
    torch.save({"x": other.x, "edge_index": other.edge_index}, tmp_path / "graph.pt")
    files = [str(tmp_path / name) for name in ("model.pt2", "graph.pt", "rows.pt")]
    done = subprocess.run(
        [sys.executable, "-c", RUNS_ALONE, *files], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {
        "node_type": "node", "feature": "x", "width": 4, "output": "logits", "label": "y",
        "classes": ["0", "1", "2"],
    }  # fmt: skip
    expected = model.predict(other, what="probabilities", exact=True)["probability"]
    found = torch.load(tmp_path / "rows.pt").detach().softmax(1)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_values_are_in_the_unit_of_the_target(tmp_path):
    model = trained(tmp_path, random_graph(120, 600, "value"))
    model.export(tmp_path / "model.pt2")
    other = random_graph(30, 90)
    found = torch.export.load(tmp_path / "model.pt2").module()(other.x, other.edge_index)
    expected = model.predict(other, exact=True)["prediction"]
    np.testing.assert_allclose(found.detach().numpy().reshape(-1), expected, rtol=1e-5)
    assert expected.min() > 5_000


def shop(seed: int, num_users: int, num_items: int) -> HeteroData:
    draw = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for name, count, width in (("user", num_users, 4), ("item", num_items, 3)):
        data[name].x = 50 * torch.randn(count, width, generator=draw) + 10
    data["user"].y = torch.randint(3, (num_users,), generator=draw)
    for edge_type, ends in (
        (("user", "buys", "item"), (num_users, num_items)),
        (("user", "knows", "user"), (num_users, num_users)),
    ):
        pairs = [torch.randint(count, (5 * num_users,), generator=draw) for count in ends]
        data[edge_type].edge_index = torch.unique(torch.stack(pairs), dim=1)
    return data


def trained_shop(tmp_path: Path, args: dict[str, Any]) -> raygnn.TrainedModel:
    config = small_config(
        tmp_path,
        scaling__num_workers=0,
        metrics=[],
        data__splits={"type": "hash"},
        data__reverse_edges=True,
        task={
            "type": "node_classification",
            "args": {"blend": False, "target": "user", "propagate_labels": False},
        },
        model={"type": "Hetero", "args": {"hidden_channels": 8, "out_channels": 6, **args}},
    )
    return raygnn.train.fit(config, data=shop(0, 60, 40)).model


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        {},
        {"conv": "GAT", "num_heads": 2, "norm": "layer", "aggr": "mean"},
        {"conv": "GATv2", "num_heads": 2, "jump": "cat"},
        {"conv": "GIN", "norm": "batch"},
        {"conv": "Transformer", "num_heads": 2, "normalize_output": True},
    ],
)
def test_programs_of_several_types_give_what_models_do(tmp_path, args):
    model = trained_shop(tmp_path, args)
    model.export(tmp_path / "model.pt2")
    files = {"raygnn.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=files).module()
    note = json.loads(files["raygnn.json"])
    assert note["widths"] == {"user": 4, "item": 3}
    assert note["gives"] == ["user"]
    for seed, sizes in enumerate(((35, 20), (12, 30)), 1):
        other = shop(seed, *sizes)
        opened = model.open(other, exact=True)
        graph = opened.to_pyg()
        edges = {"__".join(t): graph[t].edge_index for t in graph.edge_types}
        assert set(edges) == set(note["edge_types"])
        found = program({name: other[name].x for name in ("user", "item")}, edges)["user"]
        expected = opened.predict(what="probabilities")["probability"]
        np.testing.assert_allclose(found.softmax(1).detach().numpy(), expected, atol=1e-5)


@pytest.mark.slow
def test_a_program_of_links_gives_the_rows_of_both_ends(tmp_path):
    config = small_config(
        tmp_path,
        scaling__num_workers=0,
        metrics=[],
        data__splits={"type": "hash"},
        data__reverse_edges=True,
        task={"type": "link_prediction", "args": {"edge_type": "user__buys__item"}},
        model={"type": "Hetero", "args": {"hidden_channels": 8, "node_embeddings": False}},
    )
    graph = shop(0, 60, 40)
    model = raygnn.train.fit(config, data=graph).model
    model.export(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    opened = model.open(graph, exact=True)
    data = opened.to_pyg()
    edges = {"__".join(t): data[t].edge_index for t in data.edge_types}
    found = program({name: graph[name].x for name in ("user", "item")}, edges)
    assert set(found) == {"user", "item"}
    for name, rows in found.items():
        expected = opened.embed(node_type=name).to_torch()["embedding"]
        torch.testing.assert_close(rows.detach(), expected, atol=1e-5, rtol=1e-5)


def onnx_rows(file: Path, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(file))
    given = {entry.name: inputs[entry.name].numpy() for entry in session.get_inputs()}
    (rows,) = session.run(None, given)
    return np.asarray(rows)


@needs_onnx
@pytest.mark.parametrize(
    ("model", "args"),
    [("GraphSAGE", {"norm": "batch"}), *slow(("GCN", {}), ("GAT", {"num_heads": 2}), ("GIN", {}))],
)
def test_onnx_gives_what_models_predict(tmp_path, model, args):
    args = {"hidden_channels": 8, **args}
    found = trained(tmp_path, random_graph(120, 600), model__type=model, model__args=args)
    found.export(tmp_path / "model.onnx")
    for size in (33, 300):
        other = random_graph(size, 4 * size)
        expected = found.open(other, exact=True).predict(what="probabilities")["probability"]
        rows = onnx_rows(tmp_path / "model.onnx", {"x": other.x, "edge_index": other.edge_index})
        probability = torch.from_numpy(rows).softmax(1)
        np.testing.assert_allclose(probability.numpy(), expected, atol=1e-5)
    metadata = onnxruntime.InferenceSession(tmp_path / "model.onnx").get_modelmeta()
    assert json.loads(metadata.custom_metadata_map["raygnn.json"])["classes"] == ["0", "1", "2"]


@pytest.mark.slow
@needs_onnx
def test_onnx_of_several_types_gives_what_models_predict(tmp_path):
    model = trained_shop(tmp_path, {"conv": "GAT", "num_heads": 2})
    model.export(tmp_path / "model.onnx")
    for seed, sizes in enumerate(((35, 20), (120, 90)), 1):
        opened = model.open(shop(seed, *sizes), exact=True)
        graph, other = opened.to_pyg(), shop(seed, *sizes)
        inputs = {f"x.{name}": other[name].x for name in ("user", "item")}
        inputs |= {f"edge_index.{'__'.join(t)}": graph[t].edge_index for t in graph.edge_types}
        rows = torch.from_numpy(onnx_rows(tmp_path / "model.onnx", inputs))
        expected = opened.predict(what="probabilities")["probability"]
        np.testing.assert_allclose(rows.softmax(1).numpy(), expected, atol=1e-5)


def test_onnx_needs_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = trained(tmp_path, random_graph(60, 200))
    with raises("onnx-extra-missing"):
        model.export(tmp_path / "model.onnx")


def test_what_a_program_cannot_take_is_refused(link_model, tmp_path):
    with raises("model-export-inputs", "HGT"):
        raygnn.load(link_model.run).export(tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())
