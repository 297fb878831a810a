"""Compactions of an event log: folders of tables that contain its rows up to a position.

A compaction is a folder in that of the log, `compacted/POSITION`, with a `graph.yaml` that names
the files of the tables and files of the log's rows, and the keys of these rows. It is sealed after
it was ingested as a check, so a killed one is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raygnn.console import warn
from raygnn.data.checksums import Checksum, Seal, file_checksums
from raygnn.data.event_log import EventLog
from raygnn.data.filesystem import absolute, exists, files_below, folder_names, join, read_bytes
from raygnn.data.manifest import manifest_folder
from raygnn.data.tables.files import write_parquet
from raygnn.errors import DataError

FOLDER, _RECORD, _KEYS = "compacted", "compacted.json", "keys.parquet"


class GrownTables(NamedTuple):
    """Tables that contain a log up to a position.

    Attributes:
        uri: folder of the graph.
        position, sha256: see `EventLog`; 0 and empty for tables without rows of the log.
    """

    uri: str
    position: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class _Compacted:
    """The content of `compacted.json`.

    Attributes:
        base: URI of the tables without rows of the log.
        before: position of the earlier compaction whose files the tables name; 0 without one.
    """

    base: str
    before: int
    position: int
    sha256: str
    num_refused: int
    file_sizes: dict[str, int]
    checksums: dict[str, Checksum]


def newest_tables(graph: str, log: str | None) -> GrownTables:
    """The tables of a graph with the most rows of a log. A damaged compaction is left out, with a
    warning.
    """
    base = absolute(graph)
    root = None if log is None else join(absolute(log), FOLDER)
    for name in sorted([] if root is None else folder_names(root), reverse=True):
        folder = join(root or "", name)
        if not exists(join(folder, _RECORD)):
            continue
        try:
            record = _SEAL.read(folder, _RECORD, _Compacted)
            _SEAL.check(folder, record)
            _check_whole(folder, record.sha256)
        except DataError as error:
            _warn_once(str(error))
            continue
        if record.base == base:
            return GrownTables(folder, record.position, record.sha256)
    return GrownTables(base)


@cache
def _check_whole(folder: str, sha256: str) -> None:
    """Compares complete files, once in a process, because servers look every two seconds. Raises a
    DataError if one has changed. `sha256`: of the log that the folder contains.
    """
    _SEAL.check(folder, _SEAL.read(folder, _RECORD, _Compacted), completely=True)


@cache
def _warn_once(text: str) -> None:
    warn(text)


def start_of(tables: str) -> tuple[int, str]:
    """Position and sha256 of the log that tables contain, if they are a compaction."""
    folder = manifest_folder(absolute(tables))
    if not exists(join(folder, _RECORD)):
        return 0, ""
    record = _SEAL.read(folder, _RECORD, _Compacted)
    return record.position, record.sha256


def log_after(log: str, tables: GrownTables) -> EventLog:
    """Opens a log to append to, after the rows that tables contain. Only compactions are read for
    the keys of these.
    """
    keys: dict[str, tuple[int, int]] = {}
    position = tables.position
    while position:
        folder = folder_of(log, position)
        of_folder = pq.read_table(pa.BufferReader(read_bytes(join(folder, _KEYS))))
        names, *numbers = (of_folder[name].to_pylist() for name in ("key", "end", "num_rows"))
        keys |= zip(names, zip(*numbers, strict=True), strict=True)
        before = _SEAL.read(folder, _RECORD, _Compacted).before
        if not before < position:
            raise _SEAL.damage(folder, "the compaction before it is later")
        position = before
    return EventLog.create(log, *tables[1:], keys)


def folder_of(log: str, position: int) -> str:
    return join(absolute(log), FOLDER, f"{position:020d}")


def seal_compaction(graph: str, log: EventLog, before: int, num_refused: int) -> GrownTables:
    """Completes the folder of a log's position. Arguments: see `_Compacted`; the log has read the
    rows after `before`.
    """
    folder, names = folder_of(log.uri, log.position), list(log.keys)
    ends, nums = np.array([*log.keys.values()]).T
    keys = pa.table({"key": names, "end": ends, "num_rows": nums})
    write_parquet(keys, join(folder, _KEYS))
    sizes = {name: size for name, size in files_below(folder).items() if name != _RECORD}
    sums = file_checksums(folder, sizes)
    made = absolute(graph), before, log.position, log.sha256, num_refused, sizes, sums
    _SEAL.write(folder, _RECORD, _Compacted(*made))
    return GrownTables(folder, log.position, log.sha256)


_SEAL = Seal(
    "raygnn/compacted",
    2,
    damaged="events-compacted-damaged",
    outdated="events-compacted-outdated",
    remedy="Remove the folder and compact again",
)
