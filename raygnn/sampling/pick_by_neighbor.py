"""LABOR sampling of in-edges: all nodes draw with the same random number per neighbor.

A node samples the edges whose neighbors have the largest numbers. Numbers of one node's edges are
independent, so its sample is distributed like uniform draws without replacement: a mean over it has
the same expectation and variance, without weights. Nodes with common neighbors sample the same ones
more often, so a batch has fewer nodes.

Source: LABOR-0 with sequential Poisson sampling, arXiv:2210.13339.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.data.hashing import splitmix64
from raygnn.data.intrinsics import prefetch
from raygnn.sampling.hash_tables import slot_of
from raygnn.sampling.pick import ALL

_CHUNK = 64  # edges ranked together
_SLACK = 3.0  # standard deviations by which more edges are looked at than are taken
_HALF = np.uint64(32)
_LARGEST, _ODD = np.uint32(0xFFFFFFFF), np.uint32(0x9E3779B1)
_ROWS_AHEAD = 8  # rows are read whole, which asks for the rest by itself


@njit(nogil=True, cache=True)
def pick_by_neighbor(rows, draws, indices, skips, copies, positions):  # type: ignore[no-untyped-def]
    """Fills `positions` with the sampled edges in their order, node by node, and the rows' offsets.

    Args:
        rows: see `raygnn.sampling.pick.NodeEdges`; nodes of one salt draw alike.
        draws: see `raygnn.sampling.pick.Draws`.
        indices: [num_edges], neighbors.
        copies: whether the neighbors of each node ascend, and int64 zeros [`copies_table`], left as
            zeros.
        positions: int64, with room for `fanout` edges of each node, or all if they are fewer.
    """
    _, salts, starts, degrees, offsets = rows
    fanout, key = draws
    skip_rows, skip_ptr, skip_edges = skips
    heap = np.empty(max(fanout, 0), np.uint32), np.empty(_CHUNK, np.uint32)
    next_skip = total = 0
    offsets[0] = 0
    for i in range(len(starts)):
        if i + _ROWS_AHEAD < len(starts):
            prefetch(indices, starts[i + _ROWS_AHEAD])
        skipped = skip_edges[:0]
        if next_skip < len(skip_rows) and skip_rows[next_skip] == i:
            skipped = skip_edges[skip_ptr[next_skip] : skip_ptr[next_skip + 1]]
            next_skip += 1
        row = (starts[i], degrees[i], skipped)
        out = positions[total:]
        if fanout == ALL or degrees[i] - len(skipped) <= fanout:
            total += _take_all(row, out)
        else:
            base = splitmix64(key ^ salts[i]) if len(salts) else key
            count = _take_largest(base, row, indices, copies, heap, out)
            out[:count].sort()
            total += count
        offsets[i + 1] = total


def copies_table(degrees: np.ndarray, is_sorted: bool) -> int:
    return 2 if is_sorted else 2 << (2 * int(degrees.max(initial=1)) - 1).bit_length()


@njit(nogil=True, cache=True)
def _take_all(row, out):  # type: ignore[no-untyped-def]
    start, degree, skipped = row
    count = next_skip = 0
    for edge in range(degree):
        if next_skip < len(skipped) and skipped[next_skip] == edge:
            next_skip += 1
        else:
            out[count] = start + edge
            count += 1
    return count


@njit(nogil=True, cache=True)
def _take_largest(base, row, indices, copies, heap, out):  # type: ignore[no-untyped-def]
    ranks, _ = heap
    num_left = row[1] - len(row[2])
    num_wanted = len(ranks) + _SLACK * (1.0 + np.sqrt(len(ranks)))
    bound = np.uint32(0)
    if num_wanted < num_left:
        bound = np.uint32(_LARGEST * (1.0 - num_wanted / num_left))
    count = _take_above(bound, base, row, indices, copies, heap, out)
    if count < len(ranks):
        count = _take_above(np.uint32(0), base, row, indices, copies, heap, out)
    return count


@njit(nogil=True, cache=True)
def _take_above(bound, base, row, indices, copies, heap, out):  # type: ignore[no-untyped-def]
    """Samples up to `fanout` edges of the largest ranks above a bound, chunk by chunk. `heap`:
    uint32 [fanout] and uint32 [_CHUNK].
    """
    start, degree, skipped = row
    is_sorted, table = copies
    ranks, chunk = heap
    count = next_skip = 0
    previous, rank = np.int64(-1), np.uint32(0)
    for first in range(0, degree, _CHUNK):
        neighbors = indices[start + first : start + min(first + _CHUNK, degree)]
        largest, num_copies = _rank_all(base, neighbors, chunk)
        if not is_sorted:
            for j in range(len(neighbors)):
                for _ in range(_count(table, np.int64(neighbors[j]))):
                    chunk[j] = _rank_of_copy(base, chunk[j])
                largest = max(largest, chunk[j])
        elif num_copies > 0 or neighbors[0] == previous:
            for j in range(len(neighbors)):
                if neighbors[j] == previous:
                    chunk[j] = _rank_of_copy(base, rank)
                    largest = max(largest, chunk[j])
                previous, rank = np.int64(neighbors[j]), chunk[j]
        previous, rank = np.int64(neighbors[-1]), chunk[len(neighbors) - 1]
        if largest < bound:
            continue
        for j in range(len(neighbors)):
            if chunk[j] < bound:
                continue
            edge = first + j
            while next_skip < len(skipped) and skipped[next_skip] < edge:
                next_skip += 1
            if next_skip < len(skipped) and skipped[next_skip] == edge:
                continue
            if count < len(ranks):
                _push(ranks, out, count, chunk[j], start + edge)
                count += 1
            else:
                _replace_least(ranks, out, chunk[j], start + edge)
            if count == len(ranks):
                bound = ranks[0]
    if not is_sorted:
        _forget(table, indices[start : start + degree])
    return count


@njit(nogil=True, cache=True)
def _rank_all(base, neighbors, ranks):  # type: ignore[no-untyped-def]
    """Fills the ranks of neighbors; returns the largest, and the number that follow themselves.

    Branch-free in 32 bits, so that the processor ranks several together.
    """
    low, high = np.uint32(base), np.uint32(base >> _HALF)
    largest, num_copies = np.uint32(0), np.uint32(0)
    for j in range(len(neighbors)):
        rank = _rank(low, high, neighbors[j], neighbors.itemsize)
        ranks[j] = rank
        largest = max(largest, rank)
    for j in range(1, len(neighbors)):
        num_copies += np.uint32(neighbors[j] == neighbors[j - 1])
    return largest, num_copies


@njit(nogil=True, cache=True, inline="always")
def _rank(low, high, neighbor, itemsize):  # type: ignore[no-untyped-def]
    """A 32-bit bijection for any key, so that no two neighbors have the same rank."""
    bits = np.uint32(neighbor)
    if itemsize == 8:
        bits = np.uint32(bits ^ np.uint32(np.uint32(neighbor >> 32) * _ODD))
    return _mixed(np.uint32(_mixed(np.uint32(bits ^ low)) ^ high))


@njit(nogil=True, cache=True, inline="always")
def _mixed(bits):  # type: ignore[no-untyped-def]
    bits = np.uint32(np.uint32(bits ^ (bits >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    bits = np.uint32(np.uint32(bits ^ (bits >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(bits ^ (bits >> np.uint32(16)))


@njit(nogil=True, cache=True)
def _rank_of_copy(base, rank):  # type: ignore[no-untyped-def]
    """Rank of the next parallel edge. With equal ranks, a node would take all of them or none."""
    return _mixed(np.uint32(rank ^ np.uint32(base >> _HALF) ^ _ODD))


# A binary heap of the ranks taken, the least first.


@njit(nogil=True, cache=True)
def _push(ranks, positions, count, rank, position):  # type: ignore[no-untyped-def]
    slot = count
    while slot > 0 and ranks[(slot - 1) >> 1] > rank:
        parent = (slot - 1) >> 1
        ranks[slot], positions[slot] = ranks[parent], positions[parent]
        slot = parent
    ranks[slot], positions[slot] = rank, position


@njit(nogil=True, cache=True)
def _replace_least(ranks, positions, rank, position):  # type: ignore[no-untyped-def]
    slot, count = 0, len(ranks)
    while 2 * slot + 1 < count:
        child = 2 * slot + 1
        if child + 1 < count and ranks[child + 1] < ranks[child]:
            child += 1
        if ranks[child] >= rank:
            break
        ranks[slot], positions[slot] = ranks[child], positions[child]
        slot = child
    ranks[slot], positions[slot] = rank, position


# A hash table of neighbors seen, as pairs (neighbor + 1, how often).


@njit(nogil=True, cache=True)
def _count(table, neighbor):  # type: ignore[no-untyped-def]
    slot = slot_of(table, neighbor, 2)
    table[slot] = neighbor + 1
    table[slot + 1] += 1
    return table[slot + 1] - 1


@njit(nogil=True, cache=True)
def _forget(table, neighbors):  # type: ignore[no-untyped-def]
    # From last to first, so that a slot is freed after the slots probed past it.
    for i in range(len(neighbors) - 1, -1, -1):
        slot = slot_of(table, np.int64(neighbors[i]), 2)
        table[slot + 1] -= 1
        if table[slot + 1] == 0:
            table[slot] = 0
