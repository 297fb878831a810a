"""The socket of a server sends the body of an answer at once."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("ray.serve")  # an extra
from raygnn.runtime.serving import ServeOptions, listen
from tests.errors import raises


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def test_accepted_connections_do_not_wait_for_acknowledgements():
    port = _free_port()
    with (
        listen(ServeOptions(port=port)) as listening,
        socket.create_connection(("127.0.0.1", port)),
    ):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        with raises("serve-address", port):
            listen(ServeOptions(port=port))
