"""`partition.json` and `part.json`: what a partitioned graph holds, written when it is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from raygnn.data.bundle_record import RECORD_NAME as BUNDLE_NAME
from raygnn.data.bundle_record import BundleRecord, file_sizes, find_damage
from raygnn.data.edge_types import EdgeType
from raygnn.data.filesystem import (
    exists,
    files_below,
    is_remote,
    join,
    read_bytes,
    reading_input,
    redact,
    write_text,
)
from raygnn.data.manifest import MANIFEST_NAME
from raygnn.errors import DataError

RECORD_NAME = "partition.json"
PART_NAME = "part.json"
_FORMAT, _PART_FORMAT = "raygnn/partition", "raygnn/part"
FORMAT_VERSION = 1
_CHECKED_AT_ONCE = 8  # parts in a bucket

#: A folder on a disk or in a bucket.
Folder = str | os.PathLike[str]


def part_name(part: int) -> str:
    """Name of the folder of a part."""
    return f"part-{part:05d}"


def part_folder(folder: Path, part: int) -> Path:
    """The folder of a part."""
    return folder / part_name(part)


@dataclass(frozen=True)
class EdgeCounts:
    """The edges of one type by part.

    Attributes:
        counts: edges into the nodes of each part.
        cut: of these, edges from another part.
    """

    counts: tuple[int, ...]
    cut: tuple[int, ...]


@dataclass(frozen=True)
class PartitionRecord:
    """The whole of partition.json.

    Attributes:
        method: how nodes were given parts.
        nodes: nodes of each part, by node type. Part p has the dense ids that follow those of
            part p - 1.
        edges: in the order of the edge types of `whole`.
        label_edges: as edges; the owner of a label edge is that of its anchor.
        whole: the record of the graph as one bundle, without the look-up of its ids and without
            files.
    """

    method: str
    num_parts: int
    nodes: Mapping[str, tuple[int, ...]]
    edges: tuple[EdgeCounts, ...]
    label_edges: tuple[EdgeCounts, ...]
    whole: BundleRecord

    @property
    def fingerprint(self) -> str:
        """Hash of the tables, the options and the partition."""
        return self.whole.fingerprint

    def first_ids(self, node_type: str) -> list[int]:
        """First dense id of each part, and the number of nodes."""
        return list(accumulate(self.nodes[node_type], initial=0))

    def first_edges(self, edge_type: EdgeType) -> list[int]:
        """CSC position of the first edge of each part, and the number of edges."""
        return list(accumulate(self.counts_of(edge_type).counts, initial=0))

    def counts_of(self, edge_type: EdgeType) -> EdgeCounts:
        """The edges of a type by part."""
        return self.edges[[edge.type for edge in self.whole.edges].index(edge_type)]

    def save(self, folder: Path) -> None:
        """Writes partition.json."""
        content = {"format": _FORMAT, "version": FORMAT_VERSION, **asdict(self)}
        write_text(folder / RECORD_NAME, json.dumps(content, indent=1))

    @classmethod
    def load(cls, folder: Folder) -> PartitionRecord:
        """Reads partition.json.

        Args:
            folder: of the partitioned graph; a path or any fsspec URI.
        Raises:
            DataError: there is none, it is damaged, or of another version.
        """
        content = _read(folder, RECORD_NAME, "partitioned graph")
        _check_format(content, folder, _FORMAT)
        try:
            record = cls(
                content["method"],
                content["num_parts"],
                {name: tuple(counts) for name, counts in content["nodes"].items()},
                tuple(_counts(given) for given in content["edges"]),
                tuple(_counts(given) for given in content["label_edges"]),
                BundleRecord.of_content(content["whole"]),
            )
            _check_names(record.whole)
            return record
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"partitioned graph {_shown(folder)} is damaged: {RECORD_NAME} is not a record "
                f"of one: {type(error).__name__}: {error}. Remove the folder and partition again.",
                id="partition-damaged",
            ) from error


def _check_names(graph: BundleRecord) -> None:
    """Checks that names of types and columns, and the fingerprint, can be those of files.

    Raises:
        ValueError: one has a slash, which would lead out of a folder.
    """
    names = [graph.fingerprint, *graph.nodes, *(labels.sign for labels in graph.label_edges)]
    names += [word for edges in graph.edges for word in edges.type]
    names += [word for labels in graph.label_edges for word in labels.type]
    names += [column.name for found in graph.nodes.values() for column in found.columns]
    names += [column.name for edges in graph.edges for column in edges.columns]
    names += [column.name for labels in graph.label_edges for column in labels.columns]
    for name in names:
        if not isinstance(name, str) or "/" in name or name in ("", ".", ".."):
            raise ValueError(f"{name!r} is no name")


def save_part(folder: Path, fingerprint: str, part: int) -> None:
    """Notes the sizes of all files of a part and writes part.json beside them."""
    content = {
        "format": _PART_FORMAT,
        "version": FORMAT_VERSION,
        "partition": fingerprint,
        "part": part,
        "file_sizes": file_sizes(folder),
    }
    write_text(folder / PART_NAME, json.dumps(content, indent=1))


def check_parts(folder: Folder) -> PartitionRecord:
    """Reads the record of a partitioned graph, and checks that all of its parts are there.

    Raises:
        DataError: a part is missing, damaged, or of another partition.
    """
    record = PartitionRecord.load(folder)

    def check(part: int) -> None:
        check_part(join(os.fspath(folder), part_name(part)), record.fingerprint, part)

    with ThreadPoolExecutor(_CHECKED_AT_ONCE if is_remote(folder) else 1) as threads:
        list(threads.map(check, range(record.num_parts)))
    return record


def check_part(folder: Folder, fingerprint: str, part: int) -> dict[str, int]:
    """Checks that a part is there in full, and of this partition.

    Returns:
        Bytes of its files, by path in it.
    Raises:
        DataError: it is not.
    """
    content = _read(folder, PART_NAME, f"part {part}")
    _check_format(content, folder, _PART_FORMAT)
    if (content.get("partition"), content.get("part")) != (fingerprint, part):
        raise DataError(
            f"part {part} in {_shown(folder)} is of another partition: it is part "
            f"{content.get('part')} of {content.get('partition')}, not of {fingerprint}. Put the "
            "part back that was written with partition.json, or partition again.",
            id="partition-part-foreign",
        )
    sizes = _file_sizes(content, folder, part)
    found = files_below(folder) if is_remote(folder) else None
    if damage := find_damage(Path(folder), sizes, found):
        raise DataError(
            f"part {part} in {_shown(folder)} is damaged: {damage}. Remove the folder of the "
            "partitioned graph and partition again.",
            id="partition-damaged",
        )
    return sizes


def part_bytes(folder: Folder, part: int) -> int:
    """Bytes of the files of a part, as it notes them.

    Args:
        folder: of the partitioned graph.
    Raises:
        DataError: the part is missing or damaged.
    """
    place = join(os.fspath(folder), part_name(part))
    return sum(_file_sizes(_read(place, PART_NAME, f"part {part}"), place, part).values())


def _file_sizes(content: Mapping[str, Any], folder: Folder, part: int) -> dict[str, int]:
    """Bytes of the files of a part, each by a path that leads into it."""
    sizes = content.get("file_sizes")
    wrong = ["file_sizes"] if not isinstance(sizes, dict) else []
    wrong += [
        name
        for name, size in (sizes if isinstance(sizes, dict) else {}).items()
        if not isinstance(size, int) or name.startswith("/") or ".." in name.split("/")
    ]
    if wrong:
        raise DataError(
            f"part {part} in {_shown(folder)} is damaged: {PART_NAME} says nothing usable of "
            f"{wrong[0]!r}. Remove the folder of the partitioned graph and partition again.",
            id="partition-damaged",
        )
    return dict(sizes or {})


def _counts(content: Mapping[str, Any]) -> EdgeCounts:
    return EdgeCounts(tuple(content["counts"]), tuple(content["cut"]))


def _read(folder: Folder, name: str, what: str) -> dict[str, Any]:
    uri, shown = os.fspath(folder), _shown(folder)
    with reading_input(join(uri, name)):
        if not exists(join(uri, name)):
            raise _missing(uri, name, what)
        written = read_bytes(join(uri, name))
    try:
        content: dict[str, Any] = dict(json.loads(written))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{what} in {shown} is damaged: {name} does not parse: {error}. Remove the "
            "folder of the partitioned graph and partition again.",
            id="partition-damaged",
        ) from error
    return content


def _missing(uri: str, name: str, what: str) -> DataError:
    shown, tables = redact(uri), exists(join(uri, MANIFEST_NAME))
    if tables or exists(join(uri, BUNDLE_NAME)):
        kind = "holds the tables of a graph" if tables else "is an ordinary bundle"
        source = shown if tables else "SOURCE"
        return DataError(
            f"{what} is missing: {shown} {kind}, not the parts of a graph. Make parts of "
            f"the tables with raygnn partition {source} --parts P --out URI, and set data.uri "
            "to that URI.",
            id="partition-missing",
        )
    found = f"{shown} has no {name}" if exists(uri) else f"there is no {shown}"
    return DataError(
        f"{what} is missing: {found}. Name a folder that raygnn.partition has finished, with "
        "all of its parts.",
        id="partition-missing",
    )


def _shown(folder: Folder) -> str:
    return redact(os.fspath(folder))


def _check_format(content: Mapping[str, Any], folder: Folder, wanted: str) -> None:
    if content.get("format") != wanted or content.get("version") != FORMAT_VERSION:
        raise DataError(
            f"{_shown(folder)} has format {content.get('format')!r} version "
            f"{content.get('version')!r}; this raygnn reads {wanted!r} version {FORMAT_VERSION}. "
            "Partition the tables again.",
            id="partition-format",
        )
