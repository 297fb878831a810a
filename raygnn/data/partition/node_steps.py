"""Node tables to parts: read a piece, find duplicate ids, choose parts, number, gather a part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from raygnn.data.arrays import create_array, open_array
from raygnn.data.bundle_record import SPLIT, column_path
from raygnn.data.id_map import BYTES, IDS, OFFSETS, build_index
from raygnn.data.ingest.array_tasks import OnAnyNode
from raygnn.data.ingest.build_nodes import (
    class_numbers,
    create_node_arrays,
    duplicate_findings,
    greatest_class,
    join_ragged_rows,
)
from raygnn.data.ingest.decode import sparse_index_dtype
from raygnn.data.ingest.findings import Finding
from raygnn.data.ingest.node_tasks import BAD, NO_ID, NodePlan, NodeResult, NodeTask, convert_nodes
from raygnn.data.ingest.pieces import Piece
from raygnn.data.partition.ids import DENSE, bucket_of, read_ids, write_ids
from raygnn.data.partition.ldg import parts_path

Method = Literal["hash", "range", "ldg", "metis"]

# Rows in the order of their bucket or part; those of one follow each other, ascending.
_BY_BUCKET = "by_bucket.npy"
_BY_PART = "by_part.npy"
_DUPLICATES = "duplicates.npy"


@dataclass(frozen=True)
class ReadNodes:
    """One piece of a node table."""

    piece: Piece
    plan: NodePlan
    num_buckets: int


@dataclass(frozen=True)
class ReadPiece:
    """A piece of a node table that has been read.

    Attributes:
        folder: its arrays, by row of the piece.
        bucket_starts: where each bucket starts among its rows by bucket.
    """

    piece: Piece
    folder: Path
    bucket_starts: tuple[int, ...]

    @property
    def rows(self) -> slice:
        """Its rows in the table."""
        return slice(self.piece.row_start, self.piece.row_stop)

    def rows_of_bucket(self, bucket: int) -> np.ndarray:
        """Rows of the piece whose ids are in a bucket, ascending."""
        start, stop = self.bucket_starts[bucket : bucket + 2]
        return open_array(self.folder / _BY_BUCKET, "r")[start:stop]


def read_nodes(task: ReadNodes, folder: Path) -> dict[str, Any]:
    """Reads and checks a piece; orders its rows by the bucket of their id."""
    plan, piece = task.plan, replace(task.piece, row_start=0)
    create_node_arrays(plan, folder, piece.num_rows)
    parts = folder / "parts"
    parts.mkdir()
    converted = NodeTask(piece, plan, folder, parts)
    result = OnAnyNode(convert_nodes)(converted)
    join_ragged_rows(plan, folder, [converted])
    parts.rmdir()
    buckets = bucket_of(read_ids(folder, plan.id_kind), task.num_buckets)
    np.save(folder / _BY_BUCKET, np.argsort(buckets, kind="stable").astype(np.int32))
    return {
        "findings": [asdict(finding) for finding in result.findings],
        "class_names": result.class_names,
        "bucket_starts": _starts(np.bincount(buckets, minlength=task.num_buckets)),
    }


@dataclass(frozen=True)
class IndexBucket:
    """One bucket of the ids of a node type.

    Attributes:
        drop: an id in a bad row does not count as an earlier one.
    """

    plan: NodePlan
    pieces: tuple[ReadPiece, ...]
    bucket: int
    drop: bool


def index_bucket(task: IndexBucket, folder: Path) -> dict[str, Any]:
    """Gathers the ids of a bucket in the order of the table, and finds those that come twice."""
    kind, ids, skip = task.plan.id_kind, [], []
    lengths = []
    for piece in task.pieces:
        rows = piece.rows_of_bucket(task.bucket)
        ids.append(read_ids(piece.folder, kind).take(pa.array(rows)))
        bad = open_array(piece.folder / BAD, "r")[rows]
        skip.append(bad > 0 if task.drop else bad == NO_ID)
        lengths.append(len(rows))
    write_ids(folder, pa.concat_arrays(ids), kind)
    index, duplicate = build_index(folder, np.concatenate(skip), kind)
    findings, twice, start = [], [], 0
    for piece, length in zip(task.pieces, lengths, strict=True):
        rows = piece.rows_of_bucket(task.bucket)[duplicate[start : start + length]]
        start += length
        twice.append(rows.astype(np.int64) + piece.piece.row_start)
        findings += duplicate_findings(task.plan, piece.piece, rows, piece.folder)
    np.save(folder / _DUPLICATES, np.concatenate(twice))
    return {"findings": [asdict(finding) for finding in findings], "index": asdict(index)}


@dataclass(frozen=True)
class PlaceNodes:
    """The parts of the rows of one piece.

    Attributes:
        num_rows: of the whole table.
        buckets: folders of the buckets, with their duplicates, where bad rows are dropped.
        assigned: of parts by neighbors, folder of the parts by earlier dense id, and of these ids
            by row.
    """

    read: ReadPiece
    method: Method
    num_parts: int
    num_rows: int
    buckets: tuple[Path, ...]
    node_type: str
    assigned: tuple[Path, Path] | None = None


def place_nodes(task: PlaceNodes, folder: Path) -> dict[str, Any]:
    """Chooses the part of each row that stays, and orders the rows by part."""
    rows = task.read.rows
    kept = open_array(task.read.folder / BAD, "r") == 0
    for bucket in task.buckets:
        twice = open_array(bucket / _DUPLICATES, "r")
        kept[twice[(twice >= rows.start) & (twice < rows.stop)] - rows.start] = False
    part = np.empty(len(kept), np.int64)
    if task.method == "hash":
        for number in range(task.num_parts):
            part[task.read.rows_of_bucket(number)] = number
    elif task.assigned is not None:
        parts, dense = task.assigned
        of_kept = open_array(dense / DENSE, "r")[kept]
        part[kept] = open_array(parts_path(parts, task.node_type), "r")[of_kept]
    else:
        part = np.arange(rows.start, rows.stop) * task.num_parts // task.num_rows
    chosen = np.flatnonzero(kept)
    order = chosen[np.argsort(part[chosen], kind="stable")]
    np.save(folder / _BY_PART, order.astype(np.int32))
    counts = np.bincount(part[chosen], minlength=task.num_parts)
    return {"part_starts": _starts(counts), "num_dropped": len(kept) - len(chosen)}


@dataclass(frozen=True)
class PlacedPiece:
    """A piece whose rows have parts.

    Attributes:
        part_starts: where each part starts among its rows by part.
        folder: of its rows by part.
        result: what reading the piece has found.
    """

    read: ReadPiece
    folder: Path
    part_starts: tuple[int, ...]
    result: NodeResult

    def rows_of_part(self, part: int) -> np.ndarray:
        """Rows of the piece that are in a part, ascending."""
        start, stop = self.part_starts[part : part + 2]
        return open_array(self.folder / _BY_PART, "r")[start:stop]


@dataclass(frozen=True)
class NumberNodes:
    """One piece, and the dense id of its first row in each part."""

    placed: PlacedPiece
    first_ids: tuple[int, ...]


def number_nodes(task: NumberNodes, folder: Path) -> dict[str, Any]:
    """Writes the dense id of each row of a piece; -1 of dropped ones."""
    dense = np.full(task.placed.read.piece.num_rows, -1, np.int64)
    for part, first in enumerate(task.first_ids):
        rows = task.placed.rows_of_part(part)
        dense[rows] = np.arange(first, first + len(rows))
    np.save(folder / DENSE, dense)
    return {}


@dataclass(frozen=True)
class JoinBucket:
    """One bucket, and the folders with the dense ids of all pieces."""

    pieces: tuple[ReadPiece, ...]
    dense: tuple[Path, ...]
    bucket: int


def join_bucket(task: JoinBucket, folder: Path) -> dict[str, Any]:
    """Gathers the dense ids of a bucket, in the order of its ids."""
    found = [
        open_array(dense / DENSE, "r")[piece.rows_of_bucket(task.bucket)]
        for piece, dense in zip(task.pieces, task.dense, strict=True)
    ]
    np.save(folder / DENSE, np.concatenate(found))
    return {}


@dataclass(frozen=True)
class GatherNodes:
    """The nodes of one type in one part.

    Attributes:
        class_names: of each label of strings, over all pieces.
    """

    plan: NodePlan
    pieces: tuple[PlacedPiece, ...]
    part: int
    class_names: dict[str, tuple[str, ...]]


def gather_nodes(task: GatherNodes, folder: Path) -> dict[str, Any]:
    """Writes ids, columns and split of a part's nodes, by dense id."""
    plan = task.plan
    if plan.id_kind == "int":
        _gather(task, IDS, folder, (), "int64")
    else:
        _gather_ragged(task, OFFSETS, {BYTES: np.dtype(np.uint8)}, folder)
    if plan.split is not None:
        _gather(task, SPLIT, folder, (), "uint8")
    greatest = {}
    for dense in plan.dense:
        path = _column(dense.name)
        names = task.class_names.get(dense.name)
        _gather(task, path, folder, dense.shape, dense.dtype, (dense.name, names))
        if dense.label == "class":
            greatest[dense.name] = greatest_class(open_array(folder / path, "r"))
    for sparse in plan.sparse:
        elements = {_column(sparse.name, "indices"): sparse_index_dtype(sparse.dim)}
        if sparse.values is not None:
            elements[_column(sparse.name, "values")] = np.dtype(sparse.dtype)
        _gather_ragged(task, _column(sparse.name, "indptr"), elements, folder)
    num_nodes = sum(len(piece.rows_of_part(task.part)) for piece in task.pieces)
    return {"num_nodes": num_nodes, "greatest": greatest}


def _column(name: str, part: str = "") -> str:
    return column_path(Path(), name, part).as_posix()


def _gather(
    task: GatherNodes,
    name: str,
    folder: Path,
    shape: tuple[int, ...],
    dtype: str,
    label: tuple[str, Sequence[str] | None] = ("", None),
) -> None:
    """Gathers rows of one width.

    Args:
        label: name, and the names of its classes where it is of strings.
    """
    rows_of_pieces = [piece.rows_of_part(task.part) for piece in task.pieces]
    create_array(folder / name, (sum(map(len, rows_of_pieces)), *shape), dtype)
    out, start = open_array(folder / name, "r+"), 0
    for piece, rows in zip(task.pieces, rows_of_pieces, strict=True):
        values = open_array(piece.read.folder / name, "r")[rows]
        if label[1] is not None:
            values = class_numbers(piece.result, label[0], label[1])[values]
        out[start : start + len(rows)] = values
        start += len(rows)


def _gather_ragged(
    task: GatherNodes, offsets: str, elements: dict[str, np.dtype], folder: Path
) -> None:
    """Gathers rows of different lengths."""
    rows_of_pieces = [piece.rows_of_part(task.part) for piece in task.pieces]
    create_array(folder / offsets, (sum(map(len, rows_of_pieces)) + 1,), np.int64)
    out, start = open_array(folder / offsets, "r+"), 1
    for piece, rows in zip(task.pieces, rows_of_pieces, strict=True):
        given = open_array(piece.read.folder / offsets, "r")
        out[start : start + len(rows)] = given[rows + 1] - given[rows]
        start += len(rows)
    np.cumsum(out, out=out)
    for name, dtype in elements.items():
        create_array(folder / name, (int(out[-1]),), dtype)
        target, written = open_array(folder / name, "r+"), 0
        for piece, rows in zip(task.pieces, rows_of_pieces, strict=True):
            given = open_array(piece.read.folder / offsets, "r")
            taken = _elements_of(given, rows)
            target[written : written + len(taken)] = open_array(piece.read.folder / name, "r")[
                taken
            ]
            written += len(taken)


def _elements_of(offsets: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """int64: positions of the elements of rows, row by row."""
    lengths = offsets[rows + 1] - offsets[rows]
    starts = np.cumsum(lengths) - lengths
    positions: np.ndarray = np.arange(int(lengths.sum())) + np.repeat(
        offsets[rows] - starts, lengths
    )
    return positions


def _starts(counts: np.ndarray) -> list[int]:
    return [0, *np.cumsum(counts).tolist()]


def findings_of(results: Sequence[dict[str, Any]]) -> list[Finding]:
    """The findings in the results of tasks."""
    return [
        Finding(**{**given, "rows": tuple(given["rows"]), "values": tuple(given["values"])})
        for result in results
        for given in result["findings"]
    ]
