"""The order of seeds in an epoch: a pure function with random access."""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.data.hashing import splitmix64
from raygnn.sampling.rng import mix

_NUM_ROUNDS = 4


def seed_order(num_seeds: int, seed: int, epoch: int, start: int, stop: int) -> np.ndarray:
    """Positions `start` to `stop` of the epoch's permutation of range(num_seeds).

    A Feistel network over the next even power of two, walked until it lands inside the range
    (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): nothing is stored.

    Returns:
        int64 [stop - start].
    """
    half_bits = max(1, (max(num_seeds - 1, 1).bit_length() + 1) // 2)
    key = np.uint64(mix(mix(seed & ((1 << 64) - 1)) ^ (epoch + 1)))
    out = np.empty(stop - start, dtype=np.int64)
    _fill(out, start, num_seeds, half_bits, key)
    return out


@njit(nogil=True, cache=True)
def _fill(out, start, num_seeds, half_bits, key):  # type: ignore[no-untyped-def]
    shift = np.uint64(half_bits)
    mask = (np.uint64(1) << shift) - np.uint64(1)
    for i in range(len(out)):
        value = np.uint64(start + i)
        while True:
            left, right = value >> shift, value & mask
            for number in range(_NUM_ROUNDS):
                mixed = splitmix64(key ^ (right << np.uint64(8)) ^ np.uint64(number))
                left, right = right, left ^ (mixed & mask)
            value = (left << shift) | right
            if value < np.uint64(num_seeds):
                break
        out[i] = np.int64(value)
