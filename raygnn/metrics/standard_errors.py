"""Standard errors of metrics, and of differences between two predictions of the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from raygnn.metrics.seed_metrics import (
    AUROC,
    R2,
    Accuracy,
    MeanAbsoluteError,
    NormalizedMeanAbsoluteError,
    RootMeanSquaredError,
)


def influences(metric: Any, prediction: np.ndarray, target: np.ndarray) -> np.ndarray | None:
    """Influence of each row on a metric; None for metrics without a closed form.

    The difference of two predictions' influences is that of their difference.

    Args:
        prediction: [num_rows, num_outputs], as for the metric.
        target: [num_rows], or [num_rows, num_outputs].
    Returns:
        float64 [num_rows], around 0. `standard_error` makes an error of them.
    Source: DeLong et al. 1988 for AUROC; the delta method for others.
    """
    if isinstance(metric, Accuracy) and metric.problem == "multi_class":
        return _centered(prediction.argmax(axis=1) == target.reshape(-1))
    if isinstance(metric, AUROC) and metric.num_columns == 1:
        margin = prediction[:, metric.positive] - prediction[:, 1 - metric.positive]
        return _of_auroc(margin.astype(np.float64), target.reshape(-1) == metric.positive)
    if getattr(metric, "problem", None) != "regression":
        return None
    actual = target.reshape(prediction.shape).astype(np.float64)
    error = prediction.astype(np.float64) - actual
    squared = np.square(error).mean(axis=1)
    if isinstance(metric, MeanAbsoluteError):
        scale = metric.scale if isinstance(metric, NormalizedMeanAbsoluteError) else 1.0
        return _centered(np.abs(error).mean(axis=1) / (scale or 1.0))
    if isinstance(metric, RootMeanSquaredError):
        return _centered(squared) / (2 * np.sqrt(squared.mean()) or 1.0)
    if isinstance(metric, R2) and metric.num_outputs == 1:
        spread = np.square(actual - actual.mean())[:, 0]
        variance = spread.mean() or 1.0
        return squared.mean() / variance**2 * spread - squared / variance
    return None


def standard_error(influence: np.ndarray, groups: np.ndarray) -> float:
    """The standard error of a mean of rows; rows of one group may be dependent.

    Args:
        influence: float64 [num_rows], or any values by row, whose mean is subtracted.
        groups: int64 [num_rows], such as the entity of each row.
    """
    _, places = np.unique(groups, return_inverse=True)
    sums = np.bincount(places, weights=_centered(influence))
    return float(np.sqrt(np.square(sums).sum()) / max(len(influence), 1))


_NUM_PARTS = 50


def paired_error(
    difference: Callable[[np.ndarray], float], groups: np.ndarray, seed: int = 0
) -> float:
    """The standard error of a difference of two predictions of the same rows, for any metric.

    Args:
        difference: that of some rows, given int64 positions.
        groups: int64 [num_rows], such as the entity of each row. Its rows stay together.
    Returns:
        NaN with fewer than two groups, or if some rows have no difference.
    Source: delete-a-group jackknife, Kott 2001, with 50 random parts.
    """
    entities, places = np.unique(groups, return_inverse=True)
    num_parts = min(_NUM_PARTS, len(entities))
    if num_parts < 2:
        return float("nan")
    part = np.random.default_rng(seed).permutation(len(entities))[places] % num_parts
    others = np.array([difference(np.flatnonzero(part != i)) for i in range(num_parts)])
    return float(np.sqrt((num_parts - 1) * np.square(others - others.mean()).mean()))


def _centered(values: np.ndarray) -> np.ndarray:
    values = values.astype(np.float64)
    return values - values.mean() if len(values) else values


def _of_auroc(scores: np.ndarray, is_positive: np.ndarray) -> np.ndarray | None:
    num_positive = int(is_positive.sum())
    num_negative = len(scores) - num_positive
    if not num_positive or not num_negative:
        return None
    from scipy.stats import rankdata  # takes half a second to import

    ranks, placed = rankdata(scores), np.empty(len(scores))
    above = (ranks[is_positive] - rankdata(scores[is_positive])) / num_negative
    below = 1 - (ranks[~is_positive] - rankdata(scores[~is_positive])) / num_positive
    placed[is_positive] = (above - above.mean()) * len(scores) / num_positive
    placed[~is_positive] = (below - below.mean()) * len(scores) / num_negative
    return placed
