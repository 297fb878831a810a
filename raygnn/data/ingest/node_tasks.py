"""Node tables to columns: the work on one piece, as a plain function that runs on any node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.bundle_record import SPLIT, column_path
from raygnn.data.hashing import string_buffers
from raygnn.data.id_map import BYTES, IDS, OFFSETS, IdKind, id_kind, integer_ids
from raygnn.data.ingest.array_tasks import Rows, Write
from raygnn.data.ingest.column_plan import (
    DensePlan,
    SparsePlan,
    check_split,
    needed_columns,
    plan_feature,
    plan_label,
    plan_time,
)
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
from raygnn.data.ingest.pieces import Block, Piece, read_blocks
from raygnn.data.ingest.scan import ScannedTable, check_rows
from raygnn.data.manifest import NodeTable

# Per row: 0 good, NO_ID where nothing can be looked up, OTHER where something else is wrong.
BAD = "bad.npy"
NO_ID, OTHER = 1, 2


@dataclass(frozen=True)
class NodePlan:
    """What the table of one node type becomes.

    Attributes:
        table: name for messages.
        types: plain Arrow type of each column that is read.
    """

    table: str
    types: Mapping[str, pa.DataType]
    id_column: str
    id_kind: IdKind
    dense: tuple[DensePlan, ...]
    sparse: tuple[SparsePlan, ...]
    split: str | None


@dataclass(frozen=True)
class NodeTask:
    """One piece of a node table, and where its rows go.

    Attributes:
        folder: the node type's folder; its arrays exist, this task fills its slice of them.
        parts: folder for what has no fixed place yet (string ids, sparse rows).
    """

    piece: Piece
    plan: NodePlan
    folder: Path
    parts: Path

    @property
    def inputs(self) -> tuple[Rows, ...]:
        """Nothing but the table."""
        return ()


@dataclass(frozen=True)
class NodeResult:
    """What is known after a piece was converted.

    Attributes:
        class_names: per string label, the names in the order of the codes that were written.
    """

    findings: tuple[Finding, ...]
    class_names: Mapping[str, tuple[str, ...]]


def node_columns(table: NodeTable) -> list[str]:
    """The table columns that a node type needs."""
    return needed_columns(table.features, table.labels, table.time, [table.id, table.split])


def plan_nodes(table: NodeTable, scanned: ScannedTable, feature_dtype: str | None) -> NodePlan:
    """Plans a node type.

    Raises:
        DataError: a column has a type that does not fit its role, or there are no rows.
    """
    check_rows(scanned)
    features = [
        plan_feature(scanned, name, spec, feature_dtype) for name, spec in table.features.items()
    ]
    dense = [plan for plan in features if isinstance(plan, DensePlan)]
    dense.extend(plan_label(scanned, name, spec) for name, spec in table.labels.items())
    if table.time is not None:
        dense.append(plan_time(scanned, table.time))
    if table.split is not None:
        check_split(scanned, table.split)
    return NodePlan(
        scanned.name,
        scanned.types,
        table.id,
        id_kind(scanned.types[table.id], f"{scanned.name}.id={table.id!r}"),
        tuple(dense),
        tuple(plan for plan in features if isinstance(plan, SparsePlan)),
        table.split,
    )


def part_path(task: NodeTask, name: str) -> Path:
    """The file of a part that this piece alone writes."""
    return task.parts / f"{name}.{task.piece.row_start}.npy"


def convert_nodes(task: NodeTask, arrays: Sequence[np.ndarray], write: Write) -> NodeResult:
    """Writes the rows of one piece into their slices, and checks them."""
    converter = _Converter(task, write)
    for block in read_blocks(task.piece, task.plan.types):
        converter.convert(block)
    return converter.finish()


class _Converter:
    """What is known of the blocks of one task so far."""

    def __init__(self, task: NodeTask, write: Write) -> None:
        self._task, self._plan, self._write = task, task.plan, write
        self._findings = FindingCollector(task.plan.table)
        self._parts: dict[str, list[np.ndarray]] = {}
        self._class_names: dict[str, dict[str, int]] = {}

    def convert(self, block: Block) -> None:
        plan, findings, columns = self._plan, self._findings, block.columns
        folder, start = self._task.folder, self._task.piece.row_start + block.offset
        num_rows = len(columns[plan.id_column])
        findings.start_block(block.file, block.file_row, num_rows)
        self._convert_ids(columns[plan.id_column], start)
        no_id = findings.bad.copy()
        for dense in plan.dense:
            # Each column is checked by itself, so that one bad column hides no other.
            earlier, findings.bad = findings.bad, np.zeros(num_rows, bool)
            rows = self._dense_values(dense, columns)
            self._write(column_path(folder, dense.name), start, rows)
            findings.bad |= earlier
        for sparse in plan.sparse:
            lengths, indices, values = sparse_rows(sparse, columns, findings)
            self._keep(f"{sparse.name}.lengths", lengths)
            self._keep(f"{sparse.name}.indices", indices)
            if values is not None:
                self._keep(f"{sparse.name}.values", values)
        if plan.split is not None:
            split = split_rows(columns[plan.split], plan.split, findings)
            self._write(folder / SPLIT, start, split)
        bad = np.where(no_id, NO_ID, np.where(findings.bad, OTHER, 0))
        self._write(folder / BAD, start, bad.astype(np.uint8))

    def _convert_ids(self, column: pa.Array, start: int) -> None:
        name, findings = self._plan.id_column, self._findings
        remedy = "Give each node an id, or set data.on_error=drop to leave these rows out."
        findings.add(name, "null ids", remedy, null_mask(column), id="nodes-null-ids")
        if self._plan.id_kind == "int":
            ids, too_large = integer_ids(column)
            findings.add(
                name, "ids above 2**63 - 1", REPAIR, too_large, column, id="nodes-id-range"
            )
            self._write(self._task.folder / IDS, start, ids)
            return
        filled = pc.fill_null(column, "") if column.null_count else column
        offsets, data = string_buffers(filled)
        self._keep("id.lengths", np.diff(offsets))
        self._keep("id.bytes", data[offsets[0] : offsets[-1]])

    def _dense_values(self, plan: DensePlan, columns: Mapping[str, pa.Array]) -> np.ndarray:
        if plan.label is None:
            return dense_rows(plan, columns, self._findings)
        if plan.label != "class_name":
            return label_rows(plan, columns, self._findings)
        names = self._class_names.setdefault(plan.name, {})
        return class_name_rows(columns[plan.sources[0].column], names)

    def _keep(self, name: str, values: np.ndarray) -> None:
        self._parts.setdefault(name, []).append(values.copy())

    def finish(self) -> NodeResult:
        for name, blocks in self._parts.items():
            self._write(part_path(self._task, name), None, np.concatenate(blocks))
        names = {label: tuple(codes) for label, codes in self._class_names.items()}
        return NodeResult(tuple(self._findings.findings()), names)


def id_files(kind: IdKind) -> tuple[str, ...]:
    """The files that hold the ids of a node type."""
    return (IDS,) if kind == "int" else (OFFSETS, BYTES)
