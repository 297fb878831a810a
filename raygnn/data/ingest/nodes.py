"""The number stage: repeated ids, and node rows in the order of their dense ids."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from raygnn.console import count
from raygnn.data.arrays import Rows, Source, gather_ragged_rows, gather_rows, open_array
from raygnn.data.bundle_record import SPLIT, NodeRecord, column_path, node_folder
from raygnn.data.id_map import IdIndex, build_index, gather_ids, stored_ids
from raygnn.data.ingest import read_rows
from raygnn.data.ingest.column_plan import DensePlan
from raygnn.data.ingest.describe import class_tables, describe_columns
from raygnn.data.ingest.findings import MAX_EXAMPLES, Finding, merge
from raygnn.data.ingest.pieces import Piece, cut_table
from raygnn.data.ingest.scan import ScannedTable
from raygnn.data.ingest.schedule import BuildContext, OnAnyNode
from raygnn.data.ingest.table_plan import NodePlan
from raygnn.errors import DataError


def find_repeated(
    plan: NodePlan,
    folder: Path,
    skip: np.ndarray,
    pieces: Sequence[tuple[Piece, np.ndarray | None]],
) -> tuple[IdIndex, list[np.ndarray], list[Finding]]:
    """Indexes the ids in a folder.

    Args:
        skip: bool, ids to leave out.
        pieces: each piece, and the numbers of its rows, whose ids are consecutive in the folder;
            None for all rows.
    Returns:
        The index; for each piece, the rows whose id an earlier row has; and findings about them.
    """
    index, is_repeated = build_index(folder, skip, plan.id_kind)
    ids = stored_ids(folder, plan.id_kind)
    repeated, findings, start = [], [], 0
    for piece, rows in pieces:
        num_ids = piece.num_rows if rows is None else len(rows)
        at = np.flatnonzero(is_repeated[start : start + num_ids])
        repeated.append(at if rows is None else rows[at].astype(np.int64))
        findings += _repeated_findings(plan, piece, repeated[-1], ids, start + at)
        start += num_ids
    return index, repeated, findings


def _repeated_findings(
    plan: NodePlan, piece: Piece, rows: np.ndarray, ids: pa.Array, at: np.ndarray
) -> list[Finding]:
    """One finding per file. `rows`: of the piece, ascending; `at`: positions of their ids."""
    findings, start = [], 0
    for span in piece.spans if len(rows) else ():
        first, last = np.searchsorted(rows, [start, start + span.num_rows])
        shown = slice(first, min(last, first + MAX_EXAMPLES))
        if first < last:
            finding = Finding(
                plan.table,
                span.file.name,
                plan.id_column,
                "ids that an earlier row has",
                "Give each node one row, or set data.on_error=drop to keep the first.",
                int(last - first),
                tuple(row - start + span.file_row_start for row in rows[shown].tolist()),
                tuple(_id_text(ids, position) for position in at[shown].tolist()),
                id="nodes-id-repeated",
            )
            findings.append(finding)
        start += span.num_rows
    return findings


def _id_text(ids: pa.Array, position: int) -> str:
    if pa.types.is_integer(ids.type):
        return str(ids[position].as_py())
    return repr(ids[position].as_buffer().to_pybytes().decode("utf-8", "replace"))


def all_kept(plan: NodePlan, num_kept: int, num_rows: int) -> bool:
    """Whether no row of a node type is dropped. Raises a DataError if all are."""
    if num_kept == 0:
        raise DataError(
            f"{plan.table}: data.on_error=drop removed all {num_rows:,} rows. [nodes-all-dropped]"
        )
    return num_kept == num_rows


def gather_nodes(
    plan: NodePlan,
    sources: Sequence[Source],
    folder: Path,
    classes: Sequence[Mapping[str, np.ndarray]] | None = None,
) -> None:
    """Writes ids, columns and split of nodes into a new folder, by dense id.

    `classes`: for each source and string label, the class of each code; None if columns already
    have classes.
    """
    gather_ids(sources, plan.id_kind, folder)
    if plan.split is not None:
        gather_rows(sources, SPLIT, folder)
    gather_columns(plan.columns, sources, folder, classes)
    for sparse in plan.sparse:
        gather_sparse(sources, sparse.name, folder)


def gather_columns(
    columns: Sequence[DensePlan],
    sources: Sequence[Source],
    folder: Path,
    classes: Sequence[Mapping[str, np.ndarray]] | None,
) -> None:
    for column in columns:
        is_named = column.label == "class_name" and classes is not None
        tables = [names[column.name] for names in classes or ()] if is_named else None
        gather_rows(sources, column_path(Path(), column.name), folder, tables)


def keep_rows(
    folder: Path,
    kept: Iterable[np.ndarray],
    work: Path,
    gather: Callable[[Sequence[Source], Path], None],
) -> None:
    """Reduces the arrays of a folder to some rows.

    Args:
        kept: numbers of the rows of each piece, ascending.
        gather: writes rows of sources into a new folder.
    """
    work.mkdir(parents=True, exist_ok=True)
    sources: list[Source] = []
    for number, rows in enumerate(kept):
        np.save(work / f"{number}.npy", rows)
        sources.append((folder, Rows(work / f"{number}.npy")))
    gather(sources, work / "kept")
    shutil.rmtree(folder)
    (work / "kept").rename(folder)


def gather_sparse(sources: Sequence[Source], name: str, folder: Path) -> None:
    indptr, *elements = (column_path(Path(), name, x) for x in ("indptr", "indices", "values"))
    elements = [path for path in elements if (sources[0][0] / path).exists()]
    gather_ragged_rows(sources, indptr, elements, folder)


def build_nodes(
    plans: Mapping[str, NodePlan],
    tables: Mapping[str, ScannedTable],
    bundle: Path,
    work: Path,
    context: BuildContext,
) -> dict[str, NodeRecord]:
    """Writes every node type of a bundle, with temporary files in `work`.

    Raises a DataError if rows break rules (all are listed), or none would remain.
    """
    tasks: dict[str, list[read_rows.NodeTask]] = {}
    for name, plan in plans.items():
        folder = node_folder(bundle, name)
        read_rows.create_node_arrays(plan, folder, tables[name].num_rows)
        tasks[name] = [
            read_rows.NodeTask(
                piece, plan, folder, piece.row_start, work / name / str(piece.row_start)
            )
            for piece in cut_table(tables[name])
        ]
    num_rows = sum(table.num_rows for table in tables.values())
    context.say(f"reading {num_rows:,} nodes of {count(len(plans), 'type')}")
    done = context.run(OnAnyNode(read_rows.convert_nodes), list(tasks.values()), "reading nodes")
    results = dict(zip(tasks, done, strict=True))
    indexes, repeated = {}, {}
    findings: list[Finding] = []
    for name, plan in plans.items():
        folder = node_folder(bundle, name)
        ragged = [(task.ragged, None) for task in tasks[name]]
        if plan.id_kind == "string":
            gather_ids(ragged, "string", folder)
        for sparse in plan.sparse:
            gather_sparse(ragged, sparse.name, folder)
        bad = open_array(folder / read_rows.BAD)
        skip = bad > 0 if context.drop else bad == read_rows.NO_ID
        pieces = [(task.piece, None) for task in tasks[name]]
        indexes[name], repeated[name], found = find_repeated(plan, folder, skip, pieces)
        found = [*(finding for result in results[name] for finding in result.findings), *found]
        findings += merge(found)
    context.report(findings)
    records = {}
    for name, plan in plans.items():
        number_classes(plan.columns, tasks[name], results[name])
        if context.drop:
            index = _drop_rows(name, plan, tasks[name], repeated[name], context)
            indexes[name] = index or indexes[name]
        folder, num_nodes = node_folder(bundle, name), indexes[name].num_ids
        (folder / read_rows.BAD).unlink(missing_ok=True)
        columns = describe_columns(
            plan.table, [*plan.columns, *plan.sparse], num_nodes, results[name], [folder]
        )
        records[name] = NodeRecord(num_nodes, indexes[name], columns, plan.split is not None)
    return records


def number_classes(
    columns: Sequence[DensePlan],
    tasks: Sequence[read_rows.NodeTask | read_rows.RowTask],
    results: Sequence[read_rows.ReadResult],
) -> None:
    for task, classes in zip(tasks, class_tables(results, columns), strict=True):
        rows = slice(task.first_row, task.first_row + task.piece.num_rows)
        for label, classes_of_codes in classes.items():
            column = open_array(column_path(task.folder, label), "r+")
            column[rows] = classes_of_codes[column[rows]]


def _drop_rows(
    name: str,
    plan: NodePlan,
    tasks: Sequence[read_rows.NodeTask],
    repeated: Sequence[np.ndarray],
    context: BuildContext,
) -> IdIndex | None:
    """Removes bad rows and repeated ids from all arrays. Returns the new index, if any."""
    folder = tasks[0].folder
    bad = open_array(folder / read_rows.BAD)
    for task, twice in zip(tasks, repeated, strict=True):
        bad[task.first_row + twice] = read_rows.OTHER
    num_kept = int((bad == 0).sum())
    if all_kept(plan, num_kept, len(bad)):
        return None
    context.say(f"dropped {len(bad) - num_kept:,} nodes of type {name!r}")
    starts = [(task.first_row, task.first_row + task.piece.num_rows) for task in tasks]
    good_rows = (first + np.flatnonzero(bad[first:last] == 0) for first, last in starts)
    keep_rows(folder, good_rows, tasks[0].ragged.with_name("kept"), partial(gather_nodes, plan))
    index, _ = build_index(folder, np.zeros(num_kept, bool), plan.id_kind)
    return index
