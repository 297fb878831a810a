"""Tables whose rows refer to nodes, edges and training rows, become a part of the bundle."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from raygnn.console import count
from raygnn.data.arrays import Source, gather_rows, index_dtype, open_array
from raygnn.data.bundle_record import (
    NODES,
    BundleRecord,
    ColumnInfo,
    EdgeRecord,
    LabelEdgeRecord,
    NodeRecord,
    TrainingTableRecord,
    label_edge_folder,
    node_folder,
)
from raygnn.data.ingest.describe import class_tables, describe_columns, measure_features
from raygnn.data.ingest.findings import merge
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
from raygnn.data.ingest.schedule import BuildContext, OnAnyNode, Schedule
from raygnn.data.ingest.sort_edges import EdgeSort, ReadEdges, move_to_buckets, order_buckets
from raygnn.data.ingest.table_plan import EdgePlan, TrainingPlan, plan_reverse
from raygnn.data.manifest import Manifest, reverses
from raygnn.errors import DataError


@dataclass(frozen=True)
class BuiltEdges:
    plan: EdgePlan
    num_edges: int
    columns: tuple[ColumnInfo, ...]


def build_edges(
    plans: Sequence[EdgePlan],
    tables: Mapping[str, ScannedTable],
    nodes: Mapping[str, NodeRecord],
    bundle: Path,
    work: Path,
    context: BuildContext,
) -> list[BuiltEdges]:
    """Writes every edge type and set of label edges of a bundle, reverse types last.

    Raises a DataError if rows break rules (all are listed), or none would remain.
    """
    if not plans:
        return []
    num_nodes = {name: record.num_nodes for name, record in nodes.items()}
    ids = {name: IdsInFolder(node_folder(bundle, name), node.ids) for name, node in nodes.items()}
    num_rows = [tables[plan.table].num_rows for plan in plans]
    context.say(f"reading {sum(num_rows):,} edges of {count(len(plans), 'type')}")
    empty = [plan.table for plan, count in zip(plans, num_rows, strict=True) if not count]
    if empty:
        context.say(f"no rows in {', '.join(empty)}")
    rows_folder = work / "rows"
    rows_folder.mkdir()
    tasks = [
        [
            RowTask(
                piece,
                plan,
                (ids[source], ids[target]),
                index_dtype(num_nodes[source], num_nodes[target]),
                rows_folder / plan.folder / str(piece.row_start),
            )
            for source, _, target in [plan.edge_type]
            for piece in cut_table(tables[plan.table])
        ]
        for plan in plans
    ]
    for group in tasks:
        for task in group:
            create_row_arrays(task.plan, task.folder, task.piece.num_rows, task.dtype)
    results = context.run(OnAnyNode(convert_rows), tasks, "reading edges")
    report_rows(plans, num_rows, results, context)
    rows = [
        [
            ReadEdges(task.folder, classes)
            for task, classes in zip(group, class_tables(read, plan.columns), strict=True)
        ]
        for plan, group, read in zip(plans, tasks, results, strict=True)
    ]
    # Reverse edge types reuse the rows of their table.
    of_table = [*range(len(plans)), *(i for i, plan in enumerate(plans) if plan.reverse)]
    plans = [*plans, *(plan_reverse(plan) for plan in plans if plan.reverse)]
    sorts = [
        EdgeSort(
            plan,
            num_nodes[plan.edge_type[0]],
            0,
            num_nodes[plan.edge_type[2]],
            work / "buckets" / plan.folder,
            bundle / plan.folder,
        )
        for plan in plans
    ]
    buckets = move_to_buckets(sorts, [rows[i] for i in of_table], context.schedule)
    shutil.rmtree(rows_folder)
    counts = order_buckets(sorts, buckets, context.schedule)
    return [
        BuiltEdges(
            plan,
            num_edges,
            describe_columns(
                plan.table, plan.columns, num_edges, results[i], [bundle / plan.folder]
            ),
        )
        for i, plan, num_edges in zip(of_table, plans, counts, strict=True)
    ]


def report_rows(
    plans: Sequence[EdgePlan | TrainingPlan],
    num_rows: Sequence[int],
    results: Sequence[Sequence[ReadResult]],
    context: BuildContext,
) -> list[int]:
    """Raises the problems of tables, or reports them if bad rows are dropped.

    Returns the number of kept rows of each table. Raises a DataError if rows break rules, or none
    would remain.
    """
    context.report(
        merge(finding for found in results for result in found for finding in result.findings)
    )
    num_kept = []
    for plan, num_of_plan, found in zip(plans, num_rows, results, strict=True):
        num_dropped = sum(result.num_bad for result in found)
        if num_dropped and num_dropped == num_of_plan:
            raise DataError(
                f"{plan.table}: data.on_error=drop removed all of its {num_dropped:,} rows.",
                id="edges-all-dropped"
                if isinstance(plan, EdgePlan)
                else "training-rows-all-dropped",
            )
        if num_dropped:
            context.say(f"dropped {num_dropped:,} {plan.what}")
        num_kept.append(num_of_plan - num_dropped)
    return num_kept


def measured_record(
    fingerprint: str,
    manifest: Manifest,
    nodes: Mapping[str, NodeRecord],
    built: Sequence[BuiltEdges],
    rows: tuple[TrainingTableRecord, ...],
    folders: Mapping[str, Sequence[Path]],
    schedule: Schedule,
    *,
    is_of_parts: bool = False,
) -> BundleRecord:
    """The record of a finished graph, with the statistics of its columns.

    `folders`: of each node type and of each plan of edges, in each part.
    """
    columns = {name: (record.columns, folders[name]) for name, record in nodes.items()}
    columns |= {made.plan.folder: (made.columns, folders[made.plan.folder]) for made in built}
    measured = measure_features(columns, schedule, with_times=is_of_parts)
    nodes = {name: replace(record, columns=measured[name]) for name, record in nodes.items()}
    built = [replace(made, columns=measured[made.plan.folder]) for made in built]
    by_folder = {edges.plan.folder: edges for edges in built}
    labels = []
    for table in manifest.label_edges:
        made = by_folder.pop(label_edge_folder(table.type, table.sign))
        labels.append(LabelEdgeRecord(table.type, table.sign, made.num_edges, made.columns))
    declared = reverses(manifest.edge_types)
    edges = []
    for made in by_folder.values():
        plan = made.plan
        reverse = plan.edge_type if plan.undirected else plan.reverse
        reverse = reverse or declared.get(plan.edge_type)
        edges.append(
            EdgeRecord(plan.edge_type, made.num_edges, not plan.undirected, made.columns, reverse)
        )
    return BundleRecord(fingerprint, nodes, tuple(edges), tuple(labels), rows, is_of_parts)


def build_training_tables(
    plans: Sequence[TrainingPlan],
    tables: Mapping[str, ScannedTable],
    nodes: Mapping[str, NodeRecord],
    bundle: Path,
    work: Path,
    context: BuildContext,
) -> tuple[TrainingTableRecord, ...]:
    """Writes every training table of a bundle. Raises a DataError as `build_edges`."""
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
