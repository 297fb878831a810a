"""The routes of a served model: each parses a question, asks a replica, and writes its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from pydantic import ValidationError
from pydantic.json_schema import models_json_schema

from raygnn import __version__
from raygnn.errors import DataError, ResourceError
from raygnn.serving import messages
from raygnn.serving.event_intake import EventIntake
from raygnn.serving.messages import Answer, Question, Refused
from raygnn.serving.records import Recorder
from raygnn.serving.web_server import Gate, problem_response

#: Asks a replica. Raises a ResourceError if no replica accepts or answers the question.
Ask: TypeAlias = Callable[[Question], Awaitable[Answer]]

_HEALTHY_WITHIN_S = 10.0
_LARGE_BYTES = 65_536
_LARGE_ROWS = 100
_MAX_PROBLEMS = 10
_MAX_SHOWN = 50  # letters of a name of the client
_STATUSES = {"serve-overloaded": 429, "serve-replicas-died": 500}  # other errors: 503
_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The server was started with a token, and the request has none."},
    413: {"description": "The body is too large. Send several requests."},
    421: {"description": "The header Host names another machine, and the server has no token."},
    422: {"description": "The request is wrong; `type` is the id of each problem."},
    429: {"description": "Overload: too many requests or bytes wait. Ask again later."},
    500: {"description": "The model failed on this request."},
    503: {"description": "No replica answered. Ask again later."},
}
_EVENTS = "/events"
_ROUTES = (
    ("/predict", messages.Predict, messages.Predictions),
    ("/explain", messages.Explain, messages.ExplainedRows),
    ("/embed", messages.Embed, messages.EmbeddingRows),
    ("/score", messages.Score, messages.PairScores),
    ("/top_k", messages.TopK, messages.Neighbors),
)


def build_app(
    ask: Ask,
    check_alive: Callable[[], Awaitable[Any]],
    token: str | None = None,
    *,
    checks_host: bool = False,
    events: EventIntake | None = None,
    recorder: Recorder | None = None,
) -> FastAPI:
    """The routes of a server; `/docs` is its OpenAPI page.

    `check_alive` returns when a replica has answered. `token`: required from clients, except for
    `/health` and the OpenAPI page; None allows all. `checks_host`: see `Gate`. `events`: of a
    server that follows a log; adds the route `/events`. `recorder`: keeps the answers.
    """
    app = FastAPI(
        title="raygnn",
        version=__version__,
        redoc_url=None,
        description="Predictions, embeddings, scores and neighbors of a trained model, under "
        "original ids.",
    )
    registry = CollectorRegistry()
    app.add_middleware(
        Gate,
        registry=registry,
        token=token,
        open_paths=("/health", "/docs", "/openapi.json"),
        routes=[*(path for path, *_ in _ROUTES), _EVENTS],
        checks_host=checks_host,
    )
    routes = [(*route, _handler(ask, route[1], recorder)) for route in _ROUTES]
    if events is not None:
        registry.register(_EventFigures(events))
        routes.append((_EVENTS, messages.Events, messages.Appended, _events_handler(events)))
    for path, question, answer, handler in routes:
        schema = {"schema": {"$ref": f"#/components/schemas/{question.__name__}"}}
        app.post(
            path,
            response_model=answer,
            responses=_ERRORS,
            summary=question.__doc__,
            openapi_extra={"requestBody": {"content": {"application/json": schema}}},
        )(handler)

    @app.get("/health", responses={503: _ERRORS[503]}, summary="Whether a replica answers.")
    async def health() -> Response:
        try:
            await asyncio.wait_for(check_alive(), _HEALTHY_WITHIN_S)
        except (ResourceError, TimeoutError) as error:
            message = str(error) or f"no replica answered within {_HEALTHY_WITHIN_S:g} s"
            return JSONResponse({"status": "unavailable", "detail": message}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", summary="Numbers and times of requests, as Prometheus reads them.")
    async def metrics() -> Response:
        monitored = b"" if recorder is None else await asyncio.to_thread(recorder.figures)
        return Response(generate_latest(registry) + monitored, media_type=CONTENT_TYPE_LATEST)

    without_questions = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _add_questions(without_questions(), has_token=token is not None)
        return without_questions()

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _handler(
    ask: Ask, kind: type[Question], recorder: Recorder | None
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(body: bytes) -> Response | Refused:
        # Large bodies and answers are converted in a thread, while the loop serves others.
        parse = partial(kind.parse, body)
        question = await asyncio.to_thread(parse) if len(body) > _LARGE_BYTES else parse()
        result = await ask(question)
        if isinstance(result, Refused):
            return result
        if recorder is not None:
            await asyncio.to_thread(recorder.record, kind.__name__.lower(), body, result)
        headers = {} if result.version is None else result.version.headers
        content = {"rows": result, "notes": result.notes}
        write = partial(JSONResponse, content, headers=headers)
        return await asyncio.to_thread(write) if len(result) > _LARGE_ROWS else write()

    return _reporting(answer, kind.__name__.lower())


def _events_handler(events: EventIntake) -> Callable[[Request], Awaitable[Response]]:
    async def append(body: bytes) -> Response:
        posted = await asyncio.to_thread(lambda: events.post(messages.Events.parse(body)))
        appended = await asyncio.wrap_future(posted)
        is_refused = appended.refused and not appended.accepted
        return JSONResponse(appended.model_dump(), 422 if is_refused else 200)

    return _reporting(append, "events")


def _reporting(
    answer: Callable[[bytes], Awaitable[Response | Refused]], name: str
) -> Callable[[Request], Awaitable[Response]]:
    """A route whose errors are statuses with problems."""

    async def route(request: Request) -> Response:
        try:
            result = await answer(await request.body())
            if isinstance(result, Response):
                return result
        except ValidationError as error:
            return JSONResponse({"detail": _problems(error)}, 422)
        except DataError as error:
            result = Refused(str(error), error.id or "")
        except ResourceError as error:
            status = _STATUSES.get(error.id or "", 503)
            return JSONResponse({"detail": str(error)}, status, {"Retry-After": "1"})
        except Exception:
            logging.getLogger(__name__).exception("A request failed.")
            result = Refused("the server failed; its log has the reason.", "serve-failed", False)
        return problem_response(result.id, result.message, 422 if result.is_question_wrong else 500)

    route.__name__ = name
    return route


class _EventFigures(Collector):
    """The state of the log, for Prometheus."""

    def __init__(self, events: EventIntake) -> None:
        self._events = events

    def collect(self) -> Iterator[Metric]:
        rows, late = self._events.rows, "Rows earlier than the latest time before them."
        yield GaugeMetricFamily("raygnn_log_position", "Rows of the event log.", rows.position)
        yield CounterMetricFamily("raygnn_late_events", late, rows.num_late)
        refused = "Rows of the log that do not fit."
        yield CounterMetricFamily("raygnn_refused_log_rows", refused, rows.num_refused)


def _problems(error: ValidationError) -> list[dict[str, Any]]:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return [
        {
            "loc": ["body", *(p if isinstance(p, int) else p[:_MAX_SHOWN] for p in problem["loc"])],
            "msg": problem["msg"],
            "type": problem["type"],
        }
        for problem in problems[:_MAX_PROBLEMS]
    ]


def _add_questions(schema: dict[str, Any], *, has_token: bool) -> None:
    _, definitions = models_json_schema(
        [(question, "validation") for question in (*(q for _, q, _ in _ROUTES), messages.Events)],
        ref_template="#/components/schemas/{model}",
    )
    components = schema["components"]
    components["schemas"].update(definitions["$defs"])
    if has_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"token": []}]
