"""Dense features as int8, with a step and an offset per element to decode them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_CODES = np.iinfo(np.int8)
_NUM_STEPS = 254  # one of 255 codes remains for a 0 between two steps
_LEAST_STEP = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Quantization:
    """int8 storage of a dense column: code c means c * step + offset.

    Within its range, a decoded value differs by at most half a step. 0 is exact, and so are whole
    numbers in a range of at most 255: flags, counts, ratings.

    Attributes:
        step: by element of a row; 0 if all rows equal `offset`.
        offset: by element of a row; a multiple of the step if 0 is in the range.
    """

    step: tuple[float, ...]
    offset: tuple[float, ...]

    @classmethod
    def of_range(cls, low: np.ndarray, high: np.ndarray, is_whole: np.ndarray) -> Quantization:
        """The finest steps that cover a range.

        Args:
            low, high: float64 [width], finite.
            is_whole: bool [width], whether all values are whole numbers.
        """
        # A step is a float32, never above what was divided: a code times a step is exact in
        # float64, and no value comes out above `high`.
        step = np.maximum((high - low) / _NUM_STEPS, _LEAST_STEP).astype(np.float32)
        above = step.astype(np.float64) * _NUM_STEPS > high - low
        step = np.where(above, np.nextafter(step, np.float32(_LEAST_STEP)), step).astype(np.float64)
        step[is_whole & (high - low <= _CODES.max - _CODES.min)] = 1.0
        first = np.where((low <= 0) & (high >= 0), np.rint(low / step) * step, low)
        is_constant = low == high
        offset = np.where(is_constant, low, first - _CODES.min * step)
        step[is_constant] = 0.0
        return cls(tuple(step.tolist()), tuple(offset.tolist()))

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """int8 [n, *shape] codes of rows; values outside of the range are clipped."""
        step, offset = np.array(self.step), np.array(self.offset)
        flat = rows.reshape(len(rows), len(step)).astype(np.float64) - offset
        np.divide(flat, step, out=flat, where=step > 0)
        flat[:, step == 0] = 0
        codes = np.rint(flat, out=flat).clip(_CODES.min, _CODES.max).astype(np.int8)
        return codes.reshape(rows.shape)

    def values(self, codes: np.ndarray) -> np.ndarray:
        """float64 [n, *shape], decoded values."""
        step, offset = np.array(self.step), np.array(self.offset)
        flat = codes.reshape(len(codes), len(step)) * step + offset
        return flat.reshape(codes.shape)
