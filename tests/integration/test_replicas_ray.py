"""Replicas of several servers on one Ray leave each other alone, and end with their servers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("ray.serve")  # an extra
from ray import serve

from raygnn.errors import ResourceError
from raygnn.runtime.serving import ReplicaOptions, Replicas
from tests.errors import raises

pytestmark = [pytest.mark.ray, pytest.mark.cluster, pytest.mark.usefixtures("ray_session")]


def _named(name: str) -> Callable[[], Any]:
    """Makes a model that answers with its name, and that dies of the question "die"."""

    class Named:
        def answer(self, questions: Sequence[str]) -> list[str]:
            if "die" in questions:
                os._exit(1)
            return [f"{name}: {question}" for question in questions]

    return Named


@pytest.fixture(scope="module", autouse=True)
def _serve_ends() -> Iterator[None]:
    yield
    serve.shutdown()


@contextmanager
def _replicas(name: str, num_replicas: int = 1) -> Iterator[Replicas]:
    replicas = Replicas(_named(name), ReplicaOptions(num_replicas, num_cpus=0.1))
    yield replicas
    replicas.stop()


def test_a_second_server_changes_no_answer_of_the_first():
    async def answers(*asked: Replicas) -> list[Any]:
        return [await replicas.ask("hello") for replicas in asked]

    with _replicas("first") as first:
        with _replicas("second") as second:
            assert asyncio.run(answers(first, second)) == ["first: hello", "second: hello"]
        assert asyncio.run(answers(first)) == ["first: hello"]


def test_a_server_whose_application_is_deleted_ends_within_seconds():
    with _replicas("deleted") as replicas:
        (name,) = serve.status().applications
        serve.delete(name)
        with raises("serve-gone", name):
            replicas.wait_until_gone()
        with raises("serve-gone"):
            asyncio.run(replicas.ask("hello"))
        with raises("serve-gone"):
            asyncio.run(replicas.check_alive())


@pytest.mark.timeout(300)
def test_a_question_kills_two_replicas_and_no_other_question_fails():
    async def ask_all(replicas: Replicas) -> list[Any]:
        questions = [f"question {number}" for number in range(40)]
        questions.insert(20, "die")
        asked = [replicas.ask(question) for question in questions]
        return await asyncio.gather(*asked, return_exceptions=True)

    with _replicas("mortal", num_replicas=2) as replicas:
        found = asyncio.run(ask_all(replicas))
        died = found.pop(20)
        assert isinstance(died, ResourceError)
        assert died.id == "serve-replicas-died"
        assert found == [f"mortal: question {number}" for number in range(40)]


def test_replicas_of_a_server_that_was_killed_are_removed_by_the_next():
    @serve.deployment(ray_actor_options={"num_cpus": 0.1})
    class Left:
        pass

    serve.run(Left.bind(), name="raygnn-ffffffff-0", route_prefix=None)
    serve.run(Left.bind(), name="other", route_prefix=None)
    with _replicas("next"):
        names = set(serve.status().applications)
        assert "raygnn-ffffffff-0" not in names
        assert "other" in names
    serve.delete("other")
