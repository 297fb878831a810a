"""What the command line answers to wrong input: a message, status 2, and nothing written."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import raygnn.train
from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from raygnn.outputs.run_start import check_run_folder, open_run_folder
from tests.errors import raises
from tests.small_runs import small_config


@pytest.fixture
def config(tmp_path: Path, small_tables: str) -> Path:
    content = small_config(tmp_path / "runs", scaling__num_workers=0, data__uri=small_tables)
    content["training"]["max_epochs"] = 1
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def _status(capsys, *arguments: object) -> tuple[int, str]:
    status = raygnn.train.main([str(a) for a in arguments])
    return status, capsys.readouterr().err


def _num_held() -> int:
    return sum(type(found) in (Engine, Bundle) for found in gc.get_objects())


def test_a_run_leaves_no_graph_and_no_weights_in_memory(config):
    gc.collect()
    gc.disable()
    try:
        before = _num_held()
        result = raygnn.train.fit(str(config))
        assert result.metrics is not None
        assert _num_held() == before
    finally:
        gc.enable()


def test_overwriting_a_run_leaves_what_others_have_written(capsys, config, tmp_path):
    shared = tmp_path / "shared"
    outputs = [f"--run.{key}={shared / key}" for key in ("model_uri", "logs_uri")]
    outputs.append("--loggers=[tensorboard]")
    assert _status(capsys, config, *outputs)[0] == 0
    ours = {path for path in shared.rglob("*") if path.is_file()}
    assert {path.name for path in ours} >= {"model.safetensors", "model.json"}
    assert any("tfevents" in path.name for path in ours)
    others = [shared / "model_uri" / "other.safetensors", shared / "logs_uri" / "notes" / "a.txt"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("of others")
    elsewhere = [f"--run.{key}={shared / key}" for key in ("model_uri", "logs_uri")]
    elsewhere += ["--run.overwrite=true", "--data.uri=nowhere"]
    assert _status(capsys, config, *elsewhere)[0] == 2  # refused before anything is removed
    assert {path for path in shared.rglob("*") if path.is_file()} == {*ours, *others}
    loaded = load_config(str(config), [*outputs, "--run.overwrite=true"])
    check_run_folder(loaded, "run").clear()
    assert {path for path in shared.rglob("*") if path.is_file()} == set(others)
    # Another start may wait for the lock.
    assert [path.name for path in (tmp_path / "runs" / "run").iterdir()] == ["run.lock"]


def test_a_folder_that_is_no_run_is_not_emptied(capsys, config, tmp_path):
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("of ten years")
    status, err = _status(capsys, config, "--run.overwrite", "true")
    assert status == 2
    assert re.search(r"run\.overwrite=True is invalid: .* holds files, and no run", err)
    assert (folder / "thesis.txt").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"status": "lost"}', "\xff"])
def test_a_damaged_record_of_the_run_is_named(capsys, config, tmp_path, content):
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(content, encoding="latin-1")
    status, err = _status(capsys, config)
    assert status == 2
    assert "run.json is damaged" in err
    assert "Delete the file to resume" in err
    assert _status(capsys, config, "--run.overwrite", "true")[0] == 0


def test_what_a_run_starts_from_is_looked_for_before_the_graph(capsys, config):
    status, err = _status(capsys, config, "--checkpoint.init_from.uri", "nowhere", "--data.uri=x")
    assert status == 2
    assert "checkpoint.init_from.uri='nowhere' is invalid: nothing is there" in err


class Wanders(Callback):
    """Goes to a folder and deletes it, as a scheduler that cleans up does."""

    def on_train_start(self, engine) -> None:
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)


def wander() -> None:
    """`init_env`: a worker that starts in another folder than the driver."""
    os.chdir("/")


def test_relative_paths_start_where_the_driver_does(capsys, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert _status(capsys, config, "--run.storage_path", "runs", "--run.name", "a")[0] == 0
    (checkpoint,) = (path.parent for path in Path("runs/a").glob("checkpoints/*/state.pt"))
    far = ["--init_env", "tests.integration.test_train_cli.wander", "--allow-module", "tests"]
    more = ["--checkpoint.resume", checkpoint, "--run.name", "b"]
    assert _status(capsys, config, *more, *far) == (0, "")
    monkeypatch.chdir(tmp_path)
    more = ["--checkpoint.init_from.uri", "runs/a", "--run.name", "c"]
    assert _status(capsys, config, *more, *far) == (0, "")


def test_a_current_folder_that_is_deleted_stops_no_run(capsys, config, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    callback = ["--callbacks", "[{type: tests.integration.test_train_cli.Wanders}]"]
    more = [*callback, "--allow-module", "tests", "--training.max_epochs", "3"]
    assert _status(capsys, config, *more, "--checkpoint.policy", "last") == (0, "")


class Removes(Callback):
    """Deletes the run's folder while it trains, as a tidy colleague does."""

    def on_epoch_start(self, engine, epoch) -> None:
        shutil.rmtree(engine.config.run.storage_path)


def test_a_run_whose_folder_is_removed_says_so(capsys, config, tmp_path):
    callback = "[{type: tests.integration.test_train_cli.Removes}]"
    more = ["--callbacks", callback, "--allow-module", "tests"]
    status, err = _status(capsys, config, *more)
    assert status == 1
    assert "runs/run was removed during the run. Start it again" in err


class StartsAgain(Callback):
    """Starts the run once more while it goes on, as an impatient user or a scheduler does."""

    def on_epoch_start(self, engine, epoch) -> None:
        open_run_folder(engine.loaded, "run")


@pytest.mark.parametrize("policy", ["best", "none"])
def test_of_two_starts_at_a_time_the_newer_one_has_the_run(capsys, config, tmp_path, policy):
    callback = "[{type: tests.integration.test_train_cli.StartsAgain}]"
    more = ["--callbacks", callback, "--allow-module", "tests", "--checkpoint.policy", policy]
    status, err = _status(capsys, config, *more)
    assert status in (1, 2)
    assert "run-started-again" in err
    folder = tmp_path / "runs" / "run"
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    assert not list(folder.glob("checkpoints/*/manifest.json"))
    assert not (folder / "metrics.json").exists()
    assert not (folder / "model.safetensors").exists()


class Leaves(Callback):
    """Calls `sys.exit` in a step, as a script would that has seen enough."""

    def on_train_step_end(self, engine, totals) -> None:
        sys.exit(0)


def exit_at_once() -> None:
    """`init_env`."""
    sys.exit(0)


def test_sys_exit_in_a_callback_is_a_failure(capsys, config, tmp_path):
    callback = "[{type: tests.integration.test_train_cli.Leaves}]"
    status, err = _status(capsys, config, "--callbacks", callback, "--allow-module", "tests")
    assert status == 1
    assert "SystemExit: 0 (in on_train_step_end of Leaves)" in err
    assert json.loads((tmp_path / "runs/run/run.json").read_text())["status"] == "failed"


def test_sys_exit_before_training_is_a_failure(capsys, config):
    init = "tests.integration.test_train_cli.exit_at_once"
    status, err = _status(capsys, config, "--init_env", init, "--allow-module", "tests")
    assert (status, err) == (1, "failed: the code of the run called sys.exit(0)\n")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--data.uri", "nowhere"], "nowhere"),
        (["--data!"], "the config has no graph"),
        (["--task.args.label", "z"], "task.args.label='z' is invalid"),
        (["--task.args.target", "user"], "task.args.target='user' is invalid"),
        (["--task.args.feature", "z"], "task.args.feature='z' is invalid"),
        (["--task.args.problem", "ranking"], "task.args.problem='ranking' is invalid"),
        (["--checkpoint.resume", "must"], "resume-no-run"),
        (
            ["--checkpoint.resume", "no/where"],
            "resume='no/where' is invalid: it has no complete checkpoint",
        ),
        (
            ["--checkpoint.resume", "memory://no/step-1"],
            "is invalid: it has no complete checkpoint",
        ),
        (["--scaling.use_gpu", "true"], "scaling.use_gpu=True is invalid"),
    ],
)
def test_wrong_input_is_told_before_anything_is_written(
    capsys, config, tmp_path, overrides, message
):
    status, err = _status(capsys, config, *overrides)
    assert status == 2, err
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_a_run_is_not_removed_that_another_starts_from(capsys, config, tmp_path):
    assert _status(capsys, config)[0] == 0
    (checkpoint, *_) = (tmp_path / "runs" / "run" / "checkpoints").glob("step-*")
    for key, source in (
        ("checkpoint.resume", checkpoint),
        ("checkpoint.init_from", f"{{uri: {tmp_path / 'runs' / 'run'}}}"),
    ):
        status, err = _status(capsys, config, "--run.overwrite", "true", f"--{key}", source)
        assert status == 2
        assert re.search(rf"{key}.*is invalid: run\.overwrite would remove the run that", err)
    assert checkpoint.exists()


def test_a_checkpoint_that_cannot_be_asked_for_is_told(capsys, config, monkeypatch):
    def refuse(uri: str) -> bool:
        if uri.startswith("memory:"):
            raise PermissionError(f"no rights to {uri}")
        return Path(uri).exists()

    monkeypatch.setattr("raygnn.data.filesystem.exists", refuse)
    status, err = _status(capsys, config, "--checkpoint.resume", "memory://runs/step-1")
    assert status == 2
    assert "is invalid: it cannot be read (no rights to memory://" in err


def test_the_config_comes_first(capsys):
    assert _status(capsys, "--seed", "1")[0] == 2
    assert _status(capsys)[0] == 2


def test_print_config_and_schema_stop_there(capsys, config):
    assert raygnn.train.main([str(config), "--print-config", "--seed", "9"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["seed"] == 9
    assert raygnn.train.main(["--print-schema"]) == 0
    assert "properties" in json.loads(capsys.readouterr().out)


CALLS: list[str] = []


class Note(Callback):
    """Notes the places that a dry run must come through."""

    def on_train_batch_end(self, engine, batch, output) -> None:
        CALLS.append("batch")

    def on_validation_step_end(self, engine, output) -> None:
        CALLS.append("validation")

    def on_checkpoint_written(self, engine, name) -> None:
        CALLS.append("checkpoint")

    def on_load_checkpoint(self, engine, state) -> None:
        CALLS.append("restore")

    def on_test_end(self, engine, metrics) -> None:
        CALLS.append("test")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("--checkpoint.policy", "none"),
        ("--checkpoint.every", "{epochs: 7}", "--training.validate_every", "{epochs: 7}"),
        ("--checkpoint.resume", "must", "--run.overwrite", "true"),
    ],
)
def test_a_dry_run_comes_through_everything_and_keeps_nothing(capsys, config, tmp_path, overrides):
    CALLS.clear()
    note = ["--callbacks", f"[{{type: {__name__}.Note}}]", "--allow-module", "tests"]
    assert raygnn.train.main([str(config), *note, *overrides, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "a checkpoint written and restored" in out
    assert re.search(r"takes about .* steps? of .* ms, .*B of memory in this process\n$", out)
    assert "raygnn-dry-run" not in out  # a folder that is deleted
    kinds = [kind for kind, _ in itertools.groupby(CALLS)]
    assert kinds[-5:] == ["batch", "validation", "checkpoint", "restore", "test"]
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written_is_named(capsys, config, tmp_path):
    (tmp_path / "file").write_text("in the way")
    status, err = _status(capsys, config, "--run.storage_path", tmp_path / "file")
    assert status == 2
    assert "it cannot be written" in err


def test_fit_takes_a_module_or_its_class(tmp_path):
    from torch_geometric.data import HeteroData
    from torch_geometric.nn import HeteroConv, SAGEConv

    class Net(torch.nn.Module):  # no worker could import it
        def __init__(self, metadata, out_channels):
            super().__init__()
            convs = {edge_type: SAGEConv((-1, -1), out_channels) for edge_type in metadata[1]}
            self.conv = HeteroConv(convs)

        def forward(self, x_dict, edge_index_dict):
            return self.conv(x_dict, edge_index_dict)["user"]

    data, ends = HeteroData(), torch.randint(0, 60, (2, 300))
    data["user"].x, data["item"].x = torch.rand(60, 2), torch.rand(60, 3)
    data["user"].y = torch.arange(60) % 2
    data["item", "of", "user"].edge_index = ends
    data["user", "has", "item"].edge_index = ends.flip(0)
    config = small_config(tmp_path / "runs", scaling__num_workers=0)
    config["data"] = {"splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2]}}
    config["model"] = {}
    result = raygnn.train.fit(config, ["--run.name", "class"], data=data, model=Net)
    expected = result.model.predict(data).to_pandas()
    module = Net(data.metadata(), 2)
    loaded = raygnn.load(result.path, module=module).predict(data).to_pandas()
    assert loaded.equals(expected)
    assert result.model.to_pyg()(data.x_dict, data.edge_index_dict).shape == (60, 2)
    with raises("component-not-importable"):
        raygnn.load(result.path)
    trained = raygnn.train.fit(config, ["--run.name", "module"], data=data, model=module)
    assert trained.metrics["samples"] > 0
    with raises("component-given-args"):
        raygnn.train.fit({**config, "model": {"args": {"a": 1}}}, data=data, model=module)
    with raises("model-given"):
        raygnn.train.fit(config, data=data, model="net.Net")


def test_a_store_that_fails_is_told_in_a_line(capsys, config, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("bucket 'mine' refuses gs://user:secret@mine")

    monkeypatch.setattr("raygnn.runtime.data_source.open_tables", refuse)
    status, err = _status(capsys, config)
    assert status == 1
    assert "storage failed: PermissionError: bucket 'mine'" in err
    assert "secret" not in err


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_during_ingest_ends_it_with_its_status(
    capsys, config, monkeypatch, tmp_path, name, status
):
    def raise_signal(*_: object) -> None:
        signal.raise_signal(getattr(signal, name))

    monkeypatch.setattr("raygnn.data.ingest.build_bundle.build_edges", raise_signal)
    before = signal.getsignal(signal.SIGTERM)
    cache = tmp_path / "cache"
    assert _status(capsys, config, "--data.cache_dir", cache) == (
        status,
        f"stopped by {name}: the same command resumes from the last checkpoint, if there is one\n",
    )
    assert signal.getsignal(signal.SIGTERM) == before
    assert [path.suffix for path in (cache / "bundles").iterdir()] == [".lock"]  # no half bundle
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("ema", ["null", "0.9"])
def test_export_writes_the_model_that_the_run_left(capsys, config, tmp_path, ema):
    run = tmp_path / "runs" / "run"
    options = ["--training.max_epochs", "3", "--checkpoint.policy", "all"]
    assert _status(capsys, config, *options, "--training.ema_decay", ema)[0] == 0
    out = tmp_path / "out"
    assert raygnn.train.main(["--export", str(run), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out / "model.safetensors")
    for name in ("model.json", "config.yaml"):
        assert (out / name).read_bytes() == (run / name).read_bytes(), name
    weights, expected = (load_file(folder / "model.safetensors") for folder in (out, run))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)


def test_export_of_a_checkpoint_takes_its_own_weights(capsys, config, tmp_path):
    options = ["--training.max_epochs", "2", "--checkpoint.policy", "all"]
    assert _status(capsys, config, *options)[0] == 0
    first = min((tmp_path / "runs" / "run" / "checkpoints").glob("step-*"))
    out = tmp_path / "out"
    assert raygnn.train.main(["--export", f"{first}/", "--out", str(out)]) == 0
    expected = torch.load(first / "state.pt", weights_only=True)["model"]
    weights = load_file(out / "model.safetensors")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)


def test_export_of_nothing_is_refused(capsys, tmp_path):
    status, err = _status(capsys, "--export", tmp_path, "--out", tmp_path / "out")
    assert status == 1
    assert "it has no complete checkpoint. Set the folder of a run" in err
    assert _status(capsys, "--export", tmp_path)[0] == 2
    assert not (tmp_path / "out").exists()
