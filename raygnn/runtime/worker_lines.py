"""The output of a cluster on the driver: raygnn's lines unchanged, few of Ray's own."""

from __future__ import annotations

import re
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from raygnn.console import LINE_START, pass_on, prints_json, say
from raygnn.runtime.ray_internals import attribute, internal

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_RAY_PRINTS = "ray_print_logs"  # the handler that Ray's driver prints with
_MARK = "raygnn-mark-"
_MARK_WITHIN_S = 5.0

#: Lines that Ray's processes print in addition to errors that it raises: those of its C++ core,
#: and of an actor that only tidies up after Ray Train.
_CORE_LINE = re.compile(r"\[[\d-]+ [\d:,]+ [A-Z] \d+ \d+\] \S+\.cc:\d+: ")
_TIDYING_ACTORS = frozenset({"PlacementGroupCleaner"})

#: Of the raylet, where Ray Train's and Tune's own actors are many for the CPUs of a small machine.
_MANY_PROCESSES = re.compile(r"WARNING: \d+ \w+ worker processes have been started on node")

#: Records with a traceback: their first line, and the error that makes them noise.
_RECORDS = (
    # Of Ray Train's controller on a busy machine: it asks again, and no worker waits for it.
    (re.compile(r"Failed to (send|cancel) resource request for "), "GetTimeoutError"),
    # Of a process that Ray ends by SIGTERM while Python finalizes an object. SIGKILL follows.
    (re.compile(r"Exception ignored (in|while) ?"), "SystemExit"),
    # Of Ray Train's controller after a worker died or a trial was stopped, which is printed anyway.
    (re.compile(r"Graceful shutdown of backend failed"), "ray.exceptions."),
    # Of Ray Train's controller after the run's folder was removed.
    (re.compile(r"Error in control loop iteration:"), "checkpoint_manager_snapshot.json"),
    # Of a rank that waited for one that died.
    (re.compile(r"Error in training function:"), "LostRankError"),
)
_IN_TRACEBACK = re.compile(r"\s|$|Traceback |The above exception |During handling of the above ")
#: Lines of an error after its first one, which name the actor.
_OF_ERROR = re.compile(r"\t|The actor (is|was) ")

_COLOR = re.compile(r"\x1b\[[0-9;]*m")

#: Lines that were not shown, for a run that fails.
_HELD: deque[str] = deque(maxlen=60)
#: Of each process, the lines of a record until its error, and the error that makes it noise. No
#: lines: the record has just ended with that error.
_records: dict[Any, tuple[list[str], str]] = {}
_marks: dict[str, threading.Event] = {}

Printer = Callable[..., None]


def show_worker_lines() -> None:
    """Prints raygnn's lines without Ray's prefix, and stores Ray's own noise for failures.

    With `log_to_driver=False`, output of workers stays unprinted.
    """
    # Messages of raylets go to Ray's printing function directly, by its name in its module.
    worker = internal("ray._private", "worker")
    shows_raylets = attribute(worker, "print_to_stdstream")
    if not _is_ours(shows_raylets):
        worker.print_to_stdstream = partial(_print_batch, shows_raylets)
    printer = _printer()
    if printer is None or _is_ours(printer):
        return
    # Under Ray's name for it, so that ray.shutdown removes it.
    _dispatcher().remove_handler(_RAY_PRINTS)
    _dispatcher().add_handler(_RAY_PRINTS, partial(_print_batch, printer))


def drain_worker_lines(marker: ActorHandle) -> None:
    """Waits until the workers' output so far is shown.

    Ray reads the files of a node's processes in turns: everything before a first mark is shown when
    a second one is, if that was written after the first was seen. `marker`: an actor of this node
    with `mark(text)`, which prints it.
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
    unfinished = [line for lines, _ in _records.values() for line in lines]
    if _HELD or unfinished:
        print("Ray's own messages:", *_HELD, *unfinished, sep="\n", file=sys.stderr)
        _HELD.clear()
        _records.clear()


def _printer() -> Printer | None:
    return dict(_dispatcher().handlers).get(_RAY_PRINTS)


def _dispatcher() -> Any:
    return internal("ray._private.ray_logging", "global_worker_stdstream_dispatcher")


def _is_ours(printer: Printer | None) -> bool:
    return isinstance(printer, partial) and printer.func is _print_batch


def _print_batch(printer: Printer, batch: dict[str, Any], **options: Any) -> None:
    """Sorts the lines of one process: ours, Ray's noise, and all others, which Ray prints."""
    others = []
    for line in _without_records(batch):
        if not batch["is_err"] and line.startswith(_MARK):
            if line in _marks:
                _marks[line].set()
        elif not batch["is_err"] and line.startswith(LINE_START):
            pass_on(line)
        elif _is_noise(batch, line):
            _HELD.append(_with_source(batch, line))
        else:
            others.append(line)
    if others:
        _print_others(printer, {**batch, "lines": others}, options)


def _print_others(printer: Printer, batch: dict[str, Any], options: dict[str, Any]) -> None:
    stream = sys.stderr if batch["is_err"] else sys.stdout
    if _is_terminal(stream):
        printer(batch, **options)
        return
    source = f"{batch.get('actor_name') or batch.get('task_name') or 'pid'} {batch.get('pid')}"
    lines = batch["lines"]
    if batch.get("pid") == "autoscaler":  # its log, of which Ray shows what concerns users
        lines = internal("ray._private.worker", "filter_autoscaler_events")(lines)
    for line in lines:
        plain = _COLOR.sub("", line)
        if not batch["is_err"] and prints_json():
            say(plain, "print", source=source)
        else:
            print(plain, file=stream, flush=True)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is None or stream.isatty()


def _is_noise(batch: dict[str, Any], line: str) -> bool:
    if batch.get("pid") == "raylet":
        return _MANY_PROCESSES.match(line) is not None
    return _CORE_LINE.match(line) is not None or batch.get("actor_name") in _TIDYING_ACTORS


def _without_records(batch: dict[str, Any]) -> Iterator[str]:
    """A process's lines without records that are noise, possibly in several batches."""
    process = batch.get("ip"), batch.get("pid"), batch["is_err"]
    for line in batch["lines"]:
        lines, noise = _records.get(process, ([], ""))
        starts = [error for start, error in _RECORDS if start.search(line)]
        if batch["is_err"] and starts:
            yield from lines
            _records[process] = [line], starts[0]
        elif not lines and noise and _OF_ERROR.match(line):
            _HELD.append(_with_source(batch, line))
        elif not lines:
            _records.pop(process, None)
            yield line
        elif _IN_TRACEBACK.match(line):
            lines.append(line)
        else:
            del _records[process]
            if noise in line:
                _HELD.extend(_with_source(batch, text) for text in [*lines, line])
                _records[process] = [], noise
            else:
                yield from [*lines, line]


def _with_source(batch: dict[str, Any], line: str) -> str:
    return f"({batch.get('actor_name') or batch.get('pid')}) {line}"
