"""Hash tables of a batch, with open addressing and linear probing, in arrays that are reused."""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.data.hashing import GOLDEN_GAMMA, splitmix64
from raygnn.data.intrinsics import prefetch

_SMALLEST_TABLE = 1 << 10
_SLOTS_PER_NODE = 4  # fuller tables cost more in second looks than smaller ones save in cache
_SLOTS_AHEAD = 16  # nodes between the prefetch of a slot and its use


class LocalIds:
    """Maps node ids to 0, 1, 2... in an open-addressing hash table that is reused.

    A slot contains a local id + 1, or 0 if free, and is compared through the list of nodes: 4 bytes
    per slot keep a batch's table in the cache.
    """

    def __init__(self) -> None:
        self.num_nodes = 0
        self._known = np.empty(_SMALLEST_TABLE, np.int64)  # the node of local id i at i + 1
        self._slots = np.zeros(_SMALLEST_TABLE, np.int32)

    @property
    def nodes(self) -> np.ndarray:
        """int64 [num_nodes], nodes by local id; a view until the next `add` or `clear`."""
        return self._known[1 : self.num_nodes + 1]

    def clear(self) -> None:
        self._slots.fill(0)
        self.num_nodes = 0

    def add(self, nodes: np.ndarray, local: np.ndarray) -> None:
        """Assigns local ids to nodes, and fills `local`, int32 or int64, with them."""
        room = self.num_nodes + len(nodes) + 2
        if room > len(self._known):
            grown = np.empty(room + room // 4, np.int64)
            grown[: self.num_nodes + 1] = self._known[: self.num_nodes + 1]
            self._known = grown
        done = 0
        while True:
            done, self.num_nodes = _add(
                self._slots, self._known, self.num_nodes, nodes, done, local
            )
            if done == len(nodes):
                return
            self._slots = np.zeros(2 * len(self._slots), np.int32)
            index_nodes(self.nodes, self._slots)


@njit(nogil=True, cache=True)
def home_of(num_slots, node):  # type: ignore[no-untyped-def]
    """The slot where the search for a node begins, in a power of two."""
    # The high half of a product with the golden ratio spreads runs of ids evenly.
    spread = (np.uint64(node) * GOLDEN_GAMMA) >> np.uint64(32)
    return np.int64(spread & np.uint64(num_slots - 1))


@njit(nogil=True, cache=True)
def _add(slots, known, num_known, nodes, first, local):  # type: ignore[no-untyped-def]
    """Adds `nodes[first:]` until the table is too full; returns where it stopped.

    A free slot means the next local id, whose node is set in advance, so "free" and "found" are one
    comparison. Whether a node is new cannot be predicted, and a branch on it would cost more than
    all the rest (1.7 instead of 0.6 ms for 140 k nodes).
    """
    mask = len(slots) - 1
    limit = len(slots) // _SLOTS_PER_NODE
    for i in range(first, len(nodes)):
        if num_known == limit:
            return i, num_known
        if i + _SLOTS_AHEAD < len(nodes):
            prefetch(slots, home_of(len(slots), nodes[i + _SLOTS_AHEAD]))
        node = np.int64(nodes[i])
        known[num_known + 1] = node
        slot = home_of(len(slots), node)
        held = np.int64(slots[slot])
        label = held if held != 0 else num_known + 1
        while known[label] != node:
            slot = (slot + 1) & mask
            held = np.int64(slots[slot])
            label = held if held != 0 else num_known + 1
        slots[slot] = label
        num_known += np.int64(held == 0)
        local[i] = label - 1
    return len(nodes), num_known


@njit(nogil=True, cache=True)
def index_nodes(nodes, slots):  # type: ignore[no-untyped-def]
    """Fills free slots with the number of each of these distinct nodes + 1."""
    mask = len(slots) - 1
    for i in range(len(nodes)):
        slot = home_of(len(slots), nodes[i])
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = i + 1


@njit(nogil=True, cache=True)
def slot_of(table, number, width):  # type: ignore[no-untyped-def]
    """Position of a number + 1 in a hash table of rows that begin with it, or of a free row.

    `table`: int64 [num_rows * width], `num_rows` a power of two; a free row begins with 0.
    """
    mask = len(table) // width - 1
    row = np.int64(splitmix64(np.uint64(number)) & np.uint64(mask))
    while table[width * row] != 0 and table[width * row] != number + 1:
        row = (row + 1) & mask
    return width * row
