"""The section of a sweep: what may vary, how, and what is refused before a trial starts."""

from __future__ import annotations

from typing import Any

import pytest

from raygnn.config import load_config
from raygnn.config.run_section import ASHA, FIFO, MedianStopping
from raygnn.documents import parse_yaml
from tests.errors import error_cases, raises


def _tune(**tune: Any) -> Any:
    tune.setdefault("space", {"optimizer.args.lr": {"loguniform": [1e-4, 1e-1]}})
    return load_config({"tune": tune}).config.tune


def test_defaults_and_kinds_of_parameters():
    section = _tune(
        space={
            "optimizer.args.lr": {"loguniform": [1e-4, 1e-1]},
            "model.args.dropout": {"uniform": [0, 0.5]},
            "model.args.hidden_channels": {"choice": [32, 64]},
            "sampling.fanouts": {"grid": [[5, 5], [10, 10]]},
            "loader.batch_size": {"randint": [16, 64]},
        }
    )
    kinds = [parameter.kind for parameter in section.space.values()]
    assert kinds == ["loguniform", "uniform", "choice", "grid", "randint"]
    assert section.space["sampling.fanouts"].values == [[5, 5], [10, 10]]
    assert (section.metric, section.mode, section.num_samples) == (None, "min", 1)
    assert section.scheduler == FIFO(type="fifo")


def test_schedulers_by_name_or_with_settings():
    assert isinstance(_tune(scheduler="asha").scheduler, ASHA)
    assert isinstance(_tune(scheduler="median_stopping").scheduler, MedianStopping)
    assert _tune(scheduler={"type": "asha", "grace_period": 2}).scheduler.grace_period == 2


@pytest.mark.parametrize(
    ("text", "message"),
    error_cases(
        """
optimizer.args.lr: {}
    sweep-distribution | 0
optimizer.args.lr: {choice: [1], grid: [2]}
    sweep-distribution | 2
optimizer.args.lr: {chioce: [1]}
    config-unknown-key | tune.space.optimizer.args.lr.chioce=[1] | Did you mean choice?
optimizer.args.lr: {uniform: [1, 0]}
    sweep-bounds-order | 1 | 0
optimizer.args.lr: {loguniform: [0, 1]}
    sweep-bounds-log
optimizer.args.lr: {uniform: [1]}
    config-length | 2 | 1
optimizer.args.lr: {randint: [1, 2.5]}
    config-type | a whole number
loader.batchsize: {choice: [16]}
    sweep-space-unknown | loader.batchsize | Did you mean batch_size?
optimiser.args.lr: {choice: [1]}
    sweep-space-unknown | optimiser | Did you mean optimizer?
losses.0.wieght: {choice: [1]}
    sweep-space-unknown | losses.0.wieght | Did you mean weight?
tasks.topic.wieght: {choice: [1]}
    sweep-space-unknown | tasks.topic.wieght | Did you mean weight?
run.name: {choice: [a]}
    sweep-space-section | run
"""
    ),
)
def test_a_wrong_space_is_told(text, message):
    with raises(*message):
        _tune(space=parse_yaml(text).value)


def test_other_wrong_settings_are_told():
    with raises("sweep-scheduler"):
        _tune(scheduler="pbt")
    with raises("config-choice", "Did you mean asha"):
        _tune(scheduler={"type": "ashaa"})
    with raises("sweep-grace-period", 3):
        _tune(scheduler={"type": "asha", "grace_period": 3, "max_t": 2})
    with raises("sweep-grid"):
        _tune(searcher="optuna", space={"seed": {"grid": [0, 1]}})
    with raises("sweep-workers", "scaling.num_workers=0"):
        load_config({"tune": {"space": {"seed": {"grid": [1]}}}, "scaling": {"num_workers": 0}})
