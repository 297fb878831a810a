"""Signals that ask a process to stop, taken as notices: the loop stops where it can go on from."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Seconds in which signals are one request: Ctrl-C reaches torchrun and its processes, and torchrun
#: passes its own on to them.
_ONE_REQUEST_S = 1.0


@contextmanager
def signal_handlers_kept() -> Iterator[None]:
    """Puts the handlers of SIGTERM and SIGINT back that were there before; in any thread."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                # None is a handler that was not set from Python, which cannot be put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def signals_as_notices(tell: Callable[[str], None]) -> Iterator[None]:
    """Calls `tell` with the name of the first SIGTERM or SIGINT (Ctrl-C), instead of ending.

    A later one ends the process at once, by KeyboardInterrupt. Outside of the main thread, which
    is the only one that Python gives signals to, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told_s: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if told_s is None:
            told_s = now_s
            tell(signal.Signals(number).name)
        elif now_s - told_s >= _ONE_REQUEST_S:
            raise KeyboardInterrupt

    with signal_handlers_kept():
        for number in _SIGNALS:
            signal.signal(number, handle)
        yield
