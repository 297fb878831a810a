"""The section of a sweep as Ray Tune's objects."""

from __future__ import annotations

import sys

from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter

from raygnn.config import load_config
from raygnn.runtime.sweep_plan import TIME_ATTRIBUTE, scheduler, search_space, searcher
from tests.errors import raises


def _section(**tune):
    tune.setdefault("space", {"seed": {"choice": [1, 2]}})
    return load_config({"tune": tune}).config.tune


def test_each_kind_of_parameter_becomes_its_domain():
    space = search_space(
        _section(
            space={
                "optimizer.args.lr": {"loguniform": [1e-4, 1e-1]},
                "model.args.dropout": {"uniform": [0, 0.5]},
                "loader.batch_size": {"randint": [16, 19]},
                "seed": {"choice": [3]},
                "sampling.fanouts": {"grid": [[1], [2]]},
            }
        )
    )
    lrs = [space["optimizer.args.lr"].sample() for _ in range(300)]
    assert 1e-4 <= min(lrs) < 1e-3 < 1e-2 < max(lrs) <= 1e-1
    assert all(0 <= space["model.args.dropout"].sample() <= 0.5 for _ in range(20))
    assert {space["loader.batch_size"].sample() for _ in range(99)} == {16, 17, 18}
    assert space["seed"].sample() == 3
    assert space["sampling.fanouts"] == {"grid_search": [[1], [2]]}


def test_schedulers_count_validations():
    asha = scheduler(_section(scheduler="asha"))
    assert isinstance(asha, AsyncHyperBandScheduler)
    assert asha._time_attr == TIME_ATTRIBUTE
    median = scheduler(_section(scheduler="median_stopping"))
    assert isinstance(median, MedianStoppingRule)
    assert median._time_attr == TIME_ATTRIBUTE
    assert isinstance(scheduler(_section()), FIFOScheduler)


def test_searchers_limit_the_trials_at_a_time(monkeypatch):
    random = searcher(_section(), 0, 3)
    assert isinstance(random, BasicVariantGenerator)
    assert random.max_concurrent == 3
    limited = searcher(_section(searcher="optuna"), 0, 3)
    assert isinstance(limited, ConcurrencyLimiter)
    assert limited.max_concurrent == 3
    monkeypatch.setitem(sys.modules, "optuna", None)
    with raises("sweep-optuna-missing"):
        searcher(_section(searcher="optuna"), 0, 3)
