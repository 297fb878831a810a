"""Limits and periods in all of their units, and what happens at a boundary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import raygnn.train
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from tests.small_runs import run_rank, small_config

CALLS: list[tuple[str, int]] = []

#: 182 seeds in batches of 40 are 5 micro-batches, the last of 22.
BATCH, PER_EPOCH = 40, 5


class Watch(Callback):
    """Notes at which step things happen."""

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        CALLS.append(("log", engine.position.step))
        assert metrics["lr"] == engine.optimization.lr > 0

    def on_validation_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        CALLS.append(("validate", engine.position.step))

    def on_validation_step_end(self, engine: Engine, output: Any) -> None:
        assert not torch.is_grad_enabled()
        assert not engine.task.model.training
        CALLS.append(("evaluate", int(output.prediction.requires_grad)))

    def on_train_step_end(self, engine: Engine, totals: Any) -> None:
        CALLS.append(("train", int(engine.task.model.training)))

    def on_checkpoint_written(self, engine: Engine, name: str) -> None:
        CALLS.append(("save", engine.position.step))


def _run(folder: Path, bundle: str, **changes: Any) -> dict[str, Any]:
    CALLS.clear()
    config = small_config(
        folder,
        scaling__num_workers=0,
        **{
            "loader": {"batch_size": BATCH, "eval_batch_size": 100},
            "metrics": [],
            "callbacks": [f"{__name__}.Watch"],
            **changes,
        },
    )
    return run_rank(config, bundle)


def _steps(what: str) -> list[int]:
    return [step for name, step in CALLS if name == what]


@pytest.mark.parametrize(
    ("limit", "steps", "epochs"),
    [
        ({"max_steps": 7}, 7, 1),
        ({"max_epochs": 2}, 10, 2),
        ({"max_samples": 190}, 6, 1),
        ({"max_time_s": 1e-6}, 1, 0),
        ({"max_steps": 7, "max_epochs": 1}, 5, 1),
    ],
)
def test_the_first_limit_ends_the_run(small_bundle_path, tmp_path, limit, steps, epochs):
    training = {"max_epochs": None, **limit, "log_every": {"epochs": 9}}
    training["validate_every"] = {"epochs": 1}
    metrics = _run(tmp_path, small_bundle_path, training=training, checkpoint={"policy": "none"})
    assert (metrics["step"], metrics["epoch"]) == (steps, epochs)
    reached = "max_epochs" if len(limit) == 2 else next(iter(limit))
    assert metrics["stop_reason"].startswith(f"training.{reached}=")
    assert _steps("validate") == sorted({*(range(5, steps + 1, 5)), steps})


@pytest.mark.parametrize(
    ("period", "due"),
    [
        ({"steps": 2}, [2, 4, 6, 8, 10]),
        ({"batches": 4}, [4, 8]),
        ({"epochs": 1}, [5, 10]),
        ({"samples": 90}, [3, 5, 8, 10]),
        ({"steps": 4, "epochs": 1}, [4, 5, 8, 10]),
    ],
)
def test_periods_are_the_same_wherever_they_stand(small_bundle_path, tmp_path, period, due):
    training = {"max_epochs": 2, "log_every": period, "validate_every": period}
    _run(tmp_path, small_bundle_path, training=training, checkpoint={"every": period})
    assert _steps("log") == due
    end = [] if 10 in due else [10]  # a run ends with a validation and a checkpoint
    assert _steps("validate") == _steps("save") == due + end
    for step in due:
        boundary = {"log", "validate", "save"}
        order = [name for name, at in CALLS if at == step and name in boundary]
        assert order == ["log", "validate", "save"]


@pytest.mark.parametrize(
    ("batch_size", "max_steps", "due"),
    [
        (182, 45, [20, 40, 45]),  # 1 step an epoch
        (40, 45, [20, 40, 45]),  # 5
        (16, 50, [24, 48, 50]),  # 12
        (8, 60, [23, 46, 60]),  # 23
    ],
)
def test_validations_are_whole_epochs_and_twenty_steps_apart(
    small_bundle_path, tmp_path, batch_size, max_steps, due
):
    training = {"max_epochs": None, "max_steps": max_steps}
    loader = {"batch_size": batch_size, "eval_batch_size": 100}
    model = {"type": "GraphSAGE", "args": {"hidden_channels": 4}}
    _run(tmp_path, small_bundle_path, training=training, loader=loader, model=model)
    assert _steps("validate") == due


def test_it_may_validate_before_the_first_step(small_bundle_path, tmp_path):
    training = {"max_steps": 1, "validate_at_start": True}
    _run(tmp_path, small_bundle_path, training=training)
    assert _steps("validate") == [0, 1]
    rows = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 1]
    assert "val/loss" in json.loads(rows[0])


def test_evaluation_builds_no_graph_and_leaves_training_mode(small_bundle_path, tmp_path):
    training = {"max_steps": 2, "validate_every": {"steps": 1}}
    _run(tmp_path, small_bundle_path, training=training)
    assert set(_steps("evaluate")) == {0}
    assert _steps("train") == [1, 1]


def test_accumulation_flushes_what_is_left_of_an_epoch(small_bundle_path, tmp_path):
    training = {"max_epochs": 1, "accumulate_grad_batches": 2, "log_every": {"steps": 1}}
    metrics = _run(tmp_path, small_bundle_path, training=training)
    assert (metrics["step"], metrics["samples"]) == (3, 182)


def test_what_fit_hands_back(tmp_path):
    config = small_config(
        tmp_path,
        scaling__num_workers=0,
        data={"synthetic": {"type": "planted_partition", "num_nodes": 200, "num_classes": 3}},
        training={"max_epochs": 2, "validate_every": {"epochs": 1}},
        checkpoint={"policy": "best"},
    )
    result = raygnn.train.fit(config)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {k: v for k, v in metrics.items() if k != "raygnn"} == result.metrics
    assert metrics["stop_reason"] == "training.max_epochs=2"
    assert metrics["resumed_from"] is None
    assert metrics["wall_time_s"] >= metrics["training_time_s"] > 0
    assert metrics["perf/seeds_per_s"] > 0
    history = result.metrics_dataframe
    assert list(history["epoch"]) == [1, 2]
    ((checkpoint, best),) = result.best_checkpoints
    assert best["val/loss"] == pytest.approx(history["val/loss"].min())
    assert Path(checkpoint.path).is_dir()
    assert Path(result.checkpoint.path).is_dir()
    assert (tmp_path / "run" / "report.html").exists()


def test_learning_rates_of_several_groups_are_told(small_bundle_path, tmp_path):
    task = {"type": "tests.user_code.TwoGroups"}
    scheduler = {"type": "ExponentialLR", "args": {"gamma": 0.5}}
    training = {"max_steps": 2}
    _run(tmp_path, small_bundle_path, training=training, task=task, lr_scheduler=scheduler)
    row = json.loads((tmp_path / "run" / "history.jsonl").read_text())
    assert row["lr"] == row["lr/matrices"] == pytest.approx(0.0025)
    assert row["lr/1"] == pytest.approx(0.00025)
