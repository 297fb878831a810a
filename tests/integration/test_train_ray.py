"""The whole path over Ray Train: results, a worker that dies, a run that goes on."""

from __future__ import annotations

import html
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import torch
import yaml

import raygnn.train
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from raygnn.losses import Loss
from raygnn.outputs.checkpoints.store import CheckpointStore
from tests.errors import raises
from tests.small_runs import assert_same_weights, run_rank, small_config
from tests.wait_until import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("ray_session")]


class KillOnce(Callback):
    """Ends the process of rank 1 by SIGKILL after a step, once."""

    def __init__(self, step: int, marker: str) -> None:
        self._step, self._marker = step, Path(marker)

    def on_train_step_start(self, engine: Engine) -> None:
        if engine.context.rank == 1 and engine.position.step == self._step:
            try:
                self._marker.unlink()
            except FileNotFoundError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


class RemoveFolder(Callback):
    """Removes the folder of the run before Ray Train records a checkpoint."""

    def on_checkpoint_written(self, engine: Engine, name: str) -> None:
        shutil.rmtree(Path(engine.config.run.storage_path) / "run")


class FailingLoss(Loss):
    """Raises on any batch."""

    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        raise ValueError("a mistake in a user's loss")


def _config(folder: Path, graph: str, **changes) -> dict:
    settings = {
        "scaling__num_workers": 2,
        "data__uri": graph,
        "loggers": [{"type": "tensorboard"}],
        "training__max_epochs": 3,
        "optimizer__args": {"lr": 0.02},
    }
    return small_config(folder, **{**settings, **changes})


def test_a_killed_worker_changes_nothing_of_the_result(ranks, small_tables, tmp_path):
    marker = tmp_path / "kill"
    marker.touch()
    killer = {
        "type": "tests.integration.test_train_ray.KillOnce",
        "args": {"step": 4, "marker": str(marker)},
    }
    config = _config(tmp_path / "ray", small_tables, callbacks=[killer])
    result = raygnn.train.fit(config, allow_modules=["tests"])
    assert not marker.exists()

    # What Ray hands back.
    assert result.error is None
    assert result.metrics["num_workers"] == 2
    assert result.metrics["test/accuracy"] > 0.4
    history = result.metrics_dataframe
    assert list(history["epoch"]) == [1, 2, 3]
    assert {"train/loss", "val/loss", "val/accuracy", "lr"} <= set(history.columns)
    folder = tmp_path / "ray" / "run"
    assert Path(result.path) == folder
    store = CheckpointStore(str(folder / "checkpoints"))
    assert Path(result.checkpoint.path).name == store.pointer("last")
    best, metrics = result.best_checkpoints[0]
    assert Path(best.path).name == store.pointer("best")
    assert metrics["val/loss"] == pytest.approx(history["val/loss"].min())
    assert list((folder / "logs").glob("events.out.tfevents.*"))

    # Plain processes that nobody killed come to the same bits.
    plain = _config(tmp_path / "plain", small_tables, loggers=[])
    bundle = ingest(small_tables, IngestOptions(), os.environ["RAYGNN_CACHE_DIR"])
    ranks.run(run_rank, 2, plain, str(bundle.path))
    assert_same_weights(config, plain)


@pytest.mark.slow
def test_a_mistake_in_user_code_is_told_once_with_its_rank(small_tables, tmp_path):
    failing = {"type": "tests.integration.test_train_ray.FailingLoss"}
    config = _config(tmp_path, small_tables, losses=[failing])
    with raises("run-rank-failed", "Rank 0", "training", "a user's loss"):
        raygnn.train.fit(config, allow_modules=["tests"])
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert "a user's loss" in metrics["stop_reason"]
    assert "a user's loss" in html.unescape((tmp_path / "run" / "report.html").read_text())


@pytest.mark.slow
def test_a_removed_folder_is_one_error(small_tables, tmp_path, capfd):
    remover = {"type": "tests.integration.test_train_ray.RemoveFolder"}
    config = _config(tmp_path, small_tables, callbacks=[remover], scaling__num_workers=1)
    with raises("run-removed", "run.name='run'"):
        raygnn.train.fit(config, allow_modules=["tests"])
    assert "Traceback" not in capfd.readouterr().err


def test_more_workers_than_places_are_refused_at_once(small_tables, tmp_path):
    config = _config(tmp_path, small_tables, scaling__num_workers=50)
    with raises("cluster-no-room", "scaling.num_workers=50", 2):
        raygnn.train.fit(config)
    config = _config(tmp_path, small_tables, scaling__use_gpu=True)
    with raises("cluster-no-room", "GPU"):
        raygnn.train.fit(config)
    assert not tmp_path.joinpath("run").exists()


class Holder:
    """An actor that holds CPUs, as other work of a cluster does."""

    def is_there(self) -> bool:
        return True


@pytest.fixture
def other_work() -> Iterator[Any]:
    import ray

    holder = ray.remote(num_cpus=2)(Holder).remote()
    assert ray.get(holder.is_there.remote())
    yield holder
    ray.kill(holder)


@pytest.mark.cluster
def test_work_that_holds_the_cpus_is_told_and_waited_for(
    other_work, small_tables, tmp_path, monkeypatch
):
    import ray

    told = []

    def hear(line: str) -> None:
        told.append(line)
        Timer(5, ray.kill, [other_work]).start()  # the run is waiting by then

    monkeypatch.setattr("raygnn.runtime.preflight.say", hear)
    result = raygnn.train.fit(_config(tmp_path, small_tables, training__max_epochs=1))
    assert result.metrics["epoch"] == 1
    (line,) = told
    assert "other work uses resources that the workers need: CPU 0 of 2 is free" in line


@pytest.mark.cluster
def test_the_wait_for_other_work_has_an_end(other_work, small_tables, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "2")  # a minute otherwise
    with raises("run-workers-died"):
        raygnn.train.fit(_config(tmp_path, small_tables))


@pytest.mark.slow
def test_sigterm_during_ingest_ends_the_command_with_143(tmp_path):
    """In a process of its own: Ray takes SIGTERM, and gives it back."""
    config = _config(tmp_path / "runs", "unused")
    config["data"] = {"type": f"{__name__}.slow_graph", "args": {"marker": str(tmp_path / "here")}}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "raygnn.train", str(path), "--allow-module", "tests"]
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        wait_until((tmp_path / "here").exists, process, (tmp_path / "log").read_text)
        process.terminate()
        status = process.wait(timeout=200)
    told = (tmp_path / "log").read_text()
    assert status == 143, told
    assert "stopped by SIGTERM: the same command resumes from the last checkpoint" in told
    assert "Traceback" not in told
    assert not (tmp_path / "runs").exists()


def slow_graph(marker: str) -> None:
    """A data source that is still at work when the signal comes."""
    Path(marker).touch()
    time.sleep(300)


@pytest.mark.cluster
def test_a_run_prints_its_own_lines_only_beside_another_ray(small_tables, tmp_path):
    """The session's Ray is the other one."""
    path = tmp_path / "config.yaml"
    path.write_text(
        yaml.safe_dump(small_config(tmp_path, scaling__num_workers=2, data__uri=small_tables))
    )
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    command = [sys.executable, "-m", "raygnn.train", str(path)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("[raygnn] ")] == []
    # What workers have said last is there before the command ends.
    assert lines[-1].startswith("[raygnn] use it ")
