"""`ray job submit` against a head of its own: logs, exit status, own modules, nothing installed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.ray_head import RayHead

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
OWN_TASK = '''\
"""A task that a user wrote, beside the config."""

from raygnn.loops.tasks.node_classification import NodeClassification


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
    cache = str(tmp_path_factory.mktemp("cache"))
    # No PYTHONPATH: raygnn comes with the job.
    with RayHead(environment={"RAYGNN_CACHE_DIR": cache}) as started:
        yield started


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds raygnn, the examples and a module of the user's."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("raygnn", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "my_task.py").write_text(OWN_TASK)
    return folder


def test_the_quickstart_as_a_job(head, checkout):
    done = head.submit(checkout, "python", "-m", "raygnn.train", "examples/quickstart.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[raygnn] training on 2 worker(s)" in done.stdout
    assert "val/loss" in done.stdout
    assert "[raygnn] test: " in done.stdout
    assert "succeeded" in done.stdout + done.stderr
    # Ray deletes the folder that it has unpacked for the job, and the outputs with it.
    assert "run.storage_path lies in the copy" in done.stdout


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
    (tmp_path / "my_task.py").write_text(OWN_TASK)
    modules = json.dumps({"py_modules": [str(checkout / "raygnn")]})
    show = "import raygnn.train, my_task; print(raygnn.__file__, my_task.__file__)"
    options = ("--runtime-env-json", modules)
    done = head.submit(tmp_path, "python", "-c", show, options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "py_modules_files" in done.stdout
    assert "working_dir_files" in done.stdout
