"""What graph.yaml shows to be wrong is told before a table is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import raygnn.train
from raygnn.config import load_config
from raygnn.data.tables.graph_tables import write_tables
from raygnn.prepare.synthetic import synthetic_tables
from raygnn.runtime.data_checks import check_schema
from tests.errors import raises
from tests.small_runs import small_config


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
