"""Neighbors that are not later than the seed whose neighborhood they are in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from raygnn.data.time_units import AsOf, Time
from raygnn.errors import ConfigError

UNIFORM, LAST = "uniform", "last"


@dataclass(frozen=True)
class Temporal:
    """Options of temporal sampling.

    Attributes:
        column: the time column of edge types and of node types. An edge is taken when it is not
            later than the seed, and where its neighbor has a time, when that is not later either.
            Types without the column are there at all times.
        strategy: `uniform`: draws among those edges; `last`: takes the latest of them, of edge
            types that have times, ties in the order of the rows.
        window: edges that are older than the seed by more are not taken, in the unit of the times;
            None bounds no age.
    Raises:
        ConfigError: there is no strategy of that name.
    """

    column: str = "time"
    strategy: str = UNIFORM
    window: Time | None = None

    def __post_init__(self) -> None:
        if self.strategy not in (UNIFORM, LAST):
            raise ConfigError(
                f"sampling.temporal.strategy={self.strategy!r} is invalid: there are {UNIFORM} and "
                f"{LAST}. Set one.",
                id="sampling-strategy",
            )

    @property
    def settings(self) -> list[str | Time]:
        """As JSON; without a window the same as in versions that had none."""
        return [self.column, self.strategy] + ([] if self.window is None else [self.window])


class Horizon(NamedTuple):
    """Latest times of edges for some nodes.

    Attributes:
        latest: int64 or float64 [num_nodes], times of the nodes' seeds.
    """

    temporal: Temporal
    latest: np.ndarray

    @classmethod
    def as_of(cls, moment: AsOf, num_nodes: int) -> Horizon:
        """One time for all nodes."""
        dtype = np.int64 if isinstance(moment.time, int) else np.float64
        temporal = Temporal(moment.column, window=moment.window)
        return cls(temporal, np.full(num_nodes, moment.time, dtype))

    def earliest(self, dtype: np.dtype) -> np.ndarray:
        """Earliest times of edges by node, in the kind of a time column; empty without a window."""
        if self.temporal.window is None:
            return np.empty(0, np.int64 if dtype.kind == "i" else np.float64)
        return -as_times(self.temporal.window - self.latest, dtype)  # rounded up


def salts_of(latest: np.ndarray) -> np.ndarray:
    """uint64, what draws depend on, so that a node draws otherwise for another time."""
    # + 0.0 makes negative zero positive
    return (latest if latest.dtype == np.int64 else latest + 0.0).view(np.uint64)


def as_times(latest: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Seed times in the kind of a time column, so that comparing them loses nothing."""
    if dtype.kind == latest.dtype.kind:
        return latest
    return np.floor(latest).astype(np.int64) if dtype.kind == "i" else latest.astype(np.float64)


@njit(nogil=True, cache=True)
def narrow(times, e_id, latest, earliest, starts, degrees):  # type: ignore[no-untyped-def]
    """Narrows `starts` and `degrees` to the edges in time; each node's edges go by time.

    Args:
        times: [num_edges], by CSC position.
        e_id: CSC positions of the edges, or empty where that is their order.
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
def find_late(indices, node_times, latest, starts, degrees, rows, ptr, edges):  # type: ignore[no-untyped-def]
    """Finds edges from neighbors that are later than the node's seed.

    Args:
        rows: int64 [num_nodes], filled with places of nodes that have such edges.
        ptr: int64 [num_nodes + 1], filled with where each row's edges begin.
        edges: int64, filled with numbers of edges, unless it is empty.
    Returns:
        How many rows and edges there are.
    """
    is_counting = len(edges) == 0
    num_rows = total = 0
    ptr[0] = 0
    for i in range(len(starts)):
        before = total
        for edge in range(degrees[i]):
            if not node_times[indices[starts[i] + edge]] <= latest[i]:
                if not is_counting:
                    edges[total] = edge
                total += 1
        if total > before:
            rows[num_rows] = i
            num_rows += 1
            ptr[num_rows] = total
    return num_rows, total
