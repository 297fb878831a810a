"""Batches of questions: which go together, and what an error or a client that leaves does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from raygnn.runtime.serving import MAX_BATCH_SIZE, QuestionBatches


class Replicas:
    """Answer a question with its negative, once `go` is set."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = asyncio.Event()

    async def __call__(self, questions: Sequence[int]) -> list[int]:
        self.batches.append(list(questions))
        await self.go.wait()
        if -1 in questions:
            raise ValueError("a wrong question")
        return [-question for question in questions]


def asked(batches: QuestionBatches, questions: Sequence[int]) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(batches.ask(question)) for question in questions]


async def until_sent() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("max_batches", [1, 3])
def test_questions_that_wait_together_are_one_batch(max_batches):
    async def run() -> None:
        replicas = Replicas()
        batches = QuestionBatches(replicas, max_batches)
        answers = asked(batches, range(100))
        await until_sent()
        num_waiting = 100 - max_batches
        assert (len(replicas.batches), batches.num_waiting) == (max_batches, num_waiting)
        replicas.go.set()
        assert await asyncio.gather(*answers) == [-question for question in range(100)]
        assert [q for batch in replicas.batches for q in batch] == list(range(100))
        sizes = [len(batch) for batch in replicas.batches]
        full, rest = divmod(num_waiting, MAX_BATCH_SIZE)
        assert sizes == [1] * max_batches + [MAX_BATCH_SIZE] * full + [rest]
        assert batches.num_waiting == 0

    asyncio.run(run())


def test_an_error_reaches_its_batch_alone():
    async def run() -> None:
        replicas = Replicas()
        batches = QuestionBatches(replicas, 1)
        answers = asked(batches, [5, 6, -1, 7])
        await until_sent()
        replicas.go.set()
        found = await asyncio.gather(*answers, return_exceptions=True)
        assert found[0] == -5
        assert [str(error) for error in found[1:]] == ["a wrong question"] * 3
        assert await batches.ask(8) == -8

    asyncio.run(run())


def test_a_client_that_leaves_stops_no_other():
    async def run() -> None:
        replicas = Replicas()
        batches = QuestionBatches(replicas, 1)
        first, second, third = asked(batches, [1, 2, 3])
        await until_sent()
        first.cancel()  # on its way
        second.cancel()  # waits
        replicas.go.set()
        assert await third == -3
        assert replicas.batches == [[1], [3]]

    asyncio.run(run())
