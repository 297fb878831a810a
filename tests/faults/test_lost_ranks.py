"""A rank that dies, or goes silent: the others say so, and end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.conftest import arm, write_config
from tests.faults.rank_processes import run_ranks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("fault", "status"), [("Die", -9), ("Sleep", 1)])
def test_it_is_told_without_a_traceback(small_tables, tmp_path: Path, fault: str, status: int):
    arm(tmp_path / "ranks")
    callback = {
        "type": f"tests.faults.deaths.{fault}",
        "args": {"folder": str(tmp_path / "ranks"), "rank": 1, "batch": 2},
    }
    changes = {"callbacks": [callback]}
    config = write_config(tmp_path, small_tables, changes, scaling__timeout_s=10)
    command = [str(config), "--allow-module", "tests"]
    ended = run_ranks(command, 3, tmp_path / "ranks", timeout_s=150)
    assert ended.statuses == [1, status, 1], ended
    for rank in (0, 2):
        assert (
            f"LostRankError:\nRank {rank} lost another rank, which died or did not"
            in (ended.logs[rank])
        )
        assert "Traceback" not in ended.logs[rank]
