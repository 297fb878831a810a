"""`ray job submit` against a head of its own: logs, exit status, own modules, a stop.

The raygnn of the cluster cannot be imported, so that of the job must be. One node only: several on
one machine unpack a job's working directory into the same folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.ray_head import RayHead
from tests.wait_until import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.cluster, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
OWN_TASK = '''\
"""A task that a user wrote, beside the config."""

from raygnn.loops.tasks.node_classification.task import NodeClassification


class Mine(NodeClassification):
    def __init__(self, fails=False, **args):
        super().__init__(**args)
        self._fails = fails

    def training_step(self, batch):
        if self._fails:
            raise ValueError("a mistake in my task")
        return super().training_step(batch)
'''


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "raygnn").mkdir()
    (folder / "raygnn" / "__init__.py").write_text("raise ImportError('not that of the job')")
    environment = {"PYTHONPATH": str(folder), "RAYGNN_CACHE_DIR": str(folder / "cache")}
    with RayHead(environment=environment) as started:
        yield started


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds raygnn, the examples and a module of the user's."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("raygnn", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "my_task.py").write_text(OWN_TASK)
    shutil.copy(ROOT / "tests" / "linger.py", folder)
    return folder


def test_the_quickstart_as_a_job(head, checkout):
    done = head.submit(checkout, "python", "-m", "raygnn.train", "examples/quickstart.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[raygnn] training on 2 workers" in done.stdout
    assert "val/loss" in done.stdout
    assert "[raygnn] test: " in done.stdout
    assert "succeeded" in done.stdout + done.stderr
    # Ray deletes the folder that it has unpacked for the job, and the outputs with it.
    assert "run.storage_path is in Ray's copy" in done.stdout


def test_a_task_of_the_users_own(head, checkout, tmp_path):
    command = ["python", "-m", "raygnn.train", "examples/quickstart.yaml"]
    command += ["--allow-module", "my_task", "--task.type", "my_task.Mine"]
    command += ["--training.max_epochs", "1", "--run.storage_path", str(tmp_path)]
    done = head.submit(checkout, *command, "--run.name", "good")
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = json.loads((tmp_path / "good" / "metrics.json").read_text())
    assert metrics["num_workers"] == 2
    # Its mistake, and a mistake in the config, reach whoever submitted.
    done = head.submit(checkout, *command, "--run.name", "bad", "--task.args.fails", "true")
    assert done.returncode == 1
    assert "a mistake in my task" in done.stdout
    assert "Rank 0 failed in training" in done.stdout
    done = head.submit(checkout, *command, "--model.type", "GraphSAGGE")
    assert done.returncode == 1
    assert "Did you mean GraphSAGE?" in done.stdout


def test_raygnn_as_a_module_of_the_runtime_environment(head, checkout, tmp_path):
    work, runs = tmp_path / "work", tmp_path / "runs"
    work.mkdir()
    (work / "my_task.py").write_text(OWN_TASK)
    shutil.copy(checkout / "examples" / "quickstart.yaml", work / "train.yaml")
    options = ("--runtime-env-json", json.dumps({"py_modules": [str(checkout / "raygnn")]}))
    command = ["python", "-m", "raygnn.train", "train.yaml", "--allow-module", "my_task"]
    command += ["--task.type", "my_task.Mine", "--training.max_epochs", "1"]
    command += ["--run.storage_path", str(runs), "--run.name", "run"]
    done = head.submit(work, *command, options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((runs / "run" / "metrics.json").read_text())["num_workers"] == 2


def test_a_job_that_is_stopped_goes_on_when_it_is_submitted_again(head, checkout, tmp_path):
    marker = tmp_path / "marker"
    marker.touch()  # while it is there, no job is through before it is stopped
    linger = {"type": "linger.Linger", "args": {"marker": str(marker)}}
    command = ["python", "-m", "raygnn.train", "examples/quickstart.yaml"]
    command += ["--training.max_epochs", "40", "--early_stopping", "null"]
    command += ["--training.validate_every", "{epochs: 1}"]
    command += ["--callbacks", json.dumps([linger]), "--allow-module", "linger"]
    command += ["--run.storage_path", str(tmp_path), "--run.name", "run"]
    patient = json.dumps({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "200"}})  # 3 s otherwise
    options = ("--no-wait", "--submission-id", "first", "--runtime-env-json", patient)
    head.submit(checkout, *command, options=options)
    history = tmp_path / "run" / "history.jsonl"
    wait_until(
        lambda: history.exists() and history.read_text().count("\n") >= 2,
        told=lambda: head.job("logs", "first").stdout,
    )
    stopped = head.job("stop", "first")
    told = head.job("status", "first").stdout
    assert "STOPPED" in told.upper(), stopped.stdout + stopped.stderr + told
    marker.unlink()
    assert "PreemptedError" in head.job("logs", "first").stdout
    done = head.submit(checkout, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed from step-" in done.stdout
    assert history.read_text().count("\n") == 40
    assert "first" in head.job("list").stdout
