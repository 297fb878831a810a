"""The sort stage: edge rows become a CSC through buckets of destinations.

Edges are counted by destination range and moved to buckets of ranges. Each bucket is ordered in
memory, then its columns. The ordering runs on any node.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from raygnn.data import edge_kernels
from raygnn.data.arrays import Rows, create_array, index_dtype, open_array, row_chunks
from raygnn.data.bundle_record import INDICES, INDPTR, ROW, column_path
from raygnn.data.ingest.column_plan import DensePlan
from raygnn.data.ingest.schedule import OnAnyNode, RowWriter, Schedule, Write
from raygnn.data.ingest.table_plan import DST, SRC, EdgePlan

# Edges of a bucket are ordered in memory, with their columns.
BUCKET_EDGES = 1 << 21
BUCKET_BYTES = 256 << 20
# Edges are counted in up to 4096 destination ranges; buckets are runs of them.
_RANGE_BITS = 12

# Order of the edges, in a folder of their buckets.
ORDER = "order.npy"


@dataclass(frozen=True)
class ReadEdges:
    """Edges of one piece of a table, as read.

    Attributes:
        folder: has SRC, DST and the columns, in the order of the table.
        classes: for each string label, the class of each code; the last belongs to code -1.
        chosen: numbers of the rows to sort, ascending; None for all.
    """

    folder: Path
    classes: Mapping[str, np.ndarray] = field(default_factory=dict)
    chosen: Rows | None = None

    def blocks(self) -> Iterator[slice | np.ndarray]:
        return row_chunks(len(open_array(self.folder / SRC, "r")), self.chosen)


@dataclass(frozen=True)
class EdgeSort:
    """The edges of one type, or of one set of label edges, into a range of destinations.

    Attributes:
        num_src: of the whole graph; sources are dense ids below it.
        first_dst: dense id of the first destination.
        work: folder for the edges by bucket.
    """

    plan: EdgePlan
    num_src: int
    first_dst: int
    num_dst: int
    work: Path
    folder: Path

    @property
    def bounds(self) -> tuple[int, int]:
        return self.first_dst, self.first_dst + self.num_dst

    @property
    def shift(self) -> int:
        """Equal ranges of `2**shift` destinations are counted, at most `2**_RANGE_BITS`."""
        return max(0, (self.num_dst - 1).bit_length() - _RANGE_BITS)

    def ends(self, folder: Path) -> list[np.ndarray]:
        names = (DST, SRC) if self.plan.is_swapped else (SRC, DST)
        return [open_array(folder / name) for name in names]


@dataclass(frozen=True)
class BucketPlan:
    """Divides the destinations of a sort into buckets.

    Attributes:
        node_starts: first destination of each bucket, and the number of destinations.
        edge_starts: first edge of each bucket in the bucketed arrays, and the number of edges.
    """

    node_starts: np.ndarray
    edge_starts: np.ndarray
    bucket_of_range: np.ndarray

    @property
    def num_buckets(self) -> int:
        return len(self.node_starts) - 1


def move_to_buckets(
    sorts: Sequence[EdgeSort], rows: Sequence[Sequence[ReadEdges]], schedule: Schedule
) -> list[BucketPlan]:
    """Moves edges to buckets of their destinations, in row order. Nothing reads `rows` later."""
    counted = [(sort, piece) for sort, pieces in zip(sorts, rows, strict=True) for piece in pieces]
    counts = iter(schedule(count_edges, counted, "counting edges"))
    plans, tasks = [], []
    for sort, pieces in zip(sorts, rows, strict=True):
        piece_counts = [next(counts) for _ in pieces]
        plans.append(_create_buckets(sort, piece_counts))
        cursors = _piece_cursors(plans[-1], piece_counts)
        tasks += [
            (sort, piece, plans[-1], start) for piece, start in zip(pieces, cursors, strict=True)
        ]
    schedule(scatter_edges, tasks, "moving edges to buckets")
    return plans


def order_buckets(
    sorts: Sequence[EdgeSort], plans: Sequence[BucketPlan], schedule: Schedule
) -> list[int]:
    """Writes the CSC of each sort from its buckets, which are removed; returns the edge counts."""
    tasks = [_bucket_tasks(sort, plan) for sort, plan in zip(sorts, plans, strict=True)]
    for sort, buckets in zip(sorts, tasks, strict=True):
        if not sort.plan.undirected:
            _create_result(sort, buckets[-1].edge_stop)
    flat = [task for buckets in tasks for task in buckets]
    counts = iter(schedule(OnAnyNode(order_edges), flat, "sorting edges"))
    totals, moves = [], []
    for sort, buckets in zip(sorts, tasks, strict=True):
        out_start = 0
        for task in buckets:
            num_kept = next(counts)
            moves.append(replace(task, out_start=out_start, num_kept=num_kept))
            out_start += num_kept
        totals.append(out_start)
        if sort.plan.undirected:
            _create_result(sort, out_start)
    moves = [task for task in moves if task.sort.plan.undirected or task.sort.plan.columns]
    schedule(place_edges, moves, "writing edges")
    for sort in sorts:
        indptr = open_array(sort.folder / INDPTR, "r+")
        np.cumsum(indptr, out=indptr)
        shutil.rmtree(sort.work)
    return totals


def create_columns(columns: Sequence[DensePlan], folder: Path, num_rows: int) -> None:
    for column in columns:
        create_array(column_path(folder, column.name), (num_rows, *column.shape), column.dtype)


def count_edges(task: tuple[EdgeSort, ReadEdges]) -> np.ndarray:
    """Counts the edges of one piece by destination range, including reverse copies."""
    sort, rows = task
    shift = sort.shift
    counts = np.zeros(((sort.num_dst - 1) >> shift) + 1, np.int64)
    src, dst = sort.ends(rows.folder)
    for block in rows.blocks():
        edge_kernels.count_ranges(
            src[block], dst[block], sort.plan.undirected, sort.bounds, shift, counts
        )
    return counts


def _create_buckets(sort: EdgeSort, piece_counts: Sequence[np.ndarray]) -> BucketPlan:
    dtype = index_dtype(sort.num_src, sort.num_dst)
    column_bytes = sum(c.width * np.dtype(c.dtype).itemsize for c in sort.plan.columns)
    plan = _plan_buckets(sort, piece_counts, 3 * dtype.itemsize + column_bytes)
    num_edges = int(plan.edge_starts[-1])
    for name in (SRC, DST):
        create_array(sort.work / name, (num_edges,), dtype)
    if sort.plan.columns:
        largest = int(np.diff(plan.edge_starts).max())
        create_array(sort.work / ORDER, (num_edges,), index_dtype(largest))
    create_columns(sort.plan.columns, sort.work, num_edges)
    create_array(sort.folder / INDPTR, (sort.num_dst + 1,), np.int64)
    return plan


def _plan_buckets(
    sort: EdgeSort, piece_counts: Sequence[np.ndarray], bytes_per_edge: int
) -> BucketPlan:
    limit = max(1, min(BUCKET_EDGES, BUCKET_BYTES // bytes_per_edge))
    shift = sort.shift
    counts = sum(piece_counts, np.zeros(((sort.num_dst - 1) >> shift) + 1, np.int64))
    bucket_of_range = np.zeros(len(counts), np.int64)
    first_ranges, held = [0], 0
    for i, count in enumerate(counts.tolist()):
        if held and held + count > limit:
            first_ranges.append(i)
            held = 0
        held += count
        bucket_of_range[i] = len(first_ranges) - 1
    node_starts = np.array([*(i << shift for i in first_ranges), sort.num_dst], np.int64)
    totals = np.bincount(bucket_of_range, counts, len(first_ranges)).astype(np.int64)
    edge_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(totals)])
    return BucketPlan(node_starts, edge_starts, bucket_of_range)


def _piece_cursors(plan: BucketPlan, piece_counts: Sequence[np.ndarray]) -> list[np.ndarray]:
    cursors, free = [], plan.edge_starts[:-1].copy()
    for counts in piece_counts:
        cursors.append(free.copy())
        shares = np.bincount(plan.bucket_of_range, counts, plan.num_buckets)
        free += shares.astype(np.int64)
    return cursors


def scatter_edges(task: tuple[EdgeSort, ReadEdges, BucketPlan, np.ndarray]) -> None:
    """Moves the edges of one piece to buckets, from the given position of each on."""
    sort, rows, buckets, first = task
    undirected = sort.plan.undirected
    src, dst = sort.ends(rows.folder)
    out = tuple(open_array(sort.work / name, "r+") for name in (SRC, DST))
    columns = [
        (
            column.name,
            open_array(column_path(rows.folder, column.name), "r"),
            rows.classes.get(column.name),
            open_array(column_path(sort.work, column.name), "r+"),
        )
        for column in sort.plan.columns
    ]
    cursors, shift = first.copy(), sort.shift
    for block in rows.blocks():
        ends = src[block], dst[block]
        position, reverse_position = np.empty((2, len(ends[0])), np.int64)
        edge_kernels.scatter(
            ends,
            undirected,
            sort.bounds,
            (shift, buckets.bucket_of_range, cursors),
            out,
            (position, reverse_position),
        )
        used, reversed_ = position >= 0, reverse_position >= 0
        for name, values, classes, moved in columns:
            chunk = values[block] if classes is None else classes[values[block]]
            moved[position[used]] = chunk if used.all() else chunk[used]
            if undirected:
                copies = chunk[reversed_]
                moved[reverse_position[reversed_]] = ~copies if name == ROW else copies


@dataclass(frozen=True)
class BucketTask:
    """One bucket to order. Starts and stops of edges are positions in the bucketed arrays.

    Attributes:
        out_start: first edge of the bucket in the CSC; None until reverse copies of earlier buckets
            are counted.
        num_kept: remaining edges; None before the bucket is ordered.
    """

    sort: EdgeSort
    edge_start: int
    edge_stop: int
    node_start: int
    node_stop: int
    out_start: int | None = None
    num_kept: int | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return ()

    @property
    def inputs(self) -> tuple[Rows, ...]:
        work, plan = self.sort.work, self.sort.plan
        paths = [work / SRC, work / DST]
        if plan.by_time and any(column.role == "time" for column in plan.columns):
            paths.append(column_path(work, "time"))
        return tuple(Rows(path, self.edge_start, self.edge_stop) for path in paths)


def _bucket_tasks(sort: EdgeSort, buckets: BucketPlan) -> list[BucketTask]:
    nodes, edges = buckets.node_starts.tolist(), buckets.edge_starts.tolist()
    return [
        BucketTask(
            sort,
            edges[i],
            edges[i + 1],
            nodes[i],
            nodes[i + 1],
            # If no reverse copies drop out, all edges stay.
            None if sort.plan.undirected else edges[i],
        )
        for i in range(buckets.num_buckets)
    ]


def _create_result(sort: EdgeSort, num_edges: int) -> None:
    create_array(sort.folder / INDICES, (num_edges,), index_dtype(sort.num_src))
    create_columns(sort.plan.columns, sort.folder, num_edges)


def order_edges(task: BucketTask, arrays: Sequence[np.ndarray], write: Write) -> int:
    """Orders a bucket, and writes its sources and the degrees of its destinations.

    Sources go to the CSC, or back into the bucket if reverse copies may drop out and their CSC
    position is still unknown. Returns the number of remaining edges.
    """
    sort, undirected = task.sort, task.sort.plan.undirected
    src, dst, *times = arrays
    src = np.array(src)
    degrees = np.zeros(task.node_stop - task.node_start, np.int64)
    order = np.empty(len(src), index_dtype(len(src)))
    num_kept = edge_kernels.order_bucket(
        (src, np.array(dst)),
        task.node_start,
        undirected,
        edge_kernels.time_keys(times[0]) if times else np.zeros(1, np.int64),
        bool(times),
        degrees,
        order,
    )
    order = order[:num_kept]
    write(sort.folder / INDPTR, task.node_start + 1, degrees)
    if undirected:
        write(sort.work / SRC, task.edge_start, src[order])
    else:
        write(sort.folder / INDICES, task.out_start, src[order])
    if sort.plan.columns:
        write(sort.work / ORDER, task.edge_start, order)
    return int(num_kept)


def place_edges(task: BucketTask) -> None:
    assert task.out_start is not None
    assert task.num_kept is not None
    sort, edges = task.sort, slice(task.edge_start, task.edge_start + task.num_kept)
    write = RowWriter()
    if sort.plan.undirected:
        sources = open_array(sort.work / SRC, "r")[edges]
        write(sort.folder / INDICES, task.out_start, sources)
    if sort.plan.columns:
        order = open_array(sort.work / ORDER, "r")[edges]
    for column in sort.plan.columns:
        values = open_array(column_path(sort.work, column.name), "r")
        ordered = values[task.edge_start : task.edge_stop][order]
        write(column_path(sort.folder, column.name), task.out_start, ordered)
