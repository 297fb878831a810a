"""The configs on the pages of tasks train, and their commands predict, judge and write.

`make test` has other tests of training and inference; these are of one feature each.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

import raygnn.train
from raygnn import infer
from raygnn.config import load_config
from raygnn.config.registry import SLOTS

pytestmark = pytest.mark.slow

EDGES, SELF_SUPERVISED, SEVERAL = (
    (Path(__file__).parents[2] / "docs" / f"{name}.md").read_text()
    for name in ("edge-prediction", "self-supervised", "several-tasks")
)
SMALL = ["--data.synthetic.num_ratings", "500", "--data.synthetic.num_users", "50"]


def _blocks(page: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)


def _commands(page: str) -> list[list[str]]:
    return [line.split() for line in re.findall(r"raygnn infer (.*)", page)]


def _train(folder: Path, text: str, max_epochs: int) -> dict[str, Any]:
    """Trains the config of a page for few epochs; its runs and its cache are in the folder."""
    config = yaml.safe_load(text)
    config["data"] |= {"cache_dir": str(folder / "cache")}
    config |= {"training": {"max_epochs": max_epochs}, "scaling": {"num_workers": 0}, "loggers": []}
    config["run"] |= {"storage_path": str(folder / "runs")}
    return raygnn.train.fit(config).metrics


def test_edge_prediction(tmp_path):
    (text,) = _blocks(EDGES)
    metrics = _train(tmp_path, text, 4)
    assert metrics["test/r2"] > 0.12  # 0.35 after all epochs
    for name in ("mean", "biases"):
        assert metrics["test/rmse"] < metrics[f"baseline/{name}/test/rmse"]
    assert metrics["test/rmse"] < 1.02 * metrics["baseline/lightgbm/test/rmse"]
    (command,) = _commands(EDGES)
    assert command[1:3] == ["--data.synthetic.type", "ratings"]
    options = [*command[1:3], *SMALL, "--data.cache_dir", str(tmp_path / "cache")]
    written = infer.predict(tmp_path / "runs" / "ratings", tmp_path / "out", options)
    table = pq.read_table(written.table_uri("user__rates__film"))
    names = ["row", "source_id", "target_id", "time", "prediction", "low", "high"]
    assert table.column_names == names
    assert 0.5 < min(table["prediction"].to_pylist()) < max(table["prediction"].to_pylist()) < 6


def test_several_tasks(tmp_path):
    (text,) = _blocks(SEVERAL)
    metrics = _train(tmp_path, text, 2)
    assert metrics["test/favorite/accuracy"] > 0.55
    assert metrics["test/watched/auc"] > 0.55
    assert metrics["test/rating/r2"] > 0.15  # 0.33 after all epochs
    tables = ("user", "user__rates__film")
    for command, table in zip(_commands(SEVERAL), tables, strict=True):
        _, _, task, key, value, _, _ = command
        options = [key, value, *SMALL, "--data.cache_dir", str(tmp_path / "cache")]
        out = tmp_path / task
        written = infer.predict(tmp_path / "runs" / "films", out, options, task=task)
        assert "prediction" in pq.read_table(written.table_uri(table)).column_names


def test_keys_of_several_tasks_are_keys_of_the_config():
    text = re.sub(r"```.*?```", "", SEVERAL, flags=re.DOTALL)
    blocks = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    described, two_labels, self_supervised, stopping = (
        yaml.safe_load(block) for block in blocks if not block.startswith("    raygnn")
    )
    described["tasks"]["NAME"]["args"] = {"edge_type": "a__b__c"}
    load_config({**described, "sampling": {"fanouts": [3, 3]}})
    load_config({**two_labels})
    load_config({**self_supervised})
    load_config({"tasks": {"watched": "link_prediction"}, **stopping}).check_arguments()


def test_self_supervised(tmp_path, capsys):
    text, more, tuned = _blocks(SELF_SUPERVISED)
    config = yaml.safe_load(text)
    load_config({**config, **yaml.safe_load(more)}).check_arguments()
    metrics = _train(tmp_path, text, 20)
    assert metrics["test/accuracy"] > 0.75
    assert metrics["no_better_than_baseline"] == ""
    (_, *judge), (_, *write) = _commands(SELF_SUPERVISED)
    run, options = str(tmp_path / "runs" / "embeddings"), ["--data.cache_dir", f"{tmp_path}/cache"]
    capsys.readouterr()
    assert infer.main([run, *judge, *options]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert abs(found["accuracy"] - metrics["test/accuracy"]) < 0.05
    assert write[-2:] == ["--out", "out/embeddings"]
    out = str(tmp_path / "out")
    assert infer.main([run, *write[:-1], out, *options, "--scaling.num_workers", "0"]) == 0
    assert pq.read_table(f"{out}/node").column_names == ["id", "embedding"]

    further = {**config, **yaml.safe_load(tuned), "run": {**config["run"], "name": "tuned"}}
    further["checkpoint"]["init_from"] |= {"uri": run, "freeze": ["encoder.*"]}
    del further["early_stopping"]
    assert _train(tmp_path, yaml.safe_dump(further), 5)["test/accuracy"] > 0.7


def test_the_page_names_every_self_supervised_method():
    table = SELF_SUPERVISED.split("## Methods")[1].split("\n\n")[1]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == ["method", *SLOTS["method"].names]
