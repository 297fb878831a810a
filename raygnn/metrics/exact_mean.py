"""Means of numbers in [0, 1] that do not depend on how the rows were cut into batches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# A value is rounded to a multiple of 2^-52 and split into two whole numbers of 26 bits, whose
# float64 sums are exact up to 2^27 = 134 million rows.
_BITS, _HALF_BITS = 52, 26


def exact_state(values: Tensor) -> Tensor:
    """Sums rows without rounding, so that the states of batches add up in any order.

    Args:
        values: [num_rows, num_means], in [0, 1].
    Returns:
        float64 [1 + 2 * num_means], whole numbers: rows, then upper and lower halves.
    """
    fixed = (values.double() * 2.0**_BITS).round().long()
    halves = [fixed >> _HALF_BITS, fixed & ((1 << _HALF_BITS) - 1)]
    sums = [half.sum(dim=0) for half in halves]
    return torch.cat([fixed.new_tensor([len(values)]), *sums]).double()


def exact_means(state: Tensor) -> list[float]:
    """The means from the sum of all batches' states; NaN without any row."""
    num_rows, *halves = (int(entry) for entry in state.tolist())
    upper, lower = halves[: len(halves) // 2], halves[len(halves) // 2 :]
    if not num_rows:
        return [math.nan] * len(upper)
    # Python's quotient of whole numbers is rounded once.
    return [
        ((high << _HALF_BITS) + low) / (num_rows << _BITS)
        for high, low in zip(upper, lower, strict=True)
    ]
