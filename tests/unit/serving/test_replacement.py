"""Replicas are replaced under load without a failed request; what does not answer is left out."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")  # an extra
from fastapi.testclient import TestClient

from raygnn.errors import ResourceError
from raygnn.serving.app import build_app
from raygnn.serving.messages import AnsweredRows, Predict, Question, Refused, Version
from raygnn.serving.records import Recorder, read_records
from raygnn.serving.replacement import CurrentReplicas, Follower
from tests.wait_until import wait_until


class Pretended:
    """Replicas that answer with their name after some milliseconds, until they are stopped."""

    def __init__(self, name: str, answer: Any = None, wait_s: float = 0.002) -> None:
        self.name, self._answer, self._wait_s = name, answer, wait_s
        self.is_stopped = False
        self.num_asked = 0

    async def ask(self, question: Question) -> Any:
        self.num_asked += 1
        await asyncio.sleep(self._wait_s)
        if self.is_stopped:
            raise ResourceError("stopped", id="serve-gone")
        rows = [{"id": id, "prediction": self.name} for id in question.items]
        if self._answer is not None:
            return self._answer
        return AnsweredRows(rows, version=Version(self.name, "graph"))

    async def check_alive(self) -> None: ...

    def wait_until_gone(self) -> None: ...

    def stop(self) -> None:
        self.is_stopped = True


def client(current: CurrentReplicas) -> TestClient:
    return TestClient(build_app(current.ask, current.check_alive))


def test_no_request_fails_while_replicas_are_replaced():
    current = CurrentReplicas("0", Pretended("0"))
    names: list[str] = []

    async def ask(number: int) -> None:
        for _ in range(40):
            (row,) = await current.ask(Predict(nodes=[number]))
            names.append(row["prediction"])

    async def ask_all() -> None:
        await asyncio.gather(*(ask(number) for number in range(8)))

    replaced = [Pretended(str(number)) for number in range(1, 9)]

    def replace() -> None:
        for each in replaced:
            current.replace(each.name, each)

    thread = threading.Thread(target=replace)
    thread.start()
    asyncio.run(ask_all())
    thread.join()
    assert len(names) == 320
    assert current.name == names[-1] == "8"
    assert [each.is_stopped for each in replaced] == [True] * 7 + [False]


def test_a_follower_replaces_what_answers_the_latest_requests(capsys):
    wanted, prepared = ["a"], list[str]()
    broken = Refused("no such label", "model-schema")
    known = {
        "b": Pretended("b", broken),
        "c": Pretended("c", AnsweredRows([])),
        "d": Pretended("d"),
    }

    def start(name: str) -> tuple[Pretended, Any]:
        return known[name], lambda: prepared.append(name)

    current = CurrentReplicas("a", first := Pretended("a"))
    follower = Follower(current, lambda: wanted[0], start)
    try:
        with client(current) as asking:
            for _ in range(3):
                assert asking.post("/predict", json={"nodes": [1, 2]}).status_code == 200
            for name in known:
                wanted[0] = name
                wait_until(lambda name=name: known[name].is_stopped or current.name == name)
            found = asking.post("/predict", json={"nodes": [1]})
            assert found.headers["Raygnn-Model"] == "d"
    finally:
        follower.stop()
    assert [each.is_stopped for each in (first, *known.values())] == [True, True, True, False]
    assert prepared == ["d"]
    told = capsys.readouterr().out
    assert told.count("serve-replacement") == 2
    assert "no such label" in told
    assert "serving d: 3 recorded requests checked, 3 answers differ" in told


def test_replicas_are_checked_after_the_web_server_has_ended():
    current = CurrentReplicas("a", Pretended("a"))
    with client(current) as asking:
        asking.post("/predict", json={"nodes": [1]})
    found = asyncio.run(current.check(Pretended("b")))
    assert found == "1 recorded requests checked, 1 answers differ"


def test_a_shadow_is_asked_the_same_and_its_failures_are_not_those_of_the_answer(tmp_path: Path):
    current, shadow = CurrentReplicas("a", Pretended("a")), Pretended("b")
    kept = Recorder(str(tmp_path / "answers.jsonl.shadow"))
    current.shadow(shadow, kept.record_question)
    with client(current) as asking:
        for stopped in (False, True):
            shadow.is_stopped = stopped
            found = asking.post("/predict", json={"nodes": [1]})
            assert found.json()["rows"] == [{"id": 1, "prediction": "a"}]
            wait_until(lambda num=1 + stopped: shadow.num_asked == num and not current._shadowed)
    (record,) = read_records(str(tmp_path / "answers.jsonl.shadow"))
    assert record.question == Predict(nodes=[1])
    assert (record.rows, record.version.model) == ([{"id": 1, "prediction": "b"}], "b")
    kept.close()
