"""Every command and call of docs/inference.md runs as it stands.

So do the first settings and commands of docs/link-prediction.md.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raygnn.infer
import raygnn.train

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "inference.md").read_text("utf-8")
LINKS = (ROOT / "docs" / "link-prediction.md").read_text("utf-8").replace("\\\n", "")


@pytest.fixture
def folder(node_model, link_model, temporal_links, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    models = {"papers": node_model, "shop": link_model, "orders": temporal_links}
    for name, trained in models.items():
        (tmp_path / "runs" / name).mkdir()
        for file in ("model.safetensors", "model.json", "config.yaml"):
            shutil.copy(Path(trained.run) / file, tmp_path / "runs" / name)
    shutil.copytree(node_model.plain_graph, tmp_path / "graph")
    shutil.copytree(node_model.graph, tmp_path / "papers-2024")
    shutil.copytree(link_model.graph, tmp_path / "shop")
    shutil.copytree(temporal_links.graph, tmp_path / "orders")
    write_arrivals(node_model.plain_graph, tmp_path / "arrivals")
    (tmp_path / "ids.csv").write_text("id\nn001\nn002\n")
    users = pq.read_table(Path(link_model.graph) / "nodes" / "user", columns=["id"])
    pq.write_table(users.slice(0, 3), tmp_path / "users.parquet")
    return tmp_path


def write_arrivals(graph: str, folder: Path) -> None:
    """Two papers that the graph lacks, which cite and are cited as its first two."""
    shutil.copytree(graph, folder)
    for kind in ("nodes", "edges"):
        for table in (folder / kind).iterdir():
            rows = pq.read_table(table).slice(0, 2)
            ids = rows.column_names[:1]  # of an edge, where it begins
            for name in ids:
                rows = rows.set_column(0, name, pa.array(["new-1", "new-2"]))
            shutil.rmtree(table)
            table.mkdir()
            pq.write_table(rows, table / "rows.parquet")


@pytest.mark.slow
def test_each_command_runs(folder):
    lines = PAGE.replace("\\\n", " ")
    # `test_training_rows.py` infers with models of training tables, as runs/churn.
    commands = re.findall(r"^ *raygnn infer (?!runs/churn)(\S.*)$", lines, re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        arguments = shlex.split(command)
        assert raygnn.infer.main([*arguments, "--scaling.num_workers", "0"]) == 0, command
        if "--metrics" not in arguments:
            out = folder / arguments[arguments.index("--out") + 1]
            assert (out / "_manifest.json").exists()


@pytest.mark.slow
def test_the_first_settings_of_link_prediction_train_and_rank(folder):
    config, *_ = re.findall(r"```yaml\n(.*?)```", LINKS, re.DOTALL)
    Path("links.yaml").write_text(config.replace("paper__cites__paper", "node__to__node"))
    for module in (raygnn.train, raygnn.infer):
        name = module.__name__.rpartition(".")[2]
        (command,) = re.findall(rf"^ +raygnn {name} (\S.*)$", LINKS, re.MULTILINE)
        small = ["--scaling.num_workers", "0"]
        small += ["--training.max_epochs", "1"] if name == "train" else []
        assert module.main([*shlex.split(command), *small]) == 0, command
    assert pq.read_table("out/links/neighbors").num_rows == 20


def test_the_python_examples_run(folder):
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 3
    users, items = (pq.read_table(f"shop/nodes/{t}")["id"].to_pylist() for t in ("user", "item"))
    # what these graphs call them
    names = {"paper-1": "n001", "paper-7": "n007", '"user-1"': repr(users[0])}
    for code in examples:
        for name, here in {**names, '"item-3"': repr(items[0])}.items():
            code = code.replace(name, here)
        exec(code, {})
    assert pq.read_table("out/embeddings/node").num_rows == 150
    assert pq.read_table("out/similar/neighbors").num_rows == 20


def test_the_page_names_every_option():
    options = {
        name for action in raygnn.infer.build_parser()._actions for name in action.option_strings
    }
    missing = [name for name in options - {"-h", "--help", "--allow-module"} if name not in PAGE]
    assert not missing
