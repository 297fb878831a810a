"""Whole runs on a CUDA device that torch only pretends to have.

Such a run takes the branches of a GPU with real numbers. It shows devices that are mixed and hosts
that wait; it says nothing about speed, streams, CUDA's kernels, or NCCL.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raygnn.config.registry import SLOTS
from tests.pretended_gpu.cases import CASES
from tests.pretended_gpu.device import build
from tests.pretended_gpu.run_cases import check_close

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def library() -> Path:
    """The pretended device."""
    try:
        return build(_ROOT / "build" / "pretended_gpu")
    except FileNotFoundError as error:
        pytest.skip(f"the pretended device cannot be built: {error}")


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory, library: Path) -> dict[str, Any]:
    """What each case did, from one process that runs all of them."""
    folder = tmp_path_factory.mktemp("pretended-gpu")
    command = [sys.executable, "-m", "tests.pretended_gpu.run_cases", str(library), str(folder)]
    environment = {**os.environ, "RAYGNN_CACHE_DIR": str(folder / "cache")}
    subprocess.run(command, check=True, cwd=_ROOT, env=environment, timeout=1800)
    answer: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return answer


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_that_of_the_cpu_and_waits_as_often_as_it_may(found, name):
    of_case, case = found[name], CASES[name]
    assert "failed" not in of_case, of_case["failed"]
    assert not of_case["mixes"]
    assert sum(of_case["waits"].values()) <= case.waits, of_case["waits"]
    validation = of_case["validation_waits"]
    assert sum(validation.values()) <= case.validation_waits, validation
    check_close(case, of_case["cpu"], of_case["gpu"])


def test_the_tests_for_a_gpu_pass_on_the_pretended_one(library):
    device = [sys.executable, "-m", "tests.pretended_gpu.device", "-m", "pytest", "-q", "-n0"]
    tests = ["tests/numerics/test_on_gpu.py", "-k", "not comes_close_to_the_cpu"]
    ended = subprocess.run([*device, *tests], cwd=_ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout


def test_every_component_has_a_case():
    text = json.dumps([case.changes for case in CASES.values()])
    slots = ("model", "loss", "metric", "optimizer", "decoder", "method", "task")
    missing = {f"{slot} {name}" for slot in slots for name in SLOTS[slot].names} - {
        f"{slot} {name}" for slot in slots for name in SLOTS[slot].names if f'"{name}"' in text
    }
    assert missing == {"task several_tasks"}  # its case has the key `tasks`
