"""Neighbors that are not later than their seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numba import njit

from raygnn.data.time_units import AsOf, Time

UNIFORM: Literal["uniform"] = "uniform"
LAST: Literal["last"] = "last"


@dataclass(frozen=True)
class Temporal:
    """Options of temporal sampling.

    Attributes:
        column: time column of edge types and node types. An edge is sampled if neither it nor its
            neighbor is later than the seed. Types without the column exist at all times.
        strategy: `uniform`: draws among those edges; `last`: takes the latest (ties in row order),
            for edge types with times.
        window: maximum age of sampled edges, in the unit of the times; None for any age. An edge
            without a time is as old as its neighbor or, if that is younger, the node itself.
    """

    column: str = "time"
    strategy: Literal["uniform", "last"] = UNIFORM
    window: Time | None = None


class Horizon(NamedTuple):
    """Latest edge times of some nodes.

    Attributes:
        latest: int64 or float64 [num_nodes], times of the nodes' seeds.
    """

    temporal: Temporal
    latest: np.ndarray

    @classmethod
    def as_of(cls, moment: AsOf, num_nodes: int) -> Horizon:
        dtype = np.int64 if isinstance(moment.time, int) else np.float64
        temporal = Temporal(moment.column, window=moment.window)
        return cls(temporal, np.full(num_nodes, moment.time, dtype))

    def earliest(self, dtype: np.dtype) -> np.ndarray:
        """Earliest edge times by node, in the kind of a time column; empty without a window."""
        if self.temporal.window is None:
            return np.empty(0, np.int64 if dtype.kind == "i" else np.float64)
        return -as_times(self.temporal.window - self.latest, dtype)  # rounded up


def as_seed_times(times: np.ndarray) -> np.ndarray:
    """Times of any integers or floats as int64 or float64."""
    return times.astype(np.int64 if times.dtype.kind in "iu" else np.float64)


def salts_of(latest: np.ndarray) -> np.ndarray:
    """uint64 inputs of draws, which differ between a node's times."""
    # + 0.0 makes negative zero positive
    return (latest if latest.dtype == np.int64 else latest + 0.0).view(np.uint64)


def as_times(latest: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Seed times in the kind of a time column, for lossless comparison."""
    if dtype.kind == latest.dtype.kind:
        return latest
    return np.floor(latest).astype(np.int64) if dtype.kind == "i" else latest.astype(np.float64)


@njit(nogil=True, cache=True)
def narrow(times, e_id, latest, earliest, starts, degrees):  # type: ignore[no-untyped-def]
    """Narrows `starts` and `degrees` to the edges in time; each node's edges are sorted by time.

    Args:
        times: [num_edges], by CSC position.
        e_id: CSC positions of the edges, or empty if they are in CSC order.
        earliest: [num_nodes], or empty without a window.
    """
    for i in range(len(starts)):
        first, last = starts[i], starts[i] + degrees[i]
        while first < last:
            middle = (first + last) >> 1
            if times[e_id[middle] if len(e_id) else middle] <= latest[i]:
                first = middle + 1
            else:
                last = middle
        stop, first = first, starts[i]
        if len(earliest):
            last = stop
            while first < last:
                middle = (first + last) >> 1
                if times[e_id[middle] if len(e_id) else middle] < earliest[i]:
                    first = middle + 1
                else:
                    last = middle
        starts[i], degrees[i] = first, stop - first


@njit(nogil=True, cache=True)
def find_outside(indices, node_times, latest, earliest, starts, degrees, rows, ptr, edges):  # type: ignore[no-untyped-def]
    """Finds edges from neighbors that are later than the node's seed, or older than its window.
    Returns numbers of rows and edges.

    Args:
        earliest: [num_nodes], or empty for neighbors of any age.
        rows: int64 [num_nodes], filled with positions of nodes with such edges.
        ptr: int64 [num_nodes + 1], filled with the start of each row's edges.
        edges: int64, filled with numbers of edges, unless it is empty.
    """
    is_counting = len(edges) == 0
    num_rows = total = 0
    ptr[0] = 0
    for i in range(len(starts)):
        before = total
        for edge in range(degrees[i]):
            time = node_times[indices[starts[i] + edge]]
            if not time <= latest[i] or (len(earliest) and time < earliest[i]):
                if not is_counting:
                    edges[total] = edge
                total += 1
        if total > before:
            rows[num_rows] = i
            num_rows += 1
            ptr[num_rows] = total
    return num_rows, total
