"""Makes items ahead in threads, in order, and never more than asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ahead(
    make: Callable[[Item], Result], items: Iterable[Item], num_threads: int, num_ahead: int
) -> Generator[Result, None, None]:
    """Yields `make(item)` of each item, in the order of the items.

    Up to `num_ahead` results, or `num_threads` if that is more, are made or waiting beside the one
    that was yielded. Closing the generator drops what was not begun and waits for what was, so
    that no thread outlives it. An exception of `make` is raised in its place.

    Args:
        num_threads: 0 makes each when it is asked for, in the caller's thread.
    """
    if num_threads == 0:
        yield from map(make, items)
        return
    upcoming = iter(items)
    pending: deque[Future[Result]] = deque()

    def take() -> Result:
        # A function of its own, so that the generator does not hold what it yielded.
        result = pending.popleft().result()
        pending.extend(pool.submit(make, item) for item in islice(upcoming, 1))
        return result

    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="raygnn-sampler")
    try:
        size = max(num_ahead, num_threads)
        pending.extend(pool.submit(make, item) for item in islice(upcoming, size))
        while pending:
            yield take()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
