"""`partition.json` and `part.json`: what a partitioned graph holds, written when it is complete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from raygnn.data.bundle_record import RECORD_NAME as BUNDLE_NAME
from raygnn.data.bundle_record import BundleRecord, file_sizes, find_damage
from raygnn.data.edge_types import EdgeType
from raygnn.data.filesystem import write_text
from raygnn.data.manifest import MANIFEST_NAME
from raygnn.errors import DataError

RECORD_NAME = "partition.json"
PART_NAME = "part.json"
_FORMAT, _PART_FORMAT = "raygnn/partition", "raygnn/part"
FORMAT_VERSION = 1


def part_folder(folder: Path, part: int) -> Path:
    """The folder of a part."""
    return folder / f"part-{part:05d}"


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
    def load(cls, folder: Path) -> PartitionRecord:
        """Reads partition.json.

        Raises:
            DataError: there is none, it is damaged, or of another version.
        """
        content = _read(folder / RECORD_NAME, "partitioned graph", folder)
        _check_format(content, folder, _FORMAT)
        try:
            return cls(
                content["method"],
                content["num_parts"],
                {name: tuple(counts) for name, counts in content["nodes"].items()},
                tuple(_counts(given) for given in content["edges"]),
                tuple(_counts(given) for given in content["label_edges"]),
                BundleRecord.of_content(content["whole"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"partitioned graph {folder} is damaged: {RECORD_NAME} is not a record of one: "
                f"{type(error).__name__}: {error}. Remove the folder and partition again.",
                id="partition-damaged",
            ) from error


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


def check_parts(folder: Path) -> tuple[PartitionRecord, list[Path]]:
    """Reads the record of a partitioned graph, and checks that all of its parts are there.

    Returns:
        The record, and the folders of the parts.
    Raises:
        DataError: a part is missing, damaged, or of another partition.
    """
    record = PartitionRecord.load(folder)
    parts = [part_folder(folder, part) for part in range(record.num_parts)]
    for number, part in enumerate(parts):
        check_part(part, record.fingerprint, number)
    return record, parts


def check_part(folder: Path, fingerprint: str, part: int) -> None:
    """Checks that a part is there in full, and of this partition.

    Raises:
        DataError: it is not.
    """
    content = _read(folder / PART_NAME, f"part {part}", folder)
    _check_format(content, folder, _PART_FORMAT)
    if (content.get("partition"), content.get("part")) != (fingerprint, part):
        raise DataError(
            f"part {part} in {folder} is of another partition: it is part {content.get('part')} "
            f"of {content.get('partition')}, not of {fingerprint}. Put the part back that "
            "was written with partition.json, or partition again.",
            id="partition-part-foreign",
        )
    if damage := find_damage(folder, content["file_sizes"]):
        raise DataError(
            f"part {part} in {folder} is damaged: {damage}. Remove the folder of the "
            "partitioned graph and partition again.",
            id="partition-damaged",
        )


def _counts(content: Mapping[str, Any]) -> EdgeCounts:
    return EdgeCounts(tuple(content["counts"]), tuple(content["cut"]))


def _read(path: Path, what: str, folder: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        tables = (folder / MANIFEST_NAME).exists()
        if tables or (folder / BUNDLE_NAME).exists():
            kind = "holds the tables of a graph" if tables else "is an ordinary bundle"
            source = folder if tables else "SOURCE"
            raise DataError(
                f"{what} is missing: {folder} {kind}, not the parts of a graph. Make parts of "
                f"the tables with raygnn partition {source} --parts P --out URI, and set data.uri "
                "to that URI.",
                id="partition-missing",
            ) from error
        found = f"{folder} has no {path.name}" if folder.exists() else f"there is no {folder}"
        raise DataError(
            f"{what} is missing: {found}. Name a folder that raygnn.partition has finished, with "
            "all of its parts.",
            id="partition-missing",
        ) from error
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{what} in {folder} is damaged: {path.name} does not parse: {error}. Remove the "
            "folder of the partitioned graph and partition again.",
            id="partition-damaged",
        ) from error
    return content


def _check_format(content: Mapping[str, Any], folder: Path, wanted: str) -> None:
    if content.get("format") != wanted or content.get("version") != FORMAT_VERSION:
        raise DataError(
            f"{folder} has format {content.get('format')!r} version {content.get('version')!r}; "
            f"this raygnn reads {wanted!r} version {FORMAT_VERSION}. Partition the tables again.",
            id="partition-format",
        )
