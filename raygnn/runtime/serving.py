"""Replicas of a model on Ray Serve, as an application that ends with its server, and batches of
questions for them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException

from raygnn.errors import ConfigError, ResourceError
from raygnn.runtime.ray_internals import internal

_APP_PREFIX = "raygnn"
_MODEL = "Model"
# More than a replica ever gets. After a replica was full, Ray Serve 2.60 hands out four requests a
# second, even when it is idle again.
_NEVER_FULL = 1_000
# A replica that died is replaced within it; a graph that is opened anew is in the page cache.
_ANSWERED_WITHIN_S = 120.0
_MAX_KILLED_REPLICAS = 2
_RETRY_AFTER_S = 0.1
_LOOK_EVERY_S = 2.0
# A line for each request costs more than a precomputed answer.
_LOGGING = {"log_level": "WARNING", "enable_access_log": False}


class Answering(Protocol):
    def answer(self, questions: Sequence[Any], /) -> Sequence[Any]: ...


@dataclass(frozen=True)
class ReplicaOptions:
    """Number and resources of the replicas. While `max_queued` requests wait, more are refused."""

    num_replicas: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    max_queued: int = 200

    def check(self) -> None:
        for option, value, low, high in (
            ("--replicas", self.num_replicas, 1, 10_000),
            ("--cpus", self.num_cpus, 0.01, 10_000),
            ("--max-queued", self.max_queued, 1, 1_000_000),
        ):
            if not low <= value <= high:
                raise ConfigError(
                    f"{option}={value!r} is invalid. Set {low} to {high}. [serve-option]"
                )


class Replicas:
    """The replicas of one server, independent of the cluster's other servers.

    Ray must be connected. `make` builds the model of a replica. `are_beside`: other replicas of the
    server run until these answer. Raises a ResourceError if the cluster has no room for the
    replicas, or they do not start.
    """

    def __init__(
        self, make: Callable[[], Answering], options: ReplicaOptions, *, are_beside: bool = False
    ) -> None:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        if not ray.is_initialized():  # Ray Serve would start another Ray after the server's end
            raise ResourceError(
                "the replicas cannot be started: Ray has ended. Start it again. [serve-start]"
            )
        try:
            serve.start(proxy_location="Disabled", logging_config=_LOGGING)
            _delete_abandoned()
        except (RayError, RuntimeError, TimeoutError) as error:
            raise ResourceError(
                f"Ray Serve cannot be started: {error}. See the logs in Ray's dashboard, or start "
                "Ray again. [serve-start]"
            ) from error
        _check_room(options, ray.available_resources if are_beside else ray.cluster_resources)
        model = serve.deployment(
            _Model,
            name=_MODEL,
            num_replicas=options.num_replicas,
            ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.num_gpus},
            max_ongoing_requests=_NEVER_FULL,
            health_check_period_s=2.0,
            logging_config=_LOGGING,
        ).bind(make)
        job_id = ray.get_runtime_context().get_job_id()
        self._app = f"{_APP_PREFIX}-{job_id}-{secrets.token_hex(4)}"
        try:
            self._handle = serve.run(model, name=self._app, route_prefix=None)
        except RuntimeError as error:
            serve.delete(self._app)
            raise ResourceError(
                f"the model cannot be served: {error}. See the log of the replica. [serve-start]"
            ) from error
        self._is_stopping = threading.Event()
        self._is_gone = threading.Event()
        self._retries = asyncio.Lock()
        self._max_queued = options.max_queued
        self._batches = QuestionBatches(self._ask, options.num_replicas)
        threading.Thread(target=self._watch, name="raygnn-serve-watch", daemon=True).start()

    async def ask(self, question: Any) -> Any:
        """Asks a replica, and another one if it dies, because questions change nothing.

        Retries run one at a time, so a request that kills replicas does not affect others at its
        second attempt. Raises a ResourceError if too many requests wait, two replicas died, or none
        answers.
        """
        if self._batches.num_waiting >= self._max_queued:
            raise ResourceError(
                "the server is overloaded: as many requests as --max-queued wait. Ask again later, "
                "or start it with more --replicas. [serve-overloaded]"
            )
        try:
            return await self._batches.ask(question)
        except RayActorError:
            async with self._retries:
                await asyncio.sleep(_RETRY_AFTER_S)
                try:
                    (answer,) = await self._ask([question])
                    return answer
                except RayActorError as error:
                    raise ResourceError(
                        f"the request was not answered: {_MAX_KILLED_REPLICAS} replicas died while "
                        "they computed it. See their logs in Ray's dashboard. [serve-replicas-died]"
                    ) from error

    async def _ask(self, questions: Sequence[Any]) -> Sequence[Any]:
        end_s = time.monotonic() + _ANSWERED_WITHIN_S
        while True:
            self._check_not_gone()
            try:
                answers: Sequence[Any] = await self._while_there(self._handle.remote(questions))
                return answers
            except DeploymentUnavailableError as error:
                if time.monotonic() > end_s:
                    raise _no_replica(error) from error
            await asyncio.sleep(_RETRY_AFTER_S)

    async def _while_there(self, response: Awaitable[Any]) -> Any:
        pending = asyncio.ensure_future(response)
        try:
            while not (await asyncio.wait({pending}, timeout=_LOOK_EVERY_S))[0]:
                self._check_not_gone()
            return pending.result()
        finally:
            pending.cancel()

    async def check_alive(self) -> None:
        """Returns when a replica has answered. Raises a ResourceError if none does."""
        try:
            await self._while_there(self._handle.ping.remote())
        except (RayActorError, RayServeException) as error:
            raise _no_replica(error) from error

    def wait_until_gone(self) -> None:
        """Blocks while the application exists. Raises a ResourceError when it has been deleted."""
        self._is_gone.wait()
        self._check_not_gone()

    def stop(self) -> None:
        self._is_stopping.set()
        if not self._is_gone.is_set():
            serve.delete(self._app)

    def _watch(self) -> None:
        while not self._is_stopping.wait(_LOOK_EVERY_S):
            try:
                serve.get_app_handle(self._app)  # far cheaper than `serve.status`
            except RayServeException:
                if not self._is_stopping.is_set():
                    self._is_gone.set()
                return
            except RayActorError:  # the controller is being restarted
                continue

    def _check_not_gone(self) -> None:
        if self._is_gone.is_set():
            raise ResourceError(
                f"the server no longer has a model: its application {self._app!r} was deleted from "
                "Ray Serve. Start the server again. [serve-gone]"
            )


class _Model:
    def __init__(self, make: Callable[[], Answering]) -> None:
        self._answers = make()
        self._answering = asyncio.Lock()

    async def __call__(self, questions: Sequence[Any]) -> Sequence[Any]:
        async with self._answering:
            return await asyncio.to_thread(self._answers.answer, questions)

    async def ping(self) -> None: ...


def _delete_abandoned() -> None:
    jobs = internal("ray._private.state", "jobs")()
    alive = {job["JobID"] for job in jobs if not job["IsDead"]}
    for name in serve.status().applications:
        prefix, _, owner = name.partition("-")
        if prefix == _APP_PREFIX and owner.partition("-")[0] not in alive:
            serve.delete(name)


def _check_room(options: ReplicaOptions, resources: Callable[[], dict[str, float]]) -> None:
    for name, each in (("CPU", options.num_cpus), ("GPU", options.num_gpus)):
        there = resources().get(name, 0.0)
        if each * options.num_replicas > there:
            raise ResourceError(
                f"--replicas={options.num_replicas} is invalid: they take more than {there:g} "
                f"{name}s. Set fewer, or fewer --cpus. [serve-no-room]"
            )


def _no_replica(cause: Exception) -> ResourceError:
    return ResourceError(
        f"no replica of the model answers: {cause}. See the log of the replica. [serve-no-replica]"
    )


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
