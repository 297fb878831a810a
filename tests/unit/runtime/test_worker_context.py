"""Reports of a worker whose Ray Train controller has died."""

from __future__ import annotations

import pytest
import ray.train
from ray.exceptions import ActorDiedError

from raygnn.runtime import context


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
