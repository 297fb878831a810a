"""Runs on rows of a training table whose model is a blend of LightGBM and the GNN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import raygnn
import raygnn.explain
import raygnn.train
from raygnn.data.added_rows import AddedRows
from raygnn.data.tables.graph_tables import edge_rows, node_rows, write_tables
from raygnn.inference.explain.explanations import TABLES
from raygnn.inference.extended_graph import ExtendedGraph
from raygnn.loops.model_spec import TREES_FILE
from raygnn.loops.tasks import blended_task
from raygnn.metrics import AUROC, metrics_of
from raygnn.serving.answers import Answers
from raygnn.serving.messages import Explain, ExplainedRows, Refused
from tests.errors import raises
from tests.numerics.infer.conftest import dates
from tests.numerics.test_training_rows import ASKED, BUYS, NUM_USERS, Shop


def _config(folder: Path, graph: str, **changes: Any) -> dict[str, Any]:
    return {
        "data": {"uri": graph, "cache_dir": str(folder / "cache")},
        "task": "node_classification",
        "model": {"type": "Hetero", "args": {"hidden_channels": 8}},
        "training": {"max_epochs": 2},
        "loader": {"batch_size": 128},
        "scaling": {"num_workers": 0},
        "run": {"storage_path": str(folder), "name": "run"},
        **changes,
    }


def _labels(shop: Shop) -> np.ndarray:
    """Who bought in the last four days, which LightGBM reads in one column; a tenth is wrong."""
    bought = shop.counts(-4, 1) > 0
    return (bought ^ (np.random.default_rng(2).random(bought.shape) < 0.1)).astype(np.int64)


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop.random(0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, shop: Shop) -> tuple[Any, str]:
    folder = tmp_path_factory.mktemp("blend")
    graph = shop.write(folder / "graph", _labels(shop))
    return raygnn.train.fit(_config(folder, graph)), graph


def test_the_model_is_no_worse_than_its_rungs(run: tuple[Any, str]) -> None:
    metrics = run[0].metrics
    rungs = metrics["rungs"]["val"]["auroc"]
    assert {"constant", "entity_mean", "last_label", "lightgbm", "gnn", "model"} == set(rungs)
    assert metrics["blend"]["lightgbm"] > 0
    assert metrics["val/auroc"] == pytest.approx(rungs["model"]["value"], abs=1e-6)
    assert metrics["val/loss"] < metrics["baseline/gnn/val/loss"]
    assert metrics["test/auroc"] > metrics["baseline/gnn/test/auroc"]
    assert metrics["verdict"].startswith("test/auroc: ")
    of_test = metrics["rungs"]["test"]["auroc"]
    assert of_test["gnn"]["value"] == metrics["baseline/gnn/test/auroc"]
    assert of_test["lightgbm"]["value"] == metrics["baseline/lightgbm/test/auroc"]
    assert of_test["gnn"]["difference"] < 2 * of_test["gnn"]["error_of_difference"]


def test_of_many_columns_those_that_tell_most_are_read(
    run: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blended_task, "_MAX_COLUMNS", 5)
    result, graph = run
    few = raygnn.train.fit(_config(tmp_path, graph, training={"max_epochs": 1}))
    specs = [json.loads((Path(r.path) / "model.json").read_text()) for r in (result, few)]
    every, left_out = ({*spec["nodes"]["blend"]["history"][0]["left_out"]} for spec in specs)
    assert every < left_out
    assert few.metrics["rungs"]["test"]["auroc"]["lightgbm"]["value"] > 0.8
    found = raygnn.load(str(few.path)).evaluate(graph, split="test")
    assert found["auroc"] == pytest.approx(few.metrics["test/auroc"], abs=1e-6)


def test_the_saved_model_predicts_what_was_tested(run: tuple[Any, str]) -> None:
    result, graph = run
    model = raygnn.load(str(result.path))
    found = model.evaluate(graph, split="test")
    assert {
        f"test/{name}": value for name, value in found.items()
    }.items() <= result.metrics.items()
    table = model.open(graph, exact=False).predict(
        rows="active", split="test", what="probabilities"
    )
    labels = pd.DataFrame({"id": np.repeat(np.arange(NUM_USERS), len(ASKED))})
    labels["time"] = dates(np.tile(ASKED, NUM_USERS)).astype("datetime64[us]")
    labels["y"] = _labels(Shop.random(0)).reshape(-1)
    joined = table.to_pandas()[["id", "time"]].merge(labels, on=["id", "time"])
    auroc = AUROC(2, "multi_class")
    scores = torch.from_numpy(np.log(table["probability"]))
    value = metrics_of([auroc], scores, torch.from_numpy(joined["y"].to_numpy(copy=True)))["auroc"]
    assert value == pytest.approx(result.metrics["test/auroc"], abs=1e-6)
    page = (Path(result.path) / "report.html").read_text()
    shown = ("rows=rows", "Calibration", "Rows by probability of", "Cohorts by", "share found")
    assert [text for text in shown if text not in page] == []


def test_lightgbm_learns_from_the_validation_rows_after_the_choice(
    run: tuple[Any, str], capsys: pytest.CaptureFixture[str]
) -> None:
    result, graph = run
    model = raygnn.load(str(result.path))
    assert model.evaluate(graph, split="val")["auroc"] > result.metrics["val/auroc"] + 1e-3
    assert "learned from the validation rows" in "".join(capsys.readouterr())
    model.evaluate(graph, split="test")
    assert "learned from" not in "".join(capsys.readouterr())


def test_without_the_blend_the_gnn_alone_predicts(run: tuple[Any, str], tmp_path: Path) -> None:
    result, graph = run
    task = {"type": "node_classification", "args": {"blend": False}}
    alone = raygnn.train.fit(_config(tmp_path, graph, task=task))
    assert "rungs" not in alone.metrics
    for name in ("auroc", "accuracy", "f1_macro", "average_precision"):
        assert alone.metrics[f"test/{name}"] == result.metrics[f"baseline/gnn/test/{name}"]
    assert not (Path(alone.path) / TREES_FILE).exists()
    weights = [Path(each.path) / "model.safetensors" for each in (alone, result)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_run_that_goes_on_has_the_same_model(run: tuple[Any, str], tmp_path: Path) -> None:
    result, graph = run
    for num_epochs in (1, 2):
        again = raygnn.train.fit(_config(tmp_path, graph, training={"max_epochs": num_epochs}))
    assert again.metrics["resumed_from"] is not None
    assert again.metrics["test/loss"] == result.metrics["test/loss"]
    folders = tmp_path / "run", Path(result.path)
    for name in (TREES_FILE, "model.safetensors"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    specs = [json.loads((folder / "model.json").read_text())["nodes"] for folder in folders]
    assert specs[0]["blend"] == specs[1]["blend"]


def test_new_nodes_are_predicted_as_if_the_tables_had_them(
    run: tuple[Any, str], shop: Shop, tmp_path: Path
) -> None:
    result, graph = run
    bought = np.flatnonzero(shop.user == 3)[::-1]  # from the last to the first
    new = {"source": np.full(len(bought), NUM_USERS), "target": shop.item[bought]}
    new["time"] = dates(shop.day[bought])
    tables = shop.tables(_labels(shop))
    tables.nodes["user"] = node_rows(
        np.arange(NUM_USERS + 1), {"x": np.ones((NUM_USERS + 1, 1), np.float32)}
    )
    tables.edges[BUYS] = edge_rows(
        np.append(shop.user, new["source"]),
        np.append(shop.item, new["target"]),
        time=dates(np.append(shop.day, shop.day[bought])),
    )
    write_tables(tables, str(tmp_path / "whole"))
    model = raygnn.load(str(result.path))
    rows = {"id": np.full(len(ASKED), NUM_USERS), "time": dates(ASKED)}
    ask: dict[str, Any] = {"rows": rows, "what": "probabilities"}
    whole = model.open(str(tmp_path / "whole"), exact=False, own_batches=True).predict(**ask)
    nodes = {"user": [{"id": NUM_USERS, "x": [1.0]}]}
    edges = {"user__buys__item": pd.DataFrame(new).to_dict("records")}
    opened = model.open(graph, exact=False, own_batches=True)
    opened.predict(rows={"id": [3], "time": dates(ASKED[:1])})
    extended = ExtendedGraph(opened, AddedRows(nodes, edges)).predict(**ask)
    assert extended["probability"] == pytest.approx(whole["probability"], abs=1e-6)
    assert np.ptp(whole["probability"][:, 1]) > 0.3


def test_python_command_and_server_explain_alike(
    run: tuple[Any, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Among the first is the column of purchases that the label follows from, with its table."""
    result, graph = run
    asked = {"id": [3, 4, 3], "time": dates(np.array([120, 150, 180]))}
    model = raygnn.load(str(result.path))
    ours = model.explain(graph, rows=asked)
    pq.write_table(pa.table(asked), tmp_path / "rows.parquet")
    where = ["--graph", graph, "--rows", str(tmp_path / "rows.parquet")]
    out = tmp_path / "out"
    assert raygnn.explain.main([str(result.path), *where, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert all(sentence in printed for sentence in ours.predictions["sentence"])
    for name in TABLES:
        written = pq.read_table(out / name)
        assert written.equals(getattr(ours, name).arrow), name
    times = [str(each)[:10] for each in asked["time"]]
    body = json.dumps({"nodes": asked["id"], "time": times})
    (answer,) = Answers(model, graph).answer([Explain.parse(body.encode())])
    assert not isinstance(answer, Refused)
    rows = ExplainedRows.model_validate({"rows": answer}).rows
    assert [row.sentence for row in rows] == list(ours.predictions["sentence"])
    columns = ours.columns.to_pandas()
    assert [c.effect for row in rows for c in row.columns] == columns[columns["kept"]][
        "effect"
    ].tolist()
    assert {part.part: part.weight for part in rows[0].parts} == pytest.approx(
        result.metrics["blend"]
    )
    for row in rows:
        first = [(each.table, each.column) for each in row.columns if each.part == "lightgbm"][:3]
        assert ("buys", "since last") in first


def test_damaged_trees_are_refused(run: tuple[Any, str], tmp_path: Path) -> None:
    for name in ("model.json", "model.safetensors", "config.yaml", TREES_FILE):
        content = (Path(run[0].path) / name).read_bytes()
        (tmp_path / name).write_bytes(content + b" " * (name == TREES_FILE))
    with raises("model-weights-damaged"):
        raygnn.load(str(tmp_path))


@pytest.mark.parametrize(
    "changes",
    [
        {"losses": [{"type": "cross_entropy", "args": {"label_smoothing": 0.1}}]},
        {"sampling": {"temporal": None}},
    ],
)
def test_a_blend_that_cannot_be_chosen_is_refused(
    run: tuple[Any, str], tmp_path: Path, changes: dict[str, Any]
) -> None:
    task = {"type": "node_classification", "args": {"blend": True}}
    with raises("task-blend"):
        raygnn.train.fit(_config(tmp_path, run[1], task=task, **changes))
