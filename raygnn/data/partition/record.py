"""`partition.json` and `part.json`: content of a partitioned graph, written when complete."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from raygnn.data.bundle_record import RECORD_NAME as BUNDLE_NAME
from raygnn.data.bundle_record import BundleRecord
from raygnn.data.checksums import Checksum, Folder, Seal, listing
from raygnn.data.edge_types import EdgeType
from raygnn.data.filesystem import exists, is_remote, join, reading_input, redact
from raygnn.data.manifest import MANIFEST_NAME
from raygnn.errors import DataError

RECORD_NAME = "partition.json"
PART_NAME = "part.json"
FORMAT_VERSION = 2
_CHECKED_AT_ONCE = 8  # parts in a bucket


def part_name(part: int) -> str:
    return f"part-{part:05d}"


def part_folder(folder: Path, part: int) -> Path:
    return folder / part_name(part)


@dataclass(frozen=True)
class PartEdges:
    """The edges of one type by part.

    Attributes:
        counts: edges into the nodes of each part.
        cut: of these, edges from another part.
    """

    counts: tuple[int, ...]
    cut: tuple[int, ...]


@dataclass(frozen=True)
class PartitionRecord:
    """The content of partition.json.

    Attributes:
        nodes: number of nodes of each part, by node type. Dense ids of part p follow those of part
            p - 1.
        edges: in the order of the edge types of `whole`.
        label_edges: as edges; a label edge belongs to its anchor's part.
        whole: the record of the graph as one bundle, without id lookup and files.
    """

    method: str
    num_parts: int
    nodes: Mapping[str, tuple[int, ...]]
    edges: tuple[PartEdges, ...]
    label_edges: tuple[PartEdges, ...]
    whole: BundleRecord

    def __post_init__(self) -> None:
        counts = [*self.nodes.values(), *(edges.counts for edges in self.edges)]
        if any(len(of_parts) != self.num_parts for of_parts in counts):
            raise ValueError(f"not every count has {self.num_parts} parts")

    @property
    def fingerprint(self) -> str:
        return self.whole.fingerprint

    def first_ids(self, node_type: str) -> list[int]:
        """First dense id of each part, and the number of nodes."""
        return list(accumulate(self.nodes[node_type], initial=0))

    def first_edges(self, edge_type: EdgeType) -> list[int]:
        """CSC position of the first edge of each part, and the number of edges."""
        return list(accumulate(self.counts_of(edge_type).counts, initial=0))

    def counts_of(self, edge_type: EdgeType) -> PartEdges:
        return self.edges[[edge.type for edge in self.whole.edges].index(edge_type)]

    def save(self, folder: Path) -> None:
        _GRAPH_SEAL.write(folder, RECORD_NAME, self)

    @classmethod
    def load(cls, folder: Folder) -> PartitionRecord:
        """Reads partition.json. Raises a DataError if it is missing, damaged or too new."""
        record = _read(_GRAPH_SEAL, folder, RECORD_NAME, cls, "partitioned graph")
        return replace(record, whole=replace(record.whole, is_of_parts=True))


@dataclass(frozen=True)
class PartRecord:
    """The content of part.json."""

    partition: str
    part: int
    file_sizes: Mapping[str, int]
    checksums: Mapping[str, Checksum]

    def __post_init__(self) -> None:
        for name in self.file_sizes:
            if name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"{name!r} leads out of the part")

    @classmethod
    def load(cls, folder: Folder, part: int) -> PartRecord:
        """Reads part.json. Raises a DataError if it is missing, damaged, or of another version."""
        return _read(PART_SEAL, folder, PART_NAME, cls, f"part {part}")


def save_part(folder: Path, fingerprint: str, part: int) -> None:
    PART_SEAL.write(folder, PART_NAME, PartRecord(fingerprint, part, **listing(folder)))


def check_parts(folder: Folder) -> PartitionRecord:
    """Reads a partition's record. Raises a DataError if a part is missing or damaged."""
    record = PartitionRecord.load(folder)

    def check(part: int) -> None:
        check_part(join(os.fspath(folder), part_name(part)), record.fingerprint, part)

    with ThreadPoolExecutor(_CHECKED_AT_ONCE if is_remote(folder) else 1) as threads:
        list(threads.map(check, range(record.num_parts)))
    return record


def check_part(folder: Folder, fingerprint: str, part: int) -> PartRecord:
    """Raises a DataError unless a part is complete and belongs to this partition."""
    record = PartRecord.load(folder, part)
    if (record.partition, record.part) != (fingerprint, part):
        raise DataError(
            f"part {part} in {_shown(folder)} is part {record.part} of {record.partition}, not of "
            f"{fingerprint}. Put back the right part, or partition again. [partition-part-foreign]"
        )
    PART_SEAL.check(folder, record)
    return record


_GRAPH_SEAL = Seal(
    "raygnn/partition",
    FORMAT_VERSION,
    damaged="partition-damaged",
    outdated="partition-format",
    remedy="Remove the folder of the partitioned graph and partition again",
)
PART_SEAL = replace(_GRAPH_SEAL, format="raygnn/part")


def part_bytes(folder: Folder, part: int) -> int:
    return sum(PartRecord.load(join(os.fspath(folder), part_name(part)), part).file_sizes.values())


RecordT = TypeVar("RecordT", PartitionRecord, PartRecord)


def _read(seal: Seal, folder: Folder, name: str, kind: type[RecordT], what: str) -> RecordT:
    uri = os.fspath(folder)
    with reading_input(join(uri, name)):
        if not exists(join(uri, name)):
            raise _missing(uri, name, what)
        return seal.read(uri, name, kind)


def _missing(uri: str, name: str, what: str) -> DataError:
    shown, tables = redact(uri), exists(join(uri, MANIFEST_NAME))
    if tables or exists(join(uri, BUNDLE_NAME)):
        kind = "holds the tables of a graph" if tables else "is an ordinary bundle"
        source = shown if tables else "SOURCE"
        return DataError(
            f"{what} is missing: {shown} {kind}, not the parts of a graph. Make these with raygnn "
            f"partition {source} --parts P --out URI, and set data.uri to URI. [partition-missing]"
        )
    reason = f"{shown} has no {name}" if exists(uri) else f"there is no {shown}"
    return DataError(
        f"{what} is missing: {reason}. Name a folder that raygnn.partition has finished, with all "
        "of its parts. [partition-missing]"
    )


def _shown(folder: Folder) -> str:
    return redact(os.fspath(folder))
