"""The inner loops of sampling: serial, free of the GIL, one call per hop and edge type."""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.sampling.rng import draw_below, node_key

# Floyd's algorithm checks each pick against all before it: quadratic, but in registers.
_MAX_FLOYD = 64


@njit(nogil=True, cache=True)
def count_picks(indptr, nodes, fanout, replace, offsets):  # type: ignore[no-untyped-def]
    """Fills `offsets` int64 [num_nodes + 1] with the running number of picks per node."""
    total = 0
    offsets[0] = 0
    for i in range(len(nodes)):
        degree = indptr[nodes[i] + 1] - indptr[nodes[i]]
        if fanout >= 0 and degree > 0 and (replace or degree > fanout):
            total += fanout
        else:
            total += degree
        offsets[i + 1] = total


@njit(nogil=True, cache=True)
def pick(indptr, nodes, fanout, replace, key, offsets, positions):  # type: ignore[no-untyped-def]
    """Fills `positions` int64 [offsets[-1]] with the picked CSC positions, node by node."""
    for i in range(len(nodes)):
        node = nodes[i]
        start = indptr[node]
        degree = indptr[node + 1] - start
        at = offsets[i]
        count = offsets[i + 1] - at
        if count == 0:
            continue
        if fanout < 0 or (not replace and degree <= fanout):
            for j in range(count):
                positions[at + j] = start + j
            continue
        own = node_key(key, node)
        if replace:
            for j in range(count):
                positions[at + j] = start + draw_below(own, j, degree)
        elif count <= _MAX_FLOYD:
            for j in range(count):
                top = degree - count + j
                chosen = start + draw_below(own, j, top + 1)
                for k in range(at, at + j):
                    if positions[k] == chosen:
                        chosen = start + top
                        break
                positions[at + j] = chosen
        else:
            taken = 0
            for j in range(degree):
                if draw_below(own, j, degree - j) < count - taken:
                    positions[at + taken] = start + j
                    taken += 1


@njit(nogil=True, cache=True)
def load(indices, positions, neighbors):  # type: ignore[no-untyped-def]
    """Fills `neighbors` with `indices[positions]`."""
    for i in range(len(positions)):
        neighbors[i] = indices[positions[i]]


@njit(nogil=True, cache=True, inline="always")
def _slot_of(slots, node_ids, node):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(slots) - 1)
    slot = ((np.uint64(node) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask
    while slots[slot] != 0 and node_ids[slots[slot] - 1] != node:
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(nogil=True, cache=True)
def relabel(slots, node_ids, num_nodes, neighbors, local):  # type: ignore[no-untyped-def]
    """Gives each neighbor its local id, new ones in order of discovery.

    Args:
        slots: int32 [a power of two, at least twice the nodes], local id + 1, 0 where free.
        node_ids: int64, the nodes so far in [0, num_nodes); room for all neighbors.
        local: int64 [len(neighbors)], filled.
    Returns:
        The number of nodes afterwards.
    """
    for i in range(len(neighbors)):
        node = neighbors[i]
        slot = _slot_of(slots, node_ids, node)
        if slots[slot] == 0:
            node_ids[num_nodes] = node
            num_nodes += 1
            slots[slot] = num_nodes
        local[i] = slots[slot] - 1
    return num_nodes


@njit(nogil=True, cache=True)
def repeat(offsets, first, out):  # type: ignore[no-untyped-def]
    """Fills `out` with first + i for each of the picks of node i."""
    for i in range(len(offsets) - 1):
        for j in range(offsets[i], offsets[i + 1]):
            out[j] = first + i


@njit(nogil=True, cache=True)
def gather_rows(rows, ids, out):  # type: ignore[no-untyped-def]
    """Copies `rows[ids]` ([num_rows, width] of any dtype) into `out`, cast to its dtype."""
    for i in range(len(ids)):
        row = ids[i]
        for j in range(rows.shape[1]):
            out[i, j] = rows[row, j]


@njit(nogil=True, cache=True)
def gather_sparse(indptr, indices, values, ids, out):  # type: ignore[no-untyped-def]
    """Fills the zeroed rows of `out` from CSR rows; empty `values` means ones."""
    for i in range(len(ids)):
        for j in range(indptr[ids[i]], indptr[ids[i] + 1]):
            out[i, indices[j]] += values[j] if len(values) else 1.0
