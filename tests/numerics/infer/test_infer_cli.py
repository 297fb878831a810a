"""What inference answers: files where it says, or a message and nothing written."""

from __future__ import annotations

import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import filelock
import pyarrow.parquet as pq
import pytest
import torch

import raygnn.infer
import raygnn.train
from raygnn.inference.output_folder import OutputFolder
from tests.errors import raises
from tests.numerics.infer.conftest import Trained
from tests.numerics.infer.test_nodes import predict
from tests.small_runs import small_config


def _status(capsys, *arguments: object) -> tuple[int, str]:
    status = raygnn.infer.main([str(a) for a in arguments])
    return status, capsys.readouterr().err


def test_the_command_line_writes_and_says_where(capsys, node_model, link_model, tmp_path):
    local = ["--scaling.num_workers", "0"]
    arguments = [node_model.run, "--data.uri", node_model.plain_graph, "--out", tmp_path / "a"]
    assert raygnn.infer.main([str(a) for a in [*arguments, *local]]) == 0
    assert f"wrote {tmp_path / 'a'}/node: 150 rows, 1 file, " in capsys.readouterr().out
    (tmp_path / "anchors.csv").write_text("user\n1\n2\n")
    arguments = [link_model.run, "--data.uri", link_model.graph, "--out", tmp_path / "b", *local]
    arguments += [
        "--top-k",
        3,
        "--anchors",
        tmp_path / "anchors.csv",
        "--targets",
        "item",
        "--filter-known",
    ]
    assert raygnn.infer.main([str(a) for a in arguments]) == 0
    assert pq.read_table(tmp_path / "b" / "neighbors").num_rows == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--what", "labels"], "Set one of: embeddings, predictions, probabilities"),
        (["--what", "predictions"], "the model predicts links, not labels"),
        (
            ["--node-type", "shop"],
            "node_type='shop' is invalid: the model does not know this node type",
        ),
        (["--rows-per-file", "0"], "--rows-per-file=0 is invalid"),
        (["--chunk-size", "0"], "--chunk-size=0 is invalid"),
        (["--model.args.hidden_channels", "4"], "it is fixed by training"),
        (["--data.uri", "nowhere"], "nowhere"),
        (["--data.urri", "x"], "Did you mean uri"),
        (["--data.reverse_edges", "false"], "'item__rev_buys__user' of the model is not in"),
        (["--anchors", "x.csv"], "--anchors needs --top-k"),
        (["--top-k", "3"], "--top-k needs --anchors"),
        (["--top-k", "3", "--what", "embeddings"], "--what excludes --top-k"),
        (["--top-k", "26", "--anchors", "ANCHORS"], "there are 25 nodes of type 'item'"),
        (["--top-k", "0", "--anchors", "ANCHORS"], "--top-k=0 is invalid"),
        (["--top-k", "1", "--anchors", "ANCHORS", "--score", "dot"], "--score='dot' is invalid"),
        (["--top-k", "1", "--anchors", "ANCHORS", "--targets", "shop"], "targets='shop'"),
        (
            ["--top-k", "1", "--anchors", "ANCHORS", "--targets", "user", "--filter-known"],
            "no edges from 'user' to 'user'",
        ),
    ],
)
def test_wrong_input_is_told_before_anything_is_written(
    capsys, link_model, tmp_path, arguments, message
):
    (tmp_path / "anchors.csv").write_text("user\n1\n2\n")
    given = [tmp_path / "anchors.csv" if word == "ANCHORS" else word for word in arguments]
    out = ["--out", tmp_path / "out", "--scaling.num_workers", "0"]
    if "--data.uri" not in given:
        out += ["--data.uri", link_model.graph]
    status, err = _status(capsys, link_model.run, *out, *given)
    assert status == 2, err
    assert message in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["anchors.csv"]


def test_model_and_out_are_needed(capsys, link_model):
    assert "MODEL comes first" in _status(capsys, "--out", "x")[1]
    assert "--out is missing" in _status(capsys, link_model.run)[1]


def _copy(trained: Trained, folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        shutil.copy(Path(trained.run) / name, folder)
    return folder


FILES = ("model.safetensors", "config.yaml", "model.json")


def _predict(model: Path, trained: Trained, out: Path) -> None:
    overrides = ["--data.uri", trained.plain_graph, "--scaling.num_workers", "0"]
    raygnn.infer.predict(model, out, overrides)


def test_an_exported_model_is_enough(node_model, tmp_path):
    _predict(_copy(node_model, tmp_path / "model", *FILES), node_model, tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "node").num_rows == 150


def test_a_run_leads_to_its_model(node_model, tmp_path):
    model = _copy(node_model, tmp_path / "model", *FILES)
    run = _copy(node_model, tmp_path / "run", "config.yaml")
    text = (run / "config.yaml").read_text().replace("model_uri: null", f"model_uri: {model}")
    (run / "config.yaml").write_text(text)
    _predict(run, node_model, tmp_path / "out")


def test_what_only_training_read_is_not_needed(node_model, tmp_path):
    model = _copy(node_model, tmp_path / "model", *FILES)
    text = (model / "config.yaml").read_text()
    assert "\nloggers: []" in text
    logger = "\nloggers: [{type: wandb, args: {project: '${env:NOT_HERE}'}}]"
    (model / "config.yaml").write_text(text.replace("\nloggers: []", logger))
    _predict(model, node_model, tmp_path / "out")


def test_what_is_no_model_is_told(node_model, link_model, tmp_path):
    out = tmp_path / "out"
    with raises("model-config-missing"):
        _predict(tmp_path / "nowhere", node_model, out)
    unfinished = _copy(node_model, tmp_path / "unfinished", "config.yaml")
    with raises("model-weights-missing"):
        _predict(unfinished, node_model, out)
    unsigned = _copy(node_model, tmp_path / "unsigned", *FILES[:2])
    with raises("model-spec-missing", "model.json"):
        _predict(unsigned, node_model, out)
    damaged = _copy(node_model, tmp_path / "damaged", *FILES)
    (damaged / "model.safetensors").write_bytes(b"cut off")
    with raises("model-weights-damaged"):
        _predict(damaged, node_model, out)
    for text, message in (("a: [", ("document-syntax", "yaml:1")), ("x", ("config-not-mapping",))):
        (damaged / "config.yaml").write_text(text)
        with raises(*message):
            _predict(damaged, node_model, out)
    mixed = _copy(node_model, tmp_path / "mixed", *FILES)
    text = (mixed / "config.yaml").read_text()
    (mixed / "config.yaml").write_text(text.replace("hidden_channels: 8", "hidden_channels: 9"))
    with raises("model-weights-mismatch"):
        _predict(mixed, node_model, out)
    with raises("model-node-type-missing", "user"):
        _predict(Path(link_model.run), node_model, out)
    assert not list(tmp_path.glob("out*"))


def test_an_encoder_that_cannot_go_layer_by_layer_is_told(node_model, tmp_path):
    model = {"type": "tests.user_code.PlainPyG"}
    config = small_config(tmp_path, model=model, scaling__num_workers=0, data__uri=node_model.graph)
    raygnn.train.fit(config, allow_modules=["tests"])
    args = {"allow_modules": ["tests"], "rows_per_file": 64}
    local = ["--loader.eval_batch_size", "30", "--scaling.num_workers", "0"]
    local += ["--data.uri", node_model.graph]
    raygnn.infer.predict(tmp_path / "run", tmp_path / "out", local, **args)
    assert pq.read_table(tmp_path / "out" / "node").num_rows == 150
    with raises("model-not-layerwise"):
        raygnn.infer.predict(
            tmp_path / "run", tmp_path / "no", [*local, "--training.eval", "exact"], **args
        )
    assert not list(tmp_path.glob("no*"))


def test_a_used_folder_is_refused_and_replaced_as_a_whole(node_model, tmp_path):
    out = tmp_path / "out"
    predict(node_model, out, rows_per_file=60)
    with raises("output-not-empty"):
        predict(node_model, out)
    predict(node_model, out, overwrite=True)
    assert len(list((out / "node").iterdir())) == 1
    (out / "notes.txt").write_text("mine")
    with raises("output-foreign-files", "notes.txt"):
        predict(node_model, out, overwrite=True)
    with raises("output-is-file"):
        predict(node_model, out / "notes.txt")
    with raises("output-unwritable"):
        predict(node_model, out / "notes.txt" / "below")
    assert sorted(p.name for p in out.iterdir()) == ["_manifest.json", "node", "notes.txt"]


@pytest.mark.parametrize("place", ["local", "memory://abandoned"])
def test_a_failure_leaves_nothing(node_model, tmp_path, monkeypatch, place):
    import fsspec

    out = str(tmp_path / "out") if place == "local" else place
    write = OutputFolder.write

    def fail(self, table, part, *args):
        if part == 1:
            raise OSError("disk full")
        return write(self, table, part, *args)

    monkeypatch.setattr(OutputFolder, "write", fail)
    with raises("run-rank-failed", "Rank 0", "writing node", "OSError: disk full"):
        predict(node_model, out, rows_per_file=60)
    assert not list(tmp_path.iterdir())
    assert not fsspec.filesystem("memory").find("/abandoned")


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_leaves_nothing(capsys, node_model, tmp_path, monkeypatch, name, status):
    def stop(*_: object) -> None:
        assert list(tmp_path.glob("out.partial-*/.alive"))
        signal.raise_signal(getattr(signal, name))

    monkeypatch.setattr(OutputFolder, "write", stop)
    arguments = [node_model.run, "--out", tmp_path / "out", "--scaling.num_workers", "0"]
    arguments += ["--data.uri", node_model.graph]
    told = f"stopped by {name}: nothing was written\n"
    assert _status(capsys, *arguments) == (status, told)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_call_left_is_removed(node_model, tmp_path, monkeypatch):
    out = tmp_path / "out"
    names = ("out.partial-0123abcd", "out.partial-4567cdef", "out.partial-of-mine", "outer")
    dead, live, *others = [tmp_path / name for name in names]
    for folder in (dead, live, *others):
        (folder / "node").mkdir(parents=True)
    with filelock.FileLock(live / ".alive"):
        predict(node_model, out)
    assert sorted(path.name for path in out.iterdir()) == ["_manifest.json", "node"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["out", *names[1:]])
    # Killed as it put the new output into the place of the old one: that comes back.
    dead.mkdir()
    out.rename(dead / ".replaced")
    monkeypatch.setattr(OutputFolder, "write", lambda *_: 1 / 0)
    with raises("run-rank-failed", "ZeroDivisionError"):
        predict(node_model, out)
    assert (out / "_manifest.json").exists()
    assert not dead.exists()
    assert not live.exists()


def test_half_an_output_in_a_bucket_is_replaced(node_model):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/half/node/part-00007-of-00009.parquet", b"half")
    predict(node_model, "memory://half")
    names = sorted(path.rpartition("/")[2] for path in memory.find("/half"))
    assert names == ["_manifest.json", "part-00000-of-00001.parquet"]


def test_files_on_another_machine_are_told(tmp_path):
    output = OutputFolder.check(str(tmp_path / "out"))
    tables = {"n": {"files": [{"file": "n/part-00000-of-00001.parquet"}]}}
    with raises("output-not-shared"), output.in_progress():
        output.finish({"tables": tables})
    assert not list(tmp_path.iterdir())


def test_values_that_are_not_finite_are_told(node_model, tmp_path, monkeypatch):
    from raygnn.models import GraphSAGE

    readout = GraphSAGE.readout

    def infinite(*args: object) -> dict[str, torch.Tensor]:
        return {name: rows / 0 for name, rows in readout(*args).items()}

    monkeypatch.setattr(GraphSAGE, "readout", infinite)
    with raises("infer-not-finite", 150):
        predict(node_model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_predictions_are_rows_of_a_database(capsys, node_model, link_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local = ["--scaling.num_workers", "0"]
    graph = [node_model.run, "--data.uri", node_model.plain_graph, *local]
    status, _ = _status(capsys, *graph, "--out", "sqlite:///shop.db#predictions")
    assert status == 0
    with closing(sqlite3.connect("shop.db")) as connection:
        rows = connection.execute("SELECT * FROM predictions").fetchall()
    _status(capsys, *graph, "--out", "out")
    table = pq.read_table("out/node")
    assert [row[0] for row in rows] == table["id"].to_pylist()
    assert [row[1] for row in rows] == table.column(1).to_pylist()
    deltalake = pytest.importorskip("deltalake")
    _status(capsys, *graph, "--out", "delta+lake/predictions")
    rows = deltalake.DeltaTable("lake/predictions").to_pyarrow_table()
    assert rows.to_pylist() == table.to_pylist()
    assert [path.name for path in tmp_path.glob("runs/*")] == []
    _, printed = _status(capsys, *graph, "--out", "sqlite:///shop.db#predictions")
    assert "[output-not-empty]" in printed
    links = [link_model.run, "--data.uri", link_model.graph, *local]
    _, printed = _status(capsys, *links, "--out", "sqlite:///shop.db#embeddings")
    assert "[output-database-table]" in printed
