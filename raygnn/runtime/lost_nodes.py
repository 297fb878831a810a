"""Tells why a run stands still whose nodes have gone: Ray waits for others without a word."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from raygnn.config import Config
from raygnn.console import say
from raygnn.runtime.preflight import WorkerResources, missing_places

_LOOK_EVERY_S = 10.0


@contextmanager
def missing_places_told(config: Config, resources: WorkerResources) -> Iterator[None]:
    """Says so, once, whenever the nodes that are left have too few places for the workers."""
    is_over = threading.Event()

    def watch() -> None:
        told: str | None = None
        while not is_over.wait(_LOOK_EVERY_S):
            missing = missing_places(config, resources)
            if missing is not None and missing != told:
                say(f"{missing} The run goes on when there are more.")
            told = missing

    watcher = threading.Thread(target=watch, name="raygnn-lost-nodes", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join(timeout=_LOOK_EVERY_S)  # a head that has gone may not answer
