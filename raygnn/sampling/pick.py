"""Uniform sampling of in-edges: the draws and their kernels.

A node draws from a splitmix64 generator started at hash(hop key, dense id), or at hash(that, salt)
if it has a salt: draw i below n is the high word of splitmix64(start + i * golden) * n. Changes to
this change batches: see `raygnn.sampling.rng.RNG_VERSION`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from raygnn.data.hashing import GOLDEN_GAMMA, splitmix64
from raygnn.data.intrinsics import multiply_high, prefetch
from raygnn.sampling.hash_tables import slot_of

ALL = -1  # the fanout that takes every in-edge
NO_SALTS = np.empty(0, np.uint64)

# Up to here, comparing with all earlier picks is faster than a hash table; the picks are the same.
_LINEAR_SEARCH = 48
# Elements between a prefetch and its use: at 40 M edges, half the time of either loop.
_ROWS_AHEAD = 64
_NEIGHBORS_AHEAD = 128


class NodeEdges(NamedTuple):
    """Nodes and their edges. Kernels get it as a plain tuple, which numba unpacks faster.

    Attributes:
        nodes: int64 [num_nodes], dense ids.
        salts: uint64 [num_nodes], further inputs of draws, or empty.
        starts: int64 [num_nodes], position of each node's first edge.
        degrees: int64 [num_nodes], number of edges to choose from, the node's first ones.
        offsets: int64 [num_nodes + 1], cumulative number of sampled edges.
    """

    nodes: np.ndarray
    salts: np.ndarray
    starts: np.ndarray
    degrees: np.ndarray
    offsets: np.ndarray


class Draws(NamedTuple):
    """Options of drawing edges.

    Attributes:
        fanout: `ALL` or a number of edges per node.
    """

    fanout: int
    key: np.uint64


@njit(nogil=True, cache=True)
def draw_below(start, number, bound):  # type: ignore[no-untyped-def]
    """Draw `number` of the generator started at `start`, in [0, bound)."""
    bits = splitmix64(start + np.uint64(number) * GOLDEN_GAMMA)
    return np.int64(multiply_high(bits, np.uint64(bound)))


@njit(nogil=True, cache=True)
def find_rows(indptr, nodes, starts, degrees):  # type: ignore[no-untyped-def]
    """Fills the position of each node's first edge, and its number of edges."""
    for i in range(len(nodes)):
        if i + _ROWS_AHEAD < len(nodes):
            prefetch(indptr, nodes[i + _ROWS_AHEAD])
        node = nodes[i]
        start = indptr[node]
        starts[i] = start
        degrees[i] = indptr[node + 1] - start


@njit(nogil=True, cache=True)
def count_taken(degrees, fanout, offsets):  # type: ignore[no-untyped-def]
    """Fills `offsets`, int64 [num_nodes + 1], with the cumulative number of edges to sample."""
    offsets[0] = 0
    for i in range(len(degrees)):
        taken = degrees[i] if fanout == ALL else min(degrees[i], fanout)
        offsets[i + 1] = offsets[i] + taken


@njit(nogil=True, cache=True)
def count_neighbors(indices, counts):  # type: ignore[no-untyped-def]
    """Adds to `counts` [num_neighbors] the occurrences of each in `indices`."""
    for i in range(len(indices)):
        if i + _NEIGHBORS_AHEAD < len(indices):
            prefetch(counts, indices[i + _NEIGHBORS_AHEAD])
        counts[indices[i]] += 1


@njit(nogil=True, cache=True)
def pick_positions(rows, draws, table, positions):  # type: ignore[no-untyped-def]
    """Fills `positions` int64 [offsets[-1]] with the sampled edges, node by node.

    If all edges of a node are taken, they keep their order; otherwise the order of draws. `table`:
    int64 zeros [a power of two >= 2 * fanout], left as zeros; length 1 is enough for fanouts of at
    most `_LINEAR_SEARCH`.
    """
    nodes, salts, starts, degrees, offsets = rows
    fanout, key = draws
    for i in range(len(nodes)):
        first = offsets[i]
        count = offsets[i + 1] - first
        start = starts[i]
        degree = degrees[i]
        if fanout == ALL or degree <= fanout:
            for j in range(count):
                positions[first + j] = start + j
        elif count > 0:
            base = splitmix64(key ^ np.uint64(nodes[i]))
            if len(salts):
                base = splitmix64(base ^ salts[i])
            picked = positions[first : first + count]
            if count <= _LINEAR_SEARCH:
                _pick_few(base, start, degree, picked)
            else:
                _pick_many(base, start, degree, table, picked)


@njit(nogil=True, cache=True)
def pick_last(starts, degrees, offsets, positions):  # type: ignore[no-untyped-def]
    """Fills `positions` with the last of each node's edges, in their order."""
    for i in range(len(starts)):
        stop = starts[i] + degrees[i]
        for j in range(offsets[i], offsets[i + 1]):
            positions[j] = stop - (offsets[i + 1] - j)


# Floyd's algorithm, as in Bentley, Programming Pearls: A Sample of Brilliance, 1987: draw j goes
# over the first (degree - count + j + 1) edges, and gives the last of them if its own is taken.


@njit(nogil=True, cache=True)
def _pick_few(base, start, degree, picked):  # type: ignore[no-untyped-def]
    count = len(picked)
    for j in range(count):
        last = degree - count + j
        position = start + draw_below(base, j, last + 1)
        for k in range(j):
            if picked[k] == position:
                position = start + last
                break
        picked[j] = position


@njit(nogil=True, cache=True)
def _pick_many(base, start, degree, table, picked):  # type: ignore[no-untyped-def]
    count = len(picked)
    for j in range(count):
        last = degree - count + j
        edge = draw_below(base, j, last + 1)
        slot = slot_of(table, edge, 1)
        if table[slot] != 0:
            edge = last
            slot = slot_of(table, edge, 1)
        table[slot] = edge + 1
        picked[j] = start + edge
    # The edges picked name the slots to free; a slot that a probe would stop at is freed only
    # after those behind it, so probe again from the last pick to the first.
    for j in range(count - 1, -1, -1):
        table[slot_of(table, picked[j] - start, 1)] = 0


@njit(nogil=True, cache=True)
def load_neighbors(indices, positions, neighbors):  # type: ignore[no-untyped-def]
    """Fills `neighbors` with `indices[positions]`.

    A separate loop, so that many of these cache misses overlap.
    """
    for i in range(len(positions)):
        if i + _NEIGHBORS_AHEAD < len(positions):
            prefetch(indices, positions[i + _NEIGHBORS_AHEAD])
        neighbors[i] = indices[positions[i]]


def membership_table(fanout: int) -> int:
    return 1 if fanout <= _LINEAR_SEARCH else 1 << (2 * fanout - 1).bit_length()
