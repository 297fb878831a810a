"""Deaths in runs over Ray Train. That of rank 1 in training is in tests/integration."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Straight, arm, write_config
from tests.faults.outcome import assert_equal_outcomes

pytestmark = [pytest.mark.slow, pytest.mark.ray]

_SETTINGS: dict[str, Any] = {
    "training": {"max_epochs": 4, "validate_every": {"steps": 3}, "log_every": {"steps": 1}},
    "checkpoint": {"every": {"steps": 2}},
    "loggers": ["tensorboard"],
}


def _start(folder: Path, tables: str, death: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The command of a run on two workers in a Ray of its own, and its environment."""
    die = {"type": "tests.faults.deaths.Die", "args": {"folder": str(folder / "ranks"), **death}}
    path = write_config(folder, tables, _SETTINGS, scaling__num_workers=2, callbacks=[die])
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "raygnn.train", str(path)]
    environment = {**os.environ, "RAY_ADDRESS": "local", "PYTHONPATH": paths}
    environment["OMP_NUM_THREADS"] = "1"
    return [*command, "--allow-module", "tests"], environment


def test_rank_0_dies_in_a_checkpoint_and_ray_starts_it_again(
    straight: Straight, small_tables: str, tmp_path: Path
) -> None:
    death = {"rank": 0, "file": r"/manifest\.json$", "skip": 1}
    command, environment = _start(tmp_path, small_tables, death)
    arm(tmp_path / "ranks")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "ranks" / "armed").exists()
    assert re.search(r"warning: rank 0 died \(process \d+ on .*\)\. Training starts", done.stdout)
    assert "resumed from step-" in done.stdout
    assert "Traceback" not in done.stderr
    assert_equal_outcomes(tmp_path / "run", straight(2, _SETTINGS))


def test_the_driver_dies_in_a_validation_and_is_started_again(
    straight: Straight, small_tables: str, tmp_path: Path
) -> None:
    command, environment = _start(tmp_path, small_tables, {"driver": True, "validation": 2})
    arm(tmp_path / "ranks")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        (tmp_path / "ranks" / "pids").write_text(str(process.pid))
        assert process.wait() == -9, (tmp_path / "log").read_text()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert_equal_outcomes(tmp_path / "run", straight(2, _SETTINGS))
