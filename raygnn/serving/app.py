"""The HTTP side of a served model: routes, their schema, statuses and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Histogram, generate_latest
from prometheus_client.registry import CollectorRegistry

from raygnn import __version__
from raygnn.errors import ResourceError
from raygnn.serving import messages
from raygnn.serving.messages import Answer, Question, Refused

#: Asks a replica; raises a ResourceError where none takes or answers the question.
Ask: TypeAlias = Callable[[Question], Awaitable[Answer]]

OVERLOADED = "serve-overloaded"
_HEALTHY_WITHIN_S = 10.0
_LATENCIES_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_ERRORS: dict[int | str, dict[str, Any]] = {
    429: {"description": "Overload: the server's queue is full. Ask again later."},
    503: {"description": "No replica answered. Ask again later."},
}
_ROUTES = (
    ("/predict", messages.Predict, messages.Predictions),
    ("/embed", messages.Embed, messages.EmbeddingRows),
    ("/score", messages.Score, messages.PairScores),
    ("/top_k", messages.TopK, messages.Neighbors),
)


def build_app(ask: Ask, is_alive: Callable[[], Awaitable[Any]]) -> FastAPI:
    """The routes of a server; `/docs` is its OpenAPI page.

    Args:
        is_alive: returns when a replica has answered.
    """
    app = FastAPI(
        title="raygnn",
        version=__version__,
        description="Predictions, embeddings, scores and neighbors of a trained model, under "
        "original ids.",
    )
    registry = CollectorRegistry()
    _measure(app, registry)
    for path, question, answer in _ROUTES:
        app.post(path, response_model=answer, responses=_ERRORS, summary=question.__doc__)(
            _handler(ask, question)
        )

    @app.get("/health", responses={503: _ERRORS[503]}, summary="Whether a replica answers.")
    async def health() -> Response:
        try:
            await asyncio.wait_for(is_alive(), _HEALTHY_WITHIN_S)
        except (ResourceError, TimeoutError) as error:
            message = str(error) or f"no replica answered within {_HEALTHY_WITHIN_S:g} s"
            return JSONResponse({"status": "unavailable", "detail": message}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", summary="Numbers and times of requests, as Prometheus reads them.")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _handler(ask: Ask, kind: type[Question]) -> Callable[..., Awaitable[Response]]:
    async def answer(question: Any) -> Response:
        try:
            answer = await ask(question)
        except ResourceError as error:
            status = 429 if error.id == OVERLOADED else 503
            return JSONResponse({"detail": str(error)}, status, {"Retry-After": "1"})
        if isinstance(answer, Refused):  # as FastAPI reports what does not fit the schema
            problem = {"loc": ["body"], "msg": answer.message, "type": answer.id}
            return JSONResponse({"detail": [problem]}, 422)
        return JSONResponse({"rows": answer})

    answer.__annotations__["question"] = kind  # what FastAPI reads of the body
    answer.__name__ = kind.__name__.lower()
    return answer


def _measure(app: FastAPI, registry: CollectorRegistry) -> None:
    """Counts and times the requests of an app."""
    requests = Counter(
        "raygnn_requests", "Requests that were answered.", ["route", "status"], registry=registry
    )
    seconds = Histogram(
        "raygnn_request_seconds",
        "Time from a request to its answer.",
        ["route"],
        buckets=_LATENCIES_S,
        registry=registry,
    )
    known = {path for path, *_ in _ROUTES}

    @app.middleware("http")
    async def measure(
        request: Request, proceed: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        started = time.perf_counter()
        response = await proceed(request)
        route = request.url.path if request.url.path in known else "other"
        seconds.labels(route).observe(time.perf_counter() - started)
        requests.labels(route, response.status_code).inc()
        return response
