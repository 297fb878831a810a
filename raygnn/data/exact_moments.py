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


def _total(digits: np.ndarray, power: int) -> int:
    total = 0
    for row in np.flatnonzero(digits.any(axis=1)).tolist():
        value = sum(int(digit) << (_DIGIT_BITS * i) for i, digit in enumerate(digits[row].tolist()))
        total += value << (power * row)
    return total
