"""Ranges around predicted numbers, from their errors on validation rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_TAIL = 0.1  # share of the values on either side of a range
_NUM_BINS, _ROWS_OF_BIN = 5, 100
_FEWEST_ROWS = 20
_EQUAL = 0.5  # spread of nearly equal predictions of whole numbers


@dataclass(frozen=True)
class Ranges:
    """Split conformal ranges by predicted value: large predictions often have large errors.

    A range contains 80 % of the values if validation rows and later ones are exchangeable. If
    errors grow over time, ranges are too narrow.

    Attributes:
        bounds: [num_bins - 1], ascending least predictions of the bins after the first.
        low, high: [num_bins], added to a prediction.
        least: no range goes below; None if values may be negative.
        is_whole: [num_bins], whether ends are whole numbers, as the values, because predictions are
            nearly equal: a slightly higher one could leave out all zeros. Empty for none.
    Source: Papadopoulos et al. 2002; by bins, Mondrian conformal prediction, Vovk et al. 2003.
    """

    bounds: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    least: float | None
    is_whole: tuple[bool, ...] = ()

    @classmethod
    def fit(cls, predictions: np.ndarray, labels: np.ndarray) -> Ranges | None:
        """From predictions and labels of validation rows, [num_rows]; None for under 20 rows."""
        num_rows = len(labels)
        if num_rows < _FEWEST_ROWS:
            return None
        predictions, labels = predictions.astype(np.float64), labels.astype(np.float64)
        num_bins = max(1, min(_NUM_BINS, num_rows // _ROWS_OF_BIN))
        bounds = np.unique(np.quantile(predictions, np.arange(1, num_bins) / num_bins))
        bounds = bounds[bounds > predictions.min()]
        bins = np.searchsorted(bounds, predictions, "right")
        is_whole, ends = [], []
        for each in range(len(bounds) + 1):
            centers, values = predictions[bins == each], labels[bins == each]
            spread = np.ptp(np.quantile(centers, (_TAIL, 1 - _TAIL)))
            is_whole.append(bool(spread < _EQUAL and (values == np.round(values)).all()))
            errors = values - (np.round(centers) if is_whole[-1] else centers)
            ends.append(_quantiles(np.sort(errors)))
        low, high = zip(*ends, strict=True)
        least = 0.0 if labels.min() >= 0 else None
        return cls(tuple(bounds.tolist()), low, high, least, tuple(is_whole))

    def of(self, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends, in the shape and dtype of predictions, which lie between them."""
        bins = np.searchsorted(np.array(self.bounds), predictions, "right")
        is_whole = np.array(self.is_whole or [False] * len(self.low))[bins]
        centers = np.where(is_whole, np.round(predictions), predictions)
        low = centers + np.array(self.low)[bins]
        if self.least is not None:
            low = np.maximum(low, self.least)
        low = np.minimum(low, predictions)
        high = np.maximum(centers + np.array(self.high)[bins], predictions)
        return low.astype(predictions.dtype), high.astype(predictions.dtype)


def _quantiles(errors: np.ndarray) -> tuple[float, float]:
    """Ends with a tenth of the errors beyond each, corrected for the number of errors."""
    place = max(1, int(np.floor((len(errors) + 1) * _TAIL)))
    return float(errors[place - 1]), float(errors[-place])
