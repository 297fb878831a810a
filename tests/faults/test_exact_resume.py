"""Processes die by SIGKILL; started again, the run ends with the bits of one that never stopped.

Every rank is a process of its own, started as torchrun starts them, with everything on that has
state: shuffling, dropout, a scheduler by epochs, accumulation, a gradient scaler, an average of the
weights, and an early stop whose patience is running.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Straight, arm, write_config
from tests.faults.outcome import assert_equal_outcomes, metrics_of
from tests.faults.rank_processes import run_ranks

EVERYTHING: dict[str, Any] = {
    "loader__batch_size": 8,
    "loader__eval_batch_size": 16,
    "loader__num_threads": 2,
    "training": {
        "max_epochs": 6,
        "accumulate_grad_batches": 2,
        "validate_every": {"steps": 3},
        "log_every": {"steps": 1},
        "precision": "fp16-mixed",
        "ema_decay": 0.9,
        "clip_grad_norm": 1.0,
    },
    "optimizer": {"type": "Adam", "args": {"lr": 0.02}},
    "lr_scheduler": {"type": "ExponentialLR", "args": {"gamma": 0.8}, "interval": "epoch"},
    # Only the first validation improves by so much: patience runs from the second one on.
    "early_stopping": {"monitor": "val/loss", "patience": 4, "min_delta": 0.5},
    "checkpoint": {"every": {"steps": 2}},
    "loggers": ["tensorboard"],
}

# Who dies where. Each rank makes two micro-batches a step, so the seventh is in the midst of the
# fourth step, two steps or one after a checkpoint; `driver` is the death of all ranks at once.
_DRIVER, _RANK_0, _RANK_1 = {"everybody": True}, {"rank": 0}, {"rank": 1}
_TRAINING, _VALIDATION = {"batch": 7}, {"validation": 2}
_STATE, _MANIFEST = {"file": r"/state\.pt$", "skip": 1}, {"file": r"/manifest\.json$", "skip": 1}
_OWN_PART = {"file": r"/rank-1\.pt$", "skip": 1}
_LAST, _BEST = {"file": r"/last\.json$", "skip": 2}, {"file": r"/best\.json$"}
_DELETION = {"file": r"/checkpoints/step-.*/manifest\.json$", "operation": "os.remove"}

#: The case of `make test`.
_USUAL = (2, "rank 1 in training")

_CASES = [
    pytest.param(
        world_size,
        {**who, **where},
        id=f"{world_size} ranks, {name}",
        marks=[] if (world_size, name) == _USUAL else pytest.mark.slow,
    )
    for world_size, name, who, where in [
        (1, "driver in training", _DRIVER, _TRAINING),
        (1, "driver in a later epoch", _DRIVER, {"batch": 27}),
        (1, "driver in validation", _DRIVER, _VALIDATION),
        (1, "driver while the state is written", _DRIVER, _STATE),
        (1, "driver while the manifest is written", _DRIVER, _MANIFEST),
        (2, "driver in a checkpoint", _DRIVER, _MANIFEST),
        (2, "rank 0 while the state is written", _RANK_0, _STATE),
        (2, "rank 0 before the pointer to the best", _RANK_0, _BEST),
        (2, "rank 0 before the pointer to the last", _RANK_0, _LAST),
        (2, "rank 0 while an old checkpoint is deleted", _RANK_0, _DELETION),
        (2, "rank 1 in training", _RANK_1, _TRAINING),
        (2, "rank 1 in a checkpoint", _RANK_1, _OWN_PART),
        (3, "driver in a checkpoint", _DRIVER, _MANIFEST),
        (3, "rank 0 in validation", _RANK_0, _VALIDATION),
        (3, "rank 1 in training", _RANK_1, _TRAINING),
    ]
]


@pytest.mark.parametrize(("world_size", "death"), _CASES)
def test_a_killed_run_ends_with_the_bits_of_a_straight_one(
    world_size: int, death: dict[str, Any], straight: Straight, small_tables: str, tmp_path: Path
) -> None:
    ranks = tmp_path / "ranks"
    config = _deadly_config(tmp_path, small_tables, death)
    arm(ranks)
    killed = run_ranks(_command(config), world_size, ranks)
    assert killed.statuses[death.get("rank", 0)] == -9, killed
    assert 0 not in killed.statuses, killed

    again = run_ranks(_command(config), world_size, ranks)
    assert again.statuses == [0] * world_size, again
    assert_equal_outcomes(tmp_path / "run", straight(world_size, EVERYTHING))


@pytest.mark.slow
def test_a_run_that_dies_twice(straight: Straight, small_tables: str, tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    config = _deadly_config(tmp_path, small_tables, {**_RANK_1, **_TRAINING})
    for _ in range(2):
        arm(ranks)
        killed = run_ranks(_command(config), 2, ranks)
        assert -9 in killed.statuses, killed
    again = run_ranks(_command(config), 2, ranks)
    assert again.statuses == [0, 0], again
    assert_equal_outcomes(tmp_path / "run", straight(2, EVERYTHING))


@pytest.mark.slow
def test_the_straight_run_stops_early_and_not_by_its_limit(straight: Straight) -> None:
    for world_size in (1, 2, 3):
        metrics = metrics_of(straight(world_size, EVERYTHING))
        assert metrics["stop_reason"].startswith("early stopping"), metrics


def _deadly_config(folder: Path, tables: str, death: dict[str, Any]) -> Path:
    arguments = {"folder": str(folder / "ranks"), **death}
    die = {"type": "tests.faults.deaths.Die", "args": arguments}
    return write_config(folder, tables, EVERYTHING, callbacks=[die])


def _command(config: Path) -> list[str]:
    return [str(config), "--allow-module", "tests"]


_SEEDS, _EPOCHS = 182, 2


@pytest.mark.slow
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
