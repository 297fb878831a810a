"""The configs on the page of self-supervised learning train, and its commands judge and write."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

import raygnn
import raygnn.train
from raygnn import infer
from raygnn.config import load_config
from raygnn.config.registry import SLOTS

#: `make test` has other tests of training and inference; these are of one feature each.
pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "self-supervised.md").read_text()


def test_the_page_trains_judges_and_writes(tmp_path, capsys):
    text, more, tuned = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    load_config({**yaml.safe_load(text), **yaml.safe_load(more)}).check_arguments()
    config = yaml.safe_load(text)
    cache = str(tmp_path / "cache")
    config["data"] |= {"cache_dir": cache}
    config |= {"training": {"max_epochs": 20}, "scaling": {"num_workers": 0}, "loggers": []}
    config["run"] |= {"storage_path": str(tmp_path / "runs")}
    metrics = raygnn.train.fit(config).metrics
    assert metrics["test/accuracy"] > 0.75
    assert metrics["no_better_than_baseline"] == ""
    probe, write = (c.split()[1:] for c in re.findall(r"raygnn infer (.*)", PAGE))
    run, options = str(tmp_path / "runs" / "embeddings"), ["--data.cache_dir", cache]
    capsys.readouterr()
    assert infer.main([run, *probe, *options]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert abs(found["test/accuracy"] - metrics["test/accuracy"]) < 0.05
    assert write[-2:] == ["--out", "out/embeddings"]
    out = str(tmp_path / "out")
    assert infer.main([run, *write[:-1], out, *options, "--scaling.num_workers", "0"]) == 0
    assert pq.read_table(f"{out}/node").column_names == ["id", "embedding"]

    further = {**config, **yaml.safe_load(tuned), "data": config["data"]}
    further["checkpoint"]["init_from"] |= {"uri": run, "freeze": ["encoder.*"]}
    further |= {"training": {"max_epochs": 5}, "run": {**config["run"], "name": "tuned"}}
    del further["early_stopping"]
    assert raygnn.train.fit(further).metrics["test/accuracy"] > 0.7


def test_the_page_names_every_method():
    table = PAGE.split("## Methods")[1].split("\n\n")[1]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == ["method", *SLOTS["method"].names]
