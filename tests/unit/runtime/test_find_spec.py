"""What a run reads and predicts, found in graph.yaml, by the driver, and by workers."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import raygnn.train
from raygnn.config import LoadedConfig, build, load_config
from raygnn.data.bundle import Bundle
from raygnn.data.tables.graph_tables import write_tables
from raygnn.data.tables.pyg import tables_from_pyg
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.task import Task, TaskEnvironment
from raygnn.loops.tasks.target import output_classes
from raygnn.prepare.synthetic import synthetic_tables
from raygnn.runtime.data_checks import check_schema, find_spec
from raygnn.runtime.data_source import open_bundle
from tests.errors import raises
from tests.small_runs import small_bundle, small_config


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return small_bundle(tmp_path_factory.mktemp("graph"))


def _loaded(tmp_path: Path, **changes: Any) -> LoadedConfig:
    splits = {"type": "hash", "fractions": [0.8, 0.1, 0.1]}
    config = small_config(tmp_path, metrics=[], data__splits=splits, **changes)
    return load_config(config, allow_modules=["tests", "not_there"])


def _set_up(loaded: LoadedConfig, bundle: Bundle, spec: ModelSpec | None = None) -> Task:
    task: Task = build(loaded.config.task, "task", loaded.allow_modules)
    task.setup(TaskEnvironment(loaded, bundle, 0, 1, torch.device("cpu"), spec))
    return task


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ({"type": "node_classification", "args": {}}, "GraphSAGE"),
        ({"type": "node_classification", "args": {"problem": "regression"}}, "GraphSAGE"),
        ({"type": "link_prediction", "args": {}}, "LightGCN"),
    ],
)
def test_workers_find_what_the_driver_finds(tmp_path, bundle, task, model):
    loaded = _loaded(tmp_path, task=task, model={"type": model})
    spec = find_spec(loaded, bundle)
    assert spec is not None
    assert _set_up(loaded, bundle).spec == spec
    again = pickle.loads(pickle.dumps(spec))
    assert _set_up(loaded, bundle, again).spec is again
    assert ModelSpec.from_json(spec.to_json(), "model.json", output_classes()) == spec
    assert spec.fanouts == {"node__to__node": (4, 3)}
    assert (spec.node_types["node"].ids is not None) == (model == "LightGCN")
    assert len(pickle.dumps(spec)) < 3000


@pytest.mark.parametrize(
    ("model", "arguments", "unread"),
    [
        ("GraphSAGE", {}, "edge_attr of node__to__node, weight of node__to__node"),
        ("GINE", {}, "weight of node__to__node"),
        ("GCN", {"edge_weight": "weight"}, "edge_attr of node__to__node"),
    ],
)
def test_columns_that_the_model_does_not_read_are_named(tmp_path, capsys, model, arguments, unread):
    edges = torch.randint(90, (2, 60))
    columns = {"edge_attr": torch.randn(60, 2), "edge_weight": torch.rand(60)}
    graph = Data(x=torch.randn(90, 2), y=torch.arange(90) % 2, edge_index=edges, **columns)
    uri = write_tables(tables_from_pyg(graph), str(tmp_path / "graph"))
    loaded = _loaded(tmp_path, data__uri=uri, model=model, task__args=arguments)
    find_spec(loaded, open_bundle(loaded, None))
    assert f"columns that the model does not read: {unread}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("loss", "is_scaled"), [("mse", True), ("torch.nn.PoissonNLLLoss", False)])
def test_the_loss_decides_about_the_scale(tmp_path, bundle, loss, is_scaled):
    task = {"type": "node_classification", "args": {"problem": "regression"}}
    losses = (
        [{"type": loss}] if is_scaled else [{"type": loss, "inputs": {"log_input": "prediction"}}]
    )
    spec = find_spec(_loaded(tmp_path, task=task, losses=losses), bundle)
    assert (spec.output.scale is not None) == is_scaled


def test_what_is_of_the_users_is_left_to_the_workers(tmp_path, bundle):
    unread = {"type": "node_classification", "args": {"edge_feature": "no"}}
    losses = [{"type": "not_there.loss"}]
    assert find_spec(_loaded(tmp_path, losses=losses), bundle) is None
    with raises("task-edge-column-unread", "no"):
        find_spec(_loaded(tmp_path, losses=losses, task=unread), bundle)
    assert find_spec(_loaded(tmp_path, model={"type": "not_there.Model"}), bundle) is None
    assert find_spec(_loaded(tmp_path, task={"type": "not_there.Task"}), bundle) is None
    assert "not_there" not in sys.modules


def test_a_model_that_learns_rows_unsaid_is_refused(tmp_path, bundle):
    loaded = _loaded(tmp_path, model={"type": "tests.user_code.RowsUnsaid"})
    with raises("model-rows-unsaid", "node"):
        _set_up(loaded, bundle).build_model()


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One node type and one edge type, the latter directed."""
    tables = synthetic_tables("rmat", num_nodes=32, num_edges=64, seed=0)
    return write_tables(tables, str(tmp_path_factory.mktemp("graph")))


def _check(uri: str, *overrides: str) -> None:
    check_schema(load_config({"data": {"uri": uri}}, overrides), uri)


def test_a_model_for_one_type_is_told_by_graph_yaml_alone(tmp_path: Path, capsys) -> None:
    tables = synthetic_tables("noise", num_nodes=20, num_targets=10)
    graph = tmp_path / "graph"
    write_tables(tables, str(graph))
    for table in graph.rglob("*.parquet"):
        table.write_bytes(b"no table")
    config = small_config(tmp_path, scaling__num_workers=0, data__uri=str(graph))
    config["task"] = {"type": "link_prediction"}
    config["metrics"] = []
    with raises("model-one-type", "GraphSAGE", 2):
        raygnn.train.fit(config)
    assert "ingest" not in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    for model in ("HGT", "LightGCN"):
        _check(str(graph), f"--model.type={model}")


def test_reverse_edges_are_a_type_of_their_own_and_each_hop_samples_some_type(uri: str) -> None:
    _check(uri)
    with raises("model-one-type", 1, 2):
        _check(uri, "--data.reverse_edges=true")
    _check(uri, "--data.reverse_edges=true", "--data.undirected=true")
    _check(uri, "--data.reverse_edges=true", "--model.type=RGCN")
    with raises("sampling-fanouts-unknown"):
        _check(uri, "--sampling.fanouts={node__likes__node: [5]}")
    with raises("sampling-hop-empty", "fanouts"):
        _check(uri, "--sampling.fanouts={node__to__node: [5, 0]}")
