"""A moving average of the weights is what its formula says, and is what is judged and kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from raygnn.loops.callbacks import Callback
from raygnn.loops.early_stopping import WeightAverage
from raygnn.loops.engine import Engine
from tests.small_runs import run_rank, small_config, trained_weights

DECAY = 0.75
SEEN: dict[str, dict[str, torch.Tensor]] = {}


def test_it_moves_by_its_decay_and_lends_itself():
    linear = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        linear.weight.fill_(4.0)
    average = WeightAverage(linear, DECAY)
    with torch.no_grad():
        linear.weight.fill_(8.0)
    average.update(99)
    with average.applied():
        assert float(linear.weight.detach()) == 5.0  # 0.75 * 4 + 0.25 * 8
    assert float(linear.weight.detach()) == 8.0
    again = WeightAverage(nn.Linear(1, 1, bias=False), DECAY)
    again.load_state_dict(average.state_dict())
    assert float(again.state_dict()["weight"]) == 5.0
    average.update(0)
    assert float(average.state_dict()["weight"]) == pytest.approx(0.1 * 5 + 0.9 * 8)


class FollowWeights(Callback):
    """Averages the weights after each step by the formula, and sees those that are judged."""

    def on_train_start(self, engine: Engine) -> None:
        SEEN["average"] = _weights(engine)

    def after_optimizer_step(self, engine: Engine) -> None:
        step = engine.position.step
        decay = min(DECAY, (1 + step) / (10 + step))
        for name, own in _weights(engine).items():
            SEEN["average"][name] = decay * SEEN["average"][name] + (1 - decay) * own

    def on_validation_start(self, engine: Engine) -> None:
        SEEN["judged"] = _weights(engine)


def _weights(engine: Engine) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in engine.optimization.module.named_parameters()}


def test_a_run_validates_and_exports_the_average(small_bundle_path, tmp_path):
    config = small_config(
        tmp_path,
        scaling__num_workers=0,
        training={"max_steps": 3, "ema_decay": DECAY},
        optimizer={"type": "Adam", "args": {"lr": 0.1}},
        callbacks=[f"{__name__}.FollowWeights"],
    )
    run_rank(config, small_bundle_path)
    exported = trained_weights(config)
    for name, average in SEEN["average"].items():
        torch.testing.assert_close(SEEN["judged"][name], average)
        torch.testing.assert_close(exported[name], average)
