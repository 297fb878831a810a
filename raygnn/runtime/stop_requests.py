"""Passes a stop request from the driver, which receives signals, to the workers."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raygnn.loops.signals import Terminated, signal_handlers_kept, signals_as_notices

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.train import Result


class _StopRequests:
    def __init__(self) -> None:
        self._cause: str | None = None
        self._asked = asyncio.Event()

    async def ask(self, cause: str) -> None:
        self._cause = cause
        self._asked.set()

    async def wait(self) -> str | None:
        await self._asked.wait()
        return self._cause

    async def mark(self, text: str) -> None:
        print(text, flush=True)


@contextmanager
def stop_requests() -> Iterator[ActorHandle]:
    """Starts the actor on the driver's machine, and ends it.

    A notebook keeps the traceback of a stopped run, and with it every handle.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    actor = ray.remote(num_cpus=0, scheduling_strategy=here)(_StopRequests).remote()
    try:
        yield actor
    finally:
        ray.kill(actor)


def fit_interruptibly(trainer: Any, requests: ActorHandle) -> Result:
    """`trainer.fit()`, in which SIGTERM and Ctrl-C ask the workers to stop.

    Ray handles Ctrl-C by killing the workers, and only in the main thread, so it runs in another
    one.
    """
    if threading.current_thread() is not threading.main_thread():
        return trainer.fit()
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(trainer.fit())
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            future.set_exception(error)

    with signals_as_notices(lambda cause: requests.ask.remote(cause)):
        threading.Thread(target=run, name="raygnn-fit", daemon=True).start()
        return future.result()


def fit_until_signal(trainer: Any) -> Result:
    """`trainer.fit()`, in which SIGTERM and Ctrl-C kill the workers. Raises KeyboardInterrupt, or
    `Terminated` for SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        return trainer.fit()
    was_terminated = False

    def as_ctrl_c(number: int, frame: FrameType | None) -> None:
        nonlocal was_terminated
        was_terminated = True
        signal.raise_signal(signal.SIGINT)

    with signal_handlers_kept():
        signal.signal(signal.SIGTERM, as_ctrl_c)
        try:
            return trainer.fit()
        except (KeyboardInterrupt, SystemExit) as stop:  # Ray ends its workers, and exits with 0
            raise (Terminated if was_terminated else KeyboardInterrupt) from stop
