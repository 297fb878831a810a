"""Damaged requests to a server: none fails with 5xx or takes a second, and memory stays flat."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

pytest.importorskip("ray.serve")  # an extra
from fastapi.testclient import TestClient

import raygnn
import raygnn.train
from raygnn.data.event_log import EventLog
from raygnn.inference.logged_rows import LoggedRows
from raygnn.serving.answers import Answers
from raygnn.serving.app import build_app
from raygnn.serving.event_intake import EventIntake
from raygnn.serving.messages import Answer, Question
from tests.fuzz.cases import cases
from tests.small_runs import small_bundle, small_config

_PER_CASE = 50
_WITHIN_S = 1.0  # of processor time: other work on the machine is not the server's
_GROWTH_BYTES = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server in this process, with a small model whose graph has tables."""
    folder = tmp_path_factory.mktemp("served")
    small_bundle(folder)
    uri = str(folder / "tables")
    raygnn.train.fit(small_config(folder, scaling__num_workers=0, data__uri=uri))
    answers = Answers(raygnn.load(folder / "run"), uri)

    async def ask(question: Question) -> Answer:
        return (await asyncio.to_thread(answers.answer, [question]))[0]

    async def check_alive() -> None:
        pass

    rows = LoggedRows.of(raygnn.load(folder / "run").open(uri))
    events = EventIntake(rows, EventLog.create(str(folder / "log")))
    app = build_app(ask, check_alive, events=events)
    with TestClient(app, raise_server_exceptions=False) as client:
        for path, content in _requests():  # compiles kernels
            assert client.post(path, json=content).status_code == 200
        yield client
    events.stop()


_BAD_TEXTS = [
    '"\\ud800"',
    '"\\u0000"',
    '""',
    *('"' + c * 300 + '"' for c in "üx"),
    '"' + "x" * 100_000 + '"',
]
_BAD_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "-0.0", "1e-400", "1.5", "-1"]
_LARGE = ["9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 400]
_OTHER = ["null", "true", "[]", "{}", "[null]", '{"a": 1}', "[[1]]", '["a", 1]', "[1, 2.5]"]
_DEEP = ["[" * n + "]" * n for n in (3, 50, 900)] + ['{"a":' * 900 + "1" + "}" * 900]
_LONG = ["[" + ",".join(["0.5"] * n) + "]" for n in (7, 10_000, 300_000)]
_VALUES = [*_BAD_TEXTS, *_BAD_NUMBERS, *_LARGE, *_OTHER, *_DEEP, *_LONG]


def _requests() -> list[tuple[str, dict[str, Any]]]:
    row = {"id": 1000, "x": [0.5] * 8}
    new = {"nodes": {"node": [row]}, "edges": {"node__to__node": [{"source": 1000, "target": 3}]}}
    return [
        ("/predict", {"nodes": [1, 2], "what": "probabilities"}),
        ("/explain", {"nodes": [1], "num_edges": 2, "num_columns": 1}),
        ("/embed", {"nodes": [3], "node_type": "node"}),
        ("/score", {"pairs": [[1, 2], [3, 4]], "score": "inner_product"}),
        ("/top_k", {"anchors": [1], "k": 3, "filter_known": True}),
        ("/predict", {"nodes": [1000], "new": new}),
        ("/top_k", {"anchors": [1000], "k": 2, "new": new}),
        ("/events", {**new, "key": "k"}),
    ]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, element in items:
            yield from _places(element, (*path, key))


def _damaged(content: Any, draw: random.Random) -> bytes:
    """The content as JSON, with a value, a key or bytes replaced, repeated or removed."""
    path = draw.choice([*_places(content)][1:])
    parent = content
    for key in path[:-1]:
        parent = parent[key]
    kind = draw.choice(["value"] * 5 + ["remove", "double", "rename", "bytes", "cut"])
    mark = "@@"
    if kind == "value":
        parent[path[-1]] = mark
    elif kind == "remove":
        del parent[path[-1]]
    elif kind == "double" and isinstance(parent, list):
        parent.extend(parent * draw.choice([1, 100, 5_000]))
    elif isinstance(parent, dict):
        parent[draw.choice(["", "ü", "k" * 5_000, "id", "source"])] = parent.pop(path[-1])
    text = json.dumps(content).replace(f'"{mark}"', draw.choice(_VALUES)).encode()
    if kind == "bytes":
        place = draw.randrange(len(text))
        return text[:place] + draw.randbytes(3) + text[place + 3 :]
    return text[: draw.randrange(len(text))] if kind == "cut" else text


def _memory_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


@pytest.mark.timeout(280)
@pytest.mark.parametrize("seed", cases(full=40, short=2))
def test_each_damaged_request_is_answered(client: TestClient, seed: int) -> None:
    draw = random.Random(seed)
    before = None
    for number in range(_PER_CASE):
        path, content = draw.choice(_requests())
        body = _damaged(content, draw)
        started = time.process_time()
        found = client.post(path, content=body)
        assert time.process_time() - started < _WITHIN_S, body[:300]
        assert found.status_code < 500, (path, body[:300], found.text)
        if found.status_code != 200:
            problems = found.json().get("refused") or found.json()["detail"]
            assert problems[0]["type"], body[:300]
            assert "x" * 101 not in found.text
            assert "k" * 101 not in found.text
        if number == _PER_CASE // 5:  # caches are filled
            before = _memory_bytes()
    assert before is not None
    assert _memory_bytes() - before < _GROWTH_BYTES
