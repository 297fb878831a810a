"""A run that goes on from a checkpoint ends with the bits of one that never stopped."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.small_runs import (
    assert_same_weights,
    check_resumed_bits,
    kill_at,
    read_history,
    run_killed,
    run_rank,
    small_config,
)
from tests.tiers import slow


def _config(folder: Path, world_size: int, step: int = 0, **changes: Any) -> dict:
    settings: dict[str, Any] = {
        "scaling__num_workers": world_size,
        "training__max_epochs": 4,
        "training__validate_every": {"steps": 2},
        "optimizer": {"type": "Adam", "args": {"lr": 0.01}},
        "lr_scheduler": {"type": "StepLR", "args": {"step_size": 3}, "interval": "step"},
        "early_stopping": {"monitor": "val/loss", "patience": 20},
        "callbacks": kill_at(step),
        "model": {
            "type": "GraphSAGE",
            "args": {"hidden_channels": 8, "dropout": 0.3, "norm": "batch"},
        },
    }
    return small_config(folder, **(settings | changes))


FULL = {"sampling": {"type": "full"}, "training__max_epochs": 10}
LABOR = {"sampling": {"type": "labor", "fanouts": [3, 2]}}


@pytest.mark.parametrize(
    ("world_size", "step", "changes"),
    [
        (2, 5, {}),  # within an epoch of six steps
        (1, 7, FULL),
        *slow((1, 2, {}), (1, 7, {}), (2, 7, {}), (3, 7, {}), (2, 7, FULL), (2, 5, LABOR)),
    ],
)
def test_resumed_and_straight_end_with_the_same_bits(
    ranks, small_bundle_path, tmp_path, world_size, step, changes
):
    config = partial(_config, world_size=world_size)
    changes = {"training__max_epochs": 4, **changes}
    check_resumed_bits(
        ranks, config, tmp_path, small_bundle_path, world_size, step, every=None, **changes
    )


@pytest.mark.slow
def test_another_world_size_goes_on_with_the_same_bits_on_the_whole_graph(
    ranks, small_bundle_path, tmp_path
):
    straight = _config(tmp_path / "straight", 1, 7, **FULL)
    ranks.run(run_rank, 1, straight, small_bundle_path)
    folder = tmp_path / "killed"
    run_killed(ranks, _config(folder, 3, 7, **FULL), small_bundle_path, 3)
    resumed = _config(folder, 2, 7, **FULL)
    ranks.run(run_rank, 2, resumed, small_bundle_path)

    assert_same_weights(resumed, straight)
    assert read_history(folder) == read_history(tmp_path / "straight")


@pytest.mark.slow
def test_running_statistics_go_on_from_between_validations(ranks, small_bundle_path, tmp_path):
    """They move at each step, and a checkpoint that is not one of a validation holds them too."""
    config = partial(_config, world_size=2, training__validate_every={"steps": 3})
    check_resumed_bits(ranks, config, tmp_path, small_bundle_path, every={"steps": 1})


def test_another_world_size_goes_on_with_the_same_samples(ranks, small_bundle_path, tmp_path):
    run_killed(ranks, _config(tmp_path, 2, 3), small_bundle_path, 2)
    wider = _config(tmp_path, 1, 3)
    wider["training"]["accumulate_grad_batches"] = 2
    (metrics,) = ranks.run(run_rank, 1, wider, small_bundle_path)
    assert metrics["epoch"] == 4
    assert metrics["samples"] % 4 == 0
    rows = read_history(tmp_path)
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows})


@pytest.mark.parametrize("of", ["checkpoint", *slow("run")])
def test_a_checkpoint_or_a_run_by_uri_goes_on_under_another_name(
    ranks, small_bundle_path, tmp_path, of
):
    short = small_config(tmp_path, training__max_epochs=2, checkpoint__policy="all")
    ranks.run(run_rank, 1, short, small_bundle_path)
    straight = small_config(tmp_path / "straight", training__max_epochs=4)
    ranks.run(run_rank, 1, straight, small_bundle_path)
    uri = tmp_path / "run"
    if of == "checkpoint":
        last = json.loads((uri / "checkpoints" / "last.json").read_text())["checkpoint"]
        uri = uri / "checkpoints" / last
    longer = small_config(
        tmp_path / "longer", training__max_epochs=4, checkpoint__resume=str(uri), run__name="longer"
    )
    ranks.run(run_rank, 1, longer, small_bundle_path)
    assert_same_weights(longer, straight)


@pytest.mark.parametrize("world_size", [2, *slow(1)])
def test_a_finished_run_trains_on_to_a_larger_limit(ranks, small_bundle_path, tmp_path, world_size):
    by_epoch = {"training__validate_every": {"epochs": 1}}
    straight = _config(tmp_path / "straight", world_size, **by_epoch)
    ranks.run(run_rank, world_size, straight, small_bundle_path)
    short = _config(tmp_path, world_size, **by_epoch, training__max_epochs=2)
    assert ranks.run(run_rank, world_size, short, small_bundle_path)[0]["epoch"] == 2
    longer = _config(tmp_path, world_size, **by_epoch)
    metrics = ranks.run(run_rank, world_size, longer, small_bundle_path)[0]
    assert (metrics["epoch"], metrics["stop_reason"]) == (4, "training.max_epochs=4")
    assert_same_weights(longer, straight)
    assert read_history(tmp_path) == read_history(tmp_path / "straight")


def test_more_patience_trains_on(ranks, small_bundle_path, tmp_path):
    """It counts from where the last validations have left it."""
    stopping = {"monitor": "val/loss", "patience": 2, "min_delta": 100.0}
    limits = {"training__validate_every": {"epochs": 1}, "training__max_epochs": 20}
    for patience, epochs in ((2, 3), (4, 5)):
        stopping["patience"] = patience
        config = _config(tmp_path, 1, **limits, early_stopping=dict(stopping))
        (metrics,) = ranks.run(run_rank, 1, config, small_bundle_path)
        assert metrics["epoch"] == epochs
        assert metrics["stop_reason"].endswith(f"for {patience} validations")


def test_a_damaged_checkpoint_is_passed_over(ranks, small_bundle_path, tmp_path):
    folder = tmp_path / "killed"
    killed = _config(folder, 1, 5, checkpoint={"policy": "all"})
    run_killed(ranks, killed, small_bundle_path, 1)
    _, last = sorted(p for p in (folder / "run" / "checkpoints").iterdir() if p.is_dir())
    (last / "state.pt").write_bytes(b"nothing")
    ranks.run(run_rank, 1, killed, small_bundle_path)
    straight = _config(tmp_path / "straight", 1)
    ranks.run(run_rank, 1, straight, small_bundle_path)
    assert_same_weights(killed, straight)


def test_best_goes_on_from_the_best(ranks, small_bundle_path, tmp_path):
    config = _config(tmp_path, 1, 7)
    run_killed(ranks, config, small_bundle_path, 1)
    config["checkpoint"] = {"resume": "best"}
    ranks.run(run_rank, 1, config, small_bundle_path)
    straight = _config(tmp_path / "straight", 1)
    ranks.run(run_rank, 1, straight, small_bundle_path)
    assert_same_weights(config, straight)
