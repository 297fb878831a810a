from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.edge_types import EdgeType
from raygnn.data.time_units import window_as_time

#: Guesses are left out where they would hold more numbers.
_MAX_VALUES = 1 << 26
_ROUNDING = 1e-6


def past_label_guesses(
    rows: SeedRows,
    scores: np.ndarray,
    known: np.ndarray,
    asked: np.ndarray,
    default: np.ndarray,
    end: int | float | None = None,
) -> Mapping[str, np.ndarray]:
    """Baselines of training rows: the mean and the last of each entity's earlier labels.

    A label counts once its window is over; if the training table declares no window, from the row
    after it.

    Args:
        rows: rows with times.
        scores: float [num_rows, num_outputs], labels as predictions: one-hot for classes.
        known: int64, positions of rows with a label.
        asked: int64, positions of the rows to predict.
        default: float [num_outputs], prediction for entities without an earlier label.
        end: the time from which on no label is known; None without one.
    Returns:
        float64 [num_asked, num_outputs] by name; empty without times.
    """
    if rows.time is None or max(len(known), len(asked)) * scores.shape[1] > _MAX_VALUES:
        return {}
    window = window_as_time(rows.window, rows.time_unit, f"{rows.place}.window")
    times = np.asarray(rows.time)[known] + (window or 0)
    until = np.asarray(rows.time)[asked]
    until = until if end is None else np.minimum(until, end)
    # One number for (entity, time), in the order of both.
    instants, ranks = np.unique(np.concatenate([times, until]), return_inverse=True)
    codes = rows.node_ids(known) * len(instants) + ranks[: len(known)]
    order = np.argsort(codes, kind="stable")
    codes, past = codes[order], scores[known[order]].astype(np.float64)
    entities = rows.node_ids(asked) * len(instants)
    first = np.searchsorted(codes, entities)
    side: Literal["left", "right"] = "left" if window is None else "right"
    last = np.searchsorted(codes, entities + ranks[len(known) :], side)
    means, count = _means(past, first, last, default)
    latest = np.where(count > 0, past[np.maximum(last - 1, 0)], default) if len(past) else means
    return {"entity_mean": means, "last_label": latest}


def _means(
    values: np.ndarray, first: np.ndarray, last: np.ndarray, default: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    sums = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, dtype=np.float64, out=sums[1:])
    count = (last - first)[:, None]
    return np.where(count > 0, (sums[last] - sums[first]) / np.maximum(count, 1), default), count


def dense_features(bundle: Bundle, type_: str | EdgeType, feature: str) -> np.ndarray:
    """A feature of all nodes or edges, [num_rows, width]; no columns if missing or sparse."""
    info = bundle.columns(type_).get(feature)
    if info is None or info.sparse:
        num = bundle.num_nodes(type_) if isinstance(type_, str) else bundle.num_edges(type_)
        return np.empty((num, 0))
    values = bundle.values(type_, feature)
    assert isinstance(values, np.ndarray)
    return values.reshape(len(values), info.width)


def columns_of_label(columns: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Columns that are a linear function of the labels, such as a copy of them. int64.

    Args:
        columns: [num_rows, num_columns].
        labels: [num_rows], numbers or two classes.
    """
    x, y = columns - columns.mean(axis=0), labels - labels.mean()
    scale = np.sqrt((x**2).sum(axis=0) * (y**2).sum())
    return np.flatnonzero((scale > 0) & (np.abs(y @ x) > (1 - _ROUNDING) * scale))
