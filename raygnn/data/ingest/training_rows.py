"""Training tables: dense ids of entities, times, labels and splits, in row order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from raygnn.console import count
from raygnn.data.arrays import Source, gather_rows, index_dtype, open_array
from raygnn.data.bundle_record import NODES, NodeRecord, TrainingTableRecord, node_folder
from raygnn.data.ingest.describe import describe_columns
from raygnn.data.ingest.edges import report_rows
from raygnn.data.ingest.nodes import gather_columns, keep_rows, number_classes
from raygnn.data.ingest.pieces import cut_table
from raygnn.data.ingest.read_rows import (
    IdsInFolder,
    ReadResult,
    RowTask,
    convert_rows,
    create_row_arrays,
)
from raygnn.data.ingest.scan import ScannedTable
from raygnn.data.ingest.schedule import BuildContext, OnAnyNode
from raygnn.data.ingest.table_plan import TrainingPlan


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
        tables: by name in the plan.
        nodes: the finished node types.
        work: folder for temporary files of the ingest.
    Raises:
        DataError: rows break rules (all are listed), or none would remain.
    """
    if not plans:
        return ()
    tasks = []
    for plan in plans:
        folder, record = bundle / plan.folder, nodes[plan.node_type]
        dtype = index_dtype(record.num_nodes)
        create_row_arrays(plan, folder, tables[plan.table].num_rows, dtype)
        ids = IdsInFolder(node_folder(bundle, plan.node_type), record.ids)
        pieces = cut_table(tables[plan.table])
        tasks.append([RowTask(p, plan, (ids,), dtype, folder, p.row_start) for p in pieces])
    num_rows = [tables[plan.table].num_rows for plan in plans]
    context.say(f"reading {sum(num_rows):,} rows of {count(len(plans), 'training table')}")
    results = context.run(OnAnyNode(convert_rows), tasks, "reading training rows")
    num_kept = report_rows(plans, num_rows, results, context)
    records = []
    for i, plan in enumerate(plans):
        number_classes(plan.columns, tasks[i], results[i])
        if num_kept[i] < num_rows[i]:
            gather = partial(gather_training_rows, plan)
            keep_rows(bundle / plan.folder, _kept_rows(tasks[i]), work / plan.folder, gather)
        records.append(describe_training_table(plan, num_kept[i], results[i], [bundle]))
    return tuple(records)


def _kept_rows(tasks: Sequence[RowTask]) -> Iterator[np.ndarray]:
    for task in tasks:
        first, last = task.first_row, task.first_row + task.piece.num_rows
        yield first + np.flatnonzero(open_array(task.folder / NODES, "r")[first:last] >= 0)


def describe_training_table(
    plan: TrainingPlan, num_rows: int, results: Sequence[ReadResult], folders: Sequence[Path]
) -> TrainingTableRecord:
    stored = [folder / plan.folder for folder in folders]
    columns = describe_columns(plan.table, plan.columns, num_rows, results, stored)
    return TrainingTableRecord(plan.name, plan.node_type, num_rows, columns, plan.window)


def gather_training_rows(
    plan: TrainingPlan,
    sources: Sequence[Source],
    folder: Path,
    classes: Sequence[Mapping[str, np.ndarray]] | None = None,
) -> None:
    gather_rows(sources, NODES, folder)
    gather_columns(plan.columns, sources, folder, classes)
