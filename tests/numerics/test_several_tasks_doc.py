"""The config on the page of several tasks trains, and its commands predict."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

import raygnn.train
from raygnn import infer
from raygnn.config import load_config

#: `make test` has other tests of training and inference; these are of one feature each.
pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "several-tasks.md").read_text()


def test_the_page_trains_and_predicts(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = yaml.safe_load(text)
    cache = str(tmp_path / "cache")
    config["data"] |= {"cache_dir": cache}
    config |= {"training": {"max_epochs": 2}, "scaling": {"num_workers": 0}, "loggers": []}
    config["run"] |= {"storage_path": str(tmp_path / "runs")}
    metrics = raygnn.train.fit(config).metrics
    assert metrics["test/favorite/accuracy"] > 0.55
    assert metrics["test/watched/auc"] > 0.55
    assert metrics["test/rating/r2"] > 0.15  # 0.33 after all epochs
    graph = ["--data.synthetic.num_ratings", "500", "--data.synthetic.num_users", "50"]
    commands = [line.split() for line in re.findall(r"raygnn infer (.*)", PAGE)]
    for (_, _, task, key, value, _, _), table in zip(
        commands, ("user", "user__rates__film"), strict=True
    ):
        options = [key, value, *graph, "--data.cache_dir", cache]
        out = tmp_path / task
        written = infer.predict(tmp_path / "runs" / "films", out, options, task=task)
        assert "prediction" in pq.read_table(written.table_uri(table)).column_names


def test_the_keys_of_a_task_are_keys_of_the_config():
    text = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    blocks = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    described, two_labels, self_supervised, stopping = (
        yaml.safe_load(block) for block in blocks if not block.startswith("    raygnn")
    )
    described["tasks"]["NAME"]["args"] = {"edge_type": "a__b__c"}
    load_config({**described, "sampling": {"fanouts": [3, 3]}})
    load_config({**two_labels})
    load_config({**self_supervised})
    load_config({"tasks": {"watched": "link_prediction"}, **stopping}).check_arguments()
