"""A Ray that is not there, or that a signal meets while it starts."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator

import pytest
import ray

from raygnn.errors import ResourceError
from raygnn.loops.signals import Terminated
from raygnn.runtime import connection
from tests.errors import assert_reports, raises


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server that answers while the test lasts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_ANSWERS_WITHIN_S", 0.2)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "localhost:{}"])
def test_an_address_that_answers(port, form):
    connection.check_address(form.format(port))


@pytest.mark.parametrize("address", ["", "auto", "local"])
def test_an_address_without_a_port_is_left_to_ray(address):
    connection.check_address(address)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", "127.0.0.1:99999"]
)
def test_a_head_that_is_gone_is_told_at_once(address):
    with raises("cluster-unreachable", "RAY_ADDRESS="):
        connection.check_address(address)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ConnectionError("no GCS"), ResourceError),
        (ValueError("Invalid address format: nonsense"), ResourceError),
        (SystemExit(signal.SIGTERM), Terminated),
    ],
)
def test_what_ends_the_start(monkeypatch, error, raised):
    def fail(**options: object) -> None:
        raise error

    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(raised) as caught:
        connection.connect()
    if raised is ResourceError:
        assert_reports(str(caught.value), "cluster-unreachable", "RAY_ADDRESS", "nonsense")


def test_ctrl_c_waits_for_the_start(monkeypatch, capsys):
    done = []

    def start(**options: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        sys.stdout.flush()
        done.append("Ray has started")

    monkeypatch.setattr(ray, "init", start)
    with pytest.raises(KeyboardInterrupt):
        connection.connect()
    assert done
    assert "SIGINT: stops as soon as Ray has started" in capsys.readouterr().out
