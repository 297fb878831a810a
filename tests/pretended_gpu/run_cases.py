"""Runs cases on the CPU and on the pretended device: run_cases.py LIBRARY FOLDER [NAME ...]

Writes FOLDER/found.json: by case, both results, and what a step and an evaluation did there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.pretended_gpu import device

if __name__ == "__main__":
    device.load(Path(sys.argv[1]))

import contextlib
import gc
import io
import os
import traceback
import warnings
from typing import Any
from unittest.mock import patch

import pytest
import torch

import raygnn.train
from raygnn.loops.engine import Engine
from raygnn.loops.gradients import Accumulation
from tests.pretended_gpu.cases import CASES, Case, write_graphs
from tests.small_runs import read_history, small_config

_STEPS = 3
_OF_THE_RUN = ("perf/", "time", "seconds")
_OF_RANKS = ("mrr", "hits@", "auc", "ap", "full_")
_SPLITS = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}


def run(case: Case, folder: Path, graphs: Path, *, use_gpu: bool) -> dict[str, float]:
    """Trains, validates and tests; returns the numbers of both."""
    config = small_config(
        folder,
        **{
            "scaling__num_workers": 0,
            "scaling__use_gpu": use_gpu,
            "data__uri": str(graphs / case.graph),
            "model__args": {"hidden_channels": 8},  # dropout draws other numbers on a GPU
            "training__max_steps": _STEPS,
            "training__matmul_precision": "highest",
            "training__validate_every": {"steps": _STEPS},
            "data__splits": None if case.graph == "films" else _SPLITS,
            **case.changes,
        },
    )
    result = raygnn.train.fit(config)
    return {**read_history(folder)[-1], **result.metrics}


def check_close(case: Case, cpu: dict[str, float], gpu: dict[str, float]) -> None:
    """Checks the numbers of a run on a device, but for those that say how the run went."""
    assert cpu.keys() == gpu.keys()
    for key, value in cpu.items():
        if isinstance(value, float) and not any(part in key for part in _OF_THE_RUN):
            # Rounding breaks ties of scores, and one of 170 links may rank differently.
            is_rank = key.rpartition("/")[2].startswith(_OF_RANKS)
            tolerance = 0.01 if is_rank else case.tolerance
            expected = pytest.approx(value, rel=tolerance, abs=tolerance, nan_ok=True)
            assert gpu[key] == expected, key


def run_watched(case: Case, folder: Path, graphs: Path) -> dict[str, Any]:
    """Both runs, and what that on the device did."""
    cpu = run(case, folder / "cpu", graphs, use_gpu=False)
    step, validation, evaluation = device.Record(), device.Record(), device.Record()
    with _watching(step, validation, evaluation):
        gpu = run(case, folder / "gpu", graphs, use_gpu=True)
    steps = max(int(gpu["step"]), 1)  # EASE takes no step
    return {
        "cpu": cpu,
        "gpu": gpu,
        "waits": {where: count / steps for where, count in step.waits.items()},
        "validation_waits": dict(validation.waits),
        "mixes": sorted({*step.mixes, *validation.mixes, *evaluation.mixes}),
        "operators": round(step.num_operators / steps),
        "launches": round(step.num_launches / steps),
    }


@contextlib.contextmanager
def watched_steps(record: device.Record) -> Any:
    """Records steps with their batches, but not what follows the optimizer."""
    with _wrapped(Engine, "_step", record), _wrapped(Engine, "_boundary", None):
        yield


def _wrapped(owner: Any, name: str, record: device.Record | None) -> Any:
    original = getattr(owner, name)

    def wrapped(*args: Any) -> Any:
        from torch.utils._python_dispatch import _disable_current_modes

        watched = _disable_current_modes() if record is None else device.watched(record)
        with watched:
            return original(*args)

    return patch.object(owner, name, wrapped)


@contextlib.contextmanager
def _watching(step: device.Record, validation: device.Record, evaluation: device.Record) -> Any:
    """Records steps from their batch to the optimizer, validations, and other evaluations."""
    with (
        watched_steps(step),
        _wrapped(Accumulation, "_next", None),
        _wrapped(Engine, "_validate", validation),
        _wrapped(Engine, "test", evaluation),
    ):
        yield


def main() -> None:
    folder, names = Path(sys.argv[2]), sys.argv[3:] or list(CASES)
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None
    warnings.filterwarnings("ignore")
    write_graphs(folder / "graphs")
    # Each run ends with a garbage collection, which need not visit what was imported.
    gc.freeze()
    found: dict[str, Any] = {}
    for number, name in enumerate(names):
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                found[name] = run_watched(CASES[name], folder / str(number), folder / "graphs")
        except Exception:  # noqa: BLE001 - the test of the case shows it
            found[name] = {"failed": traceback.format_exc()}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
