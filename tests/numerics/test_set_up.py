"""Where setting up fails on one rank, all ranks raise: nobody waits for it in a collective.

Ray Train gives what a worker raised back as a value, and its process lives on.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from raygnn.errors import DataError, RaygnnError, ResourceError
from raygnn.parallel import collectives
from raygnn.parallel.agreement import run_and_sync_errors
from tests.small_runs import run_rank, small_config

_LIVES_ON_S = 120.0


def _raised(config: dict[str, Any], bundle_path: str) -> tuple[str, str, float]:
    """What a rank raised, and when; rank 1 stays in the group as it does under Ray."""
    began = time.monotonic()
    try:
        run_rank(config, bundle_path)
    except RaygnnError as error:
        took = time.monotonic() - began
        end = began + _LIVES_ON_S
        while collectives.rank() == 1 and time.monotonic() < end and not _is_done(config).exists():
            time.sleep(0.05)
        return type(error).__name__, str(error), took
    finally:
        if collectives.rank() == 0:
            _is_done(config).touch()
    return "", "", 0.0


def _is_done(config: dict[str, Any]) -> Path:
    return Path(config["run"]["storage_path"]) / "rank 0 is done"


@pytest.mark.parametrize("where", ["setup", "build_model", "loader"])
def test_every_rank_raises_what_one_has_raised(ranks, small_bundle_path, tmp_path, where):
    task = {"type": "tests.user_code.FailsToStart", "args": {"rank": 1, "where": where}}
    config = small_config(tmp_path, task=task, scaling__num_workers=2)
    for kind, message, took in ranks.run(_raised, 2, config, small_bundle_path):
        assert (kind, message) == ("DataError", f"rank 1 cannot {where}")
        assert took < _LIVES_ON_S / 2


def _step(of_ranks: list[BaseException | None]) -> str:
    def step() -> int:
        problem = of_ranks[collectives.rank()]
        if problem is not None:
            raise problem
        return collectives.rank()

    try:
        return str(run_and_sync_errors(step))
    except (RaygnnError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def test_together(ranks):
    assert ranks.run(_step, 3, [None, None, None]) == ["0", "1", "2"]
    problems = [None, ResourceError("no room"), DataError("no rows")]
    assert ranks.run(_step, 3, problems) == ["ResourceError: no room"] * 3
    # A mistake in the user's code is raised where it is, with its traceback.
    problems = [None, ValueError("a mistake")]
    assert ranks.run(_step, 2, problems) == [
        "TrainingError: Rank 1 failed in setting up: ValueError: a mistake [run-rank-failed]",
        "ValueError: a mistake",
    ]
    # Nor does one that calls `sys.exit` end its process with status 0.
    message = "TrainingError: Rank 1 failed in setting up: SystemExit: 0 [run-rank-failed]"
    assert ranks.run(_step, 2, [None, SystemExit(0)]) == [message] * 2
