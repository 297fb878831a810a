"""Batches of the questions that wait at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

MAX_BATCH_SIZE = 32


class QuestionBatches:
    """Sends questions in batches of those that came while the batches before were under way.

    The server makes the batches, because a call of a replica costs as much as an answer.

    Args:
        send: answers the questions of a batch, in order.
        max_batches: under way at a time.
    """

    def __init__(
        self, send: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]], max_batches: int
    ) -> None:
        self._send, self._max_batches = send, max_batches
        self._waiting: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._sent: set[asyncio.Task[None]] = set()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def ask(self, question: Any) -> Any:
        """Raises the errors of the batch."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        self._start()
        return await answer

    def _start(self) -> None:
        while self._waiting and len(self._sent) < self._max_batches:
            size = min(len(self._waiting), MAX_BATCH_SIZE)
            batch = [self._waiting.popleft() for _ in range(size)]
            task = asyncio.create_task(self._answer(batch))
            self._sent.add(task)
            task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._sent.discard(task)
        self._start()

    async def _answer(self, batch: Sequence[tuple[Any, asyncio.Future[Any]]]) -> None:
        asked = [(question, answer) for question, answer in batch if not answer.done()]
        if not asked:  # the clients have gone
            return
        try:
            answers = await self._send([question for question, _ in asked])
        except Exception as error:  # noqa: BLE001, each question raises it
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for (_, answer), value in zip(asked, answers, strict=True):
                if not answer.done():
                    answer.set_result(value)
