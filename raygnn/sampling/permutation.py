"""The order of seeds in an epoch: a pure function with random access, without a stored array."""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.data.hashing import splitmix64
from raygnn.sampling.rng import RNG_VERSION, chain_key, text_key

# Four rounds make a Feistel network pseudorandom for large halves (Luby and Rackoff, 1988); small
# ones, of few seeds, want more.
_NUM_ROUNDS = 8


def seed_order(num_seeds: int, seed: int, epoch: int, start: int, stop: int) -> np.ndarray:
    """Places `start` to `stop` of the epoch's permutation of range(num_seeds).

    A Feistel network permutes the next even power of two; a value outside of the range is permuted
    again until it is inside, less than four times on average.

    Args:
        seed: any integer; its low 64 bits count.
        start: 0 <= start <= stop <= num_seeds.
    Returns:
        int64 [stop - start], distinct positions in [0, num_seeds).
    Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002.
    """
    assert 0 <= start <= stop <= num_seeds
    half_bits = max(1, (max(num_seeds - 1, 0).bit_length() + 1) // 2)
    key = chain_key(RNG_VERSION, seed, text_key("seed order"), epoch)
    out = np.empty(stop - start, np.int64)
    _permute(np.uint64(num_seeds), start, np.uint64(half_bits), np.uint64(key), out)
    return out


@njit(nogil=True, cache=True)
def _permute(num_seeds, start, half_bits, key, out):  # type: ignore[no-untyped-def]
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    for i in range(len(out)):
        value = np.uint64(start + i)
        while True:
            left, right = value >> half_bits, value & mask
            for number in range(_NUM_ROUNDS):
                # right has at most 32 bits, so the round's number does not touch it
                mixed = splitmix64(key ^ (np.uint64(number) << np.uint64(32)) ^ right)
                left, right = right, left ^ (mixed & mask)
            value = (left << half_bits) | right
            if value < num_seeds:
                break
        out[i] = np.int64(value)
