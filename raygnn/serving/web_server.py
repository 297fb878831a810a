"""A web server in a thread, which closes connections whose requests do not arrive."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from raygnn.errors import ResourceError

#: Within it a client sends the header of a request, and within it again the body.
READ_WITHIN_S = 15.0
_MAX_HEADER_BYTES = 65_536


def listen(host: str, port: int) -> socket.socket:
    """Takes a port, before anything is started.

    Raises:
        ResourceError: it is taken, or the address does not belong to this machine.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # asyncio does so for sockets that it makes itself. Else the body of an answer waits up to
        # 40 ms for the client to acknowledge its header.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise ResourceError(
            f"--host={host} --port={port} is invalid: {error}. Set another one.",
            id="serve-address",
        ) from error


class WebServer:
    """Serves an ASGI app on a listening socket, in a thread, until it is stopped."""

    def __init__(self, app: Any, listening: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="raygnn-serve", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Answers the requests under way, then closes the socket."""
        self._server.should_exit = True
        self._thread.join()


class _Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    _deadline: asyncio.TimerHandle | None = None
    _num_header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel()  # the header is complete; the app reads the body
            return
        self._await_header()
        self._num_header_bytes += len(data)
        if self._num_header_bytes > _MAX_HEADER_BYTES:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def _await_header(self) -> None:
        if self._deadline is None:
            self._num_header_bytes = 0
            self._deadline = self.loop.call_later(READ_WITHIN_S, self.transport.close)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
