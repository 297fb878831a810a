"""Middleware before the app: measures requests, checks tokens, reads bodies within limits."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Collection, Mapping
from typing import Any

from fastapi.responses import JSONResponse
from prometheus_client import Counter, Histogram
from prometheus_client.registry import CollectorRegistry

from raygnn.serving.web_server import READ_WITHIN_S

#: Of one request. A client sends more rows in several requests.
MAX_BODY_BYTES = 2 * 1024 * 1024
#: Of all requests whose bodies are being read.
_MAX_BYTES_UNDER_WAY = 64 * MAX_BODY_BYTES
_LATENCIES_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class RefusedRequestError(Exception):
    """A request that does not reach the app.

    Attributes:
        response: its answer.
    """

    def __init__(self, status: int, id: str, message: str, **headers: str) -> None:
        super().__init__(message)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.response = problem_response(id, message, status, {**named, "Connection": "close"})


def problem_response(
    id: str, message: str, status: int, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """One problem, in the form in which FastAPI reports several."""
    problem = {"loc": ["body"], "msg": message, "type": id}
    return JSONResponse({"detail": [problem]}, status, headers)


class Gate:
    """ASGI middleware; the app receives complete bodies of allowed clients only.

    Args:
        token: clients send it as `Authorization: Bearer TOKEN`; None lets all clients in.
        open_paths: need no token.
        routes: are measured each under its own name.
    """

    def __init__(
        self,
        app: Any,
        *,
        registry: CollectorRegistry,
        token: str | None,
        open_paths: Collection[str],
        routes: Collection[str],
    ) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._open_paths = frozenset(open_paths)
        self._routes = frozenset(routes)
        self._num_bytes_under_way = 0
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

        async def send_measured(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check_token(scope)
            body = await self._read_body(scope, receive)
        except RefusedRequestError as error:
            await error.response(scope, receive, send_measured)
        else:
            is_read = False

            async def receive_body() -> Any:
                nonlocal is_read
                if is_read:
                    return await receive()
                is_read = True
                return {"type": "http.request", "body": body, "more_body": False}

            await self._app(scope, receive_body, send_measured)
        finally:
            self._seconds.labels(route).observe(time.perf_counter() - started)
            self._requests.labels(route, status).inc()

    def _check_token(self, scope: Any) -> None:
        if self._token is None or scope["path"] in self._open_paths:
            return
        scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
            raise RefusedRequestError(
                401,
                "serve-unauthorized",
                "the request has no valid token. Send the header Authorization: Bearer TOKEN.",
                WWW_Authenticate="Bearer",
            )

    async def _read_body(self, scope: Any, receive: Any) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedRequestError(
                            400, "serve-body-incomplete", "the client went away."
                        )
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    self._num_bytes_under_way += len(chunk)
                    self._check_size(size)
                    chunks.append(chunk)
                    if not message.get("more_body"):
                        return b"".join(chunks)
        except TimeoutError as error:
            raise RefusedRequestError(
                408,
                "serve-body-late",
                f"the body did not arrive within {READ_WITHIN_S:g} s. Send the request again.",
            ) from error
        finally:
            self._num_bytes_under_way -= size

    def _check_size(self, size: int) -> None:
        if size > MAX_BODY_BYTES:
            raise RefusedRequestError(
                413,
                "serve-body-size",
                f"the body is larger than {MAX_BODY_BYTES:,} bytes. Send several requests.",
            )
        if self._num_bytes_under_way > _MAX_BYTES_UNDER_WAY:
            raise RefusedRequestError(
                429,
                "serve-overloaded",
                "the server is reading too many large requests. Send it again later.",
                Retry_After="1",
            )
