"""Serving on Ray Serve: replicas of a model, and before them the app that takes requests."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ray
import uvicorn
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from raygnn.errors import ConfigError, ResourceError

APP = "raygnn"
_MODEL = "Model"
_MAX_BATCH_SIZE = 32
# A batch is what came while the one before was computed: waiting for more delays all of it.
_BATCH_WAIT_S = 0.0
# A replica that died is replaced within it; a graph that is opened anew is in the page cache.
_ANSWERED_WITHIN_S = 120.0
_RETRY_AFTER_S = 0.1
# A line for each request costs more than a precomputed answer.
_LOGGING = {"log_level": "WARNING", "enable_access_log": False}


class Answering(Protocol):
    """What a replica holds."""

    def answer(self, questions: Sequence[Any], /) -> Sequence[Any]:
        """An answer to each question, in their order."""


#: Makes the ASGI app from what asks a replica, and what returns when one has answered.
BuildApp = Callable[[Callable[[Any], Awaitable[Any]], Callable[[], Awaitable[Any]]], Any]


@dataclass(frozen=True)
class ServeOptions:
    """Where and how a model is served.

    Attributes:
        port: where the app takes requests.
        num_replicas: processes that each hold the model.
        num_cpus: of each replica.
        num_gpus: of each replica.
        max_queued: requests that wait for a replica; further ones are refused as overload.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    num_replicas: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    max_queued: int = 200

    def check(self) -> None:
        """Checks the numbers.

        Raises:
            ConfigError: one is out of its range.
        """
        for option, value, low, high in (
            ("--port", self.port, 1, 65_535),
            ("--replicas", self.num_replicas, 1, 10_000),
            ("--cpus", self.num_cpus, 0.01, 10_000),
            ("--max-queued", self.max_queued, 1, 1_000_000),
        ):
            if not low <= value <= high:
                raise ConfigError(
                    f"{option}={value!r} is invalid: it must be from {low} to {high}. Set it so, "
                    "or leave it out.",
                    id="serve-option",
                )


def start_serving(
    make: Callable[[], Answering], build_app: BuildApp, options: ServeOptions
) -> Callable[[], None]:
    """Starts the replicas, and an app in a thread of this process that passes requests to them.

    Returns when the replicas answer; they take the place of what the cluster served before. Ray
    must be connected.

    Returns:
        Stops app and replicas.

    Raises:
        ResourceError: the cluster has no room for the replicas, they do not start, or the port is
            taken.
    """
    _check_room(options)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    listening = listen(options)
    serve.start(proxy_location="Disabled", logging_config=_LOGGING)
    serve.delete(APP)
    model = serve.deployment(
        _Model,
        name=_MODEL,
        num_replicas=options.num_replicas,
        ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.num_gpus},
        # A batch is answered while the next one gathers.
        max_ongoing_requests=2 * _MAX_BATCH_SIZE,
        max_queued_requests=options.max_queued,
        health_check_period_s=2.0,
        logging_config=_LOGGING,
    ).bind(make)
    try:
        handle = serve.run(model, name=APP, route_prefix=None)
    except RuntimeError as error:
        listening.close()
        serve.delete(APP)
        raise ResourceError(
            f"the model cannot be served: {error}. See the log of the replica in Ray's dashboard.",
            id="serve-start",
        ) from error

    async def ask(question: Any) -> Any:
        return await _ask(handle, question)

    async def is_alive() -> None:
        await handle.ping.remote()

    config = uvicorn.Config(
        build_app(ask, is_alive), loop="asyncio", lifespan="off", log_level="warning"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join()
        serve.delete(APP)

    return stop


def listen(options: ServeOptions) -> socket.socket:
    """Takes the port, before anything is started.

    Raises:
        ResourceError: it is taken, or the address is not this machine's.
    """
    try:
        listening = socket.create_server((options.host, options.port), backlog=2048)
        # asyncio does so for sockets that it makes itself. Else the body of an answer waits up to
        # 40 ms for the client to acknowledge its header.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise ResourceError(
            f"--host={options.host} --port={options.port} is invalid: {error}. Set another one.",
            id="serve-address",
        ) from error


class _Model:
    """A replica: it answers what comes within a short time together."""

    def __init__(self, make: Callable[[], Answering]) -> None:
        self._answers = make()

    @serve.batch(max_batch_size=_MAX_BATCH_SIZE, batch_wait_timeout_s=_BATCH_WAIT_S)
    async def __call__(self, questions: list[Any]) -> list[Any]:
        return list(await asyncio.to_thread(self._answers.answer, questions))

    async def ping(self) -> None:
        """Returns at once."""


async def _ask(handle: Any, question: Any) -> Any:
    """Asks a replica, and another one where it dies, since a question changes nothing.

    Raises:
        ResourceError: too many requests wait, or no replica answers.
    """
    end_s = time.monotonic() + _ANSWERED_WITHIN_S
    while True:
        try:
            return await handle.remote(question)
        except BackPressureError as error:
            raise ResourceError(
                "the server is overloaded: as many requests as --max-queued wait. Ask again later, "
                "or start it with more --replicas.",
                id="serve-overloaded",
            ) from error
        except (RayActorError, DeploymentUnavailableError) as error:
            if time.monotonic() > end_s:
                raise ResourceError(
                    f"no replica of the model answers: {error}. See the log of the replica in "
                    "Ray's dashboard.",
                    id="serve-no-replica",
                ) from error
            await asyncio.sleep(_RETRY_AFTER_S)


def _check_room(options: ServeOptions) -> None:
    """Checks that the replicas fit the cluster: Serve would wait for ever."""
    for name, each in (("CPU", options.num_cpus), ("GPU", options.num_gpus)):
        there = ray.cluster_resources().get(name, 0.0)
        if each * options.num_replicas > there:
            raise ResourceError(
                f"--replicas={options.num_replicas} is invalid: they take "
                f"{each * options.num_replicas:g} {name}s, and the cluster has {there:g}. Set "
                "fewer, or fewer --cpus.",
                id="serve-no-room",
            )
