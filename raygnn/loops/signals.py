"""Signals that stop a process: as interrupts, or as notices that the training loop reads."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Seconds in which signals are one request: Ctrl-C reaches torchrun and its processes, and torchrun
#: passes its own on to them.
_ONE_REQUEST_S = 1.0

#: Finalizers and callbacks are over by then.
_SEND_AGAIN_AFTER_S = 0.05


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised as an interrupt so that it cleans up like Ctrl-C."""


@contextmanager
def signal_handlers_kept() -> Iterator[None]:
    """Restores the handlers of SIGTERM and SIGINT at the end of a block, in any thread."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                # None is a handler that was not set from Python, which cannot be put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Lets SIGTERM raise `Terminated`, so that it cleans up like Ctrl-C.

    Python drops exceptions that a handler raises within a finalizer or a C callback, which
    compilers run; such a signal is sent once more. Does nothing outside of the main thread, because
    only that thread receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual_hook = sys.unraisablehook

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            usual_hook(dropped)
            return
        is_terminated = isinstance(dropped.exc_value, Terminated)
        number = signal.SIGTERM if is_terminated else signal.SIGINT
        threading.Timer(_SEND_AGAIN_AFTER_S, _interrupt_main_thread, [number]).start()

    with signal_handlers_kept():
        signal.signal(signal.SIGTERM, _terminate)
        sys.unraisablehook = send_again
        try:
            yield
        finally:
            sys.unraisablehook = usual_hook


def _interrupt_main_thread(number: int) -> None:
    """Interrupts a wait of the main thread when another thread receives the signal."""
    identifier = threading.main_thread().ident
    assert identifier is not None
    signal.pthread_kill(identifier, number)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def signals_as_notices(notify: Callable[[str], None]) -> Iterator[None]:
    """Calls `notify` with the name of the first SIGTERM or SIGINT (Ctrl-C) instead of ending.

    A later signal ends the process immediately. Does nothing outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
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
