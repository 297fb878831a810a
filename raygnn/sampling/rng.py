"""Keys of random draws: a draw is a hash of its purpose, never the next number of a stream.

Seed, split, epoch and batch index determine the key of a batch; with hop and edge type, the key of
a hop; `pick.py` adds the destination node and the number of its draw. So a batch does not depend on
the thread, rank or server that draws it. Outside training, seeds with their own neighborhoods draw
by one key, their node and their time, so a neighborhood does not depend on the batch either.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import njit

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.hashing import mix, splitmix64, splitmix64_array

#: Stands for all that draws depend on, here and in `pick.py`. Goes up when any of it changes;
#: pinned by golden tests.
RNG_VERSION = 1

#: The key of one batch, in [0, 2^64).
BatchKey = int

_MASK = (1 << 64) - 1
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3  # FNV-1a, 64 bits: RFC 9923
# Four rounds make a Feistel network pseudorandom for large halves (Luby and Rackoff, 1988); small
# ones, of few seeds, want more.
_NUM_ROUNDS = 8
_GROUP, _WINDOW = 1 << 14, 1 << 22  # rows


def batch_key(seed: int, split: str, epoch: int, index: int) -> BatchKey:
    """The key of one global micro-batch, for all its draws. The low 64 bits of `seed` count."""
    return chain_key(RNG_VERSION, seed, text_key(split), epoch, index)


def fixed_key(seed: int) -> BatchKey:
    """The key of all batches whose seeds have salts of `seed_salts`."""
    return chain_key(RNG_VERSION, seed, text_key("any batch"))


def seed_salts(nodes: np.ndarray, times: np.ndarray | None) -> np.ndarray:
    """uint64 [num_seeds], inputs of draws that depend on the node and the time of each seed only.

    Equal times have equal salts, whether they are integers or floats.
    """
    salts = splitmix64_array(nodes)
    if times is None:
        return salts
    return splitmix64_array(salts ^ (times.astype(np.float64) + 0.0).view(np.uint64))


def hop_key(key: BatchKey, hop: int, edge_type: EdgeType) -> int:
    """The key of all draws along one edge type in one hop.

    It depends on the edge type's name, so adding an edge type to the graph changes no draw.
    """
    return chain_key(key, text_key(edge_type_name(edge_type)), hop)


def chain_key(*parts: int) -> int:
    """Hashes integers in their order; the low 64 bits of each count."""
    key = 0
    for part in parts:
        key = mix(key ^ (part & _MASK))
    return key


@cache
def text_key(text: str) -> int:
    key = _FNV_OFFSET
    for byte in text.encode():
        key = ((key ^ byte) * _FNV_PRIME) & _MASK
    return key


def seed_order(num_seeds: int, seed: int, epoch: int, start: int, stop: int) -> np.ndarray:
    """Elements `start` to `stop` of the epoch's permutation of range(num_seeds).

    A pure function with random access, without a stored array: a Feistel network permutes the next
    even power of two, and values outside of the range are permuted again until inside, less than
    four times on average.

    Args:
        seed: any integer; its low 64 bits count.
        start: 0 <= start <= stop <= num_seeds.
    Returns:
        int64 [stop - start], distinct positions in [0, num_seeds).

    Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002.
    """
    assert 0 <= start <= stop <= num_seeds
    key = chain_key(RNG_VERSION, seed, text_key("seed order"), epoch)
    out = np.empty(stop - start, np.int64)
    _permute(np.uint64(num_seeds), start, np.uint64(half_bits(num_seeds)), np.uint64(key), out)
    return out


def windowed_order(num_seeds: int, seed: int, epoch: int, start: int, stop: int) -> np.ndarray:
    """As `seed_order`, in an order that reads tables beyond the memory window by window.

    Groups of 2^14 consecutive rows, which begin elsewhere in each epoch, are permuted, and then the
    rows of each window of 256 groups. All are pure functions, so nothing is stored or buffered.
    """
    assert 0 <= start <= stop <= num_seeds
    key = chain_key(RNG_VERSION, seed, text_key("windowed order"), epoch)
    shift, of_groups, of_rows = (np.uint64(chain_key(key, number)) for number in range(3))
    out = np.empty(stop - start, np.int64)
    rest = num_seeds % _WINDOW
    bits = [half_bits(num) for num in (num_seeds // _GROUP, _WINDOW, rest)]
    _permute_windows(num_seeds, start, np.array(bits, np.uint64), shift, of_groups, of_rows, out)
    return out


def half_bits(num: int) -> int:
    """Bits of a half of the Feistel network that permutes range(num)."""
    return max(1, (max(num - 1, 0).bit_length() + 1) // 2)


@njit(nogil=True, cache=True)
def _permute(num_seeds, start, half_bits, key, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = permuted(np.uint64(start + i), num_seeds, half_bits, key)


@njit(nogil=True, cache=True)
def _permute_windows(num, start, bits, shift, of_groups, of_rows, out):  # type: ignore[no-untyped-def]
    num_groups, first_row = num // _GROUP, np.int64(shift % np.uint64(num))
    for i in range(len(out)):
        window = (start + i) // _WINDOW
        first = window * _WINDOW
        size = min(_WINDOW, num - first)
        key = splitmix64(of_rows ^ np.uint64(window))
        half = bits[1] if size == _WINDOW else bits[2]
        at = first + permuted(np.uint64(start + i - first), np.uint64(size), half, key)
        group = at // _GROUP
        if group < num_groups:
            group = permuted(np.uint64(group), np.uint64(num_groups), bits[0], of_groups)
            at = group * _GROUP + at % _GROUP
        out[i] = (at + first_row) % num


@njit(nogil=True, cache=True)
def permuted(value, num, half_bits, key):  # type: ignore[no-untyped-def]
    """Image of a value under the keyed permutation of range(num). All are uint64."""
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    while True:
        left, right = value >> half_bits, value & mask
        for number in range(_NUM_ROUNDS):
            # right has at most 32 bits, so the round's number does not touch it
            mixed = splitmix64(key ^ (np.uint64(number) << np.uint64(32)) ^ right)
            left, right = right, left ^ (mixed & mask)
        value = (left << half_bits) | right
        if value < num:
            return np.int64(value)
