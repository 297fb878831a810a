"""Rows of edges to CSC by buckets of their destinations, as plain functions for any scheduler.

The second pass over an edge table moves rows to the bucket of their destination, and the third
orders each bucket, whereupon its columns follow. The ordering runs on any node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raygnn.data import edge_kernels
from raygnn.data.arrays import open_array
from raygnn.data.bundle_record import INDICES, INDPTR, column_path
from raygnn.data.ingest.array_tasks import Rows, RowWriter, Write
from raygnn.data.ingest.edge_plan import EdgePlan

# Edges of a bucket are ordered in memory, with their columns.
BUCKET_EDGES = 1 << 21
BUCKET_BYTES = 256 << 20
# Destination ranges whose edges are counted in the first pass; buckets are runs of them.
_MAX_RANGES = 4096
_BLOCK_ROWS = 1 << 18

# In the work folder of an edge type: rows in input order, rows by bucket, and the order in them.
SRC, DST, ORDER = "src.npy", "dst.npy", "order.npy"


@dataclass(frozen=True)
class DestinationRanges:
    """Equal ranges of `2**shift` destinations."""

    shift: int
    num_ranges: int


@dataclass(frozen=True)
class BucketPlan:
    """Cuts the destinations into buckets.

    Attributes:
        node_starts: first destination of each bucket, and the number of destinations.
        edge_starts: first edge of each bucket in the bucketed arrays, and the number of edges.
        bucket_of_range: bucket of each destination range.
    """

    ranges: DestinationRanges
    node_starts: np.ndarray
    edge_starts: np.ndarray
    bucket_of_range: np.ndarray

    @property
    def num_buckets(self) -> int:
        """Number of buckets."""
        return len(self.node_starts) - 1


def destination_ranges(num_nodes: int) -> DestinationRanges:
    """Ranges fine enough to balance buckets, few enough to count per piece."""
    shift = 0
    while (num_nodes - 1) >> shift >= _MAX_RANGES:
        shift += 1
    return DestinationRanges(shift, ((num_nodes - 1) >> shift) + 1)


def plan_buckets(
    ranges: DestinationRanges, num_nodes: int, counts: np.ndarray, bytes_per_edge: int
) -> BucketPlan:
    """Joins neighboring ranges up to a bucket's size; one range is never cut.

    Args:
        counts: edges of each range, over all pieces.
    """
    limit = max(1, min(BUCKET_EDGES, BUCKET_BYTES // bytes_per_edge))
    bucket_of_range = np.zeros(ranges.num_ranges, np.int64)
    first_ranges, held = [0], 0
    for i, count in enumerate(counts.tolist()):
        if held and held + count > limit:
            first_ranges.append(i)
            held = 0
        held += count
        bucket_of_range[i] = len(first_ranges) - 1
    node_starts = np.array([*(i << ranges.shift for i in first_ranges), num_nodes], np.int64)
    totals = np.bincount(bucket_of_range, counts, len(first_ranges)).astype(np.int64)
    edge_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(totals)])
    return BucketPlan(ranges, node_starts, edge_starts, bucket_of_range)


def piece_cursors(plan: BucketPlan, piece_counts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Where each piece starts to write in each bucket, so that a bucket keeps the row order.

    Args:
        piece_counts: edges per destination range, of each piece in order.
    """
    cursors, free = [], plan.edge_starts[:-1].copy()
    for counts in piece_counts:
        cursors.append(free.copy())
        shares = np.bincount(plan.bucket_of_range, counts, plan.num_buckets)
        free += shares.astype(np.int64)
    return cursors


@dataclass(frozen=True)
class ScatterTask:
    """Second pass over the rows of one piece.

    Attributes:
        cursors: where the piece starts to write in each bucket.
        rows: work folder with rows in input order.
        buckets: work folder with rows by bucket.
    """

    row_start: int
    row_stop: int
    plan: EdgePlan
    bucket_plan: BucketPlan
    cursors: np.ndarray
    rows: Path
    buckets: Path


@dataclass(frozen=True)
class BucketTask:
    """Third pass over one bucket.

    Attributes:
        edge_start: first edge of the bucket in the bucketed arrays.
        node_start: first destination of the bucket.
        out_start: first edge of the bucket in the bundle; null while reverse copies of earlier
            buckets are not yet counted.
        num_kept: edges that stay; null before the bucket is ordered.
    """

    edge_start: int
    edge_stop: int
    node_start: int
    node_stop: int
    plan: EdgePlan
    buckets: Path
    folder: Path
    out_start: int | None = None
    num_kept: int | None = None

    @property
    def inputs(self) -> tuple[Rows, ...]:
        """Sources, destinations, and the times that edges are ordered by."""
        paths = [self.buckets / SRC, self.buckets / DST]
        if self.plan.by_time and any(column.role == "time" for column in self.plan.columns):
            paths.append(column_path(self.buckets, "time"))
        return tuple(Rows(path, self.edge_start, self.edge_stop) for path in paths)


def scatter_edges(task: ScatterTask) -> None:
    """Second pass: moves the rows of one piece to their buckets."""
    plan, buckets = task.plan, task.bucket_plan
    src, dst = open_array(task.rows / SRC, "r"), open_array(task.rows / DST, "r")
    if plan.is_swapped:
        src, dst = dst, src
    out_src = open_array(task.buckets / SRC, "r+")
    out_dst = open_array(task.buckets / DST, "r+")
    columns = [
        (open_array(column_path(task.rows, c.name), "r"), open_array(path, "r+"))
        for c in plan.columns
        if (path := column_path(task.buckets, c.name))
    ]
    cursors = task.cursors.copy()
    for start in range(task.row_start, task.row_stop, _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, task.row_stop))
        position = np.empty(rows.stop - start, np.int64)
        reverse_position = np.empty(rows.stop - start, np.int64)
        edge_kernels.scatter(
            # Copies: arrays opened read-only would compile the kernel a second time.
            (np.array(src[rows]), np.array(dst[rows])),
            plan.undirected,
            (buckets.ranges.shift, buckets.bucket_of_range, cursors),
            (out_src, out_dst),
            (position, reverse_position),
        )
        used, reversed_ = position >= 0, reverse_position >= 0
        for values, out in columns:
            block = values[rows]
            out[position[used]] = block if used.all() else block[used]
            if plan.undirected:
                out[reverse_position[reversed_]] = block[reversed_]


def order_dtype(num_edges: int) -> type[np.integer]:
    """Of the order in a bucket."""
    return np.int32 if num_edges <= np.iinfo(np.int32).max else np.int64


def order_edges(task: BucketTask, arrays: Sequence[np.ndarray], write: Write) -> int:
    """Third pass: orders a bucket, writes its sources and the degrees of its destinations.

    Sources go to their place in the bundle, or back into the bucket where reverse copies may drop
    out and that place is not known yet.

    Returns:
        Number of edges that stay.
    """
    src, dst, *times = arrays
    src = np.array(src)
    degrees = np.zeros(task.node_stop - task.node_start, np.int64)
    order = np.empty(len(src), order_dtype(len(src)))
    num_kept = edge_kernels.order_bucket(
        (src, np.array(dst)),
        task.node_start,
        task.plan.undirected,
        edge_kernels.time_keys(times[0]) if times else np.zeros(1, np.int64),
        bool(times),
        degrees,
        order,
    )
    order = order[:num_kept]
    write(task.folder / INDPTR, task.node_start + 1, degrees)
    if task.plan.undirected:
        write(task.buckets / SRC, task.edge_start, src[order])
    else:
        write(task.folder / INDICES, task.out_start, src[order])
    if task.plan.columns:
        write(task.buckets / ORDER, task.edge_start, order)
    return int(num_kept)


def place_edges(task: BucketTask) -> None:
    """Third pass: moves what an ordered bucket still holds to its place in the bundle."""
    if task.out_start is None or task.num_kept is None:
        raise ValueError("place_edges needs the place of the bucket in the bundle")
    plan, edges = task.plan, slice(task.edge_start, task.edge_start + task.num_kept)
    write = RowWriter()
    if plan.undirected:
        sources = open_array(task.buckets / SRC, "r")[edges]
        write(task.folder / INDICES, task.out_start, sources)
    if plan.columns:
        order = open_array(task.buckets / ORDER, "r")[edges]
    for column in plan.columns:
        values = open_array(column_path(task.buckets, column.name), "r")
        ordered = values[task.edge_start : task.edge_stop][order]
        write(column_path(task.folder, column.name), task.out_start, ordered)
