"""`prepare labels --horizons`: one model forecasts the next windows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import raygnn
import raygnn.train
from raygnn.prepare.__main__ import main as prepare

pytest.importorskip("duckdb")

_NUM_STORES, _NUM_WEEKS, _PERIOD = 40, 120, 13
_START = pd.Timestamp("2022-01-03")
_GRAPH = """\
format: raygnn/graph-v1
node_types:
  store: {files: stores.parquet, id: store, features: {x: [size]}}
  sale:
    files: sales.parquet
    id: sale
    time: day
    features: {x: [amount]}
edge_types:
  - {type: [sale, at, store], files: sales.parquet, source: sale, target: store, time: day}
"""


def _write(folder: Path) -> pd.DataFrame:
    """Sales with a trend and a season of a quarter, whose phase and height differ by store."""
    rng = np.random.default_rng(0)
    size, phase = rng.uniform(1, 4, _NUM_STORES), rng.uniform(0, 2 * np.pi, _NUM_STORES)
    week = np.arange(_NUM_WEEKS)
    season = 1 + 0.8 * np.sin(2 * np.pi * week / _PERIOD + phase[:, None])
    rate = size[:, None] * (1 + week / _NUM_WEEKS) * season
    stores, weeks = np.nonzero(np.ones_like(rate))
    counts = rng.poisson(rate[stores, weeks])
    sales = pd.DataFrame({"store": np.repeat(stores, counts), "week": np.repeat(weeks, counts)})
    days = 7 * sales.week + rng.integers(0, 7, len(sales))
    sales["day"] = _START + pd.to_timedelta(days, unit="D") + pd.Timedelta("12h")
    sales["amount"] = rng.gamma(4, 0.25, len(sales))
    sales["sale"] = np.arange(len(sales))
    folder.mkdir()
    sales.drop(columns="week").to_parquet(folder / "sales.parquet")
    stores_table = pd.DataFrame({"store": np.arange(_NUM_STORES), "size": size})
    stores_table.to_parquet(folder / "stores.parquet")
    (folder / "graph.yaml").write_text(_GRAPH)
    return sales


def test_each_horizon_beats_the_last_value(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    sales = _write(folder)
    val, test = (str((_START + pd.Timedelta(weeks=w)).date()) for w in (80, 98))
    question = "sum(sale.amount) over 7d"
    options = ["--for", "store", "--every", "7d", "--val", val, "--test", test, "--name", "next"]
    assert prepare(["labels", str(folder), "--predict", question, "--horizons", "4", *options]) == 0

    small = {"type": "Hetero", "args": {"hidden_channels": 16}}
    config = {
        "data": {"uri": str(folder)},
        "task": "node_classification",
        "model": small,
        "training": {"max_epochs": 4},
        "scaling": {"num_workers": 0},
        "run": {"storage_path": str(tmp_path), "name": "run"},
    }
    result = raygnn.train.fit(config)
    metrics = result.metrics
    by_output = metrics["by_output"]["test"]
    assert by_output["output"] == ["1", "2", "3", "4"]
    assert np.mean(by_output["mae"]) == pytest.approx(metrics["test/mae"])
    assert np.mean(by_output["r2"]) == pytest.approx(metrics["test/r2"])
    assert metrics["test/mae"] < 0.9 * metrics["baseline/last_label/test/mae"]

    rows = pd.read_parquet(folder / "training_tables" / "next.parquet")
    rows = rows[rows.split == "test"]
    weekly = sales.groupby(["store", "week"]).amount.sum()
    weekly = weekly.reindex(pd.MultiIndex.from_product([range(_NUM_STORES), range(_NUM_WEEKS)]))
    table = weekly.fillna(0).to_numpy().reshape(_NUM_STORES, _NUM_WEEKS)
    first = ((rows.timestamp - _START).dt.days // 7).to_numpy()
    stores = rows.store.to_numpy()
    for horizon in range(4):
        actual = table[stores, first + horizon]
        assert np.allclose(rows[f"label_{horizon + 1}"], actual)
        of_last_week = np.abs(table[stores, first - 1] - actual).mean()
        assert by_output["mae"][horizon] < 0.9 * of_last_week, horizon

    predicted = result.model.predict(str(folder), rows="next", split="test").to_pandas()
    found = np.stack(predicted.prediction.to_numpy())
    assert found.shape == (len(rows), 4)
    labels = rows.sort_values(["store", "timestamp"])[[f"label_{i}" for i in range(1, 5)]]
    ordered = predicted.sort_values(["id", "time"])
    errors = np.abs(np.stack(ordered.prediction.to_numpy()) - labels.to_numpy()).mean(axis=0)
    assert errors == pytest.approx(by_output["mae"], rel=1e-4)
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Metrics by output, test" in report
    json.dumps(by_output)
