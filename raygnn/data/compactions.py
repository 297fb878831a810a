"""Compactions of an event log: folders of tables that contain its rows up to a position.

A compaction is a folder in that of the log, `compacted/POSITION`, with a `graph.yaml` that names
the files of the tables and files of the log's rows. It is sealed after it was ingested as a check,
so a killed one is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from raygnn.console import warn
from raygnn.data.checksums import Checksum, Seal, changed_files, file_checksums, find_damage
from raygnn.data.filesystem import absolute, exists, files_below, folder_names, join
from raygnn.data.manifest import manifest_folder
from raygnn.errors import DataError

FOLDER, _RECORD = "compacted", "compacted.json"


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
    """The content of `compacted.json`. `base`: URI of the tables without rows of the log."""

    base: str
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
            if damage := find_damage(folder, record.file_sizes, record.checksums):
                raise _SEAL.damage(folder, damage)
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
    if changed := changed_files(folder, _SEAL.read(folder, _RECORD, _Compacted).checksums):
        raise _SEAL.damage(folder, f"{changed[0]} has changed since it was written")


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


def seal_compaction(
    folder: str, graph: str, position: int, sha256: str, num_refused: int
) -> GrownTables:
    """Writes the record that completes a folder. `graph`: the tables without rows of the log."""
    sizes = {name: size for name, size in files_below(folder).items() if name != _RECORD}
    sums = file_checksums(folder, sizes)
    content = _Compacted(absolute(graph), position, sha256, num_refused, sizes, sums)
    _SEAL.write(folder, _RECORD, content)
    return GrownTables(folder, position, sha256)


_SEAL = Seal(
    "raygnn/compacted",
    1,
    damaged="events-compacted-damaged",
    outdated="events-compacted-outdated",
    remedy="Remove the folder and compact again",
)
