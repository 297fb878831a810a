"""A worker of Ray Train: gauges of Ray's dashboard, and the death of its controller."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import ray.train
from ray.exceptions import ActorDiedError

from raygnn.loops.callback_list import CallbackList
from raygnn.loops.position import Position
from raygnn.runtime import context
from raygnn.runtime.context import GAUGES, DashboardMetrics


class _Gauge:
    made: dict[str, _Gauge]

    def __init__(self, name, description, tag_keys):
        assert tag_keys == ("run",)
        self.values = []
        _Gauge.made[name] = self

    def set(self, value, tags):
        assert tags == {"run": "mine"}
        self.values.append(value)


def _engine(rank: int = 0, step: int = 0):
    context = SimpleNamespace(rank=rank)
    return SimpleNamespace(context=context, position=Position(step=step, epoch=1))


def test_logs_and_validations_set_gauges(monkeypatch):
    _Gauge.made = {}
    monkeypatch.setattr(context, "Gauge", _Gauge)
    callback = DashboardMetrics("mine")
    callback.on_train_start(_engine())
    assert set(_Gauge.made) == {name for name, _ in GAUGES.values()}
    callback.on_log(_engine(step=20), {"train/loss": 0.5, "perf/seeds_per_s": 100.0, "lr": 0.1})
    callback.on_validation_end(_engine(step=25), {"val/loss": 0.25})
    values = {name: gauge.values for name, gauge in _Gauge.made.items() if gauge.values}
    assert values == {
        "raygnn_train_loss": [0.5],
        "raygnn_seeds_per_s": [100.0],
        "raygnn_val_loss": [0.25],
        "raygnn_step": [20.0, 25.0],
        "raygnn_epoch": [1.0, 1.0],
    }


def test_only_rank_0_sets_them(monkeypatch):
    _Gauge.made = {}
    monkeypatch.setattr(context, "Gauge", _Gauge)
    callbacks = CallbackList(_engine(rank=1), [DashboardMetrics("mine")])
    callbacks.call("on_train_start")
    callbacks.call("on_log", {"train/loss": 0.5})
    assert not _Gauge.made


def test_a_worker_waits_for_its_end_if_the_controller_died(monkeypatch):
    waited_s = []

    def report(*_, **__):
        raise ActorDiedError

    monkeypatch.setattr(ray.train, "report", report)
    monkeypatch.setattr(context.time, "sleep", waited_s.append)
    worker = object.__new__(context.RayWorkerContext)
    worker.rank = 1
    with pytest.raises(ActorDiedError):
        worker.report({"val/loss": 0.5}, None)
    assert len(waited_s) == 1
