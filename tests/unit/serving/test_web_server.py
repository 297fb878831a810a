"""The web server sends answers immediately, and closes connections whose requests are late."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

pytest.importorskip("ray.serve")  # an extra
import requests

from raygnn.serving import web_server
from raygnn.serving.app import build_app
from raygnn.serving.messages import AnsweredRows, Predict
from raygnn.serving.web_server import WebServer, listen
from tests.errors import raises
from tests.wait_until import wait_until

#: More than the buffers of a connection hold.
_LARGE = 16_000_000


@contextmanager
def _serving() -> Iterator[tuple[int, WebServer]]:
    """A server whose answers to /embed are large."""

    async def ask(question: Any) -> Any:
        row = {"id": 1, "prediction": 0}
        return AnsweredRows([row if isinstance(question, Predict) else {"id": "a" * _LARGE}])

    async def check_alive() -> None:
        pass

    listening = listen("127.0.0.1", 0)
    server = WebServer(build_app(ask, check_alive, checks_host=True), listening)
    yield listening.getsockname()[1], server
    server.stop()


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(web_server, "READ_WITHIN_S", 0.5)
    with _serving() as (port, _):
        yield port


def test_accepted_connections_do_not_wait_for_acknowledgements():
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            with raises("serve-address", port):
                listen("127.0.0.1", port)


_HEADER = b"POST /predict HTTP/1.1\r\nHost: localhost:8000\r\nContent-Length: 14\r\n"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"POST /pre", b""),
        (_HEADER, b""),
        (_HEADER + b"\r\n", b"408 "),
        (_HEADER + b'\r\n{"nodes', b"408 "),
        (_HEADER + b'\r\n{"nodes": [1]}POST /pre', b"200 "),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nLong: " + 80_000 * b"a", b""),
    ],
)
def test_a_request_that_does_not_arrive_is_given_up(port, sent, answer):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(20)
        client.sendall(sent)
        received = b""
        try:
            while chunk := client.recv(65_536):
                received += chunk
        except ConnectionResetError:  # its rest was not read
            pass
        assert answer in received
        assert received or not answer


def test_many_half_sent_requests_delay_no_other(port):
    with ExitStack() as clients:
        for number in range(300):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(_HEADER + (b'\r\n{"nodes' if number % 2 else b""))
        started = time.perf_counter()
        found = requests.post(f"http://127.0.0.1:{port}/predict", json={"nodes": [1]}, timeout=20)
        assert found.status_code == 200
        assert time.perf_counter() - started < 5

    def counted() -> str:
        return requests.get(f"http://127.0.0.1:{port}/metrics", timeout=20).text

    wait_until(lambda: 'route="/predict",status="200"' in counted())


_ASKS_MUCH = (
    b"POST /embed HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 14\r\n\r\n" + b'{"nodes": [1]}'
)


def _unread(port: int) -> socket.socket:
    """A client that requests a large answer, and reads only its first bytes."""
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    client.sendall(_ASKS_MUCH)
    assert client.recv(12) == b"HTTP/1.1 200"
    return client


def _is_cut_off(client: socket.socket) -> bool:
    """Whether the server ended a connection before the answer was complete."""
    size = 0
    try:
        while size < _LARGE and (chunk := client.recv(1_000_000)):
            size += len(chunk)
    except ConnectionResetError:
        pass
    return size < _LARGE


def test_an_answer_that_is_not_read_is_given_up(monkeypatch, capfd):
    monkeypatch.setattr(web_server, "WRITE_WITHIN_S", 0.5)
    with _serving() as (port, _), _unread(port) as client:
        time.sleep(1.0)
        assert _is_cut_off(client)
    assert "Traceback" not in capfd.readouterr().err


def test_a_slow_reader_gets_all_of_an_answer(monkeypatch):
    monkeypatch.setattr(web_server, "WRITE_WITHIN_S", 1.5)
    with _serving() as (port, _), _unread(port) as client:
        time.sleep(0.3)
        assert not _is_cut_off(client)
        time.sleep(1.5)  # the connection stays open
        client.sendall(_ASKS_MUCH)
        assert b"HTTP/1.1 200" in client.recv(1_000)


def test_a_client_that_does_not_read_does_not_keep_the_server_from_ending(monkeypatch):
    monkeypatch.setattr(web_server, "READ_WITHIN_S", 0.5)
    with _serving() as (port, server), _unread(port):
        started = time.perf_counter()
        server.stop()
        assert time.perf_counter() - started < 5


def test_answers_that_wait_for_their_clients_have_a_limit(monkeypatch):
    monkeypatch.setattr(web_server, "MAX_BYTES_UNDER_WAY", 3 * _LARGE + 1_000_000)
    with _serving() as (port, _), ExitStack() as clients:
        for _ in range(3):
            clients.enter_context(_unread(port))
        for path, status in (("/embed", 429), ("/predict", 200)):
            url = f"http://127.0.0.1:{port}{path}"
            assert requests.post(url, json={"nodes": [1]}, timeout=20).status_code == status


def test_a_large_body_is_answered_even_if_the_client_sends_all_of_it_first(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        header = _HEADER.replace(b"14", b"5000000")
        client.sendall(header + b"\r\n" + 5_000_000 * b" ")
        assert client.recv(12) == b"HTTP/1.1 413"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 421),
        ("localhost.evil.example:8000", 421),
        ("192.168.0.2", 421),
    ],
)
def test_only_names_of_this_machine_are_accepted(port, host, status):
    url, headers = f"http://127.0.0.1:{port}/predict", {"Host": host}
    found = requests.post(url, json={"nodes": [1]}, headers=headers, timeout=20)
    assert found.status_code == status
