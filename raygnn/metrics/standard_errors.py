"""Standard errors of metrics, and of differences between two predictions of the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from raygnn.metrics import seed_metrics


def influences(
    metric: Any, prediction: np.ndarray, target: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray | None:
    """Influence of each row on a metric; None for metrics without a closed form.

    The difference of two predictions' influences is that of their difference.

    Args:
        prediction: [num_rows, num_outputs], as for the metric.
        target: [num_rows], or [num_rows, num_outputs].
        weights: float64 [num_rows], above 0.
    Returns:
        float64 [num_rows], with a weighted mean of 0. `standard_error` makes an error of them.
    Source: DeLong et al. 1988 for AUROC; the delta method for others.
    """
    if isinstance(metric, seed_metrics.Accuracy) and metric.problem == "multi_class":
        return _centered(prediction.argmax(axis=1) == target.reshape(-1), weights)
    if isinstance(metric, seed_metrics.AUROC) and metric.num_columns == 1:
        margin = prediction[:, metric.positive] - prediction[:, 1 - metric.positive]
        is_positive = target.reshape(-1) == metric.positive
        of_rows = np.ones(len(margin)) if weights is None else weights
        return _of_auroc(margin.astype(np.float64), is_positive, of_rows)
    if getattr(metric, "problem", None) != "regression":
        return None
    actual = target.reshape(prediction.shape).astype(np.float64)
    error = prediction.astype(np.float64) - actual
    squared = np.square(error).mean(axis=1)
    if isinstance(metric, seed_metrics.MeanAbsoluteError):
        scale = (
            metric.scale if isinstance(metric, seed_metrics.NormalizedMeanAbsoluteError) else 1.0
        )
        return _centered(np.abs(error).mean(axis=1) / (scale or 1.0), weights)
    if isinstance(metric, seed_metrics.RootMeanSquaredError):
        mean = np.average(squared, weights=weights)
        return _centered(squared, weights) / (2 * np.sqrt(mean) or 1.0)
    if isinstance(metric, seed_metrics.R2) and metric.num_outputs == 1:
        values = actual[:, 0]
        spread = np.square(values - np.average(values, weights=weights))
        variance = np.average(spread, weights=weights) or 1.0
        return np.average(squared, weights=weights) / variance**2 * spread - squared / variance
    return None


def standard_error(
    influence: np.ndarray, groups: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """The standard error of a mean of rows; rows of one group may be dependent.

    Args:
        influence: float64 [num_rows], or any values by row, whose mean is subtracted.
        groups: int64 [num_rows], such as the entity of each row.
        weights: float64 [num_rows], of a weighted mean.
    """
    _, places = np.unique(groups, return_inverse=True)
    of_rows = np.ones(len(influence)) if weights is None else weights
    sums = np.bincount(places, weights=of_rows * _centered(influence, weights))
    return float(np.sqrt(np.square(sums).sum()) / (of_rows.sum() or 1.0))


_NUM_PARTS = 50


def paired_error(difference: Callable[[np.ndarray], float], groups: np.ndarray) -> float:
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
    part = np.random.default_rng(0).permutation(len(entities))[places] % num_parts
    others = np.array([difference(np.flatnonzero(part != i)) for i in range(num_parts)])
    return float(np.sqrt((num_parts - 1) * np.square(others - others.mean()).mean()))


def _centered(values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    values = values.astype(np.float64)
    return values - np.average(values, weights=weights) if len(values) else values


def _of_auroc(
    scores: np.ndarray, is_positive: np.ndarray, weights: np.ndarray
) -> np.ndarray | None:
    if is_positive.all() or not is_positive.any():
        return None
    placed = np.empty(len(scores))
    for rows, sign in ((is_positive, 1), (~is_positive, -1)):
        shares = sign * _share_below(scores[rows], scores[~rows], weights[~rows])
        of_rows = weights[rows]
        placed[rows] = _centered(shares, of_rows) * weights.sum() / of_rows.sum()
    return placed


def _share_below(scores: np.ndarray, others: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted share of other scores below each score; equal ones count half."""
    order = np.argsort(others)
    sums = np.append(0.0, np.cumsum(weights[order]))
    both = sum(sums[np.searchsorted(others[order], scores, side)] for side in ("left", "right"))
    return np.asarray(both / (2 * sums[-1]))
