"""The line about failed workers, and whether the run goes on."""

from __future__ import annotations

import json

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from raygnn.console import EVENT_START
from raygnn.errors import LostRankError
from raygnn.runtime.ray_workers import Failures, describe_failures


def _death() -> Exception:
    """As Ray Train reports a worker that was killed."""
    context = ActorDiedErrorContext(
        error_message="The actor is dead because its worker process has died.",
        actor_id=bytes(16),
        class_name="RayTrainWorker",
        pid=4711,
        node_ip_address="10.0.0.7",
    )
    return WorkerHealthCheckFailedError("The health check failed.", ActorDiedError(context))


def _lost() -> LostRankError:
    return LostRankError("Rank 0 lost another rank.", id="run-rank-lost")


def test_the_dead_rank_is_named_and_not_those_that_wait_for_it() -> None:
    assert describe_failures({0: _lost(), 1: _death()}) == [
        "rank 1 died (process 4711 on 10.0.0.7)"
    ]
    assert describe_failures({0: _lost()}) == [f"rank 0 failed: {_lost()}"]
    assert describe_failures({2: ValueError("a\nb")}) == ["rank 2 failed: b"]


@pytest.mark.parametrize(("max_failures", "num_lines"), [(-1, 3), (1, 1), (0, 0)])
def test_a_restart_is_a_warning_and_the_end_is_left_to_the_driver(
    capsys, max_failures, num_lines
) -> None:
    failures = Failures("Training", "trial-1", max_failures)
    for _ in range(3):
        failures.after_exception(None, {1: _death()})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == num_lines
    for line in lines:
        event = json.loads(line.removeprefix(EVENT_START))
        assert (event["kind"], event["label"]) == ("warning", "trial-1")
        text = "warning: rank 1 died (process 4711 on 10.0.0.7). Training starts again with new "
        assert event["text"] == text + "workers"
