"""The replicas of a server, replaced by those of another model without a failed request."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from raygnn.console import say, warn
from raygnn.errors import RaygnnError, ResourceError
from raygnn.serving.messages import Answer, AnsweredRows, Question

_LOOK_EVERY_S = 2.0
_RETRY_AFTER_S = 60.0
_DRAINED_WITHIN_S = 150.0  # longer than a request takes at most
_MAX_RECENT = 64
_MAX_SHADOWED = 64  # requests that the shadow answers at a time; it sees no further ones

_LOGGER = logging.getLogger(__name__)


class Asked(Protocol):
    """The replicas of a model, as `raygnn.runtime.serving.Replicas`."""

    async def ask(self, question: Any, /) -> Any: ...
    async def check_alive(self) -> None: ...
    def wait_until_gone(self) -> None: ...
    def stop(self) -> None: ...


TargetT = TypeVar("TargetT", bound=Hashable)


class _Lease:
    """Replicas, and the number of requests that they are answering."""

    def __init__(self, name: Hashable, replicas: Asked) -> None:
        self.name, self.replicas = name, replicas
        self.num_asked = 0


class CurrentReplicas:
    """Replicas that answer until others replace them.

    Args:
        name: what they serve; its text is for people.
    """

    def __init__(self, name: Hashable, replicas: Asked) -> None:
        self._lease = _Lease(name, replicas)
        self._changing = threading.Lock()
        self._recent: deque[tuple[Question, AnsweredRows]] = deque(maxlen=_MAX_RECENT)
        self._shadow: Asked | None = None
        self._keep: Callable[[Question, AnsweredRows], None] | None = None
        self._shadowed: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> Hashable:
        return self._lease.name

    def shadow(self, replicas: Asked, keep: Callable[[Question, AnsweredRows], None]) -> None:
        """Asks other replicas the same from now on; `keep` gets their answers. They delay none."""
        self._shadow, self._keep = replicas, keep

    async def ask(self, question: Question) -> Answer:
        with self._changing:
            lease = self._lease
            lease.num_asked += 1
        try:
            answer: Answer = await lease.replicas.ask(question)
        finally:
            with self._changing:
                lease.num_asked -= 1
        if isinstance(answer, AnsweredRows):
            self._recent.append((question, answer))
            if self._shadow is not None and len(self._shadowed) < _MAX_SHADOWED:
                task = asyncio.create_task(self._ask_shadow(question))
                self._shadowed.add(task)
                task.add_done_callback(self._shadowed.discard)
        return answer

    async def _ask_shadow(self, question: Question) -> None:
        assert self._shadow is not None
        try:
            answer = await self._shadow.ask(question)
        except RaygnnError as error:
            _LOGGER.warning("The shadow did not answer: %s", error)
            return
        if isinstance(answer, AnsweredRows) and self._keep is not None:
            await asyncio.to_thread(self._keep, question, answer)

    async def check_alive(self) -> None:
        await self._lease.replicas.check_alive()

    def wait_until_gone(self) -> None:
        """Blocks while the current replicas run. Raises the errors of `Replicas`."""
        while True:
            lease = self._lease
            try:
                lease.replicas.wait_until_gone()
            except ResourceError:
                if lease is self._lease:
                    raise

    async def check(self, replicas: Asked) -> str:
        """Asks other replicas the latest questions, and returns a sentence on their answers.

        Raises a ResourceError if one has no answer, or another number of rows.
        """
        num_different = 0
        recent = list(self._recent)
        for question, rows in recent:
            answer = await replicas.ask(question)
            if not isinstance(answer, AnsweredRows) or len(answer) != len(rows):
                cause = getattr(answer, "message", "it has other rows")
                raise ResourceError(
                    f"a recorded request has no such answer as before: {cause}. Check that the "
                    "model has the same task and outputs, and fits the graph. [serve-replacement]"
                )
            num_different += list(answer) != list(rows)
        return f"{len(recent)} recorded requests checked, {num_different} answers differ"

    def replace(self, name: Hashable, replicas: Asked) -> None:
        """Answers with other replicas from now on, and stops the ones before after their last
        answer.
        """
        with self._changing:
            before, self._lease = self._lease, _Lease(name, replicas)
        end_s = time.monotonic() + _DRAINED_WITHIN_S
        while before.num_asked and time.monotonic() < end_s:
            time.sleep(0.05)
        before.replicas.stop()

    def stop(self) -> None:
        self._lease.replicas.stop()
        if self._shadow is not None:
            self._shadow.stop()


class Follower(Generic[TargetT]):
    """Replaces replicas when another model or graph is wanted, in a thread.

    A model that does not start, or does not answer the latest requests, is reported and tried again
    after a minute.

    Args:
        wanted: what to serve, such as the name of `current`.
        start: starts replicas of it, and returns them with a function that is called before they
            answer.
    """

    def __init__(
        self,
        current: CurrentReplicas,
        wanted: Callable[[], TargetT],
        start: Callable[[TargetT], tuple[Asked, Callable[[], None]]],
    ) -> None:
        self._current, self._wanted, self._start = current, wanted, start
        self._stops = threading.Event()
        self._left_out: tuple[Hashable, float] = None, 0.0
        self._thread = threading.Thread(target=self._run, name="raygnn-follow-model", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stops.wait(_LOOK_EVERY_S):
            try:
                self.look()
            except Exception as error:
                if self._stops.is_set():  # so may be Ray, or the replicas
                    return
                if not isinstance(error, RaygnnError):
                    _LOGGER.exception("The model could not be replaced.")
                warn(f"{self._current.name} still answers: {error}")

    def look(self) -> None:
        """Replaces the replicas if another model is wanted."""
        wanted = self._wanted()
        left_out, until_s = self._left_out
        if wanted == self._current.name or (wanted == left_out and time.monotonic() < until_s):
            return
        self._left_out = wanted, time.monotonic() + _RETRY_AFTER_S
        replicas, prepare = self._start(wanted)
        try:
            # In a loop of its own, because that of the web server may end meanwhile.
            checked = asyncio.run(self._current.check(replicas))
            prepare()
        except BaseException:
            replicas.stop()
            raise
        self._current.replace(wanted, replicas)
        say(f"serving {wanted}: {checked}", "replaced", model=str(wanted))
