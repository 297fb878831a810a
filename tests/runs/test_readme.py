"""The README does what it says: its graph, its config, and each of its commands are run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import Data

import raygnn.infer
import raygnn.prepare.__main__
import raygnn.train

README = (Path(__file__).parents[2] / "README.md").read_text()


def _block(first_line: str) -> str:
    """The indented block that starts with a line."""
    lines = README.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith(first_line))
    block = []
    for line in lines[start:]:
        if line and not line.startswith("    "):
            break
        block.append(line[4:])
    return "\n".join(block)


def _commands(module: str) -> list[list[str]]:
    """Arguments of each `raygnn MODULE` and `python -m raygnn.MODULE` of the README."""
    command = rf"^    (?:raygnn |python -m raygnn\.){module} ([a-z][^#\n]*)"
    text = README.replace("\\\n", "")
    return [shlex.split(line) for line in re.findall(command, text, re.MULTILINE)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_your_own_graph_trains_as_described(folder):
    rng = np.random.default_rng(0)
    for name in ("papers", "cites"):
        (folder / "graph" / name).mkdir(parents=True)
    topic = rng.integers(0, 3, 200)
    embedding = np.eye(3, 8)[topic] + rng.normal(0, 0.3, (200, 8))
    papers = pa.table(
        {
            "paper_id": [f"paper-{i}" for i in range(200)],
            "year": rng.integers(1990, 2020, 200).astype(np.float32),
            "embedding": pa.array(list(embedding.astype(np.float32))),
            "topic": topic,
        }
    )
    pq.write_table(papers, folder / "graph" / "papers" / "a.parquet")
    ends = {key: [f"paper-{i}" for i in rng.integers(0, 200, 900)] for key in ("src", "dst")}
    pq.write_table(pa.table(ends), folder / "graph" / "cites" / "a.parquet")
    (folder / "graph" / "graph.yaml").write_text(_block("format: raygnn/graph-v1"))
    (folder / "train.yaml").write_text(_block("data: {uri: graph"))
    here = ["--scaling.num_workers", "0"]
    short = [*here, "--training.max_epochs", "2"]
    commands = [command for command in _commands("train") if command[0] == "train.yaml"]
    assert len(commands) == 2
    for command in commands:
        assert raygnn.train.main([*command, *short]) == 0, command
    first = next(command for command in _commands("infer") if command[0] == "runs/papers")
    assert raygnn.infer.main([*first, *here]) == 0
    written = pq.read_table(folder / "out" / "predictions" / "paper")
    assert sorted(written["id"].to_pylist()) == sorted(papers["paper_id"].to_pylist())
    loading, predicting = _block("model = raygnn.load(").strip().splitlines()
    scope: dict[str, Any] = {"raygnn": raygnn}
    exec(f"{loading}\nshown = {predicting}", scope)
    assert scope["shown"]["id"].tolist() == written["id"].to_pylist()
    links = json.loads((folder / "runs" / "links" / "metrics.json").read_text())
    assert 0 <= links["test/mrr"] <= 1
    result = raygnn.train.fit("train.yaml", [*short, "--seed", "1", "--run.name", "again"])
    assert 0 <= result.metrics["test/accuracy"] <= 1
    assert len(result.metrics_dataframe) == 1  # two steps, and one validation at the end


def _write_store() -> None:
    """Writes the tables of the tutorial that the README quotes."""
    page = (Path(__file__).parents[2] / "docs" / "tutorials" / "database.md").read_text()
    (code,) = re.findall(r"```python\n(from pathlib.*?)```", page, re.DOTALL)
    exec(code, {})


def test_raw_tables_become_predictions(folder):
    pytest.importorskip("duckdb")  # an extra
    _write_store()
    draft, labels = _commands("prepare")[:2]
    assert raygnn.prepare.__main__.main(draft) == 0
    assert raygnn.prepare.__main__.main(labels) == 0
    train = next(command for command in _commands("train") if command[0].startswith("store"))
    assert raygnn.train.main([*train, "--training.max_epochs", "8"]) == 0
    metrics = json.loads((folder / "runs" / "orders" / "metrics.json").read_text())
    assert metrics["test/auroc"] > metrics["baseline/last_label/test/auroc"]
    (folder / "rows.csv").write_text("id,time\nC10007,2024-02-05\nC10003,2023-12-31\n")
    infer = next(command for command in _commands("infer") if command[0] == "runs/orders")
    assert raygnn.infer.main([*infer, "--scaling.num_workers", "0"]) == 0
    answers = (folder / "answers.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in answers[1:]] == [
        ["C10007", "2024-02-05"],
        ["C10003", "2023-12-31"],
    ]


def test_each_preparer_of_the_readme_runs(folder):
    adjacency = np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]])
    np.savez(
        folder / "cora.npz",
        adj_data=np.ones(4),
        adj_indices=np.nonzero(adjacency)[1],
        adj_indptr=np.array([0, 2, 3, 4]),
        adj_shape=np.array([3, 3]),
        attr_matrix=np.eye(3, dtype=np.float32),
        labels=np.array([0, 1, 0]),
    )
    torch.save(Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 2]])), "data.pt")
    commands = [command for command in _commands("prepare") if "--out" in command]
    assert len(commands) == 2
    for command in commands:
        assert raygnn.prepare.__main__.main(command) == 0, command
        assert (folder / command[command.index("--out") + 1] / "graph.yaml").exists()
