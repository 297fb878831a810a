"""Writing in a thread while training goes on: one piece of work at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Uploads:
    """Runs work that touches storage only, and keeps what it raises for whoever asks."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="raygnn-upload")
        self._running: Future[None] | None = None
        #: Is set when nobody needs the work any more; work that waits for others looks at it.
        self.given_up = threading.Event()

    def start(self, work: Callable[[], None]) -> None:
        """Starts work; what was started before must have been waited for."""
        assert self._running is None
        self._running = self._pool.submit(work)

    def raise_failure(self) -> None:
        """Raises what the work raised, if it has ended so. Does not wait."""
        if self._running is not None and self._running.done():
            self._running.result()

    def wait(self) -> bool:
        """Waits for the work, and raises what it raised; returns whether there was any."""
        running, self._running = self._running, None
        if running is None:
            return False
        running.result()
        return True

    def close(self) -> None:
        """Ends the thread once its work has ended."""
        self._pool.shutdown(wait=True)
