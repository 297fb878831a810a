"""Events of nodes in the order of time, and sums over them until a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from raygnn.data.arrays import ragged_positions
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType
from raygnn.data.time_units import TIME

_MAX_GROWTH = 4  # events that two edge types form, per edge of the first


@dataclass(frozen=True)
class Events:
    """Edges into the nodes of a type, in the order of (node, time).

    Attributes:
        indptr: int64 [num_nodes + 1], bounds of each node's events.
        sources: [num_events], node that each edge comes from.
        edges: [num_events], position of each edge in its edge type.
        times: [num_events], ascending within a node; null if the edges have no times.
    """

    indptr: np.ndarray
    sources: np.ndarray
    edges: np.ndarray
    times: np.ndarray | None

    @classmethod
    def of(cls, bundle: Bundle, path: Sequence[EdgeType]) -> Events:
        """Events of the last type of a path of one or two edge types.

        An edge has its own time, else that of its source. An event of two edges has the later time.
        """
        events = cls._of_edges(bundle, path[-1])
        for edge_type in reversed(path[:-1]):
            events = events._continued(cls._of_edges(bundle, edge_type))
        return events

    @classmethod
    def _of_edges(cls, bundle: Bundle, edge_type: EdgeType) -> Events:
        csc = bundle.csc(edge_type)
        sources, edges = csc.indices, np.arange(len(csc.indices))
        if TIME in bundle.columns(edge_type):
            return cls(csc.indptr, sources, edges, bundle.dense(edge_type, TIME))
        if TIME not in bundle.columns(edge_type[0]):
            return cls(csc.indptr, sources, edges, None)
        times = bundle.dense(edge_type[0], TIME)[sources]
        return cls(csc.indptr, sources, edges, times)._sorted()

    def _continued(self, into_sources: Events) -> Events:
        edge, positions = ragged_positions(into_sources.indptr, self.sources)
        total = np.concatenate([[0], np.cumsum(np.bincount(edge, minlength=len(self.sources)))])
        times = None if into_sources.times is None else into_sources.times[positions]
        if self.times is not None:
            times = self.times[edge] if times is None else np.maximum(times, self.times[edge])
        sources, edges = into_sources.sources[positions], into_sources.edges[positions]
        return Events(total[self.indptr], sources, edges, times)._sorted()

    def _sorted(self) -> Events:
        if self.times is None:
            return self
        order = _order(self.indptr, self.times)
        return Events(self.indptr, self.sources[order], self.edges[order], self.times[order])

    def until(
        self, nodes: np.ndarray, times: np.ndarray | None, *, inclusive: bool = True
    ) -> np.ndarray:
        """int64 [num_rows], the end of each node's events that are not later than a time."""
        first, last = self.indptr[nodes], self.indptr[nodes + 1]
        if self.times is None or times is None:
            return last
        return _ends(self.times, first, last, times, inclusive)


def fits(bundle: Bundle, path: tuple[EdgeType, EdgeType]) -> bool:
    """Whether a path of two edge types forms few events per edge of the first."""
    degrees = np.diff(bundle.csc(path[0]).indptr)
    num_events = int(degrees[bundle.csc(path[1]).indices].sum())
    return num_events <= _MAX_GROWTH * bundle.num_edges(path[0])


class Reference(NamedTuple):
    """The only edge that leaves each source.

    Attributes:
        targets: int64 [num_sources], node that the source leads to, -1 for none.
        edges: int64 [num_sources], position of the edge in its edge type.
    """

    targets: np.ndarray
    edges: np.ndarray

    @classmethod
    def of(cls, bundle: Bundle, edge_type: EdgeType) -> Reference | None:
        """Returns None if a source leads to several nodes."""
        csc = bundle.csc(edge_type)
        targets = np.full(bundle.num_nodes(edge_type[0]), -1)
        edges = np.zeros(len(targets), np.int64)
        if len(csc.indices) > len(targets):
            return None
        targets[csc.indices] = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
        edges[csc.indices] = np.arange(len(csc.indices))
        return cls(targets, edges) if np.count_nonzero(targets >= 0) == len(csc.indices) else None


@njit(nogil=True, cache=True)
def _order(indptr, times):  # type: ignore[no-untyped-def]
    order = np.arange(len(times))
    for row in range(len(indptr) - 1):
        first, last = indptr[row], indptr[row + 1]
        for i in range(first + 1, last):
            if times[i] < times[i - 1]:
                order[first:last] = first + np.argsort(times[first:last], kind="mergesort")
                break
    return order


@njit(nogil=True, cache=True)
def _ends(times, first, last, until, inclusive):  # type: ignore[no-untyped-def]
    out = np.empty(len(first), np.int64)
    for row in range(len(first)):
        low, high, moment = first[row], last[row], until[row]
        while low < high:
            middle = (low + high) // 2
            time = times[middle]
            if time < moment or (inclusive and time == moment):
                low = middle + 1
            else:
                high = middle
        out[row] = low
    return out


@njit(nogil=True, cache=True)
def running_sums(indptr, values, center, out):  # type: ignore[no-untyped-def]
    """out[i]: sum of a node's values minus `center`, from its first event to event i.

    Starts again at each node, in the order of time, so that later events and other nodes change no
    bit. NaN counts as 0.
    """
    for row in range(len(indptr) - 1):
        total = out.dtype.type(0)
        for i in range(indptr[row], indptr[row + 1]):
            if values[i] == values[i]:
                total += values[i] - center
            out[i] = total


@njit(nogil=True, cache=True)
def sums_between(sums, first, low, high):  # type: ignore[no-untyped-def]
    """float64 [num_rows], sums of events low to high of nodes whose events begin at first."""
    out = np.zeros(len(first))
    for row in range(len(first)):
        if high[row] > low[row]:
            out[row] = sums[high[row] - 1]
            if low[row] > first[row]:
                out[row] -= sums[low[row] - 1]
    return out


@njit(nogil=True, cache=True)
def first_of_kind(indptr, codes, num_codes):  # type: ignore[no-untyped-def]
    """float64 [num_events]: 1 for the first event of a node with a code, else 0."""
    out, seen_by = np.zeros(len(codes)), np.full(num_codes, -1)
    for row in range(len(indptr) - 1):
        for i in range(indptr[row], indptr[row + 1]):
            code = codes[i]
            if code >= 0 and seen_by[code] != row:
                seen_by[code] = row
                out[i] = 1
    return out


@njit(nogil=True, cache=True)
def gaps(indptr, times):  # type: ignore[no-untyped-def]
    """float64 [num_events]: time since the node's previous event with an earlier time; NaN for
    events at the time of the one before, and for a node's first event.
    """
    out = np.full(len(times), np.nan)
    for row in range(len(indptr) - 1):
        for i in range(indptr[row] + 1, indptr[row + 1]):
            if times[i] > times[i - 1]:
                out[i] = times[i] - times[i - 1]
    return out
