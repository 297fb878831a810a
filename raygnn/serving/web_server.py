"""A web server in a thread, with connection deadlines, tokens, and body limits."""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
import threading
import time
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import Any

import uvicorn
from fastapi.responses import JSONResponse
from prometheus_client import Counter, Histogram
from prometheus_client.registry import CollectorRegistry
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from raygnn.errors import ResourceError

#: Within it a client sends the header of a request, and within it again the body.
READ_WITHIN_S = 15.0
#: Within it a client receives an answer.
WRITE_WITHIN_S = 60.0
_MAX_HEADER_BYTES = 65_536


def listen(host: str, port: int) -> socket.socket:
    """Binds a port, before anything starts. Raises a ResourceError if it is taken or foreign."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # asyncio does so for sockets that it makes itself. Else the body of an answer waits up to
        # 40 ms for the client to acknowledge its header.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise ResourceError(
            f"--host={host} --port={port} is invalid: {error}. Set another one. [serve-address]"
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
        """Answers current requests, then closes the socket. Clients have `READ_WITHIN_S` left to
        receive their answers.
        """
        self._server.should_exit = True
        self._thread.join()


class _Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    _deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None
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
        self._cancel_write()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(WRITE_WITHIN_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.cycle.response_complete:
            self._cancel_write()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.flow.write_paused:
            self._cancel_write()

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(READ_WITHIN_S, self._abort_unread)

    def _abort_unread(self) -> None:
        if self.flow.write_paused or self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def _await_header(self) -> None:
        if self._deadline is None:
            self._num_header_bytes = 0
            self._deadline = self.loop.call_later(READ_WITHIN_S, self.transport.close)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_write(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


#: Limit of one request. A client sends more rows in several requests.
MAX_BODY_BYTES = 2 * 1024 * 1024
#: Limit for all requests whose bodies are being read, and for all answers that are being sent.
MAX_BYTES_UNDER_WAY = 64 * MAX_BODY_BYTES
#: A larger body is read up to this limit, because many clients read no answer before they have sent
#: the body.
_MAX_DISCARDED_BYTES = 32 * MAX_BODY_BYTES
_CHUNK_BYTES = 65_536
_LATENCIES_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


#: Requests that do not reach the app, by id: status and message.
_REFUSALS = {
    "serve-host": (
        421,
        "the header Host names another machine. Use http://127.0.0.1, or start the server with "
        "--token.",
    ),
    "serve-unauthorized": (401, "no valid token. Send the header Authorization: Bearer TOKEN."),
    "serve-body-incomplete": (400, "the client went away."),
    "serve-body-late": (408, f"no body within {READ_WITHIN_S:g} s. Send the request again."),
    "serve-body-size": (413, f"the body has over {MAX_BODY_BYTES:,} bytes. Send several requests."),
    "serve-overloaded": (429, "too many bytes are under way. Send the request again later."),
}


class RefusedRequestError(Exception):
    """A request that does not reach the app, and its answer."""

    def __init__(self, id: str, **headers: str) -> None:
        status, message = _REFUSALS[id]
        super().__init__(message)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.response = problem_response(id, message, status, {**named, "Connection": "close"})


def problem_response(
    id: str, message: str, status: int, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """One problem, in FastAPI's form of several."""
    problem = {"loc": ["body"], "msg": message, "type": id}
    return JSONResponse({"detail": [problem]}, status, headers)


class Gate:
    """ASGI middleware; the app receives only complete bodies of allowed clients. Bodies and answers
    under way have a limit.

    Args:
        token: clients send it as `Authorization: Bearer TOKEN`; None allows all clients.
        open_paths: paths without a token.
        routes: measured separately by name.
        checks_host: accepts only names of this machine in the header Host. Otherwise a page in a
            browser could read answers, once its own name points to this machine.
    """

    def __init__(
        self,
        app: Any,
        *,
        registry: CollectorRegistry,
        token: str | None,
        open_paths: Collection[str],
        routes: Collection[str],
        checks_host: bool = False,
    ) -> None:
        self._app = app
        self._checks_host = checks_host
        self._token = None if token is None else token.encode()
        self._open_paths = frozenset(open_paths)
        self._routes = frozenset(routes)
        self._num_bytes_under_way = self._num_bytes_sending = 0
        self._requests = Counter(
            "raygnn_requests",
            "Requests that were answered.",
            ["route", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "raygnn_request_seconds",
            "Time from a request to its answer.",
            ["route"],
            buckets=_LATENCIES_S,
            registry=registry,
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        route = scope["path"] if scope["path"] in self._routes else "other"
        try:
            self._check_host(scope)
            self._check_token(scope)
            body = await self._read_body(scope, receive)
            start, answer = await self._ask_app(scope, body, receive)
            self._check_unread(len(answer))
            status = start["status"]
            await self._send(send, start, answer)
        except RefusedRequestError as error:
            status = error.response.status_code
            await error.response(scope, receive, send)
        finally:
            self._seconds.labels(route).observe(time.perf_counter() - started)
            self._requests.labels(route, status).inc()

    async def _ask_app(self, scope: Any, body: bytes, receive: Any) -> tuple[Any, bytes]:
        """The start message and the complete body of the app's answer."""
        is_read, messages = False, list[Any]()

        async def receive_body() -> Any:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def collect(message: Any) -> None:
            messages.append(message)

        await self._app(scope, receive_body, collect)
        start, *parts = messages
        return start, b"".join(part.get("body", b"") for part in parts)

    async def _send(self, send: Any, start: Any, answer: bytes) -> None:
        """Sends an answer in chunks, so that the connection buffers few bytes of it."""
        size = len(answer)
        self._num_bytes_sending += size
        try:
            await send(start)
            for begin in range(0, max(size, 1), _CHUNK_BYTES):
                end = begin + _CHUNK_BYTES
                chunk = {"type": "http.response.body", "body": answer[begin:end]}
                await send({**chunk, "more_body": end < size})
        finally:
            self._num_bytes_sending -= size

    def _check_unread(self, size: int) -> None:
        if self._num_bytes_sending + size > MAX_BYTES_UNDER_WAY:
            raise RefusedRequestError("serve-overloaded", Retry_After="1")

    def _check_host(self, scope: Any) -> None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        name = re.sub(r":\d*$", "", host).strip("[]")
        if self._checks_host and name and not is_loopback(name):
            raise RefusedRequestError("serve-host")

    def _check_token(self, scope: Any) -> None:
        if self._token is None or scope["path"] in self._open_paths:
            return
        scheme, _, token = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            raise RefusedRequestError("serve-unauthorized", WWW_Authenticate="Bearer")

    async def _read_body(self, scope: Any, receive: Any) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                is_last = False
                while not is_last and size <= _MAX_DISCARDED_BYTES:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedRequestError("serve-body-incomplete")
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size <= MAX_BODY_BYTES:
                        chunks.append(chunk)
                        self._num_bytes_under_way += len(chunk)
                        self._check_under_way()
                    is_last = not message.get("more_body")
        except TimeoutError as error:
            if size <= MAX_BODY_BYTES:
                raise RefusedRequestError("serve-body-late") from error
        finally:
            self._num_bytes_under_way -= sum(map(len, chunks))
        if size > MAX_BODY_BYTES:
            raise RefusedRequestError("serve-body-size")
        return b"".join(chunks)

    def _check_under_way(self) -> None:
        if self._num_bytes_under_way > MAX_BYTES_UNDER_WAY:
            raise RefusedRequestError("serve-overloaded", Retry_After="1")


def is_loopback(host: str) -> bool:
    """Whether a name or address is that of this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
