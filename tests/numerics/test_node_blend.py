"""Runs on labels of nodes whose model is a blend of LightGBM and the GNN."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raygnn
import raygnn.infer
import raygnn.train
from raygnn.data.tables.graph_tables import (
    GraphTables,
    NodeRows,
    edge_rows,
    node_rows,
    write_tables,
)
from raygnn.loops.model_spec import TREES_FILE
from raygnn.serving.answers import Answers
from raygnn.serving.messages import Predict, Refused
from tests.small_runs import small_config

NUM_NODES, NUM_NEW, WIDTH = 600, 20, 6
NODE, TO = "node", ("node", "to", "node")
SPLITS = np.array(["train", "val", "test"])


def _rows(x: np.ndarray, labels: np.ndarray, split: np.ndarray) -> NodeRows:
    rows = node_rows(np.arange(len(x)), {"x": x}, labels={"y": labels})
    return replace(rows, table=rows.table.append_column("split", pa.array(split)), split="split")


def _features() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.random((NUM_NODES + NUM_NEW, WIDTH)).astype(np.float32)


def _tables(kind: str = "multi_class", num: int = NUM_NODES, *, flip: str = "") -> GraphTables:
    """A label that bands of the node's first two columns decide; edges are drawn at random.

    `flip`: split whose labels are others.
    """
    rng, x = np.random.default_rng(1), _features()
    ends = rng.integers(0, NUM_NODES + NUM_NEW, (2, 4 * NUM_NODES))
    split = SPLITS[rng.choice(3, len(x), p=[0.5, 0.25, 0.25])]
    first, second = (np.abs(x[:, :2] - 0.5) < 0.25).T
    labels = {
        "multi_class": first ^ (rng.random(len(x)) < 0.1),
        "multi_label": np.stack([first, second], axis=1).astype(np.int64),
        "regression": (3.0 * first + second + rng.normal(0, 0.1, len(x))).astype(np.float32),
        "noise": rng.integers(0, 2, len(x)),
    }[kind]
    if kind in ("multi_class", "noise"):
        labels = labels.astype(np.int64)
    changed = split == flip
    labels[changed] = labels[changed][::-1]
    ends = ends[:, (ends < num).all(axis=0)]
    split[NUM_NODES:] = "none"
    rows = _rows(x[:num], labels[:num], split[:num])
    return GraphTables({NODE: rows}, {TO: edge_rows(*ends)})


def _config(folder: Path, graph: str, **changes: Any) -> dict[str, Any]:
    data = {"uri": graph, "cache_dir": str(folder / "cache")}
    options: dict[str, Any] = {"metrics": [], "task": "node_classification", **changes}
    return {**small_config(folder, data=data, **options), "scaling": {"num_workers": 0}}


def _train(folder: Path, tables: GraphTables, **changes: Any) -> Any:
    graph = write_tables(tables, str(folder / "graph"))
    return raygnn.train.fit(_config(folder, graph, **changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _train(tmp_path_factory.mktemp("node-blend"), _tables())


def _graph(result: Any) -> str:
    return str(Path(result.path).parent / "graph")


def _probabilities(result: Any, graph: str, nodes: Any = None) -> np.ndarray:
    model = raygnn.load(str(result.path))
    return model.predict(graph, nodes, what="probabilities", exact=True)["probability"]


def test_the_model_is_no_worse_than_its_rungs(run: Any) -> None:
    metrics = run.metrics
    rungs = metrics["rungs"]["val"]["accuracy"]
    assert set(rungs) == {"constant", "lightgbm", "gnn", "model"}
    assert metrics["blend"]["lightgbm"] > 0.5
    best = max(rung["value"] for rung in rungs.values())
    assert metrics["val/accuracy"] == pytest.approx(rungs["model"]["value"], abs=1e-6)
    assert metrics["val/accuracy"] > best - 0.02
    assert metrics["test/accuracy"] > metrics["baseline/gnn/test/accuracy"] + 0.1
    assert metrics["test/accuracy"] > 0.8
    assert metrics["verdict"].startswith("test/")
    assert metrics["left_out"] == ""


def test_the_saved_model_predicts_what_was_tested(run: Any, tmp_path: Path) -> None:
    model, graph = raygnn.load(str(run.path)), _graph(run)
    for name, value in model.evaluate(graph, split="test").items():
        assert run.metrics[f"test/{name}"] == value
    every = model.predict(graph).to_pandas()
    tables = _tables().nodes[NODE].table
    is_test = np.array(tables["split"]) == "test"
    is_right = every["prediction"].to_numpy() == np.array(tables["y"])
    assert is_right[is_test].mean() == pytest.approx(run.metrics["test/accuracy"], abs=0.03)
    options = ["--data.uri", graph, "--scaling.num_workers", "0"]
    raygnn.infer.predict(run.path, tmp_path / "out", options)
    (file,) = (tmp_path / "out").rglob("*.parquet")
    assert pq.read_table(file)["prediction"].to_pylist() == every["prediction"].tolist()
    (answer,) = Answers(model, graph, precomputed=True).answer([Predict(nodes=[7, 3])])
    assert not isinstance(answer, Refused)
    assert [row["prediction"] for row in answer] == every["prediction"][[7, 3]].tolist()
    expected = every["probability"][[7, 3]].tolist()
    assert [row["probability"] for row in answer] == pytest.approx(expected, abs=1e-6)


def test_new_nodes_are_predicted_as_if_the_tables_had_them(run: Any, tmp_path: Path) -> None:
    whole = _tables(num=NUM_NODES + NUM_NEW)
    graph = write_tables(whole, str(tmp_path / "whole"))
    new = np.arange(NUM_NODES, NUM_NODES + NUM_NEW)
    nodes = [{"id": int(i), "x": _features()[i].tolist()} for i in new]
    edges = whole.edges[TO].table.to_pandas()
    edges = edges[(edges.iloc[:, :2] >= NUM_NODES).any(axis=1)]
    model = raygnn.load(str(run.path))
    added = {"node__to__node": edges.to_dict("records")}
    extended = model.extended(_graph(run), {NODE: nodes}, added, exact=True)
    found = extended.predict(what="probabilities")["probability"]
    assert found == pytest.approx(_probabilities(run, graph, new), abs=1e-4)


def test_an_explanation_names_the_column_that_decides(run: Any) -> None:
    found = raygnn.load(str(run.path)).explain(_graph(run), [3, 7, 9])
    columns = found.columns.to_pandas()
    effects = columns[columns["part"] == "lightgbm"].groupby("column")["effect"]
    assert effects.apply(lambda values: values.abs().mean()).idxmax() == "x[0]"


@pytest.mark.slow
def test_labels_of_test_nodes_are_never_read(run: Any, tmp_path: Path) -> None:
    other = _train(tmp_path, _tables(flip="test"))
    for name in (TREES_FILE, "model.safetensors"):
        files = [Path(result.path) / name for result in (run, other)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_random_labels_are_at_chance(tmp_path: Path) -> None:
    metrics = _train(tmp_path, _tables("noise")).metrics
    assert abs(metrics["test/accuracy"] - 1 / 2) < 4 * (NUM_NODES / 4) ** -0.5 / 2
    assert metrics["test/loss"] < np.log(2) + 0.05


@pytest.mark.parametrize(
    "kind", [pytest.param("multi_label", marks=pytest.mark.slow), "regression"]
)
def test_labels_and_numbers_have_rungs_too(tmp_path: Path, kind: str) -> None:
    result = _train(tmp_path, _tables(kind))
    metrics, graph = result.metrics, _graph(result)
    assert metrics["blend"]["lightgbm"] > 0.5
    name = "f1_micro" if kind == "multi_label" else "r2"
    assert metrics[f"test/{name}"] > metrics[f"baseline/gnn/test/{name}"] + 0.05
    model = raygnn.load(str(result.path))
    judged = model.evaluate(graph, split="test")
    assert judged[name] == pytest.approx(metrics[f"test/{name}"], abs=1e-12)
    rows = model.explain(graph, [5, 8]).predictions.to_pandas()
    every = model.predict(graph, [5, 8])["prediction"]
    if kind == "regression":
        assert rows["prediction"].to_numpy() == pytest.approx(every, abs=0.3)
    for row, of_row in zip(rows.itertuples(), every, strict=True):
        if kind == "multi_label":  # the likeliest label is explained
            assert of_row[int(row.prediction)] == (row.score > 0.5)


def test_what_is_left_out_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = _tables().nodes[NODE]
    wide = np.random.default_rng(0).random((NUM_NODES, 9_000)).astype(np.float32)
    many = np.arange(NUM_NODES) % 9
    split = np.array(rows.table["split"])
    tables = GraphTables({NODE: _rows(wide, many, split)}, _tables().edges)
    metrics = _train(tmp_path, tables, training__max_epochs=1).metrics
    assert metrics["left_out"].startswith("LightGBM is left out: ")
    assert "9,000 features" in metrics["left_out"]
    assert metrics["left_out"] in "".join(capsys.readouterr())
    assert set(metrics["blend"]) <= {"gnn", "constant"}
