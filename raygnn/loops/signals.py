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


class Terminated(KeyboardInterrupt):
    """SIGTERM where nobody takes notices: what is under way is left as by Ctrl-C."""


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


class _Raise:
    """A handler that raises, and keeps what it has raised.

    Code that calls back into Python, as compilers do, may drop the exception.
    """

    def __init__(self) -> None:
        self.raised: KeyboardInterrupt | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.raised = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
        raise self.raised


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Lets SIGTERM raise `Terminated`, so that it cleans up what Ctrl-C does.

    Outside of the main thread, which is the only one that Python gives signals to, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with signal_handlers_kept():
        handler = _Raise()
        signal.signal(signal.SIGTERM, handler)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, handler)
        yield


def raise_dropped_interrupt() -> None:
    """Raises the interrupt that ended nothing since `signals_as_interrupts` began."""
    handler = signal.getsignal(signal.SIGTERM)
    if isinstance(handler, _Raise) and handler.raised is not None:
        raise handler.raised


@contextmanager
def signals_as_notices(notify: Callable[[str], None]) -> Iterator[None]:
    """Calls `notify` with the name of the first SIGTERM or SIGINT (Ctrl-C), instead of ending.

    A later one ends the process at once, by KeyboardInterrupt or `Terminated`. Outside of the main
    thread, which is the only one that Python gives signals to, nothing changes.

    Raises:
        KeyboardInterrupt: an earlier one was dropped, see `raise_dropped_interrupt`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raise_dropped_interrupt()
    first_s: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first_s
        now_s = time.monotonic()
        if first_s is None:
            first_s = now_s
            notify(signal.Signals(number).name)
        elif now_s - first_s >= _ONE_REQUEST_S:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    with signal_handlers_kept():
        for number in _SIGNALS:
            signal.signal(number, handle)
        yield
