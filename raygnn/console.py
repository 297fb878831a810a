"""The lines that raygnn prints: short, one event each, readable in a terminal and in a log."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TextIO

#: How each line begins.
LINE_START = "[raygnn"

_label = ""


def say(text: str) -> None:
    """Prints one line at once, also where the output is a file.

    No output is worth a run: letters that it cannot take become question marks, and lines that it
    does not take, as of a full disk or a closed pipe, are lost.
    """
    say_line(f"{LINE_START} {_label}] {text}" if _label else f"{LINE_START}] {text}")


def label_lines(label: str) -> None:
    """Makes all lines of this process carry a name, as that of a trial."""
    global _label
    _label = label


def say_line(line: str) -> None:
    """Prints a line as it is, which `say` has made here or in a worker."""
    # Not print(): Ray Train redirects it to its log as well, and every line would come twice.
    stream = sys.stdout
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    with suppress(OSError):
        _write(stream, f"{line}\n".encode(encoding, "replace").decode(encoding))


def show(text: str) -> None:
    """Prints a text that was asked for; a reader that has seen enough, as `head`, may leave."""
    _write(sys.stdout, text)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        with suppress(OSError):  # else Python's last flush at exit would meet it again
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def count(number: int, what: str) -> str:
    """A number of things: 1 step, 1,200 steps."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def show_duration(seconds: float) -> str:
    """A duration in one unit: 40 s, 12 min or 3.2 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class Pace:
    """Says how far a long piece of work has come and how long it takes, at most every few seconds.

    Args:
        what: is done, as in "encoding".
        total: of rows, over all ranks.
    """

    def __init__(self, what: str, total: int, every_s: float = 10.0) -> None:
        self._what, self._total, self._every_s = what, total, every_s
        self._begun_s = time.monotonic()
        self._next_s = self._begun_s + every_s

    def reached(self, row: int) -> None:
        """Called after each part; ranks are about as far as each other."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            left = show_duration((now_s - self._begun_s) * (self._total - row) / row)
            done = f"{row:,} of {self._total:,} rows, {row / self._total:.0%}"
            say(f"{self._what}: {done}, {left} left")
