"""Pairs of nodes whose edges are not sampled, and the edges to skip for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from raygnn.data.intrinsics import first_at_least
from raygnn.sampling.hash_tables import home_of, index_nodes
from raygnn.sampling.scratch import Scratch

_SLOTS_PER_DESTINATION = 4


class Skips(NamedTuple):
    """Edges to skip, by node.

    Attributes:
        rows: int64 [num_rows], positions in the list of nodes, ascending.
        ptr: int64 [num_rows + 1], start of each row's edges.
        edges: int64, counted from the node's first edge, ascending in each row.
    """

    rows: np.ndarray
    ptr: np.ndarray
    edges: np.ndarray


NO_SKIPS = Skips(np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int64))


def merged(one: Skips, other: Skips) -> Skips:
    both = np.stack(
        [
            np.concatenate([np.repeat(skips.rows, np.diff(skips.ptr)) for skips in (one, other)]),
            np.concatenate([one.edges, other.edges]),
        ]
    )
    rows, edges = np.ascontiguousarray(np.unique(both, axis=1))
    distinct, first = np.unique(rows, return_index=True)
    return Skips(distinct, np.append(first, len(rows)), edges)


@dataclass(frozen=True)
class Exclusion:
    """Excluded pairs of one edge type, by the node that would sample the edge.

    Attributes:
        destinations: int64 [num_destinations], distinct.
        ptr: int64 [num_destinations + 1], start of each destination's neighbors.
        neighbors: int64, ascending for each destination.
        slots: int32, a hash table of the destinations: their number + 1, or 0 if free.
    """

    destinations: np.ndarray
    ptr: np.ndarray
    neighbors: np.ndarray
    slots: np.ndarray

    @classmethod
    def of(cls, destinations: np.ndarray, neighbors: np.ndarray) -> Exclusion:
        """Builds from dense ids, int64 [num_pairs], in any order; pairs may repeat."""
        order = np.lexsort((neighbors, destinations))
        destinations, neighbors = destinations[order], neighbors[order]
        is_first = np.ones(len(destinations), bool)
        is_first[1:] = np.diff(destinations) != 0
        ptr = np.append(np.flatnonzero(is_first), len(destinations)).astype(np.int64)
        distinct = destinations[is_first]
        slots = np.zeros(1 << (_SLOTS_PER_DESTINATION * len(distinct)).bit_length(), np.int32)
        index_nodes(distinct, slots)
        return cls(distinct, ptr, neighbors, slots)

    def skips(
        self,
        indices: np.ndarray,
        is_sorted: bool,
        nodes: np.ndarray,
        starts: np.ndarray,
        degrees: np.ndarray,
        scratch: Scratch,
    ) -> Skips | None:
        """Finds the excluded edges of nodes; None if there are none.

        Args:
            is_sorted: each node's neighbors ascend. Otherwise all edges of a node are read.
            nodes: int64 [num_nodes], destinations as passed to `of`.
            starts: int64 [num_nodes], first edge of each node.
            degrees: int64 [num_nodes], number of edges to check.
        """
        rows = scratch.array("skip_rows", len(nodes), np.int64)
        which = scratch.array("skip_destinations", len(nodes), np.int64)
        num_rows = _match(nodes, self.destinations, self.slots, rows, which)
        if num_rows == 0:
            return None
        rows, which = rows[:num_rows], which[:num_rows]
        ptr = scratch.array("skip_ptr", num_rows + 1, np.int64)
        excluded = (rows, which, self.ptr, self.neighbors)
        arguments = (indices, is_sorted, (starts, degrees), excluded, ptr)
        none = np.empty(0, np.int64)
        num_skips = _find_skips(*arguments, none)
        edges = scratch.array("skip_edges", num_skips, np.int64)
        if num_skips:
            _find_skips(*arguments, edges)
        return Skips(rows, ptr, edges) if num_skips else None


@njit(nogil=True, cache=True)
def _match(nodes, destinations, slots, rows, which):  # type: ignore[no-untyped-def]
    """Fills positions of nodes with excluded pairs and their destinations; returns their number."""
    count = 0
    for i in range(len(nodes)):
        slot = home_of(len(slots), nodes[i])
        while slots[slot] != 0:
            destination = slots[slot] - 1
            if destinations[destination] == nodes[i]:
                rows[count] = i
                which[count] = destination
                count += 1
                break
            slot = (slot + 1) & (len(slots) - 1)
    return count


@njit(nogil=True, cache=True)
def _find_skips(indices, is_sorted, bounds, excluded, ptr, edges):  # type: ignore[no-untyped-def]
    starts, degrees = bounds
    rows, which, pair_ptr, pairs = excluded
    is_counting = len(edges) == 0
    total = 0
    ptr[0] = 0
    for i in range(len(rows)):
        start = starts[rows[i]]
        stop = start + degrees[rows[i]]
        first, last = pair_ptr[which[i]], pair_ptr[which[i] + 1]
        if is_sorted:
            edge = start
            for j in range(first, last):
                edge = first_at_least(indices, edge, stop, pairs[j])
                while edge < stop and indices[edge] == pairs[j]:
                    if not is_counting:
                        edges[total] = edge - start
                    total += 1
                    edge += 1
        else:
            lowest, highest = pairs[first], pairs[last - 1]
            for edge in range(start, stop):
                if indices[edge] < lowest or indices[edge] > highest:
                    continue
                position = first_at_least(pairs, first, last, indices[edge])
                if position < last and pairs[position] == indices[edge]:
                    if not is_counting:
                        edges[total] = edge - start
                    total += 1
        ptr[i + 1] = total
    return total


@njit(nogil=True, cache=True)
def step_over(rows, ptr, edges, starts, offsets, positions):  # type: ignore[no-untyped-def]
    """Maps positions among the remaining edges to positions among all edges.

    `positions`: int64 [offsets[-1]]; for node i `starts[i]` plus the number of an edge, counted
    without skipped ones.
    """
    for i in range(len(rows)):
        start = starts[rows[i]]
        for j in range(offsets[rows[i]], offsets[rows[i] + 1]):
            edge = positions[j] - start
            # edges[k] - k edges are left before the k-th that is stepped over
            first, last = ptr[i], ptr[i + 1]
            while first < last:
                middle = (first + last) >> 1
                if edges[middle] - (middle - ptr[i]) <= edge:
                    first = middle + 1
                else:
                    last = middle
            positions[j] = start + edge + (first - ptr[i])
