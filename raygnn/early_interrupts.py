"""Ctrl-C while a command of raygnn still imports its modules."""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from types import FrameType

#: Those that call `exit_normally` when they are imported.
_COMMANDS = ("raygnn.train", "raygnn.tune", "raygnn.infer", "raygnn.prepare")
_STDERR = 2
_MESSAGE = b"stopped by SIGINT: nothing was started\n"


def exit_on_early_interrupt() -> None:
    """Lets Ctrl-C end `python -m raygnn.<command>` with status 130, until `exit_normally`.

    Python would print a traceback of whichever import was under way, and imports may swallow a
    KeyboardInterrupt. Changes nothing where raygnn is imported as a library, and nothing where
    SIGINT has another handler, or is ignored.
    """
    is_command = any(
        option == "-m" and name in _COMMANDS for option, name in pairwise(sys.orig_argv)
    )
    # While Python looks for the module of -m, argv[0] is -m; later it is the module's file.
    if is_command and sys.argv[:1] == ["-m"] and _handler() is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def exit_normally() -> None:
    """Lets Ctrl-C raise KeyboardInterrupt again."""
    if _handler() is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _handler() -> object:
    return signal.getsignal(signal.SIGINT)


def _exit(number: int, frame: FrameType | None) -> None:
    try:
        os.write(_STDERR, _MESSAGE)
    finally:
        os._exit(130)
