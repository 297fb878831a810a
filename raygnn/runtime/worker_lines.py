"""What the driver shows of the output of workers: our lines as they are, less of Ray's own."""

from __future__ import annotations

import re
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from raygnn.console import LINE_START, say_line
from raygnn.runtime.ray_internals import internal

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_RAY_PRINTS = "ray_print_logs"  # the handler that Ray's driver prints with
_MARK = "raygnn-mark-"
_MARK_WITHIN_S = 5.0

#: What Ray's processes write beside errors that it raises too: lines of its C++ core, and of an
#: actor that only tidies up after Ray Train.
_CORE_LINE = re.compile(r"\[[\d-]+ [\d:,]+ [A-Z] \d+ \d+\] \S+\.cc:\d+: ")
_TIDYING_ACTORS = frozenset({"PlacementGroupCleaner"})

#: Lines that were not shown, for a run that fails.
_HELD: deque[str] = deque(maxlen=60)
_marks: dict[str, threading.Event] = {}

Printer = Callable[[dict[str, Any]], None]


def show_worker_lines() -> None:
    """Prints raygnn's lines without Ray's prefix, and keeps Ray's own noise for failures.

    Does nothing where this process prints no output of workers, as with `log_to_driver=False`.
    """
    printer = _printer()
    if printer is None or _is_ours(printer):
        return
    # Under Ray's name for it, so that ray.shutdown removes it.
    _dispatcher().remove_handler(_RAY_PRINTS)
    _dispatcher().add_handler(_RAY_PRINTS, partial(_print_batch, printer))


def drain_worker_lines(marker: ActorHandle) -> None:
    """Waits until what workers have printed so far is shown.

    Ray reads the files of all processes of a node in turns: what was there before a first mark is
    shown when a second one is, which is written after the first was seen.

    Args:
        marker: an actor of this node with `mark(text)`, which prints it.
    """
    if not _is_ours(_printer()):
        return
    for _ in range(2):
        text, seen = _MARK + secrets.token_hex(6), threading.Event()
        _marks[text] = seen
        marker.mark.remote(text)
        is_shown = seen.wait(_MARK_WITHIN_S)
        del _marks[text]
        if not is_shown:
            return


def show_held_lines() -> None:
    """Prints what was kept of Ray's own lines, on stderr."""
    if _HELD:
        print("Ray's own messages:", *_HELD, sep="\n", file=sys.stderr)
        _HELD.clear()


def _printer() -> Printer | None:
    """What prints the output of workers in this process; null where nothing does."""
    return dict(_dispatcher().handlers).get(_RAY_PRINTS)


def _dispatcher() -> Any:
    return internal("ray._private.ray_logging", "global_worker_stdstream_dispatcher")


def _is_ours(printer: Printer | None) -> bool:
    return isinstance(printer, partial) and printer.func is _print_batch


def _print_batch(printer: Printer, batch: dict[str, Any]) -> None:
    """Sorts the lines of one process: ours, Ray's noise, and all others, which Ray prints."""
    others = []
    for line in batch["lines"]:
        if not batch["is_err"] and line.startswith(_MARK):
            if line in _marks:
                _marks[line].set()
        elif not batch["is_err"] and line.startswith(LINE_START):
            say_line(line)
        elif _CORE_LINE.match(line) or batch.get("actor_name") in _TIDYING_ACTORS:
            _HELD.append(f"({batch.get('actor_name') or batch.get('pid')}) {line}")
        else:
            others.append(line)
    if others:
        printer({**batch, "lines": others})
