"""The page for contributors adds a task that trains, is saved, and predicts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from raygnn.config.registry import SLOTS
from raygnn.data.tables.graph_tables import write_tables
from raygnn.prepare.synthetic import synthetic_tables

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-a-task.md").read_text()


def _add_task(root: Path) -> None:
    """Does what the page says, in a copy of the package."""
    shutil.copytree(ROOT / "raygnn", root / "raygnn")  # with compiled kernels
    written = re.findall(r"`(raygnn/[\w/]+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert {Path(name).parent for name, _ in written} == {Path("raygnn/loops/tasks/node_degree")}
    for name, text in written:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    pattern = r"`(raygnn/[\w/]+\.py)` names.*?```python\n(.*?)```"
    ((registry, line),) = re.findall(pattern, PAGE, re.DOTALL)
    assert line.count("\n") == 1
    text = (root / registry).read_text()
    assert text.count("_TASKS = {\n") == 1
    (root / registry).write_text(text.replace("_TASKS = {\n", f"_TASKS = {{\n{line}"))


#: Runs commands in one process, since each would import torch again.
PROGRAM = """
import json, sys
import raygnn.infer, raygnn.train

for command, *arguments in json.loads(sys.argv[1]):
    status = getattr(raygnn, command).main(arguments)
    assert status == 0, (command, arguments)
"""


def _run(root: Path, *commands: tuple[str, ...]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root)}
    places = ("--data.cache_dir", "cache", "--scaling.num_workers", "0")
    given = json.dumps([(*command, *places) for command in commands])
    command = [sys.executable, "-c", PROGRAM, given]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_page_adds_a_task(tmp_path):
    assert "node_degree" not in SLOTS["task"].names
    _add_task(tmp_path)
    (config,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "config.yaml").write_text(config)
    of_training = yaml.safe_load(config)["data"]["synthetic"]
    tables = synthetic_tables(**{**of_training, "num_nodes": 500, "avg_degree": 6.0})
    graph = write_tables(tables, str(tmp_path / "graph"))
    several = yaml.safe_load(config)
    del several["task"]
    several["tasks"] = {"degree": "node_degree", "group": "node_classification"}
    (tmp_path / "several.yaml").write_text(yaml.safe_dump(several))

    run = ("--run.storage_path", "runs", "--loggers", "[]", "--run.name")
    of_graph = ("--data.uri", graph, "--out")
    said = _run(
        tmp_path,
        ("train", "config.yaml", *run, "degrees"),
        ("infer", "runs/degrees", *of_graph, "out"),
        ("train", "several.yaml", *run, "several"),
        ("infer", "runs/several", "--task", "degree", *of_graph, "two"),
    )
    assert "degrees of 2,000 node nodes" in said
    saved = tmp_path / "runs" / "degrees"
    assert json.loads((saved / "metrics.json").read_text())["test/r2"] > 0.95
    assert json.loads((saved / "model.json").read_text())["degree"] == {"node_type": "node"}
    predicted = pq.read_table(tmp_path / "out" / "node").sort_by("id")["prediction"].to_numpy()
    (edges,) = tables.edges.values()
    degrees = np.bincount(edges.table.column(edges.target).to_numpy(), minlength=500)
    assert np.corrcoef(predicted, degrees)[0, 1] > 0.95
    assert np.abs(predicted - degrees).mean() < 1
    metrics = json.loads((tmp_path / "runs" / "several" / "metrics.json").read_text())
    assert metrics["test/degree/r2"] > 0.9
    assert "prediction" in pq.read_table(tmp_path / "two" / "node").column_names
