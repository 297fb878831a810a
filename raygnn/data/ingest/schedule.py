"""How the tasks of an ingest are run: here in threads of this process, in raygnn.runtime by Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Schedule(Protocol):
    """Runs a plain, picklable function over picklable items."""

    def __call__(
        self, fn: Callable[[Item], Result], items: Sequence[Item], label: str
    ) -> list[Result]:
        """Gives the results in the order of the items; raises what the function raised.

        Args:
            label: what the tasks do, for progress displays.
        """
        ...


def in_process(fn: Callable[[Item], Result], items: Sequence[Item], label: str) -> list[Result]:
    """Runs the tasks in threads of this process, as many as it may use CPUs."""
    num_threads = min(len(items), len(os.sched_getaffinity(0)))
    if num_threads <= 1:
        return [fn(item) for item in items]
    with ThreadPoolExecutor(num_threads, thread_name_prefix="ingest") as pool:
        futures = [pool.submit(fn, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
