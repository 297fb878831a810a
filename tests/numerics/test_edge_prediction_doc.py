"""The config on the page of edge prediction trains, and its commands predict."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

import raygnn
import raygnn.train
from raygnn import infer

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "edge-prediction.md").read_text()


def test_the_page_trains_and_predicts(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = yaml.safe_load(text)
    cache = str(tmp_path / "cache")
    config["data"] |= {"cache_dir": cache}
    config |= {"training": {"max_epochs": 4}, "scaling": {"num_workers": 0}, "loggers": []}
    config["run"] |= {"storage_path": str(tmp_path / "runs")}
    metrics = raygnn.train.fit(config).metrics
    assert metrics["test/r2"] > 0.12  # 0.35 after all epochs
    for name in ("mean", "biases", "lightgbm"):
        assert metrics["test/rmse"] < metrics[f"baseline/{name}/test/rmse"]
    (command,) = re.findall(r"raygnn infer (.*)", PAGE)
    assert command.split()[1:3] == ["--data.synthetic.type", "ratings"]
    graph = ["--data.synthetic.num_ratings", "500", "--data.synthetic.num_users", "50"]
    options = [*command.split()[1:3], *graph, "--data.cache_dir", cache]
    run = tmp_path / "runs" / "ratings"
    written = infer.predict(run, tmp_path / "out", options)
    table = pq.read_table(written.table_uri("user__rates__film"))
    assert table.column_names == ["row", "source_id", "target_id", "time", "prediction"]
    assert 0.5 < min(table["prediction"].to_pylist()) < max(table["prediction"].to_pylist()) < 6
