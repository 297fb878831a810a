"""Mean and standard deviation from exact sums, the same bits for any order and division of rows."""

from __future__ import annotations

import math
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


@dataclass(frozen=True)
class ExactMoments:
    """Number, sum (in units of 2^-1127) and sum of squares (of 2^-2254) of some floats."""

    count: int = 0
    sum: int = 0
    sum_of_squares: int = 0

    @classmethod
    def of(cls, values: np.ndarray) -> ExactMoments:
        """Moments of finite float64 values, [n]."""
        moments = cls()
        for start in range(0, len(values), _BLOCK):
            block = np.ascontiguousarray(values[start : start + _BLOCK])
            sums = np.zeros((_NUM_EXPONENTS, 3), np.int64)
            squares = np.zeros((_NUM_EXPONENTS, 5), np.int64)
            _add(block, sums, squares)
            moments = moments.merged(cls(len(block), _total(sums, 1), _total(squares, 2)))
        return moments

    @classmethod
    def of_table(cls, count: int, digits: np.ndarray) -> list[ExactMoments]:
        """Moments of the columns that `add_float32` has added to a table, of `count` rows each."""
        rows = np.flatnonzero(digits.any(axis=(0, 2)))
        # Float32 numbers are multiples of 2^-149; the smallest ones have the exponents 0 and 1.
        shifts = [max(row, 1) - 1 - (_LOWEST - 54) - 149 for row in rows.tolist()]
        units = np.array([1 << shift for shift in shifts], object)
        squares = units * units
        low, high = digits[:, rows, 1].astype(object), digits[:, rows, 2].astype(object)
        sums = digits[:, rows, 0].astype(object) @ units
        sums_of_squares = low @ squares + high @ (squares << _HALF_BITS)
        return [cls(count, *each) for each in zip(sums, sums_of_squares, strict=True)]

    def merged(self, other: ExactMoments) -> ExactMoments:
        return ExactMoments(
            self.count + other.count,
            self.sum + other.sum,
            self.sum_of_squares + other.sum_of_squares,
        )

    def mean_and_std(self) -> tuple[float, float]:
        """Rounded once, from exact numbers."""
        mean = Fraction(self.sum, self.count << -(_LOWEST - 54))
        second = Fraction(self.sum_of_squares, self.count << -2 * (_LOWEST - 54))
        return float(mean), _root(second - mean * mean)


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
TABLE_SHAPE = (256, 3)
_HALF_BITS = 24


@njit(nogil=True, cache=True)
def add_float32(rows, bits, marks, tables, low, high, counts):  # type: ignore[no-untyped-def]
    """Adds rows to the statistics of their columns.

    Args:
        rows: finite float32 [n, width].
        bits: the same as int32.
        marks: float32 [2, width], two values of each column to count.
        tables: int64 [width, *TABLE_SHAPE].
        low, high: float32 [width].
        counts: int64 [2, width], of the marks.
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
            counts[0, j] += value == marks[0, j]
            counts[1, j] += value == marks[1, j]


def _total(digits: np.ndarray, power: int) -> int:
    total = 0
    for row in np.flatnonzero(digits.any(axis=1)).tolist():
        value = sum(int(digit) << (_DIGIT_BITS * i) for i, digit in enumerate(digits[row].tolist()))
        total += value << (power * row)
    return total
