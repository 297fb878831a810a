"""Console output: short lines, one per event, for a terminal, a log or a program."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, TextIO

#: How each line begins, and how an event that a worker sends to its driver does.
LINE_START = "[raygnn"
EVENT_START = "[raygnn-event] "

_WARNING = "warning: "
_label = ""
#: Lines of these kinds are left out if the last line is younger, in seconds.
_LEFT_OUT_WITHIN_S = {"step": 10.0, "validation": 1.0}


@dataclass(frozen=True)
class Event:
    """One event to print.

    Attributes:
        kind: `message`, or the kind of `values`; docs/training.md lists the kinds.
        text: the printed line. Empty if only `values` are printed, as JSON.
        label: a prefix, such as the name of a trial.
    """

    kind: str
    text: str
    label: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        start = f"{LINE_START} {self.label}" if self.label else LINE_START
        return f"{start}] {self.text}"


class LineLimit:
    """Passes on a line of steps every ten seconds, one of validations every second, and the last
    validation.
    """

    def __init__(self, print_line: Callable[[Event], None]) -> None:
        self._print_line = print_line
        self._last_s = -math.inf
        self._left_out: Event | None = None  # the newest validation

    def print(self, event: Event) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s < _LEFT_OUT_WITHIN_S.get(event.kind, 0.0):
            self._left_out = event if event.kind == "validation" else self._left_out
            return
        if self._left_out is not None and event.kind != "validation":
            self._print_line(self._left_out)
        self._left_out, self._last_s = None, now_s
        self._print_line(event)


_lines = LineLimit(lambda event: say_line(event.line))
_warnings_of_trials: set[str] = set()


def print_text(event: Event) -> None:
    """Prints an event as a line.

    Trials of a sweep print only warnings, each once: the sweep prints their results.
    """
    if event.label:
        if event.kind != "warning" or event.text in _warnings_of_trials:
            return
        _warnings_of_trials.add(event.text)
    if event.text:
        _lines.print(event)


def print_json(event: Event) -> None:
    say_line(json_line(event))


def json_line(event: Event) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    label = {"label": event.label} if event.label else {}
    record = {"time": now, "event": event.kind, **label, "text": event.text, **event.values}
    return json.dumps(_finite(record))


def print_nothing(event: Event) -> None:
    if event.kind == "warning":
        print_text(event)


def send_to_driver(event: Event) -> None:
    """Prints an event in a worker, in the form that `pass_on` in the driver reads."""
    say_line(EVENT_START + json.dumps(_finite(asdict(event))))


Printer = Callable[[Event], None]

_printer: Printer = print_text
_result: dict[str, Any] = {}


def print_with(printer: Printer) -> None:
    """Sets how this process prints events, its own and its workers'. Default: `print_text`."""
    global _printer
    _printer = printer


@contextmanager
def printing(printer: Printer) -> Iterator[None]:
    before = _printer
    print_with(printer)
    try:
        yield
    finally:
        print_with(before)


def prints_lines() -> bool:
    """Whether this process prints events as lines, so that its workers may print too."""
    return _printer is print_text


def prints_json() -> bool:
    return _printer is print_json


def say(text: str, kind: str = "message", **values: Any) -> None:
    """Prints an event immediately, also if the output is a file.

    Output never fails a run: characters that the output cannot encode become question marks, and
    lines that it refuses (full disk, closed pipe) are lost.
    """
    _printer(Event(kind, text, _label, values))


def give_result(**values: Any) -> None:
    """Adds values to the last line of `--json`."""
    _result.update(values)


def taken_result() -> dict[str, Any]:
    """The values that were given since the last call."""
    found = dict(_result)
    _result.clear()
    return found


def warn(text: str) -> None:
    say(f"{_WARNING}{text}", "warning")


def pass_on(line: str) -> None:
    """Prints an event of a worker from a line that begins with `LINE_START`."""
    if line.startswith(EVENT_START):
        _printer(Event(**json.loads(line.removeprefix(EVENT_START))))
        return
    label, _, text = line.removeprefix(LINE_START).partition("] ")
    _printer(Event("warning" if text.startswith(_WARNING) else "message", text, label.strip()))


@contextmanager
def announced(text: str, after_s: float = 10.0) -> Iterator[None]:
    """Prints a line if a block takes longer than `after_s`."""
    timer = threading.Timer(after_s, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def label_lines(label: str) -> None:
    """Prefixes all lines of this process, for example with the name of a trial."""
    global _label
    _label = label


def say_line(line: str, stream: TextIO | None = None) -> None:
    # Not print(): Ray Train redirects it to its log as well, and every line would come twice.
    stream = stream or sys.stdout
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    with suppress(OSError):
        _write(stream, f"{line}\n".encode(encoding, "replace").decode(encoding))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(text: str) -> None:
    _write(sys.stdout, text)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        with suppress(OSError):  # else Python's last flush at exit would meet it again
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def show_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def show_left(left_s: float | None, stop_s: float | None) -> str:
    """The time until a limit, or until early stopping if that comes first."""
    if stop_s is not None and (left_s is None or stop_s < left_s):
        return f"{show_duration(stop_s)} left without improvement"
    return "" if left_s is None else f"{show_duration(left_s)} left"


def show_performance(metrics: Mapping[str, float]) -> str:
    texts = {
        "perf/seeds_per_s": lambda value: f"{compact(value)} seeds/s",
        "perf/edges_per_s": lambda value: f"{compact(value)} edges/s",
        "perf/loader_wait_share": lambda value: f"loader wait {value:.0%}",
        "perf/memory_bytes": lambda value: f"{compact(value)}B",
        "perf/cuda_memory_bytes": lambda value: f"GPU {compact(value)}B",
    }
    return "  ".join(text(metrics[name]) for name, text in texts.items() if name in metrics)


def compact(value: float) -> str:
    """Three digits and a decimal prefix: 12345 is 12.3k."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * factor:  # otherwise the smaller prefix would round to 1000
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"


class Pace:
    """Prints the progress of a long operation, at most every `EVERY_S` seconds.

    Args:
        unit: of `total`; B is shown with prefixes.
        tell: prints a line.
    """

    EVERY_S = 10.0

    def __init__(
        self, what: str, total: int, unit: str = "rows", tell: Callable[[str], object] = say
    ) -> None:
        self._what, self._total, self._unit, self._tell = what, total, unit, tell
        self._begun_s = time.monotonic()
        self._next_s = self._begun_s + self.EVERY_S

    def reached(self, number: int) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s or not 0 < number < self._total:
            return
        self._next_s = now_s + self.EVERY_S
        left = show_duration((now_s - self._begun_s) * (self._total - number) / number)
        done = f"{number:,} of {self._total:,} {self._unit}"
        if self._unit == "B":
            done = f"{compact(number)}B of {compact(self._total)}B"
        self._tell(f"{self._what}: {done}, {number / self._total:.0%}, {left} left")
