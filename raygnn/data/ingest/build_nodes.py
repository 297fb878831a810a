"""The node half of a bundle: plans, schedules and assembles all node types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from raygnn.data.arrays import create_array, join_parts, keep_ragged_rows, keep_rows, open_array
from raygnn.data.bundle_record import SPLIT, ColumnInfo, NodeRecord, column_path
from raygnn.data.id_map import BYTES, IDS, OFFSETS, IdIndex, build_index
from raygnn.data.ingest.array_tasks import OnAnyNode
from raygnn.data.ingest.column_plan import DensePlan, SparsePlan
from raygnn.data.ingest.decode import sparse_index_dtype
from raygnn.data.ingest.findings import MAX_EXAMPLES, Finding, merge
from raygnn.data.ingest.node_tasks import (
    BAD,
    NO_ID,
    NodePlan,
    NodeResult,
    NodeTask,
    convert_nodes,
    id_files,
    part_path,
)
from raygnn.data.ingest.pieces import Piece, cut_table
from raygnn.data.ingest.scan import ScannedTable
from raygnn.data.ingest.schedule import BuildContext
from raygnn.errors import DataError

_CHUNK_ROWS = 1 << 20
# Class numbers up to here may have gaps, however few rows there are.
_ALWAYS_CLASSES = 1000


@dataclass
class AssembledNodes:
    """A node type whose rows are all on disk.

    Attributes:
        findings: everything wrong in its table.
    """

    folder: Path
    plan: NodePlan
    tasks: Sequence[NodeTask]
    results: Sequence[NodeResult]
    index: IdIndex
    duplicate: np.ndarray
    findings: list[Finding]


def create_node_arrays(plan: NodePlan, folder: Path, num_rows: int) -> None:
    """Creates the arrays that the tasks of a node type fill."""
    create_array(folder / BAD, (num_rows,), np.uint8)
    if plan.id_kind == "int":
        create_array(folder / IDS, (num_rows,), np.int64)
    if plan.split is not None:
        create_array(folder / SPLIT, (num_rows,), np.uint8)
    for dense in plan.dense:
        create_array(column_path(folder, dense.name), (num_rows, *dense.shape), dense.dtype)


def join_ragged_rows(plan: NodePlan, folder: Path, tasks: Sequence[NodeTask]) -> None:
    """Joins the string ids and sparse rows that the tasks of a node type have written."""
    if plan.id_kind == "string":
        lengths = [part_path(task, "id.lengths") for task in tasks]
        parts = [part_path(task, "id.bytes") for task in tasks]
        join_parts(lengths, {folder / BYTES: (parts, np.dtype(np.uint8))}, folder / OFFSETS)
    for sparse in plan.sparse:
        elements = {"indices": sparse_index_dtype(sparse.dim)}
        if sparse.values is not None:
            elements["values"] = np.dtype(sparse.dtype)
        join_parts(
            [part_path(task, f"{sparse.name}.lengths") for task in tasks],
            {
                column_path(folder, sparse.name, part): (
                    [part_path(task, f"{sparse.name}.{part}") for task in tasks],
                    dtype,
                )
                for part, dtype in elements.items()
            },
            column_path(folder, sparse.name, "indptr"),
        )


def assemble_nodes(
    plan: NodePlan,
    folder: Path,
    tasks: Sequence[NodeTask],
    results: Sequence[NodeResult],
    drop: bool,
) -> AssembledNodes:
    """Joins string ids and sparse rows, and indexes the ids; finds those that come twice.

    Args:
        drop: bad rows will go, so that an id in one of them does not count as an earlier one.
    """
    join_ragged_rows(plan, folder, tasks)
    bad = open_array(folder / BAD)
    index, duplicate = build_index(folder, bad > 0 if drop else bad == NO_ID, plan.id_kind)
    findings = [finding for result in results for finding in result.findings]
    findings.extend(_duplicate_findings(plan, folder, tasks, duplicate))
    return AssembledNodes(folder, plan, tasks, results, index, duplicate, merge(findings))


def drop_bad_nodes(nodes: AssembledNodes) -> int:
    """Takes the bad rows out of every array and indexes the ids that stay.

    Returns:
        Number of dropped rows.
    Raises:
        DataError: no row is left.
    """
    folder, plan = nodes.folder, nodes.plan
    keep = ~((open_array(folder / BAD) > 0) | nodes.duplicate)
    num_dropped = int(len(keep) - keep.sum())
    if num_dropped == len(keep):
        raise DataError(
            f"{plan.table}: data.on_error=drop left none of its {len(keep):,} rows.",
            id="nodes-all-dropped",
        )
    if num_dropped == 0:
        return 0
    _number_classes(nodes)
    for dense in plan.dense:
        keep_rows(column_path(folder, dense.name), keep)
    if plan.split is not None:
        keep_rows(folder / SPLIT, keep)
    if plan.id_kind == "int":
        keep_rows(folder / IDS, keep)
    else:
        keep_ragged_rows(folder / OFFSETS, [folder / BYTES], keep)
    for sparse in plan.sparse:
        parts = ["indices"] if sparse.values is None else ["indices", "values"]
        elements = [column_path(folder, sparse.name, part) for part in parts]
        keep_ragged_rows(column_path(folder, sparse.name, "indptr"), elements, keep)
    nodes.index, _ = build_index(folder, np.zeros(int(keep.sum()), bool), plan.id_kind)
    return num_dropped


def finish_nodes(nodes: AssembledNodes, num_dropped: int) -> NodeRecord:
    """Numbers string classes, removes what only the ingest needed, and describes the type."""
    folder, plan = nodes.folder, nodes.plan
    if num_dropped == 0:
        _number_classes(nodes)
    (folder / BAD).unlink()
    columns = [_column_info(nodes, dense) for dense in plan.dense]
    columns.extend(map(describe_sparse, plan.sparse))
    return NodeRecord(nodes.index.num_ids, nodes.index, tuple(columns), plan.split is not None)


def _duplicate_findings(
    plan: NodePlan, folder: Path, tasks: Sequence[NodeTask], duplicate: np.ndarray
) -> list[Finding]:
    findings = []
    for task in tasks:
        piece = task.piece
        rows = np.flatnonzero(duplicate[piece.row_start : piece.row_stop])
        findings += duplicate_findings(plan, piece, rows, folder, piece.row_start)
    return findings


def duplicate_findings(
    plan: NodePlan, piece: Piece, rows: np.ndarray, folder: Path, first_id: int = 0
) -> list[Finding]:
    """The findings of ids that an earlier row has, one for each file.

    Args:
        rows: of the piece, ascending.
        folder: of ids, which has that of the piece's first row at `first_id`.
    """
    findings, start = [], 0
    for span in piece.spans if len(rows) else ():
        first, last = np.searchsorted(rows, [start, start + span.num_rows])
        shown = rows[first : min(last, first + MAX_EXAMPLES)].tolist()
        if shown:
            finding = Finding(
                plan.table,
                span.name,
                plan.id_column,
                "ids that an earlier row has",
                "Give each node one row, or set data.on_error=drop to keep the first.",
                int(last - first),
                tuple(row - start + span.file_row_start for row in shown),
                tuple(id_text(plan, folder, first_id + row) for row in shown),
                id="nodes-id-repeated",
            )
            findings.append(finding)
        start += span.num_rows
    return findings


def id_text(plan: NodePlan, folder: Path, row: int) -> str:
    """How messages show the id of a row of the ids in `folder`."""
    if plan.id_kind == "int":
        return str(open_array(folder / IDS)[row])
    offsets, data = (open_array(folder / name) for name in id_files("string"))
    return repr(bytes(data[offsets[row] : offsets[row + 1]]).decode("utf-8", "replace"))


class WithClassNames(Protocol):
    """What reading a piece of a table has found."""

    @property
    def class_names(self) -> Mapping[str, Sequence[str]]:
        """Per string label, the names in the order of the codes that were written."""


def class_names(results: Sequence[WithClassNames], label: str) -> tuple[str, ...]:
    """The names of a string label, sorted: a name's place is its class."""
    names: set[str] = set()
    for result in results:
        names.update(result.class_names.get(label, ()))
    return tuple(sorted(names))


def class_numbers(result: WithClassNames, label: str, names: Sequence[str]) -> np.ndarray:
    """int64: the class by the code that a piece has written; the last, of code -1, is -1."""
    place = {name: i for i, name in enumerate(names)}
    return np.array([*(place[name] for name in result.class_names.get(label, ())), -1], np.int64)


def _number_classes(nodes: AssembledNodes) -> None:
    """Replaces each piece's own codes of string labels by the places in the sorted names."""
    for dense in nodes.plan.dense:
        if dense.label != "class_name":
            continue
        names = class_names(nodes.results, dense.name)
        column = open_array(column_path(nodes.folder, dense.name), "r+")
        for task, result in zip(nodes.tasks, nodes.results, strict=True):
            piece = task.piece
            rows = slice(piece.row_start, piece.row_stop)
            column[rows] = class_numbers(result, dense.name, names)[column[rows]]


def _column_info(nodes: AssembledNodes, plan: DensePlan) -> ColumnInfo:
    greatest = -1
    if plan.label == "class":
        greatest = greatest_class(open_array(column_path(nodes.folder, plan.name)))
    names = class_names(nodes.results, plan.name)
    return describe_column(nodes.plan.table, plan, nodes.index.num_ids, greatest, names)


def describe_sparse(plan: SparsePlan) -> ColumnInfo:
    """The record of a sparse feature."""
    return ColumnInfo(plan.name, "feature", plan.dtype, (plan.dim,), sparse=True)


def greatest_class(column: np.ndarray) -> int:
    """The greatest class of a label; -1 where none is labelled."""
    starts = range(0, len(column), _CHUNK_ROWS)
    return max((int(column[start : start + _CHUNK_ROWS].max()) for start in starts), default=-1)


def describe_column(
    table: str, plan: DensePlan, num_rows: int, greatest: int, names: Sequence[str]
) -> ColumnInfo:
    """The record of a dense column of nodes, or of a label of edges.

    Args:
        greatest: class of a label with class numbers.
        names: of a label of strings.
    Raises:
        DataError: there are more classes than the manifest says, or they have gaps.
    """
    num_classes = None
    if plan.label == "multilabel":
        num_classes = plan.width
    elif plan.label in {"class", "class_name"}:
        found = len(names) if plan.label == "class_name" else greatest + 1
        if plan.num_classes is not None and found > plan.num_classes:
            raise DataError(
                f"{table}.labels.{plan.name}.num_classes={plan.num_classes} is "
                f"invalid: the column holds {found} classes. Set {found}, or leave it out.",
                id="labels-num-classes",
            )
        if plan.num_classes is None and found > max(num_rows, _ALWAYS_CLASSES):
            raise DataError(
                f"{table}.labels.{plan.name} is invalid: classes are 0 and up, and its "
                f"greatest is {found - 1:,}, of {num_rows:,} rows. Number the classes without "
                "gaps, write them as strings, or set num_classes.",
                id="labels-class-gaps",
            )
        num_classes = max(found, plan.num_classes or 0)
    return ColumnInfo(
        plan.name,
        plan.role,
        plan.dtype,
        plan.shape,
        num_classes=num_classes,
        class_names=tuple(names) if plan.label == "class_name" else None,
        unit=plan.unit,
        transforms=plan.transforms,
        quantization=plan.quantization,
    )


def build_nodes(
    plans: Mapping[str, NodePlan], tables: Mapping[str, ScannedTable], context: BuildContext
) -> dict[str, NodeRecord]:
    """Writes every node type.

    Raises:
        DataError: rows break rules (all of them are listed), or none would be left.
    """
    tasks: dict[str, list[NodeTask]] = {}
    for node_type, plan in plans.items():
        folder, parts = context.node_folder(node_type), context.work / "nodes" / node_type
        parts.mkdir(parents=True)
        create_node_arrays(plan, folder, tables[node_type].num_rows)
        tasks[node_type] = [
            NodeTask(piece, plan, folder, parts) for piece in cut_table(tables[node_type])
        ]
    flat = [task for group in tasks.values() for task in group]
    num_rows = sum(table.num_rows for table in tables.values())
    context.progress(f"ingest: reading {num_rows:,} nodes of {len(plans)} type(s)")
    results = iter(context.schedule(OnAnyNode(convert_nodes), flat, "reading nodes"))
    assembled = {
        node_type: assemble_nodes(
            plan,
            context.node_folder(node_type),
            tasks[node_type],
            [next(results) for _ in tasks[node_type]],
            context.drop,
        )
        for node_type, plan in plans.items()
    }
    context.report([finding for nodes in assembled.values() for finding in nodes.findings])
    records = {}
    for node_type, nodes in assembled.items():
        num_dropped = drop_bad_nodes(nodes) if context.drop else 0
        if num_dropped:
            context.progress(f"ingest: dropped {num_dropped:,} nodes of type {node_type!r}")
        records[node_type] = finish_nodes(nodes, num_dropped)
    return records
