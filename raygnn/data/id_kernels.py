"""Compiled loops of the id maps: open addressing with linear probing.

A slot holds a dense id or -1; the key is compared in the array of ids, so the table costs four
bytes a slot for up to 2**31 nodes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.data.hashing import fnv1a, splitmix64

# Ids whose memory accesses overlap; as many as a core has misses under way, a few times over.
_GROUP = 256


@njit(nogil=True, cache=True)
def is_range(ids: np.ndarray) -> bool:
    """True where the ids are consecutive in the order of the rows."""
    for i in range(1, len(ids)):  # noqa: SIM110 (numba compiles no generator expression)
        # Compiled integers may be taken never to wrap around, so no term here can: the smallest id
        # is not reached by the second test.
        if ids[i] <= ids[i - 1] or ids[i] - 1 != ids[i - 1]:
            return False
    return True


@njit(nogil=True, cache=True)
def fill_direct(ids: np.ndarray, low: int, skip: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Fills `slots[id - low]` with row numbers; gives the rows whose id came before."""
    duplicate = np.zeros(len(ids), np.bool_)
    for i in range(len(ids)):
        if skip[i]:
            continue
        slot = ids[i] - low
        if slots[slot] >= 0:
            duplicate[i] = True
        else:
            slots[slot] = i
    return duplicate


@njit(nogil=True, cache=True)
def find_direct(ids: np.ndarray, low: int, slots: np.ndarray, out: np.ndarray) -> None:
    """Looks ids up in a table filled by fill_direct; -1 is unknown."""
    span = np.uint64(len(slots))
    for i in range(len(ids)):
        # As uint64 the difference is exact even where it does not fit int64.
        inside = ids[i] >= low and np.uint64(ids[i] - low) < span
        out[i] = slots[ids[i] - low] if inside else -1


@njit(nogil=True, cache=True)
def fill_hashed(ids: np.ndarray, skip: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Inserts integer ids into empty slots; gives the rows whose id came before."""
    duplicate = np.zeros(len(ids), np.bool_)
    mask = len(slots) - 1
    for i in range(len(ids)):
        if skip[i]:
            continue
        slot = np.int64(splitmix64(np.uint64(ids[i]))) & mask
        while slots[slot] >= 0 and ids[slots[slot]] != ids[i]:
            slot = (slot + 1) & mask
        if slots[slot] >= 0:
            duplicate[i] = True
        else:
            slots[slot] = i
    return duplicate


@njit(nogil=True, cache=True)
def find_hashed(wanted: np.ndarray, ids: np.ndarray, slots: np.ndarray, out: np.ndarray) -> None:
    """Looks integer ids up in a table filled by fill_hashed; -1 is unknown."""
    mask = len(slots) - 1
    for i in range(len(wanted)):
        slot = np.int64(splitmix64(np.uint64(wanted[i]))) & mask
        while slots[slot] >= 0 and ids[slots[slot]] != wanted[i]:
            slot = (slot + 1) & mask
        out[i] = slots[slot]


@njit(nogil=True, cache=True, inline="always")
def _same(
    a: np.ndarray, a_start: int, a_stop: int, b: np.ndarray, b_start: int, b_stop: int
) -> bool:
    if a_stop - a_start != b_stop - b_start:
        return False
    for i in range(a_stop - a_start):  # noqa: SIM110 (numba compiles no generator expression)
        if a[a_start + i] != b[b_start + i]:
            return False
    return True


@njit(nogil=True, cache=True)
def fill_strings(
    offsets: np.ndarray, data: np.ndarray, skip: np.ndarray, slots: np.ndarray
) -> np.ndarray:
    """Inserts string ids into empty slots; gives the rows whose id came before."""
    num_ids = len(offsets) - 1
    duplicate = np.zeros(num_ids, np.bool_)
    mask = len(slots) - 1
    for i in range(num_ids):
        if skip[i]:
            continue
        start, stop = offsets[i], offsets[i + 1]
        slot = np.int64(splitmix64(fnv1a(data, start, stop))) & mask
        while slots[slot] >= 0 and not _same(
            data, start, stop, data, offsets[slots[slot]], offsets[slots[slot] + 1]
        ):
            slot = (slot + 1) & mask
        if slots[slot] >= 0:
            duplicate[i] = True
        else:
            slots[slot] = i
    return duplicate


@njit(nogil=True, cache=True)
def find_strings(
    wanted_offsets: np.ndarray,
    wanted_data: np.ndarray,
    offsets: np.ndarray,
    data: np.ndarray,
    slots: np.ndarray,
    out: np.ndarray,
) -> None:
    """Looks string ids up in a table filled by fill_strings; -1 is unknown.

    In steps over a group of ids, so that the cache misses of many of them overlap: the first
    steps only load, and the last finds everything in the cache.
    """
    mask = len(slots) - 1
    homes = np.empty(_GROUP, np.int64)
    first_bytes = np.empty(_GROUP, np.int64)
    for base in range(0, len(out), _GROUP):
        size = min(_GROUP, len(out) - base)
        for i in range(size):
            start, stop = wanted_offsets[base + i], wanted_offsets[base + i + 1]
            homes[i] = np.int64(splitmix64(fnv1a(wanted_data, start, stop))) & mask
        for i in range(size):
            out[base + i] = slots[homes[i]]
        for i in range(size):
            first_bytes[i] = offsets[max(out[base + i], 0)]
        for i in range(size):
            first_bytes[i] = data[first_bytes[i]] if first_bytes[i] < len(data) else -1
        for i in range(size):
            start, stop = wanted_offsets[base + i], wanted_offsets[base + i + 1]
            found, slot = out[base + i], homes[i]
            if found >= 0 and stop > start and first_bytes[i] != wanted_data[start]:
                slot = (slot + 1) & mask
                found = slots[slot]
            while found >= 0 and not _same(
                wanted_data, start, stop, data, offsets[found], offsets[found + 1]
            ):
                slot = (slot + 1) & mask
                found = slots[slot]
            out[base + i] = found
