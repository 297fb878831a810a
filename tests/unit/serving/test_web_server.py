"""The web server sends answers immediately, and closes connections whose requests are late."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("ray.serve")  # an extra
import requests

from raygnn.serving import web_server
from raygnn.serving.app import build_app
from raygnn.serving.web_server import WebServer, listen
from tests.errors import raises
from tests.wait_until import wait_until


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(web_server, "READ_WITHIN_S", 0.5)

    async def ask(question: Any) -> Any:
        return [{"id": 1, "prediction": 0}]

    async def check_alive() -> None:
        pass

    listening = listen("127.0.0.1", 0)
    server = WebServer(build_app(ask, check_alive), listening)
    yield listening.getsockname()[1]
    server.stop()


def test_accepted_connections_do_not_wait_for_acknowledgements():
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            with raises("serve-address", port):
                listen("127.0.0.1", port)


_HEADER = b"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Length: 14\r\n"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"POST /pre", b""),
        (_HEADER, b""),
        (_HEADER + b"\r\n", b"408 "),
        (_HEADER + b'\r\n{"nodes', b"408 "),
        (_HEADER + b'\r\n{"nodes": [1]}POST /pre', b"200 "),
        (b"GET / HTTP/1.1\r\nLong: " + 80_000 * b"a", b""),
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
