"""Every scheduler goes on after a resume as if nothing had happened, chains of them too."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from raygnn.config import load_config
from raygnn.config.registry import SLOTS
from raygnn.loops.optimization import Optimization
from tests.errors import raises

ARGUMENTS: dict[str, dict[str, Any]] = {
    "ChainedScheduler": {
        "schedulers": [
            {"__type": "LinearLR", "start_factor": 0.25, "total_iters": 3},
            {"__type": "torch.optim.lr_scheduler.ExponentialLR", "gamma": 0.8},
        ]
    },
    "ConstantLR": {"factor": 0.5, "total_iters": 4},
    "CosineAnnealingLR": {"T_max": 8},
    "CosineAnnealingWarmRestarts": {"T_0": 3, "T_mult": 2},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 3},
    "ExponentialLR": {"gamma": 0.9},
    "LinearLR": {"start_factor": 0.1, "total_iters": 6},
    "MultiStepLR": {"milestones": [2, 5, 5, 9]},
    "OneCycleLR": {"max_lr": 1.0, "total_steps": 20},
    "PolynomialLR": {"total_iters": 9, "power": 2.0},
    "ReduceLROnPlateau": {"patience": 1, "factor": 0.5},
    "SequentialLR": {
        "schedulers": [
            {"__type": "LinearLR", "start_factor": 0.1, "total_iters": 3},
            {"__type": "CosineAnnealingLR", "T_max": 5},
        ],
        "milestones": [3],
    },
    "StepLR": {"step_size": 3},
    "torch.optim.lr_scheduler.LambdaLR": {"lr_lambda": {"__type": f"{__name__}.inverse_root"}},
}
NUM_STEPS, STEPS_PER_EPOCH = 12, 2


def inverse_root() -> Any:
    """A user's schedule."""
    return lambda step: (1 + step) ** -0.5


def _build(name: str, **settings: Any) -> Optimization:
    config = {
        "optimizer": {"type": "SGD", "args": {"lr": 1.0, "momentum": 0.9}},
        "lr_scheduler": {"type": name, "args": ARGUMENTS[name], **settings},
    }
    loaded = load_config(config, allow_modules=["tests"])
    module = nn.Linear(1, 1)
    return Optimization(module, loaded, torch.device("cpu"))


def _step(parts: Optimization, step: int) -> float:
    """One boundary of the loop; returns the rate with which the next step is made."""
    for parameter in parts.module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    parts.step()
    epoch, rest = divmod(step, STEPS_PER_EPOCH)
    parts.step_schedulers(step=step, epoch=epoch, epoch_ended=rest == 0)
    parts.step_plateau({"val/loss": 1.0}, "val/loss")
    return parts.lr


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("settings", [{}, {"interval": "epoch"}, {"frequency": 3}], ids=str)
def test_a_resumed_schedule_goes_on(name, settings):
    if name == "ReduceLROnPlateau":
        settings = {"monitor": "val/loss"}
    straight = _build(name, **settings)
    rates = [_step(straight, step) for step in range(1, NUM_STEPS + 1)]
    assert len(set(rates)) > 1
    for stop in (1, 4, 7):
        before = _build(name, **settings)
        for step in range(1, stop + 1):
            _step(before, step)
        file = io.BytesIO()
        torch.save(before.state_dict(), file)
        file.seek(0)
        after = _build(name, **settings)
        after.load_state_dict(torch.load(file, weights_only=True))
        assert after.lr == rates[stop - 1]
        assert [_step(after, s) for s in range(stop + 1, NUM_STEPS + 1)] == rates[stop:], stop


def test_every_short_name_is_covered():
    assert set(SLOTS["lr_scheduler"].names) <= set(ARGUMENTS)


def test_intervals_and_frequencies_count():
    by_epoch = _build("StepLR", interval="epoch")
    assert [_step(by_epoch, s) for s in range(1, 9)] == pytest.approx([1.0] * 5 + [0.1] * 3)
    seldom = _build("ExponentialLR", frequency=4)
    rates = [_step(seldom, s) for s in range(1, 9)]
    assert rates == pytest.approx([1.0] * 3 + [0.9] * 4 + [0.81])


def test_a_warm_up_is_a_chain():
    rates = [_step(parts, s) for parts in [_build("SequentialLR")] for s in range(1, 9)]
    assert rates[:3] == pytest.approx([0.4, 0.7, 1.0])
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[7] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("nested", "message"),
    [
        (
            {"__type": "LinaerLR"},
            ("component-unknown", "schedulers.0.__type='LinaerLR'", "Did you mean"),
        ),
        (
            {"__type": "LinearLR", "optimizer": 1},
            ("component-argument-set", "lr_scheduler.args.schedulers.0.optimizer=1"),
        ),
        ({"__type": "LinearLR", "factor": 1}, ("component-argument-unknown", "LinearLR")),
        (
            {"__type": "torch.optim.SGD"},
            ("component-kind", "schedulers.0.__type='torch.optim.SGD'", "SGD", "torch.nn.Module"),
        ),
    ],
)
def test_what_a_chain_cannot_hold(nested, message):
    config = {
        "lr_scheduler": {"type": "SequentialLR", "args": {"schedulers": [nested], "milestones": []}}
    }
    with raises(*message):
        Optimization(nn.Linear(1, 1), load_config(config), torch.device("cpu"))
