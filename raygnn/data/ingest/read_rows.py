"""The read stage: rows of a piece of a table become arrays. Its functions run on any node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data import id_map
from raygnn.data.arrays import Rows, create_array, open_array
from raygnn.data.bundle_record import NODES, SPLIT, column_path
from raygnn.data.edge_kernels import DROPPED
from raygnn.data.hashing import string_buffers
from raygnn.data.ingest.column_plan import DensePlan
from raygnn.data.ingest.decode import (
    class_name_rows,
    dense_rows,
    label_rows,
    null_mask,
    sparse_rows,
    split_rows,
)
from raygnn.data.ingest.findings import Finding, FindingCollector
from raygnn.data.ingest.pieces import Piece, PieceTask, read_blocks
from raygnn.data.ingest.schedule import Write
from raygnn.data.ingest.sort_edges import create_columns
from raygnn.data.ingest.table_plan import EdgePlan, End, NodePlan, TrainingPlan

# Per row of nodes: 0 good, NO_ID if nothing can be looked up, OTHER if something else is wrong.
BAD = "bad.npy"
NO_ID, OTHER = 1, 2


@dataclass(frozen=True)
class ReadResult:
    """The result of reading a piece. `class_names`: by string label, in the order of the codes."""

    findings: tuple[Finding, ...]
    num_bad: int
    class_names: Mapping[str, tuple[str, ...]]


class _PieceReader:
    def __init__(
        self,
        piece: Piece,
        plan: NodePlan | EdgePlan | TrainingPlan,
        folder: Path,
        first_row: int,
        write: Write,
    ) -> None:
        self._piece, self._plan, self._write = piece, plan, write
        self._folder, self._first_row = folder, first_row
        self._class_names: dict[str, dict[str, int]] = {}
        self._num_bad = 0
        self.findings = FindingCollector(plan.table)

    def blocks(self) -> Iterator[tuple[int, Mapping[str, pa.Array]]]:
        for offset, file, file_row, columns in read_blocks(self._piece, self._plan.types):
            self.findings.start_block(file, file_row, len(next(iter(columns.values()))))
            yield self._first_row + offset, columns
            self._num_bad += int(self.findings.bad.sum())

    def write_columns(self, start: int, columns: Mapping[str, pa.Array]) -> None:
        for plan in self._plan.columns:
            with self.findings.one_column():
                values = self._values(plan, start, columns)
            self._write(column_path(self._folder, plan.name), start, values)

    def _values(self, plan: DensePlan, start: int, columns: Mapping[str, pa.Array]) -> np.ndarray:
        if plan.role == "row":
            first = self._piece.row_start - self._first_row + start
            return np.arange(first, first + len(self.findings.bad))
        name = plan.sources[0].column
        if plan.role == "split":
            return split_rows(columns[name], name, self.findings)
        if plan.label == "class_name":
            return class_name_rows(columns[name], self._class_names.setdefault(plan.name, {}))
        if plan.label is not None:
            return label_rows(plan, columns, self.findings)
        return dense_rows(plan, columns, self.findings)

    def result(self) -> ReadResult:
        names = {label: tuple(codes) for label, codes in self._class_names.items()}
        return ReadResult(tuple(self.findings.findings()), self._num_bad, names)


@dataclass(frozen=True)
class NodeTask(PieceTask):
    """One piece of a node table.

    Attributes:
        folder: has the existing arrays of rows of one width.
        first_row: of the piece in these arrays.
        ragged: receives string ids and sparse rows, in files of this piece alone.
    """

    piece: Piece
    plan: NodePlan
    folder: Path
    first_row: int
    ragged: Path

    @property
    def inputs(self) -> tuple[Rows, ...]:
        return ()


def create_node_arrays(plan: NodePlan, folder: Path, num_rows: int) -> None:
    create_array(folder / BAD, (num_rows,), np.uint8)
    if plan.id_kind == "int":
        create_array(folder / id_map.IDS, (num_rows,), np.int64)
    if plan.split is not None:
        create_array(folder / SPLIT, (num_rows,), np.uint8)
    create_columns(plan.columns, folder, num_rows)


def checked_ids(name: str, ids: pa.Array, findings: FindingCollector) -> pa.Array:
    """The ids of a node table, integers as int64. Finds nulls and ids beyond int64."""
    remedy = "Give each node an id, or set data.on_error=drop to leave these rows out."
    findings.add(name, "null ids", null_mask(ids), None, remedy, id="nodes-null-ids")
    if not pa.types.is_integer(ids.type):
        return ids
    values, too_large = id_map.integer_ids(ids)
    findings.add(name, "ids above 2**63 - 1", too_large, ids, id="nodes-id-range")
    return pa.array(values)


def convert_nodes(task: NodeTask, arrays: Sequence[np.ndarray], write: Write) -> ReadResult:
    plan, folder = task.plan, task.folder
    reader = _PieceReader(task.piece, plan, folder, task.first_row, write)
    findings = reader.findings
    # String ids and sparse rows have files of lengths and of elements.
    lengths: dict[Path, list[np.ndarray]] = defaultdict(list)
    elements: dict[Path, list[np.ndarray]] = defaultdict(list)
    for start, columns in reader.blocks():
        ids = checked_ids(plan.id_column, columns[plan.id_column], findings)
        if plan.id_kind == "int":
            write(folder / id_map.IDS, start, ids.to_numpy())
        else:
            offsets, data = string_buffers(pc.fill_null(ids, "") if ids.null_count else ids)
            lengths[task.ragged / id_map.OFFSETS].append(np.diff(offsets))
            elements[task.ragged / id_map.BYTES].append(data[offsets[0] : offsets[-1]].copy())
        no_id = findings.bad.copy()
        reader.write_columns(start, columns)
        for sparse in plan.sparse:
            num_elements, *parts = sparse_rows(sparse, columns, findings)
            lengths[column_path(task.ragged, sparse.name, "indptr")].append(num_elements)
            for name, rows in zip(("indices", "values"), parts, strict=True):
                if rows is not None:
                    elements[column_path(task.ragged, sparse.name, name)].append(rows.copy())
        if plan.split is not None:
            write(folder / SPLIT, start, split_rows(columns[plan.split], plan.split, findings))
        bad = np.where(no_id, NO_ID, np.where(findings.bad, OTHER, 0))
        write(folder / BAD, start, bad.astype(np.uint8))
    for path, blocks in lengths.items():
        write(path, None, np.cumsum(np.concatenate([np.zeros(1, np.int64), *blocks])))
    for path, blocks in elements.items():
        write(path, None, np.concatenate(blocks))
    return reader.result()


@dataclass(frozen=True)
class IdsInFolder:
    """The id map of a node type in one folder, which any node can look ids up in."""

    folder: Path
    index: id_map.IdIndex

    @property
    def inputs(self) -> tuple[Rows, ...]:
        return tuple(Rows(self.folder / name) for name in id_map.table_files(self.index.kind))

    def open(self, tables: Sequence[np.ndarray]) -> id_map.IdMap:
        return id_map.IdMap(self.index, tables)


@dataclass(frozen=True)
class Bucket:
    """The ids of one hash bucket of a node type: folder of ids and table, and file of dense ids."""

    ids: Path
    index: id_map.IdIndex
    dense: Path


@dataclass(frozen=True)
class BucketedIds:
    """The id map of a node type, with one bucket mapped at a time."""

    buckets: tuple[Bucket, ...]

    @property
    def inputs(self) -> tuple[Rows, ...]:
        return ()

    def open(self, tables: Sequence[np.ndarray]) -> BucketedIds:
        return self

    def lookup(self, ids: pa.Array) -> np.ndarray:
        """int64 [n], dense ids; -1 for unknown ids and nulls."""
        out = np.full(len(ids), -1, np.int64)
        if len(ids) == 0:
            return out
        bucket_of_id = bucket_of(ids, len(self.buckets))
        order = np.argsort(bucket_of_id, kind="stable")
        ends = np.cumsum(np.bincount(bucket_of_id, minlength=len(self.buckets)))
        for bucket, rows in zip(self.buckets, np.split(order, ends[:-1]), strict=True):
            if len(rows):
                dense = id_map.IdMap.open(bucket.ids, bucket.index).lookup(ids.take(pa.array(rows)))
                known = dense >= 0
                out[rows[known]] = open_array(bucket.dense, "r")[dense[known]]
        return out


def bucket_of(ids: pa.Array, num_buckets: int) -> np.ndarray:
    """int64 [n]: the bucket of each id."""
    return (id_map.hash_column(ids) % np.uint64(num_buckets)).astype(np.int64)


@dataclass(frozen=True)
class RowTask(PieceTask):
    """One piece of a table whose rows refer to nodes: of edges, or a training table.

    Attributes:
        ids: of the node type of each of the plan's ends.
        dtype: of dense ids on disk.
        folder: has the existing arrays of the ends and the columns.
        first_row: of the piece in these arrays.
    """

    piece: Piece
    plan: EdgePlan | TrainingPlan
    ids: tuple[IdsInFolder | BucketedIds, ...]
    dtype: np.dtype
    folder: Path
    first_row: int = 0

    @property
    def inputs(self) -> tuple[Rows, ...]:
        return tuple(rows for ids in dict.fromkeys(self.ids) for rows in ids.inputs)


def create_row_arrays(
    plan: EdgePlan | TrainingPlan, folder: Path, num_rows: int, dtype: np.dtype
) -> None:
    for end in plan.ends:
        create_array(folder / end.array, (num_rows,), dtype)
    create_columns(plan.columns, folder, num_rows)


def convert_rows(task: RowTask, tables: Sequence[np.ndarray], write: Write) -> ReadResult:
    plan, left = task.plan, iter(tables)
    opened = {ids: ids.open([next(left) for _ in ids.inputs]) for ids in dict.fromkeys(task.ids)}
    reader = _PieceReader(task.piece, plan, task.folder, task.first_row, write)
    for start, columns in reader.blocks():
        dense = [
            find_nodes(opened[ids], end, columns[end.column], reader.findings)
            for ids, end in zip(task.ids, plan.ends, strict=True)
        ]
        reader.write_columns(start, columns)
        for found, end in zip(dense, plan.ends, strict=True):
            found[reader.findings.bad] = DROPPED
            write(task.folder / end.array, start, found.astype(task.dtype))
    return reader.result()


def find_nodes(
    ids: id_map.IdMap | BucketedIds, end: End, column: pa.Array, findings: FindingCollector
) -> np.ndarray:
    """Dense ids that rows refer to, int64. Finds nulls and unknown ids, which are -1."""
    dense, null = ids.lookup(column), null_mask(column)
    unknown = (dense < 0) & ~null
    if end.array == NODES:
        remedy = "Give each row its node, or set data.on_error=drop to leave these rows out."
        findings.add(end.column, "null ids", null, None, remedy, id="training-rows-null-ids")
        remedy = "Add the nodes, or set data.on_error=drop to leave these rows out."
        rule = f"ids that node type {end.node_type!r} does not have"
        findings.add(end.column, rule, unknown, column, remedy, id="training-rows-unknown-ids")
    else:
        remedy = "Give both endpoints, or set data.on_error=drop to leave these edges out."
        findings.add(end.column, "null ids", null, None, remedy, id="edges-null-ids")
        remedy = "Add the nodes, or set data.on_error=drop to leave these edges out."
        rule = f"ids that node type {end.node_type!r} does not have (dangling)"
        findings.add(end.column, rule, unknown, column, remedy, id="edges-dangling")
    return dense
