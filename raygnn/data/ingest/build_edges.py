"""The edge half of a bundle: plans, schedules and finishes all edge types."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from raygnn.data.arrays import create_array, open_array
from raygnn.data.bundle_record import INDICES, INDPTR, ColumnInfo, NodeRecord, column_path
from raygnn.data.ingest.array_tasks import OnAnyNode
from raygnn.data.ingest.build_nodes import (
    class_names,
    class_numbers,
    describe_column,
    greatest_class,
)
from raygnn.data.ingest.edge_buckets import (
    DST,
    ORDER,
    SRC,
    BucketPlan,
    BucketTask,
    DestinationRanges,
    ScatterTask,
    destination_ranges,
    order_dtype,
    order_edges,
    piece_cursors,
    place_edges,
    plan_buckets,
    scatter_edges,
)
from raygnn.data.ingest.edge_plan import EdgePlan, plan_reverse
from raygnn.data.ingest.edge_tasks import EdgeResult, EdgeTask, Endpoints, convert_edges
from raygnn.data.ingest.findings import merge
from raygnn.data.ingest.pieces import Piece, cut_table
from raygnn.data.ingest.scan import ScannedTable
from raygnn.data.ingest.schedule import BuildContext, Schedule
from raygnn.errors import DataError

# Dense ids are int32 up to here; the complement of the last one marks dropped rows.
MAX_INT32_NODES = np.iinfo(np.int32).max


@dataclass(frozen=True)
class EdgeBuild:
    """One edge type or set of label edges under construction: where its parts lie.

    Attributes:
        row_starts: first row of each run of rows whose destinations are counted together, and the
            number of rows.
        num_src: of the whole graph; sources are dense ids below it.
        num_dst: destinations are dense ids below it.
        rows: work folder with SRC, DST and the columns in input order.
        buckets: work folder for the same by bucket.
        folder: gets the finished arrays.
        has_copies: the reverse copies of an undirected edge type are among the rows already, with
            the complement of their source.
    """

    plan: EdgePlan
    row_starts: Sequence[int]
    num_src: int
    num_dst: int
    ranges: DestinationRanges
    rows: Path
    buckets: Path
    folder: Path
    has_copies: bool = False

    @property
    def num_rows(self) -> int:
        """Rows in input order."""
        return self.row_starts[-1]

    @property
    def index_dtype(self) -> np.dtype:
        """Type of dense ids on disk."""
        fits = max(self.num_src, self.num_dst) <= MAX_INT32_NODES
        return np.dtype(np.int32 if fits else np.int64)


@dataclass(frozen=True)
class BuiltEdges:
    """A finished edge type or set of label edges."""

    plan: EdgePlan
    num_edges: int
    columns: tuple[ColumnInfo, ...]


def build_edges(
    plans: Sequence[EdgePlan],
    tables: Mapping[str, ScannedTable],
    nodes: Mapping[str, NodeRecord],
    context: BuildContext,
) -> list[BuiltEdges]:
    """Writes every edge type and set of label edges, reverse types last.

    Args:
        tables: by the name that the plan has.
        nodes: the finished node types.
    Raises:
        DataError: rows break rules (all of them are listed), or none would be left.
    """
    pieces = [cut_table(tables[plan.table]) for plan in plans]
    builds = [_prepare(plan, cut, nodes, context) for plan, cut in zip(plans, pieces, strict=True)]
    if not builds:
        return []
    context.progress(
        f"ingest: reading {sum(build.num_rows for build in builds):,} edges "
        f"of {len(builds)} type(s)"
    )
    if empty := [build.plan.table for build in builds if not build.num_rows]:
        context.progress(f"ingest: no rows in {', '.join(empty)}")
    results = _convert(builds, pieces, nodes, context)
    _report(builds, results, context)
    names = [_number_classes(*given) for given in zip(builds, pieces, results, strict=True)]
    counts = [[result.counts for result in found] for found in results]
    for build, found, of_build in zip(tuple(builds), results, tuple(names), strict=True):
        if build.plan.reverse is not None:
            builds.append(_reversed(build, context))
            names.append(of_build)
            counts.append([r.reverse_counts for r in found if r.reverse_counts is not None])
    context.progress("ingest: sorting edges by destination")
    built = sort_edges(builds, counts, context.schedule)
    return [
        _with_classes(build.folder, made, of_build)
        for build, made, of_build in zip(builds, built, names, strict=True)
    ]


def sort_edges(
    builds: Sequence[EdgeBuild], counts: Sequence[Sequence[np.ndarray]], schedule: Schedule
) -> list[BuiltEdges]:
    """Makes CSCs of rows in input order, and removes the rows.

    Args:
        counts: of each build, edges per destination range, by run of rows.
    """
    bucket_plans = [
        _scatter_plan(build, found) for build, found in zip(builds, counts, strict=True)
    ]
    scatters = [
        task
        for build, plan, found in zip(builds, bucket_plans, counts, strict=True)
        for task in _scatter_tasks(build, plan, found)
    ]
    schedule(scatter_edges, scatters, "moving edges to buckets")
    for rows in {build.rows for build in builds}:
        shutil.rmtree(rows)
    kept = _order(builds, bucket_plans, schedule)
    return [_built(build, num_kept) for build, num_kept in zip(builds, kept, strict=True)]


def _prepare(
    plan: EdgePlan,
    pieces: Sequence[Piece],
    nodes: Mapping[str, NodeRecord],
    context: BuildContext,
) -> EdgeBuild:
    source, _, target = plan.edge_type
    num_dst = nodes[target].num_nodes
    build = EdgeBuild(
        plan,
        (0, *(piece.row_stop for piece in pieces)),
        nodes[source].num_nodes,
        num_dst,
        destination_ranges(num_dst),
        context.work / "rows" / plan.folder,
        context.work / "buckets" / plan.folder,
        context.folder / plan.folder,
    )
    create_rows(build)
    return build


def create_rows(build: EdgeBuild) -> None:
    """Creates the arrays of the rows in input order."""
    for name in (SRC, DST):
        create_array(build.rows / name, (build.num_rows,), build.index_dtype)
    _create_columns(build.plan, build.rows, build.num_rows)


def _reversed(build: EdgeBuild, context: BuildContext) -> EdgeBuild:
    """The build of the reverse type, from the same rows."""
    plan = plan_reverse(build.plan)
    return replace(
        build,
        plan=plan,
        num_src=build.num_dst,
        num_dst=build.num_src,
        ranges=destination_ranges(build.num_src),
        buckets=context.work / "buckets" / plan.folder,
        folder=context.folder / plan.folder,
    )


def _create_columns(plan: EdgePlan, folder: Path, num_rows: int) -> None:
    for column in plan.columns:
        create_array(column_path(folder, column.name), (num_rows, *column.shape), column.dtype)


def _convert(
    builds: Sequence[EdgeBuild],
    pieces: Sequence[Sequence[Piece]],
    nodes: Mapping[str, NodeRecord],
    context: BuildContext,
) -> list[list[EdgeResult]]:
    def endpoints(node_type: str) -> Endpoints:
        return Endpoints(context.node_folder(node_type), nodes[node_type].ids)

    tasks = [
        EdgeTask(
            piece,
            build.plan,
            endpoints(build.plan.edge_type[0]),
            endpoints(build.plan.edge_type[2]),
            build.index_dtype,
            build.ranges,
            None if build.plan.reverse is None else destination_ranges(build.num_src),
            build.rows,
        )
        for build, cut in zip(builds, pieces, strict=True)
        for piece in cut
    ]
    results = iter(context.schedule(OnAnyNode(convert_edges), tasks, "reading edges"))
    return [[next(results) for _ in cut] for cut in pieces]


def _report(
    builds: Sequence[EdgeBuild],
    results: Sequence[Sequence[EdgeResult]],
    context: BuildContext,
) -> None:
    findings = merge(
        finding for found in results for result in found for finding in result.findings
    )
    context.report(findings)
    if not findings:
        return
    for build, found in zip(builds, results, strict=True):
        num_dropped = sum(result.num_dropped for result in found)
        if num_dropped and num_dropped == build.num_rows:
            raise DataError(
                f"{build.plan.table}: data.on_error=drop left none of its {num_dropped:,} rows.",
                id="edges-all-dropped",
            )
        if num_dropped:
            context.progress(f"ingest: dropped {num_dropped:,} edges of type {build.plan.name}")


def _scatter_plan(build: EdgeBuild, piece_counts: Sequence[np.ndarray]) -> BucketPlan:
    counts = sum(piece_counts, np.zeros(build.ranges.num_ranges, np.int64))
    column_bytes = sum(c.width * np.dtype(c.dtype).itemsize for c in build.plan.columns)
    bytes_per_edge = 3 * build.index_dtype.itemsize + column_bytes
    plan = plan_buckets(build.ranges, build.num_dst, counts, bytes_per_edge)
    num_edges = int(plan.edge_starts[-1])
    for name in (SRC, DST):
        create_array(build.buckets / name, (num_edges,), build.index_dtype)
    if build.plan.columns:
        largest = int(np.diff(plan.edge_starts).max())
        create_array(build.buckets / ORDER, (num_edges,), order_dtype(largest))
    _create_columns(build.plan, build.buckets, num_edges)
    create_array(build.folder / INDPTR, (build.num_dst + 1,), np.int64)
    return plan


def _scatter_tasks(
    build: EdgeBuild, plan: BucketPlan, piece_counts: Sequence[np.ndarray]
) -> list[ScatterTask]:
    edges = replace(build.plan, undirected=False) if build.has_copies else build.plan
    spans = pairwise(build.row_starts)
    return [
        ScatterTask(start, stop, edges, plan, cursors, build.rows, build.buckets)
        for (start, stop), cursors in zip(spans, piece_cursors(plan, piece_counts), strict=True)
    ]


def _bucket_tasks(build: EdgeBuild, plan: BucketPlan) -> list[BucketTask]:
    return [
        BucketTask(
            int(plan.edge_starts[i]),
            int(plan.edge_starts[i + 1]),
            int(plan.node_starts[i]),
            int(plan.node_starts[i + 1]),
            build.plan,
            build.buckets,
            build.folder,
            # Where no reverse copies drop out, all edges stay.
            None if build.plan.undirected else int(plan.edge_starts[i]),
        )
        for i in range(plan.num_buckets)
    ]


def _order(
    builds: Sequence[EdgeBuild], plans: Sequence[BucketPlan], schedule: Schedule
) -> list[int]:
    """Writes edges by destination; returns how many each build keeps."""
    tasks = [_bucket_tasks(build, plan) for build, plan in zip(builds, plans, strict=True)]
    for build, of_build in zip(builds, tasks, strict=True):
        if not build.plan.undirected:
            _create_result(build, of_build[-1].edge_stop)
    flat = [task for of_build in tasks for task in of_build]
    counts = iter(schedule(OnAnyNode(order_edges), flat, "sorting edges"))
    kept, moves = [], []
    for build, of_build in zip(builds, tasks, strict=True):
        out_start = 0
        for task in of_build:
            num_kept = next(counts)
            moves.append(replace(task, out_start=out_start, num_kept=num_kept))
            out_start += num_kept
        kept.append(out_start)
        if build.plan.undirected:
            _create_result(build, out_start)
    moves = [task for task in moves if task.plan.undirected or task.plan.columns]
    schedule(place_edges, moves, "writing edges")
    return kept


def _create_result(build: EdgeBuild, num_edges: int) -> None:
    fits = build.num_src <= MAX_INT32_NODES
    create_array(build.folder / INDICES, (num_edges,), np.int32 if fits else np.int64)
    _create_columns(build.plan, build.folder, num_edges)


def _number_classes(
    build: EdgeBuild, pieces: Sequence[Piece], results: Sequence[EdgeResult]
) -> dict[str, tuple[str, ...]]:
    """Numbers the classes of string labels; returns their names by label."""
    found = {}
    for plan in build.plan.columns:
        if plan.label != "class_name":
            continue
        found[plan.name] = names = class_names(results, plan.name)
        column = open_array(column_path(build.rows, plan.name), "r+")
        for piece, result in zip(pieces, results, strict=True):
            rows = slice(piece.row_start, piece.row_stop)
            column[rows] = class_numbers(result, plan.name, names)[column[rows]]
    return found


def _with_classes(
    folder: Path, built: BuiltEdges, names: Mapping[str, tuple[str, ...]]
) -> BuiltEdges:
    """With the classes of its labels."""
    return replace(built, columns=edge_infos(built.plan, built.num_edges, names, [folder]))


def _built(build: EdgeBuild, num_edges: int) -> BuiltEdges:
    indptr = open_array(build.folder / INDPTR, "r+")
    np.cumsum(indptr, out=indptr)
    shutil.rmtree(build.buckets)
    return BuiltEdges(build.plan, num_edges, ())


def edge_infos(
    plan: EdgePlan, num_edges: int, names: Mapping[str, tuple[str, ...]], folders: Sequence[Path]
) -> tuple[ColumnInfo, ...]:
    """The records of the columns of an edge type or set of label edges.

    Args:
        names: of the classes of each string label.
        folders: of the columns, whole or in parts.
    Raises:
        DataError: classes are more than the manifest says, or have gaps.
    """
    infos = []
    for column in plan.columns:
        greatest = -1
        if column.label == "class":
            parts = (open_array(column_path(folder, column.name), "r") for folder in folders)
            greatest = max(map(greatest_class, parts), default=-1)
        found = names.get(column.name, ())
        infos.append(describe_column(plan.table, column, num_edges, greatest, found))
    return tuple(infos)
