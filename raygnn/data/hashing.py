"""Hash functions with the same values on every platform and in every release.

Splits and sampling draws are pure functions of these values; golden values in the tests pin them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

# splitmix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
#: 2^64 over the golden ratio: the step of the generator, and a factor that spreads integers.
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_30 = np.uint64(30)
_SHIFT_27 = np.uint64(27)
_SHIFT_31 = np.uint64(31)
_BITS = (1 << 64) - 1
# FNV-1a, 64 bits: RFC 9923.
_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)


@njit(nogil=True, cache=True, inline="always")
def splitmix64(value: np.uint64) -> np.uint64:
    """Mixes one uint64 into another; a bijection (one step of the splitmix64 generator)."""
    z = np.uint64(value) + GOLDEN_GAMMA
    z = (z ^ (z >> _SHIFT_30)) * _MIX_1
    z = (z ^ (z >> _SHIFT_27)) * _MIX_2
    return z ^ (z >> _SHIFT_31)


def mix(value: int) -> int:
    """`splitmix64` of an integer, in Python: a thread that calls compiled code has to wait for its
    turn afterwards.
    """
    z = (value + int(GOLDEN_GAMMA)) & _BITS
    z = ((z ^ (z >> 30)) * int(_MIX_1)) & _BITS
    z = ((z ^ (z >> 27)) * int(_MIX_2)) & _BITS
    return z ^ (z >> 31)


@njit(nogil=True, cache=True)
def _splitmix64_all(values: np.ndarray, key: np.uint64, out: np.ndarray) -> None:
    for i in range(len(values)):
        out[i] = splitmix64(values[i] ^ key)


@njit(nogil=True, cache=True, inline="always")
def fnv1a(data: np.ndarray, start: int, stop: int) -> np.uint64:
    state = _FNV_OFFSET
    for i in range(start, stop):
        state = (state ^ np.uint64(data[i])) * _FNV_PRIME
    return state


@njit(nogil=True, cache=True)
def hash_bytes_all(offsets: np.ndarray, data: np.ndarray, key: np.uint64, out: np.ndarray) -> None:
    for i in range(len(out)):
        out[i] = splitmix64(fnv1a(data, offsets[i], offsets[i + 1]) ^ key)


def splitmix64_array(values: np.ndarray, key: int = 0) -> np.ndarray:
    """Vectorized `splitmix64(value ^ key)`, uint64. Signed values are in two's complement."""
    raw = np.ascontiguousarray(values)
    raw = raw.view(np.uint64) if raw.dtype.itemsize == 8 else raw.astype(np.int64).view(np.uint64)
    out = np.empty(len(raw), np.uint64)
    _splitmix64_all(raw, np.uint64(key), out)
    return out


def seed_key(seed: int) -> int:
    """The hash key of a user's seed, any Python integer. Its low 64 bits count."""
    return int(splitmix64_array(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64))[0])


def string_buffers(strings: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Offsets (int64 [n + 1]) and bytes (uint8) of an Arrow string array without nulls.

    Offsets index the returned bytes; a sliced array keeps its parent's bytes.
    """
    if strings.type != pa.large_string():
        strings = pc.cast(strings, pa.large_string())
    _, offsets_buffer, data_buffer = strings.buffers()
    if len(strings) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int64)[
        strings.offset : strings.offset + len(strings) + 1
    ]
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return offsets, data


def hash_ids(ids: pa.Array | np.ndarray, seed: int) -> np.ndarray:
    """Hash of (seed, original id), uint64 [n]. Equal ids have equal hashes.

    `ids`: int64 ids, or an Arrow array of integers or strings, without nulls.
    """
    key = seed_key(seed)
    if isinstance(ids, np.ndarray):
        return splitmix64_array(ids, key)
    if pa.types.is_integer(ids.type):
        return splitmix64_array(pc.cast(ids, pa.int64()).to_numpy(zero_copy_only=False), key)
    offsets, data = string_buffers(ids)
    out = np.empty(len(ids), np.uint64)
    hash_bytes_all(offsets, data, np.uint64(key), out)
    return out
