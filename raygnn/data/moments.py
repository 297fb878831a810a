"""Statistics of columns from exact sums, the same bits for any order and division of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numba import njit

# A double is a whole number of up to 54 bits times 2^(exponent - 54), in three digits here.
_DIGIT_BITS = 18
_MANTISSA = 2.0**54
_LOWEST = -1073  # the least exponent that `frexp` gives
_NUM_EXPONENTS = 1024 - _LOWEST + 1
# 2^20 products of two digits stay far below 2^63.
_BLOCK = 1 << 20
_BLOCK_ELEMENTS = 1 << 21  # 16 MiB of float64


@dataclass(frozen=True)
class Moments:
    """Mergeable statistics of finite floats.

    Attributes:
        sum: in units of 2^-1127.
        sum_of_squares: in units of 2^-2254.
        low, high: infinite without values.
    """

    count: int = 0
    sum: int = 0
    sum_of_squares: int = 0
    low: float = math.inf
    high: float = -math.inf
    num_zeros: int = 0
    num_ones: int = 0

    @classmethod
    def of(cls, values: np.ndarray, *, sums: bool = True) -> Moments:
        """Statistics of float64 values, [n]. `sums`: whether to add them up."""
        total = total_of_squares = 0
        for start in range(0, len(values) if sums else 0, _BLOCK):
            digits = np.zeros((_NUM_EXPONENTS, 3), np.int64)
            squares = np.zeros((_NUM_EXPONENTS, 5), np.int64)
            _add(np.ascontiguousarray(values[start : start + _BLOCK]), digits, squares)
            total += _total(digits, 1)
            total_of_squares += _total(squares, 2)
        low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
        counts = (int(np.count_nonzero(values == number)) for number in (0, 1))
        return cls(len(values), total, total_of_squares, low, high, *counts)

    def merged(self, other: Moments) -> Moments:
        return Moments(
            self.count + other.count,
            self.sum + other.sum,
            self.sum_of_squares + other.sum_of_squares,
            min(self.low, other.low),
            max(self.high, other.high),
            self.num_zeros + other.num_zeros,
            self.num_ones + other.num_ones,
        )

    def mean_and_std(self) -> tuple[float, float]:
        """Rounded once, from exact numbers."""
        mean = Fraction(self.sum, self.count << -(_LOWEST - 54))
        second = Fraction(self.sum_of_squares, self.count << -2 * (_LOWEST - 54))
        return float(mean), _root(second - mean * mean)


def merge_elements(some: Sequence[Moments], others: Sequence[Moments]) -> Sequence[Moments]:
    """Merges the statistics of two sets of rows, by element. Those of no rows are empty."""
    if not some or not others:
        return some or others
    return [a.merged(b) for a, b in zip(some, others, strict=True)]


def measure(rows: np.ndarray, chosen: np.ndarray | None = None) -> Sequence[Moments]:
    """Statistics of each element of finite rows, [width]. Empty without rows.

    Args:
        rows: [num_rows, ...], floats or integers.
        chosen: bool [num_rows]; None measures all rows.
    """
    rows = rows.reshape(len(rows), -1)
    if np.can_cast(rows.dtype, np.float32):
        return _measure_float32(rows, chosen)
    elements: Sequence[Moments] = ()
    for block in _blocks(rows, chosen):
        columns = np.ascontiguousarray(block.T, np.float64)
        elements = merge_elements(elements, [Moments.of(each) for each in columns])
    return elements


def _measure_float32(rows: np.ndarray, chosen: np.ndarray | None) -> Sequence[Moments]:
    width, num_rows = rows.shape[1], 0
    digits = np.zeros((width, *_TABLE_SHAPE), np.int64)
    low, high = np.full(width, np.inf, np.float32), np.full(width, -np.inf, np.float32)
    counts = np.zeros((2, width), np.int64)
    for block in _blocks(rows, chosen):
        values = np.ascontiguousarray(block, np.float32)
        _add_float32(values, values.view(np.int32), digits, low, high, counts)
        num_rows += len(block)
    if not num_rows:
        return ()
    others = (each.tolist() for each in (low, high, *counts))
    sums = _sums_of_digits(digits)
    return [Moments(num_rows, *each) for each in zip(*sums, *others, strict=True)]


def _sums_of_digits(digits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums and sums of squares of each element, as in `Moments`, from the digits of its values."""
    rows = np.flatnonzero(digits.any(axis=(0, 2)))
    # Float32 numbers are multiples of 2^-149; the smallest ones have the exponents 0 and 1.
    shifts = [max(row, 1) - 1 - (_LOWEST - 54) - 149 for row in rows.tolist()]
    units = np.array([1 << shift for shift in shifts], object)
    squares = units * units
    low, high = digits[:, rows, 1].astype(object), digits[:, rows, 2].astype(object)
    sums = digits[:, rows, 0].astype(object) @ units
    return sums, low @ squares + high @ (squares << _HALF_BITS)


def _blocks(rows: np.ndarray, chosen: np.ndarray | None) -> Iterator[np.ndarray]:
    step = max(1, _BLOCK_ELEMENTS // max(rows.shape[1], 1))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        if chosen is not None:
            block = block[chosen[start : start + step]]
        if len(block):
            yield block


def _root(value: Fraction) -> float:
    half = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(value / Fraction(4) ** half), half)


@njit(nogil=True, cache=True)
def _add(values, sums, squares):  # type: ignore[no-untyped-def]
    mask = np.int64((1 << _DIGIT_BITS) - 1)
    for i in range(len(values)):
        mantissa, exponent = math.frexp(values[i])
        integer = np.int64(mantissa * _MANTISSA)
        row = exponent - _LOWEST
        # The highest digit has the sign; the others are not negative.
        low, middle = integer & mask, (integer >> _DIGIT_BITS) & mask
        high = integer >> (2 * _DIGIT_BITS)
        sums[row, 0] += low
        sums[row, 1] += middle
        sums[row, 2] += high
        squares[row, 0] += low * low
        squares[row, 1] += 2 * low * middle
        squares[row, 2] += 2 * low * high + middle * middle
        squares[row, 3] += 2 * middle * high
        squares[row, 4] += high * high


#: Exponents of float32, and digits: of sums, and two of squares.
_TABLE_SHAPE = (256, 3)
_HALF_BITS = 24


@njit(nogil=True, cache=True)
def _add_float32(rows, bits, tables, low, high, counts):  # type: ignore[no-untyped-def]
    """Adds rows to the statistics of their columns.

    Args:
        rows: finite float32 [n, width].
        bits: the same as int32.
        tables: int64 [width, *_TABLE_SHAPE].
        low, high: float32 [width].
        counts: int64 [2, width], of zeros and ones.
    """
    half = np.int64((1 << _HALF_BITS) - 1)
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            value, pattern = rows[i, j], bits[i, j]
            exponent = (pattern >> 23) & 255
            mantissa = np.int64(pattern & 0x7FFFFF)
            if exponent > 0:
                mantissa |= 0x800000
            square = mantissa * mantissa
            tables[j, exponent, 0] += -mantissa if pattern < 0 else mantissa
            tables[j, exponent, 1] += square & half
            tables[j, exponent, 2] += square >> _HALF_BITS
            low[j] = min(low[j], value)
            high[j] = max(high[j], value)
            counts[0, j] += value == 0
            counts[1, j] += value == 1


def _total(digits: np.ndarray, power: int) -> int:
    total = 0
    for row in np.flatnonzero(digits.any(axis=1)).tolist():
        value = sum(int(digit) << (_DIGIT_BITS * i) for i, digit in enumerate(digits[row].tolist()))
        total += value << (power * row)
    return total
