"""`--json` of every command: one JSON object a line on standard output, the result last."""

from __future__ import annotations

import io
import re
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import wraps
from typing import Any, Protocol, TextIO

from raygnn.console import Event, json_line, print_json, printing, say_line, taken_result

#: Values of the last line, by command: types of JSON Schema and meanings.
RESULTS: dict[str, dict[str, tuple[str, str]]] = {
    "train": {
        "run": ("string", "folder of the run, or of the exported model"),
        "metrics": ("object", "content of `metrics.json`"),
    },
    "tune": {
        "run": ("string", "folder of the sweep"),
        "best_config": ("string", "config of the best trial"),
        "best": ("object", "`trial`, `values` by key, and the best value of `metric`"),
    },
    "report": {
        "report": ("string", "the page"),
        "decisions": ("array", "with `--top` or `--cost`: a text for each run"),
    },
    "infer": {
        "out": ("string", "what was written"),
        "scores": ("object", "with `--metrics`"),
    },
    "explain": {
        "out": ("string", "folder of the tables"),
        "predictions": ("integer", "number of explained predictions"),
    },
    "serve": {"url": ("string", "of the server that has ended")},
    "events": {
        "position": ("integer", "`append`, `verify`: rows of the log"),
        "tables": ("string", "`compact`: folder of the tables"),
    },
    "replay": {"answers": ("integer", "number of answers, all equal")},
    "models": {
        "version": ("string", "the version that was added or that the alias names now"),
        "models": ("array", "`list`: `uri`, `versions`, `aliases`"),
    },
    "retrain": {
        "version": ("string", "of the challenger"),
        "is_promoted": ("boolean", "the alias names it; else the exit status is 3"),
        "reason": ("string", "figures of both"),
    },
    "monitor": {"figures": ("array", "as for Prometheus; `alarm` is a reason, or empty")},
    "prepare": {
        "out": ("string", "folder of the graph"),
        "config": ("string", "a config to train with"),
        "written": ("array", "`draft`: files"),
        "question": ("string", "`draft`: a command that makes labels"),
        "notes": ("array", "`draft`: what to review"),
        "table": ("string", "`labels`: name of the table or relation"),
        "sql": ("string", "`labels`: the query"),
    },
    "partition": {"out": ("string", "folder of the parts")},
    "presample": {"out": ("string", "folder of the samples")},
    "schema": {"schema": ("object", "the JSON Schema")},
    "mcp": {},
    "doctor": {"checks": ("array", "`level` (ok, warn or fail), `what`, `remedy`")},
    "version": {"version": ("string", "of raygnn")},
}
_IDS = re.compile(r"\[([a-z0-9]+(?:-[a-z0-9]+)+)\]\s*$", re.MULTILINE)
_MAX_ERROR_LINES = 200


class Main(Protocol):
    """The main function of a command: takes its arguments, returns the exit status."""

    def __call__(self, argv: Sequence[str] | None = None) -> int: ...


def with_json(main: Main) -> Main:
    """Gives the main function of a command the option `--json`."""

    @wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        arguments = [*(sys.argv[1:] if argv is None else argv)]
        if "--json" not in arguments:
            return main(arguments)
        return _as_json(main, [each for each in arguments if each != "--json"])

    return run


def _as_json(main: Main, arguments: Sequence[str]) -> int:
    lines, errors = _Lines(sys.stdout), _Remembered(sys.stderr)
    taken_result()
    with printing(print_json), redirect_stdout(lines), redirect_stderr(errors):
        try:
            status = main(arguments)
        except SystemExit as stop:  # of the parser
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    lines.end()
    result: dict[str, Any] = {"exit_status": status, **taken_result()}
    if status:
        text = "".join(errors.lines)
        result |= {"error": text.strip(), "ids": _IDS.findall(text)}
    say_line(json_line(Event("result", "", values=result)))
    return status


class _Lines(io.TextIOBase):
    """Standard output that makes events of plain text: one of each text with complete lines."""

    encoding = "utf-8"

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._text = stream, ""

    def write(self, text: str) -> int:
        self._text += text
        if self._text.endswith("\n"):
            self.end()
        return len(text)

    def end(self) -> None:
        text, self._text = self._text.rstrip("\n"), ""
        if text:
            is_event = text.startswith('{"time": ')
            say_line(text if is_event else json_line(Event("message", text)), self._stream)

    def flush(self) -> None:
        self._stream.flush()


class _Remembered(io.TextIOBase):
    """Standard error that remembers its last lines."""

    encoding = "utf-8"

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lines: deque[str] = deque(maxlen=_MAX_ERROR_LINES)

    def write(self, text: str) -> int:
        self.lines.append(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()


def line_json_schema() -> dict[str, Any]:
    """The JSON Schema of a line of `--json`."""
    results = [
        {
            "title": name,
            "properties": {
                key: {"type": kind, "description": what} for key, (kind, what) in values.items()
            },
        }
        for name, values in RESULTS.items()
    ]
    own = {
        "exit_status": {"type": "integer"},
        "error": {"type": "string", "description": "standard error, unless the status is 0"},
        "ids": {"type": "array", "items": {"type": "string"}, "description": "ids of errors"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a line of --json",
        "type": "object",
        "required": ["time", "event", "text"],
        "properties": {
            "time": {"type": "string", "format": "date-time"},
            "event": {"type": "string", "description": "result in the last line"},
            "text": {"type": "string", "description": "the line without --json"},
            "label": {"type": "string", "description": "name of a trial"},
        },
        "if": {"properties": {"event": {"const": "result"}}},
        "then": {"required": ["exit_status"], "properties": own, "anyOf": results},
    }
