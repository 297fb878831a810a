"""Storage that is full, that fails for a moment, and that stays down, on one rank or on all."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raygnn.outputs.checkpoints.store import CheckpointStore
from tests.faults.conftest import Straight, write_config
from tests.faults.faulty_storage import VARIABLE, Fault
from tests.faults.outcome import assert_equal_outcomes
from tests.faults.rank_processes import Ended, run_ranks

pytestmark = pytest.mark.slow

_SETTINGS: dict[str, Any] = {
    "training": {"max_epochs": 3, "log_every": {"steps": 1}, "validate_every": {"epochs": 1}},
    "loggers": ["tensorboard"],
    "checkpoint": {"keep": 2},
}


def _run(
    folder: Path, tables: str, world_size: int, *faults: Fault, **changes: Any
) -> tuple[Ended, CheckpointStore]:
    """A run whose whole folder lies on faulty storage."""
    config = write_config(folder, tables, {**_SETTINGS, **changes})
    command = [str(config), "--run.storage_path", f"faulty://{folder}"]
    variables = {VARIABLE: json.dumps([vars(fault) for fault in faults])}
    ranks = folder / "ranks"
    ended = run_ranks(command, world_size, ranks, timeout_s=180, environment=variables)
    return ended, CheckpointStore(str(folder / "run" / "checkpoints"))


@pytest.mark.parametrize(
    ("path", "skip", "message"),
    [
        (r"/state\.pt$", 1, "Rank 0 failed in writing checkpoint step-.*No space left"),
        (r"/rank-1\.pt$", 1, "Rank 1 failed in writing checkpoint step-.*No space left"),
        (r"/manifest\.json$", 1, "Rank 0 failed in finishing checkpoint step-.*No space left"),
        (r"/last\.json$", 1, "Rank 0 failed in finishing checkpoint step-.*No space left"),
        (r"/history\.jsonl$", 1, r"Rank 0 .*No space left.*on_validation_end of HistoryWriter"),
        (r"/events\.", 2, r"Rank 0 .*No space left.* of TensorBoardLogger"),
        (r"/run\.json$", 1, r"Rank 0 failed in writing run\.json: .*No space left"),
        (r"/model\.safetensors$", 0, "Rank 0 failed in writing the outputs: .*No space left"),
        (r"/report\.html$", 0, "Rank 0 failed in writing the outputs: .*No space left"),
    ],
)
def test_a_full_disk_ends_all_ranks_at_once_and_space_lets_the_run_go_on(
    path: str, skip: int, message: str, straight: Straight, small_tables: str, tmp_path: Path
) -> None:
    full = Fault(path, "ENOSPC", skip=skip)
    ended, store = _run(tmp_path, small_tables, 2, full)
    assert ended.statuses == [1, 1], ended
    for log in ended.logs:
        assert _matches(message, log), ended
        assert "Traceback" not in log, ended
    if skip == 1 and "run" not in path:
        last = store.pointer("last")
        assert last is not None
        store.verify(last)

    ended, _ = _run(tmp_path, small_tables, 2)
    assert ended.statuses == [0, 0], ended
    assert_equal_outcomes(tmp_path / "run", straight(2, _SETTINGS))


def test_storage_that_fails_twice_is_tried_again(
    straight: Straight, small_tables: str, tmp_path: Path
) -> None:
    faults = [
        Fault(r"/state\.pt$", skip=1, times=2),
        Fault(r"/history\.jsonl$", number="ETIMEDOUT", times=2),
        Fault(r"/rank-1\.pt$", number="ECONNRESET", times=2),
    ]
    ended, _ = _run(tmp_path, small_tables, 2, *faults)
    assert ended.statuses == [0, 0], ended
    assert ended.logs[0].count("storage failed: ") == 4, ended
    assert _matches(r"storage failed: OSError: .* trying again in .* s \(2 of 6\)", ended.logs[0])
    assert ended.logs[1].count("storage failed: ConnectionResetError") == 2, ended
    assert_equal_outcomes(tmp_path / "run", straight(2, _SETTINGS))


def test_storage_that_stays_down_is_an_error_in_bounded_time(
    straight: Straight, small_tables: str, tmp_path: Path
) -> None:
    ended, store = _run(tmp_path, small_tables, 2, Fault(r"/run/", skip=20))
    assert ended.statuses == [1, 1], ended
    assert ended.seconds < 150
    for log in ended.logs:
        assert _matches(r"Rank \d failed in .*Input/output error.*tried 6 times in \d+ s", log)
    last = store.pointer("last")
    assert last is not None
    store.verify(last)
    ended, _ = _run(tmp_path, small_tables, 2)
    assert ended.statuses == [0, 0], ended
    assert_equal_outcomes(tmp_path / "run", straight(2, _SETTINGS))


def test_a_checkpoint_that_cannot_be_read_is_an_error_on_all_ranks(
    small_tables: str, tmp_path: Path
) -> None:
    assert 0 not in _run(tmp_path, small_tables, 2, Fault(r"/report\.html", "ENOSPC"))[0].statuses
    ended, _ = _run(tmp_path, small_tables, 2, Fault(r"/rank-1\.pt$", reads=True))
    assert ended.statuses == [1, 1], ended
    for log in ended.logs:
        assert _matches("Rank 0 failed in choosing a checkpoint: .*Input/output error", log), ended


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with room for a checkpoint or two."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=150k", "tmpfs", str(disk)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode != 0:
        pytest.skip("this user may not mount")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path, small_tables: str, tmp_path: Path) -> None:
    changes = {**_SETTINGS, "checkpoint": {"policy": "all"}}
    config = write_config(tmp_path, small_tables, changes)
    command = [str(config), "--run.storage_path", str(small_disk)]
    ended = run_ranks(command, 2, tmp_path / "ranks")
    assert ended.statuses == [1, 1], ended
    for log in ended.logs:
        assert "No space left on device" in log, ended
    store = CheckpointStore(str(small_disk / "run" / "checkpoints"))
    name, _ = store.newest_valid(store.names())
    assert name is not None
    for path in (small_disk / "run").rglob("*"):
        assert not path.name.startswith("."), f"{path} is a temporary file that was left"
    assert os.statvfs(small_disk).f_bavail < 10


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None
