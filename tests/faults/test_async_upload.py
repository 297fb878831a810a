"""Checkpoints that a thread writes: none is lost, none half-written counts, and bits stay."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from raygnn.outputs.checkpoints.store import CheckpointStore
from tests.faults.conftest import Straight, arm, write_config
from tests.faults.faulty_storage import VARIABLE, Fault
from tests.faults.outcome import assert_equal_outcomes
from tests.faults.rank_processes import Ended, run_ranks
from tests.faults.test_exact_resume import EVERYTHING

pytestmark = pytest.mark.slow

_ASYNC = {**EVERYTHING, "checkpoint": {"every": {"steps": 2}, "async_upload": True}}


def _run(folder: Path, tables: str, *faults: Fault, callbacks: list[Any] | None = None) -> Ended:
    config = write_config(folder, tables, _ASYNC, callbacks=callbacks or [])
    command = [str(config), "--run.storage_path", f"faulty://{folder}", "--allow-module", "tests"]
    variables = {VARIABLE: json.dumps([vars(fault) for fault in faults])}
    ranks = folder / "ranks"
    return run_ranks(command, 2, ranks, timeout_s=180, environment=variables)


def _last_is_whole(folder: Path) -> None:
    store = CheckpointStore(str(folder / "run" / "checkpoints"))
    last = store.pointer("last")
    assert last is not None
    store.verify(last)


@pytest.mark.parametrize(
    "death",
    [
        pytest.param({"everybody": True, "batch": 9}, id="driver, while rank 1 still writes"),
        pytest.param({"rank": 1, "batch": 9}, id="rank 1, which still writes"),
        pytest.param({"rank": 0, "batch": 9}, id="rank 0, which waits for rank 1"),
    ],
)
def test_a_death_during_an_upload_keeps_the_checkpoint_before(
    death: dict[str, Any], straight: Straight, small_tables: str, tmp_path: Path
) -> None:
    die = {"type": "tests.faults.deaths.Die", "args": {"folder": str(tmp_path / "ranks"), **death}}
    arm(tmp_path / "ranks")
    slow = Fault(r"/rank-1\.pt$", skip=1, delay_s=4.0)
    ended = _run(tmp_path, small_tables, slow, callbacks=[die])
    assert 0 not in ended.statuses, ended
    _last_is_whole(tmp_path)
    ended = _run(tmp_path, small_tables, callbacks=[die])
    assert ended.statuses == [0, 0], ended
    assert "resumed from step-0000000003-" in ended.logs[0], ended
    assert_equal_outcomes(tmp_path / "run", straight(2, EVERYTHING))


@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_thread_meets_is_raised_on_all_ranks(
    rank: int, straight: Straight, small_tables: str, tmp_path: Path
) -> None:
    ended = _run(tmp_path, small_tables, Fault(rf"/rank-{rank}\.pt$", "ENOSPC", skip=1))
    assert ended.statuses == [1, 1], ended
    for log in ended.logs:
        assert re.search(rf"Rank {rank} failed in .*No space left on device", log), ended
    _last_is_whole(tmp_path)
    ended = _run(tmp_path, small_tables)
    assert ended.statuses == [0, 0], ended
    assert_equal_outcomes(tmp_path / "run", straight(2, EVERYTHING))
