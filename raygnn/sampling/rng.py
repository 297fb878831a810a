"""Counter-based draws: each is a hash of what it is for, never the next number of a stream."""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.data.hashing import splitmix64

#: Changes whenever any draw does; stored with bundles and checkpoints, pinned by golden tests.
RNG_VERSION = 1

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def batch_key(seed: int, split: str, epoch: int, index: int) -> int:
    """The key of one global micro-batch, from which all its draws follow."""
    key = mix(seed & _MASK)
    for part in (*split.encode(), 256 + len(split), epoch, index):
        key = mix(key ^ (part & _MASK))
    return key


def hop_key(key: int, hop: int, edge_type_index: int) -> int:
    """The key of all draws of one hop along one edge type."""
    return mix(mix(key ^ hop) ^ edge_type_index)


def mix(value: int) -> int:
    """`splitmix64` on a Python integer in [0, 2^64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@njit(nogil=True, cache=True, inline="always")
def node_key(key: np.uint64, node: np.int64) -> np.uint64:
    """The key of the draws for one destination node."""
    return splitmix64(key ^ (np.uint64(node) * _GOLDEN))


@njit(nogil=True, cache=True, inline="always")
def draw_below(key: np.uint64, number: np.int64, bound: np.int64) -> np.int64:
    """Draw `number` of a node, uniform on [0, bound), bound below 2^32 (multiply-high)."""
    bits = splitmix64(key + np.uint64(number) * _GOLDEN) >> np.uint64(32)
    return np.int64((bits * np.uint64(bound)) >> np.uint64(32))
