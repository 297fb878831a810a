"""Guesses of rows of a training table from the labels that their entities had before."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from raygnn.data.bundle import SeedRows

#: Guesses are left out where they would hold more numbers.
_MAX_VALUES = 1 << 26


def past_label_guesses(
    rows: SeedRows,
    scores: np.ndarray,
    known: np.ndarray,
    asked: np.ndarray,
    default: np.ndarray,
    end: int | float | None = None,
) -> Mapping[str, np.ndarray]:
    """The mean and the last of the labels of each row's entity before the row's time.

    A label counts from the row after it. Where a label's window is longer than the step between
    rows, the guesses know more than a model could, and are harder to beat.

    Args:
        rows: rows with times.
        scores: float [num_rows, num_outputs], labels as predictions: one-hot for classes.
        known: int64, positions of rows with a label.
        asked: int64, positions of the rows to guess.
        default: float [num_outputs], the guess for entities without an earlier label.
        end: the time from which on no label is known; None for no such time.
    Returns:
        By name of the guess, float64 [num_asked, num_outputs]; empty without times.
    """
    if rows.time is None or max(len(known), len(asked)) * scores.shape[1] > _MAX_VALUES:
        return {}
    times = np.asarray(rows.time)[known]
    until = np.asarray(rows.time)[asked]
    until = until if end is None else np.minimum(until, end)
    # One number for (entity, time), in the order of both.
    instants, ranks = np.unique(np.concatenate([times, until]), return_inverse=True)
    codes = rows.node_ids(known) * len(instants) + ranks[: len(known)]
    order = np.argsort(codes, kind="stable")
    codes, past = codes[order], scores[known[order]].astype(np.float64)
    entities = rows.node_ids(asked) * len(instants)
    first = np.searchsorted(codes, entities)
    last = np.searchsorted(codes, entities + ranks[len(known) :])
    sums = np.concatenate([np.zeros((1, past.shape[1])), past.cumsum(axis=0)])
    count = (last - first)[:, None]
    means = np.where(count > 0, (sums[last] - sums[first]) / np.maximum(count, 1), default)
    latest = np.where(count > 0, past[np.maximum(last - 1, 0)], default) if len(past) else means
    return {"entity_mean": means, "last_label": latest}
