"""The examples of custom code run as their headers say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

import raygnn.train
from tests.errors import raises

ROOT = Path(__file__).parents[2]


def _command(example: str) -> list[str]:
    text = (ROOT / "examples" / example).read_text().replace("\\\n", " ")
    found = re.search(r"^ {4}python -m raygnn\.train (.*)$", text, re.MULTILINE)
    assert found is not None
    return shlex.split(found.group(1))


@pytest.mark.parametrize("example", ["custom_task.py", "custom_loop.py"])
def test_custom_code_runs(example, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    small = ["--scaling.num_workers", "0", "--training.max_epochs", "1"]
    small += ["--data.synthetic.num_nodes", "300", "--run.name", "custom"]
    small += ["--run.storage_path", str(tmp_path)]
    assert raygnn.train.main([*_command(example), *small]) == 0
    metrics = json.loads((tmp_path / "custom" / "metrics.json").read_text())
    if example == "custom_loop.py":
        assert metrics["train/loss"] > 0
    else:
        rows = (tmp_path / "custom" / "history.jsonl").read_text().splitlines()
        assert json.loads(rows[0])["train/squared_logits"] > 0


def loop_without_metrics(task, context):
    """Forgets to return."""


def test_a_loop_must_return_metrics(tmp_path):
    config = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    config["scaling"] = {"num_workers": 0}
    config["data"]["synthetic"]["num_nodes"] = 100
    config["run"] = {"storage_path": str(tmp_path), "name": "run"}
    config["loop"] = "tests.numerics.test_examples.loop_without_metrics"
    with raises("run-own-loop", "NoneType"):
        raygnn.train.fit(config, allow_modules=["tests"])
