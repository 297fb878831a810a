"""Divides ids among the parts that own them, and joins the parts' answers.

Kernels release the GIL, so that threads that make batches do not delay training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numba import njit

from raygnn.sampling.protocols import PickRequest, Picks
from raygnn.sampling.temporal import Horizon


class Share(NamedTuple):
    """The request to one part.

    Attributes:
        positions: int64, ascending, positions of its ids among all.
    """

    part: int
    positions: np.ndarray


def shares_of(first: np.ndarray, ids: np.ndarray) -> Iterator[Share]:
    """Shares of the parts with ids; an empty share of part 0 without ids.

    Args:
        first: int64 [num_parts + 1], the first id of each part.
        ids: int64 [n].
    """
    if not len(ids):
        yield Share(0, np.empty(0, np.int64))
        return
    starts = np.zeros(len(first), np.int64)
    positions = np.empty(len(ids), np.int64)
    _cut(first, ids, np.empty(len(ids), np.int32), starts, positions)
    for part in range(len(first) - 1):
        if starts[part] < starts[part + 1]:
            yield Share(part, positions[starts[part] : starts[part + 1]])


def restricted(request: PickRequest, positions: np.ndarray) -> PickRequest:
    """The request restricted to some nodes."""
    keys, salts = request.exclude_keys, request.salts
    return replace(
        request,
        nodes=request.nodes[positions],
        exclude_keys=None if keys is None else keys[positions],
        horizon=restricted_horizon(request.horizon, positions),
        salts=None if salts is None else salts[positions],
    )


def restricted_horizon(horizon: Horizon | None, positions: np.ndarray) -> Horizon | None:
    return None if horizon is None else horizon._replace(latest=horizon.latest[positions])


def merged_picks(shares: Sequence[Share], found: Sequence[Picks], num_nodes: int) -> Picks:
    """Picks of several parts in the order of the nodes."""
    offsets = np.zeros(num_nodes + 1, np.int64)
    for share, picks in zip(shares, found, strict=True):
        offsets[1:][share.positions] = np.diff(picks.offsets)
    np.cumsum(offsets, out=offsets)
    neighbors = np.empty(offsets[-1], found[0].neighbors.dtype)
    e_id = np.empty(offsets[-1], np.int64)
    for share, picks in zip(shares, found, strict=True):
        _place(picks.neighbors, picks.offsets, share.positions, offsets, neighbors)
        _place(picks.e_id, picks.offsets, share.positions, offsets, e_id)
    return Picks(neighbors, e_id, offsets)


def scatter_rows(rows: np.ndarray, positions: np.ndarray, out: np.ndarray) -> None:
    if rows.size:
        word = f"u{rows.itemsize}"  # numba compiles no two-byte floats
        parts, whole = (array.reshape(len(array), -1).view(word) for array in (rows, out))
        _scatter(parts, positions, whole)


@njit(nogil=True, cache=True)
def _cut(first, ids, part_of, starts, positions):  # type: ignore[no-untyped-def]
    """Fills `positions`, part by part, and `starts` [num_parts + 1] with the start of each part."""
    num_parts = len(first) - 1
    for i in range(len(ids)):
        low, high = 0, num_parts - 1
        while low < high:  # the last part that does not begin after the id: others may be empty
            middle = (low + high + 1) >> 1
            if first[middle] <= ids[i]:
                low = middle
            else:
                high = middle - 1
        part_of[i] = low
        starts[low + 1] += 1
    for part in range(num_parts):
        starts[part + 1] += starts[part]
    next_ = starts[:-1].copy()
    for i in range(len(ids)):
        positions[next_[part_of[i]]] = i
        next_[part_of[i]] += 1


@njit(nogil=True, cache=True)
def _place(values, own_offsets, positions, offsets, out):  # type: ignore[no-untyped-def]
    for i in range(len(positions)):
        start = offsets[positions[i]]
        for j in range(own_offsets[i], own_offsets[i + 1]):
            out[start + j - own_offsets[i]] = values[j]


@njit(nogil=True, cache=True)
def _scatter(rows, positions, out):  # type: ignore[no-untyped-def]
    for i in range(len(positions)):
        for j in range(rows.shape[1]):
            out[positions[i], j] = rows[i, j]
