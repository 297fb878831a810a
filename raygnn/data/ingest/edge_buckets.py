"""Buckets of destinations: how many edges fall where, and where each piece writes its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Edges of a bucket are ordered in memory, with their columns.
BUCKET_EDGES = 1 << 21
BUCKET_BYTES = 256 << 20
# Destination ranges whose edges are counted in the first pass; buckets are runs of them.
_MAX_RANGES = 4096


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
