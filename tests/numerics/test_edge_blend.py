"""Runs on labels of edges whose model is a blend of LightGBM and the GNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import raygnn
import raygnn.infer
import raygnn.train
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, node_rows, write_tables
from raygnn.report import decide
from tests.numerics.infer.conftest import dates

NUM_USERS, NUM_ITEMS, NUM = 60, 20, 3_000
BUYS = ("user", "buys", "item")
NAME = "user__buys__item"


def _purchases() -> pd.DataFrame:
    """Purchases that are returned if the user bought nothing for 5 days; a tenth is not."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "user": rng.integers(0, NUM_USERS, NUM),
            "item": rng.integers(0, NUM_ITEMS, NUM),
            "day": np.sort(rng.integers(0, 300, NUM)),
        }
    )
    since = rows["day"] - rows.groupby("user")["day"].shift(1)
    rows["returned"] = ((since > 5) ^ (rng.random(NUM) < 0.1)).astype(int)
    rows["price"] = np.minimum(since.fillna(0), 20.0) + rng.normal(size=NUM)
    rows["day"] = dates(rows["day"].to_numpy())
    return rows


def _write(folder: Path, rows: pd.DataFrame, label: str) -> str:
    nodes = {
        "user": node_rows(np.arange(NUM_USERS), {"x": np.ones((NUM_USERS, 1), np.float32)}),
        "item": node_rows(np.arange(NUM_ITEMS), {"x": np.ones((NUM_ITEMS, 1), np.float32)}),
    }
    edges = {BUYS: EdgeRows(rows, "user", "item", labels={label: label}, time="day")}
    write_tables(GraphTables(nodes, edges), str(folder))
    return str(folder)


def _config(folder: Path, graph: str, **changes: Any) -> dict[str, Any]:
    return {
        "data": {
            "uri": graph,
            "cache_dir": str(folder / "cache"),
            "reverse_edges": True,
            "splits": {"type": "temporal"},
        },
        "task": "edge_prediction",
        "sampling": {"temporal": {"strategy": "last"}, "disjoint": True, "fanouts": [4, 4]},
        "model": {"type": "Hetero", "args": {"hidden_channels": 8}, "relative_time": False},
        "training": {"max_epochs": 1},
        "loader": {"batch_size": 256},
        "scaling": {"num_workers": 0},
        "run": {"storage_path": str(folder), "name": "run"},
        **changes,
    }


@pytest.fixture(scope="module", params=["returned", "price"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    graph = _write(folder / "graph", _purchases(), request.param)
    return raygnn.train.fit(_config(folder, graph)), graph, request.param


def test_the_model_is_no_worse_than_its_rungs(run: Any) -> None:
    metrics, name = run[0].metrics, "auroc" if run[2] == "returned" else "rmse"
    assert metrics["blend"]["lightgbm"] > 0.5
    better = 1 if name == "auroc" else -1
    for rung in ("gnn", "lightgbm"):
        other = metrics["rungs"]["test"][name][rung]
        assert better * other["difference"] <= 2 * other["error_of_difference"]
    gnn = metrics["rungs"]["test"][name]["gnn"]
    assert better * gnn["difference"] < -2 * gnn["error_of_difference"]
    assert metrics["verdict"].startswith("test/")
    effects = metrics["column_effects"]["val"]
    assert "since last" in effects["columns"][0]["column"]
    assert effects["tables"][0]["table"] == "buys"
    first = effects["cohorts"][0]["ranges"]
    assert sum(each["rows"] for each in first) == effects["rows"]
    known = [each for each in first if each["range"] != "unknown"]
    assert known[-1]["label"] > known[0]["label"]
    assert known[-1]["prediction"] > known[0]["prediction"]


def test_the_saved_model_predicts_what_was_tested(run: Any, tmp_path: Path) -> None:
    result, graph, label = run
    model = raygnn.load(str(result.path))
    found = model.evaluate(graph, split="test")
    assert {f"test/{n}": value for n, value in found.items()}.items() <= result.metrics.items()
    what = "probabilities" if label == "returned" else "predictions"
    column = "probability" if label == "returned" else "prediction"
    rows = model.predict(graph, what=what)
    ask = [str(result.path), "--data.uri", graph, "--what", what, "--out", str(tmp_path / "out")]
    assert raygnn.infer.main(ask) == 0
    written = pa.concat_tables(
        pa.parquet.read_table(path) for path in sorted((tmp_path / "out").rglob("*.parquet"))
    )
    written = np.array(written.sort_by("row")[column].to_pylist())
    ordered = rows.arrow.sort_by("row")[column].to_pylist()
    assert written == pytest.approx(np.array(ordered), abs=1e-6)
    if label == "price":
        assert ((rows["low"] <= rows["prediction"]) & (rows["prediction"] <= rows["high"])).all()
        price = _purchases()["price"].to_numpy()[rows["row"]]
        is_test = np.argsort(np.argsort(rows["row"])) >= 0.9 * NUM  # rows are sorted by time
        share = ((rows["low"] <= price) & (price <= rows["high"]))[is_test].mean()
        assert share == pytest.approx(result.metrics["coverage"]["test"]["share"], abs=0.02)
        assert share == pytest.approx(0.8, abs=0.08)
        return
    calibration = result.metrics["calibration"]["test"]
    assert calibration["error"] < 2 * calibration["by_chance"]
    assert "before scaling" in (Path(result.path) / "report.html").read_text()
    assert decide(result.path, top=0.1).startswith("test: the best 10% of 300 rows, 30 with a ")
    assert "at least 0.1667" in decide(result.path, cost=5)


def test_edges_and_pairs_do_not_see_their_future(run: Any, tmp_path: Path) -> None:
    result, graph, label = run
    rows = _purchases()
    day = rows["day"].iloc[2_000]
    rng, is_past = np.random.default_rng(1), (rows["day"] <= day).to_numpy()
    later = rows.copy()
    later.loc[~is_past, "user"] = rng.integers(0, NUM_USERS, (~is_past).sum())
    other = _write(tmp_path / "other", later, label)
    model = raygnn.load(str(result.path))
    column = "probability" if label == "returned" else "prediction"
    what = "probabilities" if label == "returned" else "predictions"
    tables = [model.predict(uri, what=what).arrow.sort_by("row") for uri in (graph, other)]
    first, second = (np.array(table[column].to_pylist())[is_past] for table in tables)
    assert first == pytest.approx(second, abs=1e-6)
    pairs = [(user, 3) for user in range(10)]
    asked = [model.predict(uri, pairs, what=what, as_of=str(day))[column] for uri in (graph, other)]
    assert asked[0] == pytest.approx(asked[1], abs=1e-6)
    assert np.ptp(asked[0]) > 0.1


def test_explanations_name_the_cause(run: Any) -> None:
    result, graph, label = run
    opened = raygnn.load(str(result.path)).open(graph, as_of="1970-10-01")
    pairs = [(user, 3) for user in range(8)]
    found, expected = opened.explain(pairs=pairs), opened.predict(pairs)
    column = "probability" if label == "returned" else "prediction"
    assert found.predictions["score"] == pytest.approx(expected[column], abs=1e-4)
    columns = found.columns.to_pandas()
    of_trees = columns[columns["part"] == "lightgbm"].groupby("from_id").first()
    first = of_trees[["node_type", "table", "column"]].value_counts()
    assert first.index[0] == ("user", "buys", "since last")
    assert first.iloc[0] >= 4
    assert np.mean([" buys for " in each for each in found.predictions["sentence"]]) > 0.7


def test_pairs_without_temporal_sampling_are_predicted_as_of_the_latest_edge(
    tmp_path: Path,
) -> None:
    rows = _purchases()
    graph = _write(tmp_path / "graph", rows, "price")
    sampling = {"temporal": None, "fanouts": [4, 4]}
    result = raygnn.train.fit(_config(tmp_path, graph, sampling=sampling))
    assert result.metrics["blend"]["lightgbm"] > 0.5
    model = raygnn.load(str(result.path))
    table = model.predict(graph).arrow.sort_by("row").to_pandas()
    last = table.drop_duplicates("source_id", keep="last").head(20)
    pairs = list(zip(last["source_id"], last["target_id"], strict=True))
    found = model.predict(graph, pairs)["prediction"]
    # The price follows the days since the last purchase, so it is higher later.
    since = (rows["day"].max() - rows.groupby("user")["day"].max()).dt.days
    assert np.corrcoef(found, since[last["source_id"]])[0, 1] > 0.5


def test_scores_of_pairs_name_what_they_lack(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    result, graph, label = run
    if label == "price":
        opened = raygnn.load(str(result.path)).open(graph)
        for _ in range(2):
            opened.score([[0, 0]])
        assert "".join(capsys.readouterr()).count("scores are the numbers of the GNN alone") == 1
