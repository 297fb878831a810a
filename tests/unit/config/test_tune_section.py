"""The section of a sweep: what may vary, how, and what is refused before a trial starts."""

from __future__ import annotations

from typing import Any

import pytest

from raygnn.config import ConfigError, load_config
from raygnn.config.run_section import ASHA, FIFO, MedianStopping


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
    assert {p.kind for p in section.space.values()} == {
        "loguniform",
        "uniform",
        "choice",
        "grid",
        "randint",
    }
    assert section.space["sampling.fanouts"].values == [[5, 5], [10, 10]]
    assert (section.metric, section.mode, section.num_samples) == ("val/loss", "min", 1)
    assert section.scheduler == FIFO(type="fifo")


def test_schedulers_by_name_or_with_settings():
    assert isinstance(_tune(scheduler="asha").scheduler, ASHA)
    assert isinstance(_tune(scheduler="median_stopping").scheduler, MedianStopping)
    assert _tune(scheduler={"type": "asha", "grace_period": 2}).scheduler.grace_period == 2


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, r"tune\.space=\{\} is invalid: it needs at least 1 entry"),
        (
            {"optimizer.args.lr": {}},
            r"takes exactly one of choice, grid, uniform, loguniform, randint, and has 0",
        ),
        ({"optimizer.args.lr": {"choice": [1], "grid": [2]}}, "exactly one of .*and has 2"),
        (
            {"optimizer.args.lr": {"chioce": [1]}},
            r"tune\.space\.optimizer\.args\.lr\.chioce=\[1\].*no such key. Did you mean choice\?",
        ),
        ({"optimizer.args.lr": {"uniform": [1, 0]}}, "1 is not less than 0. Set the smaller"),
        ({"optimizer.args.lr": {"loguniform": [0, 1]}}, "zero and less have no logarithm"),
        ({"optimizer.args.lr": {"uniform": [1]}}, "at least 2 entries, and has 1"),
        ({"optimizer.args.lr": {"randint": [1, 2.5]}}, "it must be a whole number"),
        (
            {"loader.batchsize": {"choice": [16]}},
            r"there is no key loader\.batchsize. Did you mean batch_size\?",
        ),
        ({"optimiser.args.lr": {"choice": [1]}}, r"no key optimiser. Did you mean optimizer\?"),
        ({"losses.0.wieght": {"choice": [1]}}, r"no key losses\.0\.wieght. Did you mean weight\?"),
        ({"run.name": {"choice": ["a"]}}, "run belongs to the sweep, not to its trials"),
    ],
)
def test_a_wrong_space_is_told(space, message):
    with pytest.raises(ConfigError, match=message):
        _tune(space=space)


def test_other_wrong_settings_are_told():
    with pytest.raises(ConfigError, match="hands Ray Tune no checkpoint that it could exploit"):
        _tune(scheduler="pbt")
    with pytest.raises(ConfigError, match="Did you mean asha"):
        _tune(scheduler={"type": "ashaa"})
    with pytest.raises(ConfigError, match=r"less than grace_period=3\. Set it to at least"):
        _tune(scheduler={"type": "asha", "grace_period": 3, "max_t": 2})
    with pytest.raises(ConfigError, match="optuna draws its values and takes no grid"):
        _tune(searcher="optuna", space={"seed": {"grid": [0, 1]}})
    with pytest.raises(ConfigError, match=r"scaling\.num_workers=0 .*in workers of Ray Train"):
        load_config({"tune": {"space": {"seed": {"grid": [1]}}}, "scaling": {"num_workers": 0}})
