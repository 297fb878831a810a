"""The command line: what it prints, its exit status, and that it leaves nothing half-written."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torch_geometric.data import Data

from raygnn.config import load_config
from raygnn.data.manifest import Manifest, TimeColumn
from raygnn.errors import DataError
from raygnn.prepare import __main__ as prepare
from raygnn.prepare.synthetic import GENERATORS

DOCS = Path(__file__).parents[3] / "docs" / "prepare.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with small files of the names that the documentation uses."""
    monkeypatch.chdir(tmp_path)
    num_nodes = 120
    ids = np.arange(num_nodes)
    ring = {
        "adj_data": np.ones(num_nodes),
        "adj_indices": (ids + 1) % num_nodes,
        "adj_indptr": np.arange(num_nodes + 1),
        "adj_shape": np.array([num_nodes, num_nodes]),
        "attr_matrix": np.ones((num_nodes, 4), np.float32),
        "labels": ids % 2,
    }
    np.savez("graph.npz", **ring)
    edge_index = torch.tensor(np.stack([ids, (ids + 1) % num_nodes]))
    torch.save(Data(x=torch.ones(num_nodes, 4), edge_index=edge_index), "graph.pt")
    Path("edges.csv").write_text("id_1,id_2\n")
    _write_relbench()
    Path("my_tables").mkdir()
    Path("my_tables/follows.csv").write_text("from,to\n1,2\n2,3\n")
    return tmp_path


def _write_relbench() -> None:
    """A database of one table in the layout of RelBench."""
    Path("rel-f1/db").mkdir(parents=True)
    table = {"pkey": "id", "time_col": None, "fkeys": {"mate": "drivers"}}
    manifest = {"name": "rel-f1", "test_timestamp": "2010-01-01", "tables": {"drivers": table}}
    Path("rel-f1/manifest.yaml").write_text(yaml.safe_dump(manifest))
    drivers = pa.table({"id": [1, 2], "mate": [2, 1], "wins": [0, 3]})
    pq.write_table(drivers, "rel-f1/db/drivers.parquet")


def run(text: str) -> int:
    return prepare.main(shlex.split(text))


def test_npz_prints_what_it_wrote(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("npz graph.npz --out build/g --shards 2") == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "wrote build/g",
        "  node type node: 120 nodes; feature x of 4 dimensions, float32; label y of 2 classes",
        "  edge type node__to__node: 240 directed edges",
        "  note: made undirected: 120 entries became 240 directed edges (0 self-loops and 0 "
        "repeated entries dropped, 120 missing reverse directions added)",
        "  note: no split written: the source has none. Set data.splits in the config",
        "next: raygnn train build/g/train.yaml",
    ]
    assert printed.err.splitlines() == ["wrote nodes/node: 120 rows", "wrote edges/to: 240 rows"]
    assert len(list((folder / "build/g/nodes/node").iterdir())) == 2


def test_a_config_learns_labels_or_links_and_makes_the_split_that_is_missing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("npz graph.npz --out 'a graph' --directed --normalize-features row") == 0
    assert "next: raygnn train 'a graph/train.yaml'\n" in capsys.readouterr().out
    config = load_config("a graph/train.yaml").config
    assert (config.data.uri, config.data.splits.type) == ("a graph", "hash")
    assert config.task.args == {"target": "node", "label": "y"}
    assert run("synthetic planted-partition --num-nodes 60 --out g") == 0
    assert load_config("g/train.yaml").config.data.splits is None
    assert run("pyg graph.pt --out links") == 0
    task = load_config("links/train.yaml").config.task
    assert (task.type, task.args) == ("link_prediction", {"edge_type": "node__to__node"})
    x = pq.read_table("a graph/nodes/node").column("x")[0].as_py()
    assert np.frombuffer(x, np.float32).tolist() == [0.25] * 4


def test_synthetic_flags_follow_the_generator(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("synthetic ratings --num-users 30 --classes --out g") == 0
    assert Manifest.load("g").edge_types[0].time == TimeColumn(column="time")
    assert "edge type user__rates__film" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run("synthetic planted-partition --help")
    out = capsys.readouterr().out
    assert "--avg-degree FLOAT" in out
    assert "(default: 5000)" in out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("npz gone.npz --out g", "error: gone.npz: there is no such file"),
        ("npz graph.npz --out g --shards 0", "error: num_shards=0 is invalid"),
        ("npz graph.npz --out edges.csv", "error: out='edges.csv' is invalid: it is a file"),
        ("npz graph.npz --out what://g", "error: uri='what://g' is invalid"),
        ("npz graph.npz --out /proc/none/g", "error: "),
        (
            "synthetic rmat --num-nodes 1 --out g",
            "error: --num-nodes=1 is invalid: it must be at l",
        ),
        ("synthetic rmat --a 0.9 --out g", "error: --a=0.9 is invalid: a + b + c must leave"),
    ],
)
def test_errors_are_one_message_and_exit_status_2(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    before = sorted(folder.iterdir())
    assert run(command) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert "wrote" not in printed.out
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("npz graph.npz", "the following arguments are required: --out"),
        ("synthetic tree --out g", "invalid choice: 'tree'"),
        ("synthetic rmat --num-nodes many --out g", "invalid int value: 'many'"),
        ("npz graph.npz --out g --normalize-features column", "invalid choice: 'column'"),
    ],
)
def test_usage_errors_exit_with_2(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(command)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_failure_before_writing_is_noticed_before_converting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("npz graph.npz --out g") == 0

    def convert(*_: object) -> None:
        raise AssertionError("the folder is in use: nothing should be converted")

    monkeypatch.setattr(prepare, "npz_tables", convert)
    assert run("npz graph.npz --out g") == DataError.exit_status


def test_generators_go_by_the_names_of_configs_too(folder: Path) -> None:
    for name in ("planted-partition", "planted_partition"):
        assert run(f"synthetic {name} --num-nodes 50 --out {name}") == 0
    tables = [
        pq.read_table(next(Path(n).rglob("nodes/*/*.parquet")))
        for n in ("planted-partition", "planted_partition")
    ]
    assert tables[0].equals(tables[1])


def documented_commands() -> list[str]:
    text = DOCS.read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line.startswith("raygnn prepare ")]


@pytest.mark.parametrize("command", documented_commands())
def test_documented_commands_run(folder: Path, command: str) -> None:
    arguments = shlex.split(command)[2:]
    if arguments[0] in {"labels", "snapshot"}:
        pytest.importorskip("duckdb")
        assert run("synthetic shop --out build/shop") == 0
    assert prepare.main(arguments) == 0
    written = arguments[0] if arguments[0] in {"draft", "labels", "snapshot"} else "--out"
    assert Manifest.load(arguments[arguments.index(written) + 1]).node_types


def test_every_command_is_documented() -> None:
    found = {tuple(shlex.split(command)[2:4]) for command in documented_commands()}
    (commands,) = prepare.build_parser()._subparsers._group_actions
    assert {first for first, _ in found} == {*commands.choices}
    generators = {second.replace("-", "_") for first, second in found if first == "synthetic"}
    assert generators == {*GENERATORS}
