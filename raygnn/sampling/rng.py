"""Keys of random draws: a draw is a hash of what it is for, never the next number of a stream.

Seed, split, epoch and batch index give the key of a batch; it, hop and edge type give the key of
a hop; `pick.py` goes on from there with the destination node and the number of its draw. So the
same batch comes out whichever thread, rank or server draws which part of it.
"""

from __future__ import annotations

from functools import cache

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.hashing import mix

#: Stands for all that draws depend on, here, in `pick.py` and in `permutation.py`. Goes up when any
#: of it changes; pinned by golden tests.
RNG_VERSION = 1

#: The key of one batch, in [0, 2^64).
BatchKey = int

_MASK = (1 << 64) - 1
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3  # FNV-1a, 64 bits: RFC 9923


def batch_key(seed: int, split: str, epoch: int, index: int) -> BatchKey:
    """The key of one global micro-batch, from which all its draws follow.

    Args:
        seed: any integer; its low 64 bits count.
    """
    return chain_key(RNG_VERSION, seed, text_key(split), epoch, index)


def hop_key(key: BatchKey, hop: int, edge_type: EdgeType) -> int:
    """The key of all draws along one edge type in one hop.

    The edge type counts by its name, so that a further edge type in the graph changes no draw.
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
    """FNV-1a of the UTF-8 bytes."""
    key = _FNV_OFFSET
    for byte in text.encode():
        key = ((key ^ byte) * _FNV_PRIME) & _MASK
    return key
