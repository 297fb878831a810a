"""An event log: rows of new nodes and edges in sealed segments, in a folder or a bucket.

A segment is an Arrow IPC stream followed by its sha256, in a file named by the position of its
first row. So the name of the next segment is known, and creating it exclusively decides between
several writers: the loser reads the segment of the winner and tries the position after it. Each
segment has the sha256 of the one before. Nothing is ever changed or deleted.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from raygnn.data import filesystem
from raygnn.data.added_rows import AddedRows, Rows
from raygnn.data.checksums import cause_of, type_adapter
from raygnn.data.edge_types import SEPARATOR
from raygnn.data.filesystem import redact
from raygnn.data.plain_json import MAX_TEXT, read_json
from raygnn.errors import DataError, shown

#: Rows of an entry, and of a segment.
MAX_ROWS = 100_000
_FORMAT = "raygnn/events-v1"
_ABOUT = b"raygnn"  # key of the schema's metadata
_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("row", pa.string(), nullable=False),
        pa.field("arrived_us", pa.int64(), nullable=False),
    ]
)
_SHA_LENGTH = 64
_ROW_DEPTH = 4  # levels of a request around a row


@dataclass(frozen=True)
class Entry:
    """Rows that are appended together.

    Attributes:
        rows: type and JSON of each row, nodes before edges.
        key: a log has one entry of each key, however often it is sent.
    """

    rows: tuple[tuple[str, str], ...]
    key: str

    @classmethod
    def of(
        cls,
        nodes: Mapping[str, Rows] | None = None,
        edges: Mapping[str, Rows] | None = None,
        key: str | None = None,
    ) -> Entry:
        """Rows by type, and the client's key; None is one of its own.

        Raises a DataError if a row is not a mapping of columns to numbers, texts, booleans, null,
        dates, or lists of these, or if there are more than `MAX_ROWS`.
        """
        rows = [
            (name, _dumped(name, row))
            for kind, tables in (("nodes", nodes), ("edges", edges))
            for name, table in _checked(kind, tables or {}, Mapping).items()
            for row in _checked(name, table, Sequence)
        ]
        if len(rows) > MAX_ROWS:
            raise DataError(
                f"{len(rows):,} events are too many. Append at most {MAX_ROWS:,}. [events-size]"
            )
        if key is not None and not (isinstance(key, str) and 0 < len(key) <= MAX_TEXT):
            raise DataError(
                f"key={shown(key)} is not a text of 1 to {MAX_TEXT:,} characters. [events-key]"
            )
        return cls(tuple(rows), uuid.uuid4().hex if key is None else key)


@dataclass(frozen=True)
class Segment:
    """Entries that were written together.

    Attributes:
        first: position of the first row in the log.
        entries: all have rows.
        arrived_us: when each row was accepted, microseconds since 1970.
        sha256: of the file.
    """

    first: int
    entries: tuple[Entry, ...]
    arrived_us: tuple[int, ...]
    sha256: str

    @property
    def end(self) -> int:
        return self.first + len(self.arrived_us)

    @property
    def rows(self) -> list[tuple[str, str]]:
        return [row for entry in self.entries for row in entry.rows]


class EventLog:
    """Reads a log from its beginning or another position, and appends to it. For one thread at a
    time.

    Attributes:
        position: number of rows that were read.
        sha256: of the segment that ends there; it identifies all rows until there.
    """

    def __init__(self, uri: str, position: int = 0, sha256: str = "") -> None:
        self.uri = filesystem.absolute(uri)
        self.position, self.sha256 = position, sha256
        self._keys: dict[str, tuple[int, int]] | None = None

    @classmethod
    def create(
        cls,
        uri: str,
        position: int = 0,
        sha256: str = "",
        keys: Mapping[str, tuple[int, int]] | None = None,
    ) -> EventLog:
        """Opens a log to append to. Its folder is created if it is missing.

        Args:
            keys: position after the entry, and its rows, of each key before `position`.
        """
        log = cls(uri, position, sha256)
        log._keys = dict(keys or {})
        if not filesystem.is_remote(log.uri):
            filesystem.open_fs(log.uri)[0].makedirs(log.uri, exist_ok=True)
        return log

    def read(self) -> Iterator[Segment]:
        """The segments that were appended since the last call.

        Raises a DataError if a segment is damaged, or does not follow the one before.
        """
        while filesystem.exists(uri := self._next_uri):
            yield self._follow(_parse(uri, filesystem.read_bytes(uri)))

    @property
    def keys(self) -> Mapping[str, tuple[int, int]]:
        """The position after the entry of each key that was read, and its rows."""
        assert self._keys is not None
        return self._keys

    def position_of(self, key: str) -> int | None:
        """The position after the entry of a key; None if it has not been read."""
        return self.keys[key][0] if key in self.keys else None

    def num_rows_of(self, key: str) -> int:
        """Rows of the entry of a key; 0 if it has not been read."""
        return self.keys[key][1] if key in self.keys else 0

    def append(self, entries: Sequence[Entry]) -> list[int]:
        """Appends entries whose keys are not in the log, and returns when they are durable.

        Returns:
            The position after each entry.
        Raises:
            DataError: the log is damaged, or its store cannot create files exclusively.
            OSError: the log cannot be written, such as on a full disk. Entries can be appended
                again, since their keys are in the log once.
        """
        while True:
            for _ in self.read():
                pass
            waiting = {e.key: e for e in entries if e.rows and self.position_of(e.key) is None}
            if not waiting:
                return [self.position_of(entry.key) or self.position for entry in entries]
            self.write(first_segment(waiting.values()))

    def write(self, entries: Sequence[Entry]) -> Segment | None:
        """Writes one segment at the position that was read; None if another writer was faster.

        Errors: see `append`.
        """
        content, uri = _dump(entries, self.position, self.sha256), self._next_uri
        try:
            filesystem.create_bytes(uri, content)
        except FileExistsError:
            if filesystem.read_bytes(uri) != content:
                return None
        return self._follow(_parse(uri, content))

    @property
    def _next_uri(self) -> str:
        return filesystem.join(self.uri, f"{self.position:020d}.arrow")

    def _follow(self, segment: tuple[str, Segment]) -> Segment:
        previous, read = segment
        if previous != self.sha256 or read.first != self.position:
            raise _damaged(self._next_uri, "it does not follow the segment before it")
        self.position, self.sha256 = read.end, read.sha256
        if self._keys is not None:
            end = read.first
            for entry in read.entries:
                end += len(entry.rows)
                self._keys.setdefault(entry.key, (end, len(entry.rows)))
        return read


def added_rows(rows: Sequence[tuple[str, str]]) -> AddedRows:
    """Rows by type. Raises a DataError if one is not a JSON object within the limits."""
    nodes: dict[str, list[Mapping[str, Any]]] = {}
    edges: dict[str, list[Mapping[str, Any]]] = {}
    for name, text in rows:
        (edges if SEPARATOR in name else nodes).setdefault(name, []).append(_read_row(name, text))
    return AddedRows(nodes, edges)


def logged_rows(uri: str) -> dict[str, list[tuple[Mapping[str, Any], int]]]:
    """The rows of a log by type, with their arrival in microseconds since 1970. Raises a DataError
    if the log is damaged.
    """
    found: dict[str, list[tuple[Mapping[str, Any], int]]] = {}
    for segment in EventLog(uri).read():
        for (name, text), arrived_us in zip(segment.rows, segment.arrived_us, strict=True):
            found.setdefault(name, []).append((_read_row(name, text), arrived_us))
    return found


def first_segment(entries: Iterable[Entry]) -> list[Entry]:
    """The first entries that fit into a segment. Entries without rows are in no segment."""
    chosen: list[Entry] = []
    num = 0
    for entry in entries:
        num += len(entry.rows)
        if chosen and num > MAX_ROWS:
            break
        if entry.rows:
            chosen.append(entry)
    return chosen


def _checked(name: str, value: Any, kind: Any) -> Any:
    if not isinstance(value, kind) or isinstance(value, str):
        raise DataError(
            f"the events: {name!r} is {type(value).__name__}. Give {{TYPE: [ROW]}}. [events-shape]"
        )
    return value


def _read_row(name: str, text: str) -> Mapping[str, Any]:
    row = read_json(text, _ROW_DEPTH)
    if not isinstance(row, dict):
        raise _invalid(name, "it is not an object of columns")
    return row


def _dumped(name: str, row: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(row, allow_nan=False, separators=(",", ":"), default=_plain)
    except (ValueError, TypeError, RecursionError) as error:
        raise _invalid(name, str(error)) from error
    _read_row(name, text)
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, date):  # or a datetime
        return value.isoformat()
    if hasattr(value, "tolist"):  # of NumPy
        return value.tolist()
    raise TypeError(f"a value is {type(value).__name__}")


def _invalid(name: str, reason: str) -> DataError:
    return DataError(
        f"a row of {name!r} is invalid: {reason}. Give each column a finite number, a text, a "
        "boolean, null, a date, or a list of these. [events-row]"
    )


def _dump(entries: Sequence[Entry], first: int, previous: str) -> bytes:
    now_us = time.time_ns() // 1_000
    keys = [entry.key for entry in entries for _ in entry.rows]
    rows = [row for entry in entries for row in entry.rows]
    about = json.dumps({"format": _FORMAT, "first": first, "previous": previous})
    schema = _SCHEMA.with_metadata({_ABOUT: about})
    columns = [keys, [name for name, _ in rows], [row for _, row in rows], [now_us] * len(rows)]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, _SCHEMA, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    content = sink.getvalue().to_pybytes()
    return content + hashlib.sha256(content).hexdigest().encode()


def _parse(uri: str, content: bytes) -> tuple[str, Segment]:
    """The sha256 of the segment before, and a segment. Raises a DataError if it is damaged."""
    body, sha256 = content[:-_SHA_LENGTH], content[-_SHA_LENGTH:]
    if hashlib.sha256(body).hexdigest().encode() != sha256:
        raise _damaged(uri, "its sha256 differs")
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            table = reader.read_all()
        table.validate(full=True)
        about = json.loads((table.schema.metadata or {})[_ABOUT])
        if about["format"] != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT}")
        previous = type_adapter(str).validate_python(about["previous"], strict=True)
        first = type_adapter(int).validate_python(about["first"], strict=True)
        if not table.schema.remove_metadata().equals(_SCHEMA) or not table.num_rows:
            raise ValueError("it has other columns, or no rows")
        keys, names, rows, arrived_us = (column.to_pylist() for column in table.columns)
        if any(column.null_count for column in table.columns):
            raise ValueError("a value is missing")
    except (pa.ArrowException, ValueError, KeyError, TypeError, OSError) as error:
        raise _damaged(uri, cause_of(error)) from error
    grouped = groupby(zip(keys, names, rows, strict=True), itemgetter(0))
    entries = (Entry(tuple((name, row) for _, name, row in some), key) for key, some in grouped)
    return previous, Segment(first, tuple(entries), tuple(arrived_us), sha256.decode())


def _damaged(uri: str, cause: str) -> DataError:
    return DataError(
        f"{redact(uri)} is damaged: {cause}. Restore it, or begin a new one. [events-damaged]"
    )
