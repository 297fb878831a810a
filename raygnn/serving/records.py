"""Answers in a file of JSON lines, which `raygnn replay` computes again."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic_core import from_json

from raygnn.data.checksums import cause_of, type_adapter
from raygnn.data.filesystem import read_text, redact
from raygnn.errors import DataError
from raygnn.serving import messages

_KINDS: dict[str, type[messages.Question]] = {
    kind.__name__.lower(): kind
    for kind in (messages.Predict, messages.Explain, messages.Embed, messages.Score, messages.TopK)
}
#: `raygnn monitor` writes its figures beside the answers.
FIGURES_SUFFIX = ".prom"
_BLOCK_BYTES = 65_536

_LOGGER = logging.getLogger(__name__)


class Record(NamedTuple):
    """An answer. `line`: in its file; `at`: when it was answered, in ISO 8601, or empty."""

    line: int
    question: messages.Question
    rows: list[dict[str, Any]]
    version: messages.Version
    at: str = ""


class Recorder:
    """Appends answers to a local file. An answer that cannot be written is left out, with a
    warning; so is one that a killed server wrote in part.
    """

    def __init__(self, path: str) -> None:
        self._figures = Path(f"{path}{FIGURES_SUFFIX}")
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115, closed by `close`
        self._file.truncate(_end_of_lines(self._file))
        self._lock = threading.Lock()

    def record(self, route: str, request: bytes, answer: messages.AnsweredRows) -> None:
        if route not in _KINDS or answer.version is None:
            return
        content = {
            "route": route,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": from_json(request),
            "version": asdict(answer.version),
            "rows": list(answer),
        }
        line = json.dumps(content).encode() + b"\n"
        with self._lock:
            end = self._file.seek(0, os.SEEK_END)
            try:
                if self._file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._file.truncate(end)
                _LOGGER.warning("An answer was not recorded: %s", error)

    def record_question(self, question: messages.Question, answer: messages.AnsweredRows) -> None:
        body = question.model_dump_json(exclude_none=True).encode()
        self.record(type(question).__name__.lower(), body, answer)

    def figures(self) -> bytes:
        """The latest figures of `raygnn monitor` for these answers, for Prometheus; or empty."""
        return self._figures.read_bytes() if self._figures.exists() else b""

    def close(self) -> None:
        self._file.close()


def _end_of_lines(file: BinaryIO) -> int:
    """The position after the last complete line."""
    end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(end - _BLOCK_BYTES, 0)
        file.seek(begin)
        place = file.read(end - begin).rfind(b"\n")
        if place >= 0:
            return begin + place + 1
        end = begin
    return 0


def read_records(uri: str) -> Iterator[Record]:
    """Raises a DataError if a line is not a record, except a last one without its end."""
    *lines, _ = read_text(uri).split("\n")
    for number, line in enumerate(lines, 1):
        try:
            content = from_json(line)
            question = _KINDS[content["route"]].parse(json.dumps(content["request"]).encode())
            version = type_adapter(messages.Version).validate_python(content["version"])
            rows = type_adapter(list[dict[str, Any]]).validate_python(content["rows"])
        except (ValueError, KeyError, TypeError, DataError) as error:
            raise DataError(
                f"{redact(uri)}, line {number} is invalid: it is not an answer of a server "
                f"({cause_of(error)}). Name a file of raygnn serve --record. [replay-record]"
            ) from error
        yield Record(number, question, rows, version, str(content.get("at", "")))
