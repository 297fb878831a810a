"""splitmix64 of `raygnn.data.hashing` in torch, for tensors on any device.

Bits are in int64: products wrap around, and shifts, which copy the sign, are masked.
"""

from __future__ import annotations

from torch import Tensor


def signed(value: int) -> int:
    """The bits of an unsigned 64-bit number as int64."""
    return value - (1 << 64) if value >= 1 << 63 else value


#: Step of the sequence whose n-th number is the hash of n times this.
GOLDEN = signed(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)


def shifted(value: Tensor, bits: int) -> Tensor:
    """Shifts unsigned numbers to the right."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def splitmix64(value: Tensor) -> Tensor:
    z = value + GOLDEN
    z = (z ^ shifted(z, 30)) * _MIX_1
    z = (z ^ shifted(z, 27)) * _MIX_2
    return z ^ shifted(z, 31)
