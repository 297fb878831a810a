"""A Ray that is not there, or that a signal meets while it starts."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import ray

from raygnn.errors import ResourceError
from raygnn.loops.signals import Terminated
from raygnn.runtime import connection
from tests.errors import assert_reports, raises


@pytest.fixture(autouse=True)
def _no_ray_yet(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ConnectionError("no GCS"), ResourceError),
        (ValueError("Invalid address format: nonsense"), ResourceError),
        (SystemExit(signal.SIGTERM), Terminated),
    ],
)
def test_what_ends_the_start(monkeypatch, error, raised):
    def fail(address: str, **options: object) -> None:
        raise error

    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(raised) as caught:
        connection.connect()
    if raised is ResourceError:
        assert_reports(str(caught.value), "cluster-unreachable", "RAY_ADDRESS", "nonsense")


def test_a_local_ray_that_does_not_start_in_time_is_reported(monkeypatch):
    def fail(address: str, **options: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(ray, "init", fail)
    with raises("ray-not-started", "timed out during startup", "logs"):
        connection.connect()


def test_ctrl_c_waits_for_the_start(monkeypatch, capsys):
    done = []

    def start(address: str, **options: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        sys.stdout.flush()
        done.append("Ray has started")

    monkeypatch.setattr(ray, "init", start)
    with pytest.raises(KeyboardInterrupt):
        connection.connect()
    assert done
    assert "SIGINT: stopping as soon as Ray has started" in capsys.readouterr().out
