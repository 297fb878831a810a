"""The HTTP side of a server, without a model and without Ray: schema, statuses, metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("fastapi")  # an extra
from fastapi.testclient import TestClient

from raygnn.data.plain_json import MAX_ELEMENTS
from raygnn.errors import ResourceError
from raygnn.serving.app import build_app
from raygnn.serving.messages import (
    AnsweredRows,
    Predict,
    Question,
    Refused,
    Score,
    TopK,
)
from raygnn.serving.web_server import MAX_BODY_BYTES


def client(answer: Callable[[Question], Any], alive: Exception | None = None) -> TestClient:
    async def ask(question: Question) -> Any:
        found = answer(question)
        if isinstance(found, Exception):
            raise found
        return found

    async def is_alive() -> None:
        if alive is not None:
            raise alive

    return TestClient(build_app(ask, is_alive))


def test_a_request_becomes_a_question_and_its_answer_the_rows():
    asked = []

    def answer(question: Question) -> Any:
        asked.append(question)
        return AnsweredRows([{"id": 1, "prediction": "a", "probability": 0.5}], ["a note"])

    found = client(answer).post("/predict", json={"nodes": [1]})
    assert found.status_code == 200
    rows = [{"id": 1, "prediction": "a", "probability": 0.5}]
    assert found.json() == {"rows": rows, "notes": ["a note"]}
    assert asked == [Predict(nodes=[1])]
    client(answer).post("/score", json={"pairs": [["a", 1]], "score": "inner_product"})
    client(answer).post("/top_k", json={"anchors": ["a"], "k": 3, "filter_known": True})
    assert asked[1:] == [
        Score(pairs=[("a", 1)], score="inner_product"),
        TopK(anchors=["a"], k=3, filter_known=True),
    ]


@pytest.mark.parametrize(
    ("answer", "status", "id"),
    [
        (Refused("['x'] are not nodes [infer-ids-unknown]", "infer-ids-unknown"), 422, None),
        (Refused("the model failed", "serve-failed", is_question_wrong=False), 500, None),
        (RuntimeError("unexpected"), 500, "serve-failed"),
        (ResourceError("busy", id="serve-overloaded"), 429, "serve-overloaded"),
        (ResourceError("gone", id="serve-no-replica"), 503, "serve-no-replica"),
        (ResourceError("", id="serve-replicas-died"), 500, "serve-replicas-died"),
    ],
)
def test_a_question_without_an_answer_gets_status_reason_and_id(answer, status, id):
    found = client(lambda question: answer).post("/predict", json={"nodes": [1]})
    assert found.status_code == status
    detail = found.json()["detail"]
    if isinstance(answer, Refused):
        assert detail == [{"loc": ["body"], "msg": answer.message, "type": answer.id}]
    elif isinstance(answer, ResourceError):
        assert id in detail
        assert int(found.headers["retry-after"]) >= 1
    else:
        assert detail[0]["type"] == id


def test_health_asks_a_replica():
    assert client(lambda question: AnsweredRows([])).get("/health").json() == {"status": "ok"}
    dead = client(
        lambda question: AnsweredRows([]), ResourceError("gone", id="serve-no-replica")
    ).get("/health")
    assert dead.status_code == 503
    assert "serve-no-replica" in dead.json()["detail"]


def test_the_page_shows_schema_and_statuses_of_each_route():
    asking = client(lambda question: AnsweredRows([]))
    assert asking.get("/docs").status_code == 200
    schema = asking.get("/openapi.json").json()
    for path in ("/predict", "/explain", "/embed", "/score", "/top_k"):
        responses = schema["paths"][path]["post"]["responses"]
        assert {"200", "422", "429", "503"} <= set(responses)
        assert "$ref" in responses["200"]["content"]["application/json"]["schema"]
    assert schema["components"]["schemas"]["TopK"]["properties"]["k"]["minimum"] == 1


def test_metrics_count_requests_by_route_and_status():
    asking = client(lambda question: Refused("no", "infer-ids-unknown"))
    for _ in range(3):
        asking.post("/predict", json={"nodes": [1]})
    asking.get("/nowhere")
    lines = asking.get("/metrics").text.splitlines()
    assert 'raygnn_requests_total{route="/predict",status="422"} 3.0' in lines
    assert 'raygnn_requests_total{route="other",status="404"} 1.0' in lines
    assert 'raygnn_request_seconds_count{route="/predict"} 3.0' in lines


def test_a_token_is_asked_for_but_not_by_health_and_page():
    async def ask(question: Question) -> Any:
        return AnsweredRows([{"id": 1, "prediction": 0}])

    async def check_alive() -> None:
        pass

    asking = TestClient(build_app(ask, check_alive, token="0123456789abcdef"))
    for headers in ({}, {"Authorization": "Bearer 0123456789abcdeX"}, {"Authorization": b"\xe9"}):
        found = asking.post("/predict", json={"nodes": [1]}, headers=headers)
        assert (found.status_code, found.json()["detail"][0]["type"]) == (401, "serve-unauthorized")
        assert found.headers["www-authenticate"] == "Bearer"
    assert asking.get("/metrics").status_code == 401
    for scheme in ("Bearer", "bearer"):
        allowed = {"Authorization": f"{scheme} 0123456789abcdef"}
        assert asking.post("/predict", json={"nodes": [1]}, headers=allowed).status_code == 200
    assert asking.get("/health").status_code == asking.get("/docs").status_code == 200
    schema = asking.get("/openapi.json").json()
    assert schema["security"] == [{"token": []}]


def _deep(levels: int) -> bytes:
    return b'{"nodes": ' + b"[" * levels + b"]" * levels + b"}"


def _row(value: bytes) -> bytes:
    return b'{"nodes": [1], "new": {"nodes": {"a": [{"x": ' + value + b"}]}}}"


_LIMIT = "serve-request"


@pytest.mark.parametrize(
    ("path", "body", "id"),
    [
        ("/predict", b"{}", "missing"),
        ("/predict", b'{"nodes": []}', "too_short"),
        ("/predict", b'{"nodes": [1, "a"]}', "int_type"),
        ("/predict", b'{"nodes": [1.5]}', "int_type"),
        ("/predict", b'{"nodes": [true]}', "int_type"),
        ("/predict", b'{"nodes": [null]}', "int_type"),
        ("/predict", b'{"nodes": [1], "what": "guesses"}', "literal_error"),
        ("/predict", b'{"nodes": [1], "node": [2]}', "extra_forbidden"),
        ("/predict", b'{"nodes": [1], "new": {"nodes": {"a": [[]]}}}', "dict_type"),
        ("/predict", b"[1]", "model_type"),
        ("/score", b'{"pairs": [[1]]}', "missing"),
        ("/score", b'{"pairs": [[1, 2, 3]]}', "too_long"),
        ("/top_k", b'{"anchors": [1], "k": 0}', "greater_than_equal"),
        ("/predict", b"", _LIMIT),
        ("/predict", b"\xff", _LIMIT),
        ("/predict", _deep(10), _LIMIT),
        ("/predict", _deep(900), _LIMIT),
        ("/predict", _deep(100_000), _LIMIT),
        ("/predict", b'{"nodes": [9223372036854775808]}', _LIMIT),
        ("/predict", b'{"nodes": [' + b"9" * 5000 + b"]}", _LIMIT),
        ("/predict", b'{"nodes": ["\\ud800"]}', _LIMIT),
        ("/predict", b'{"nodes": ["' + b"a" * 1001 + b'"]}', _LIMIT),
        ("/predict", b'{"nodes": [' + b"1," * MAX_ELEMENTS + b"1]}", _LIMIT),
        ("/predict", b'{"nodes": [1], "' + b"a" * 1001 + b'": 1}', _LIMIT),
        ("/predict", _row(b"NaN"), _LIMIT),
        ("/predict", _row(b"[1, -Infinity]"), _LIMIT),
        ("/predict", _row(b"[1e999]"), _LIMIT),
        ("/predict", _row(b"-9223372036854775809"), _LIMIT),
        ("/predict", _row(b"{}"), _LIMIT),
        ("/predict", _row(b"[[1]]"), _LIMIT),
        ("/predict", _row(b"[" + b"0," * MAX_ELEMENTS + b"0]"), _LIMIT),
    ],
)
def test_what_breaks_the_schema_or_a_limit_is_refused_before_it_is_asked(path, body, id):
    def answer(question: Question) -> Any:
        raise AssertionError("asked")

    found = client(answer).post(path, content=body)
    assert found.status_code == 422
    problem = found.json()["detail"][0]
    assert (problem["loc"][0], problem["type"]) == ("body", id)
    assert len(found.content) < 1_000


def test_a_question_has_a_bounded_number_of_neighbors():
    asking = client(lambda question: AnsweredRows([]))
    assert asking.post("/top_k", json={"anchors": [1, 2], "k": 50_000}).status_code == 200
    found = asking.post("/top_k", json={"anchors": [1, 2], "k": 50_001})
    assert found.status_code == 422
    assert "100,002" in found.json()["detail"][0]["msg"]


def test_a_body_is_read_up_to_a_limit_and_no_long_name_in_it_is_shown():
    asking = client(lambda question: AnsweredRows([]))
    found = asking.post("/predict", content=b" " * (MAX_BODY_BYTES + 1))
    assert (found.status_code, found.json()["detail"][0]["type"]) == (413, "serve-body-size")
    found = asking.post("/predict", json={"nodes": [1], "a" * 900: 1})
    assert found.status_code == 422
    assert "a" * 101 not in found.text
