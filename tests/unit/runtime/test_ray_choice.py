"""Which Ray is joined or started: that of `RAY_ADDRESS`, that of the user here, or a new one."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import ray
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

from raygnn.errors import ResourceError
from raygnn.loops.signals import Terminated
from raygnn.runtime import connection
from raygnn.runtime.connection import check_address, choose_ray
from tests.errors import assert_reports, raises

_SESSION = "session_2026-01-01_00-00-00_000000_1"


class _Head(gcs_service_pb2_grpc.InternalKVGcsServiceServicer):
    """Answers what a head answers when it is asked for its session."""

    def __init__(self) -> None:
        self.token = ""

    def InternalKVGet(self, request: Any, context: Any) -> Any:  # noqa: N802, gRPC's name
        headers = dict(context.invocation_metadata())
        if self.token and headers.get("authorization") != f"Bearer {self.token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
        assert (request.namespace, request.key) == (b"session", b"session_name")
        return gcs_service_pb2.InternalKVGetReply(value=_SESSION.encode())


@pytest.fixture
def head() -> Iterator[tuple[_Head, str]]:
    answering = _Head()
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        gcs_service_pb2_grpc.add_InternalKVGcsServiceServicer_to_server(answering, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield answering, f"127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.fixture
def port() -> Iterator[int]:
    """Port of a server that is not Ray's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_ANSWERS_WITHIN_S", 0.2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes what `ray start` leaves in the temporary folder; returns the session's folder."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))

    def write(address: str) -> Path:
        session = tmp_path / "ray" / _SESSION
        session.mkdir(parents=True)
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        return session

    return write


def test_without_a_file_a_ray_is_started(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert choose_ray() == ("local", "started on this machine", "")


def test_the_users_own_ray_is_joined(head, leave):
    _, address = head
    leave(address)
    choice = choose_ray()
    assert (choice.address, choice.warning) == (None, "")
    assert address in choice.reason
    assert "RAY_ADDRESS=local" in choice.reason


def test_the_token_of_the_user_is_sent(head, leave, monkeypatch):
    answering, address = head
    answering.token = "a" * 32
    leave(address)
    assert choose_ray().address == "local"
    from ray._raylet import AuthenticationTokenLoader

    monkeypatch.setenv("RAY_AUTH_TOKEN", answering.token)
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        assert choose_ray().address is None
    finally:
        monkeypatch.undo()
        AuthenticationTokenLoader.instance().reset_cache()


@pytest.mark.parametrize("is_own_file", [False, True])
def test_the_ray_of_another_user_is_left_alone(head, leave, monkeypatch, is_own_file):
    """Also behind one's own file, as where a head has died, and another one has its port."""
    _, address = head
    session = leave(address)
    user = session.stat().st_uid
    if is_own_file:
        session.rmdir()
    else:
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
    choice = choose_ray()
    assert choice.address == "local"
    assert f"RAY_ADDRESS={address}" in choice.reason


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_head_that_has_died_is_reported(is_taken, port, leave, monkeypatch):
    """Its port may belong to another program by now."""
    monkeypatch.setattr(connection, "_SESSION_WITHIN_S", 0.5)
    address = f"127.0.0.1:{port if is_taken else 1}"
    leave(address)
    choice = choose_ray()
    assert choice.address == "local"
    assert address in choice.warning
    assert "ray_current_cluster" in choice.warning


def test_the_variable_goes_first(head, leave, monkeypatch):
    _, address = head
    leave(address)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert choose_ray().address == "local"
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert choose_ray() == (address, "joined by RAY_ADDRESS", "")


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "localhost:{}"])
def test_an_address_that_answers(head, form):
    _, address = head
    check_address(form.format(address.rpartition(":")[2]))


def test_the_server_of_ray_clients_answers_no_question_about_sessions():
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        check_address(f"ray://127.0.0.1:{port}")
        server.stop(None).wait()


def test_something_that_accepts_connections_and_never_answers_is_reported(port, monkeypatch):
    monkeypatch.setattr(connection, "_SESSION_WITHIN_S", 0.5)
    with raises("cluster-unreachable", "does not answer as a Ray head"):
        check_address(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", "127.0.0.1:99999"]
)
def test_a_head_that_is_gone_is_reported_within_seconds(address):
    with raises("cluster-unreachable", "RAY_ADDRESS="):
        check_address(address)


def test_auto_is_the_ray_of_this_machine(leave, monkeypatch):
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", frozenset)
    with raises("cluster-unreachable", "RAY_ADDRESS='auto'"):
        check_address("auto")
    leave("127.0.0.1:1")
    with raises("cluster-unreachable"):
        check_address("auto")


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
