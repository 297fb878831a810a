"""The read stage: rows of a piece of a table become arrays. Its functions run on any node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.arrays import Rows, create_array
from raygnn.data.bundle_record import NODES, SPLIT, column_path
from raygnn.data.edge_kernels import DROPPED
from raygnn.data.hashing import string_buffers
from raygnn.data.id_map import BYTES, IDS, OFFSETS, IdIndex, IdMap, integer_ids, table_files
from raygnn.data.ingest.column_plan import DensePlan
from raygnn.data.ingest.decode import (
    REPAIR,
    class_name_rows,
    dense_rows,
    label_rows,
    null_mask,
    sparse_rows,
    split_rows,
)
from raygnn.data.ingest.findings import Finding, FindingCollector
from raygnn.data.ingest.pieces import Piece, read_blocks
from raygnn.data.ingest.schedule import Write
from raygnn.data.ingest.sort_edges import DST, SRC, create_columns
from raygnn.data.ingest.table_plan import EdgePlan, NodePlan, TrainingPlan

# Per row of nodes: 0 good, NO_ID if nothing can be looked up, OTHER if something else is wrong.
BAD = "bad.npy"
NO_ID, OTHER = 1, 2


@dataclass(frozen=True)
class ReadResult:
    """The result of reading a piece.

    Attributes:
        class_names: for each string label, the names in the order of the codes.
    """

    findings: tuple[Finding, ...]
    num_bad: int
    class_names: Mapping[str, tuple[str, ...]]

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> ReadResult:
        """The result from JSON of its `asdict`."""
        names = {label: tuple(given) for label, given in content["class_names"].items()}
        return cls(findings_of(content), content["num_bad"], names)


def findings_of(content: Mapping[str, Any]) -> tuple[Finding, ...]:
    return tuple(
        Finding(**{**finding, "rows": tuple(finding["rows"]), "values": tuple(finding["values"])})
        for finding in content["findings"]
    )


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
class NodeTask:
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
        create_array(folder / IDS, (num_rows,), np.int64)
    if plan.split is not None:
        create_array(folder / SPLIT, (num_rows,), np.uint8)
    create_columns(plan.columns, folder, num_rows)


def checked_ids(name: str, ids: pa.Array, findings: FindingCollector) -> pa.Array:
    """The ids of a node table, integers as int64. Finds nulls and ids beyond int64."""
    remedy = "Give each node an id, or set data.on_error=drop to leave these rows out."
    findings.add(name, "null ids", remedy, null_mask(ids), id="nodes-null-ids")
    if not pa.types.is_integer(ids.type):
        return ids
    values, too_large = integer_ids(ids)
    findings.add(name, "ids above 2**63 - 1", REPAIR, too_large, ids, id="nodes-id-range")
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
            write(folder / IDS, start, ids.to_numpy())
        else:
            offsets, data = string_buffers(pc.fill_null(ids, "") if ids.null_count else ids)
            lengths[task.ragged / OFFSETS].append(np.diff(offsets))
            elements[task.ragged / BYTES].append(data[offsets[0] : offsets[-1]].copy())
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


class LooksUpIds(Protocol):
    """Finds dense ids of original ids, like `IdMap`."""

    def lookup(self, ids: pa.Array) -> np.ndarray:
        """int64 [n]; -1 for unknown ids and nulls."""
        ...


class OpensIds(Protocol):
    """A picklable reference to the ids of a node type."""

    @property
    def inputs(self) -> tuple[Rows, ...]: ...

    def open(self, tables: Sequence[np.ndarray]) -> LooksUpIds: ...


@dataclass(frozen=True)
class Endpoints:
    """The id map of a node type in one folder."""

    folder: Path
    index: IdIndex

    @property
    def inputs(self) -> tuple[Rows, ...]:
        return tuple(Rows(self.folder / name) for name in table_files(self.index.kind))

    def open(self, tables: Sequence[np.ndarray]) -> IdMap:
        return IdMap(self.index, tables)


@dataclass(frozen=True)
class EdgeTask:
    """One piece of an edge table.

    Attributes:
        dtype: of dense ids on disk.
        folder: has the existing arrays SRC, DST and the columns of the piece.
    """

    piece: Piece
    plan: EdgePlan
    source: OpensIds
    target: OpensIds
    dtype: np.dtype
    folder: Path

    @property
    def inputs(self) -> tuple[Rows, ...]:
        tables = self.source.inputs
        return tables if self.target == self.source else (*tables, *self.target.inputs)


def create_edge_arrays(task: EdgeTask) -> None:
    for name in (SRC, DST):
        create_array(task.folder / name, (task.piece.num_rows,), task.dtype)
    create_columns(task.plan.columns, task.folder, task.piece.num_rows)


def convert_edges(task: EdgeTask, tables: Sequence[np.ndarray], write: Write) -> ReadResult:
    plan = task.plan
    num_source_tables = len(task.source.inputs)
    source = target = task.source.open(tables[:num_source_tables])
    if task.target != task.source:
        target = task.target.open(tables[num_source_tables:])
    reader = _PieceReader(task.piece, plan, task.folder, 0, write)
    for start, columns in reader.blocks():
        ends = ((source, plan.source, plan.edge_type[0]), (target, plan.target, plan.edge_type[2]))
        src, dst = (
            find_endpoints(ids, name, node_type, columns[name], reader.findings)
            for ids, name, node_type in ends
        )
        reader.write_columns(start, columns)
        for ids, name in ((src, SRC), (dst, DST)):
            ids[reader.findings.bad] = DROPPED
            write(task.folder / name, start, ids.astype(task.dtype))
    return reader.result()


def find_endpoints(
    ids: LooksUpIds, name: str, node_type: str, column: pa.Array, findings: FindingCollector
) -> np.ndarray:
    """Dense ids of one end of edges, int64. Finds nulls and unknown ids, which are -1."""
    dense = ids.lookup(column)
    null = null_mask(column)
    remedy = "Give both endpoints, or set data.on_error=drop to leave these edges out."
    findings.add(name, "null ids", remedy, null, id="edges-null-ids")
    remedy = "Add the nodes, or set data.on_error=drop to leave these edges out."
    rule = f"ids that node type {node_type!r} does not have (dangling)"
    findings.add(name, rule, remedy, (dense < 0) & ~null, column, id="edges-dangling")
    return dense


@dataclass(frozen=True)
class TrainingTask:
    """One piece of a training table.

    Attributes:
        dtype: of dense ids on disk.
        folder: has the existing arrays NODES and the columns.
        first_row: of the piece in these arrays.
    """

    piece: Piece
    plan: TrainingPlan
    ids: OpensIds
    dtype: np.dtype
    folder: Path
    first_row: int

    @property
    def inputs(self) -> tuple[Rows, ...]:
        return self.ids.inputs


def create_training_arrays(
    plan: TrainingPlan, folder: Path, num_rows: int, dtype: np.dtype
) -> None:
    create_array(folder / NODES, (num_rows,), dtype)
    create_columns(plan.columns, folder, num_rows)


def convert_training_rows(
    task: TrainingTask, tables: Sequence[np.ndarray], write: Write
) -> ReadResult:
    plan, ids = task.plan, task.ids.open(tables)
    reader = _PieceReader(task.piece, plan, task.folder, task.first_row, write)
    for start, columns in reader.blocks():
        column, findings = columns[plan.node], reader.findings
        dense, null = ids.lookup(column), null_mask(column)
        remedy = "Give each row its node, or set data.on_error=drop to leave these rows out."
        findings.add(plan.node, "null ids", remedy, null, id="training-rows-null-ids")
        remedy = "Add the nodes, or set data.on_error=drop to leave these rows out."
        rule = f"ids that node type {plan.node_type!r} does not have"
        unknown = (dense < 0) & ~null
        findings.add(plan.node, rule, remedy, unknown, column, id="training-rows-unknown-ids")
        reader.write_columns(start, columns)
        dense[findings.bad] = DROPPED
        write(task.folder / NODES, start, dense.astype(task.dtype))
    return reader.result()
