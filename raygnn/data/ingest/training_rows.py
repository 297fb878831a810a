"""Training tables: dense ids of entities, times, labels and splits, in the order of the rows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from raygnn.data.arrays import Rows, Source, gather_rows, open_array
from raygnn.data.bundle_record import NODES, NodeRecord, TrainingTableRecord, column_path
from raygnn.data.ingest.describe import describe_columns
from raygnn.data.ingest.findings import merge
from raygnn.data.ingest.nodes import node_folder, number_classes
from raygnn.data.ingest.pieces import cut_table
from raygnn.data.ingest.read_rows import (
    Endpoints,
    ReadResult,
    TrainingTask,
    convert_training_rows,
    create_training_arrays,
)
from raygnn.data.ingest.scan import ScannedTable
from raygnn.data.ingest.schedule import BuildContext, OnAnyNode
from raygnn.data.ingest.sort_edges import index_dtype
from raygnn.data.ingest.table_plan import TrainingPlan
from raygnn.errors import DataError

_KEPT = "kept.npy"


def build_training_tables(
    plans: Sequence[TrainingPlan],
    tables: Mapping[str, ScannedTable],
    nodes: Mapping[str, NodeRecord],
    bundle: Path,
    work: Path,
    context: BuildContext,
) -> tuple[TrainingTableRecord, ...]:
    """Writes every training table of a bundle.

    Args:
        tables: by the name that the plan has.
        nodes: the finished node types.
        work: folder for files of the ingest alone.
    Raises:
        DataError: rows break rules (all of them are listed), or none would be left.
    """
    if not plans:
        return ()
    tasks = []
    for plan in plans:
        folder, record = bundle / plan.folder, nodes[plan.node_type]
        dtype = index_dtype(record.num_nodes)
        create_training_arrays(plan, folder, tables[plan.table].num_rows, dtype)
        ids = Endpoints(node_folder(bundle, plan.node_type), record.ids)
        tasks.append(
            [
                TrainingTask(piece, plan, ids, dtype, folder, piece.row_start)
                for piece in cut_table(tables[plan.table])
            ]
        )
    num_rows = [tables[plan.table].num_rows for plan in plans]
    context.say(f"reading {sum(num_rows):,} rows of {len(plans)} training table(s)")
    flat = [task for group in tasks for task in group]
    done = iter(context.schedule(OnAnyNode(convert_training_rows), flat, "reading training rows"))
    results = [[next(done) for _ in group] for group in tasks]
    num_kept = report_training_rows(plans, num_rows, results, context)
    for plan, group, found, kept, count in zip(
        plans, tasks, results, num_kept, num_rows, strict=True
    ):
        number_classes(plan.columns, group, found)
        if kept < count:
            _drop_rows(plan, group, work / plan.folder)
    return describe_training_tables(plans, num_kept, results, [bundle])


def report_training_rows(
    plans: Sequence[TrainingPlan],
    num_rows: Sequence[int],
    results: Sequence[Sequence[ReadResult]],
    context: BuildContext,
) -> list[int]:
    """Raises the problems of training tables, or reports them if bad rows are dropped.

    Args:
        num_rows: of each table.
        results: of the pieces of each table.
    Returns:
        Number of rows of each table that are kept.
    Raises:
        DataError: rows break rules, or none would be left.
    """
    context.report(
        merge(finding for found in results for result in found for finding in result.findings)
    )
    num_kept = []
    for plan, count, found in zip(plans, num_rows, results, strict=True):
        num_dropped = sum(result.num_bad for result in found)
        if num_dropped == count:
            raise DataError(
                f"{plan.table}: data.on_error=drop left none of its {num_dropped:,} rows.",
                id="training-rows-all-dropped",
            )
        if num_dropped:
            context.say(f"dropped {num_dropped:,} rows of training table {plan.name!r}")
        num_kept.append(count - num_dropped)
    return num_kept


def describe_training_tables(
    plans: Sequence[TrainingPlan],
    num_rows: Sequence[int],
    results: Sequence[Sequence[ReadResult]],
    folders: Sequence[Path],
) -> tuple[TrainingTableRecord, ...]:
    """The records of finished training tables.

    Args:
        folders: of the bundle, or of each part.
    """
    records = []
    for plan, count, found in zip(plans, num_rows, results, strict=True):
        stored = [folder / plan.folder for folder in folders]
        columns = describe_columns(plan.table, plan.columns, count, found, stored)
        records.append(TrainingTableRecord(plan.name, plan.node_type, count, columns))
    return tuple(records)


def save_kept_rows(folder: Path, rows: slice, path: Path) -> Rows:
    """Writes the numbers of the rows of a folder that are not dropped, ascending."""
    kept = rows.start + np.flatnonzero(open_array(folder / NODES, "r")[rows] >= 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, kept)
    return Rows(path, 0, len(kept))


def gather_training_rows(
    plan: TrainingPlan,
    sources: Sequence[Source],
    folder: Path,
    classes: Sequence[Mapping[str, np.ndarray]] | None = None,
) -> None:
    """Writes rows one after another into a new folder.

    Args:
        sources: folders of rows that were read.
        classes: for each source and label of strings, the class of each code in its column; None
            if the columns have classes already.
    """
    gather_rows(sources, NODES, folder)
    for column in plan.columns:
        is_named = column.label == "class_name" and classes is not None
        tables = [found[column.name] for found in classes or ()] if is_named else None
        gather_rows(sources, column_path(Path(), column.name), folder, tables)


def _drop_rows(plan: TrainingPlan, tasks: Sequence[TrainingTask], work: Path) -> None:
    """Takes bad rows out of all arrays of a table."""
    folder = tasks[0].folder
    sources: list[Source] = []
    for task in tasks:
        rows = slice(task.first_row, task.first_row + task.piece.num_rows)
        path = work / f"{task.first_row}.npy"
        sources.append((folder, save_kept_rows(folder, rows, path)))
    gather_training_rows(plan, sources, work / _KEPT)
    shutil.rmtree(folder)
    (work / _KEPT).rename(folder)
