"""A run that goes on with other workers sees every seed of an epoch exactly once."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.faults.conftest import arm, write_config
from tests.faults.outcome import metrics_of
from tests.faults.rank_processes import run_ranks

pytestmark = pytest.mark.slow

_SEEDS, _EPOCHS = 182, 2


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_every_seed_is_seen_once_an_epoch(
    before: int, after: int, small_tables: str, tmp_path: Path
) -> None:
    callbacks = [
        {"type": "tests.faults.deaths.Seen", "args": {"folder": str(tmp_path)}},
        {
            "type": "tests.faults.deaths.Die",
            "args": {
                "folder": str(tmp_path / "ranks"),
                "everybody": True,
                "file": r"/last\.json$",
                "skip": 2,
            },
        },
    ]
    settings = {
        "loader__batch_size": 8,
        "training": {"max_epochs": _EPOCHS, "global_batch_size": 48},
        "checkpoint": {"every": {"steps": 1}},
        "callbacks": callbacks,
    }
    config = write_config(tmp_path, small_tables, settings)
    command = [str(config), "--allow-module", "tests"]
    arm(tmp_path / "ranks")
    killed = run_ranks(command, before, tmp_path / "ranks")
    assert killed.statuses == [-9] * before, killed
    again = run_ranks(command, after, tmp_path / "ranks")
    assert again.statuses == [0] * after, again

    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    kept = int(metrics["resumed_from"].split("-")[1])
    assert 0 < kept < -(-_SEEDS // 48), "not in the midst of an epoch"
    seen: dict[int, Counter[int]] = defaultdict(Counter)
    for path in tmp_path.glob("seen-*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        was_killed = rows[0]["step"] == 1
        for row in rows:
            if not was_killed or row["step"] <= kept:
                seen[row["epoch"]].update(row["ids"])
    assert sorted(seen) == list(range(_EPOCHS))
    for epoch, counts in seen.items():
        assert len(counts) == _SEEDS, epoch
        assert set(counts.values()) == {1}, epoch
    assert metrics_of(tmp_path / "run")["samples"] == _SEEDS * _EPOCHS
