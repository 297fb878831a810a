from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.edge_types import EdgeType
from raygnn.data.links.supervision import SeedEdges
from raygnn.data.time_units import TIME, window_as_time

#: Guesses are left out where they would hold more numbers.
_MAX_VALUES = 1 << 26
MAX_BOOSTED = 1 << 18  # training rows of LightGBM
_NUM_TREES = 200
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


def history_columns(
    bundle: Bundle,
    rows: SeedRows,
    asked: np.ndarray,
    feature: str,
    end: int | float | None = None,
) -> np.ndarray:
    """Hand-made columns of each row's entity at the row's time, as input of LightGBM.

    They are the entity's own features and, for each edge type into it, the number of edges until
    the row's time, the mean of their sources' features, and the age of the latest edge.

    Args:
        asked: int64, positions of the rows.
        feature: name of the features.
        end: the time from which on nothing is known; None without one.
    Returns:
        float64 [num_asked, num_columns]. NaN for unknown values.
    """
    until = None if rows.time is None else np.asarray(rows.time)[asked]
    if until is not None and end is not None:
        until = np.minimum(until, end)
    return _columns_of(bundle, rows.node_type, rows.node_ids(asked), until, feature)


def columns_of_edges(
    bundle: Bundle, edges: SeedEdges, positions: np.ndarray, feature: str, inputs: Sequence[str]
) -> np.ndarray:
    """Hand-made columns of edges: their features, and of both ends those of `history_columns`.

    Of edges with times, only what is earlier than the edge. Edges into an end also have means of
    their own features.

    Args:
        feature: name of the node features.
        inputs: names of the edge features, which do not hold the label.
    Returns:
        float64 [num_edges, num_columns]. NaN for unknown values.
    """
    until = None
    if edges.times is not None:
        until = np.asarray(edges.times)[positions]
        until = until - 1 if until.dtype.kind in "iu" else np.nextafter(until, -np.inf)
    ends = zip(edges.edge_type[::2], edges.ends(positions), strict=True)
    columns = [_columns_of(bundle, *end, until, feature, inputs) for end in ends]
    columns += [dense_features(bundle, edges.edge_type, name)[positions] for name in inputs]
    return np.concatenate(columns, axis=1).astype(np.float64)


def _columns_of(
    bundle: Bundle,
    node_type: str,
    nodes: np.ndarray,
    until: np.ndarray | None,
    feature: str,
    edge_features: Sequence[str] = (),
) -> np.ndarray:
    found = [dense_features(bundle, node_type, feature)[nodes]]
    for edge_type in bundle.edge_types:
        if edge_type[2] == node_type:
            found += _history(bundle, edge_type, feature, edge_features, nodes, until)
    return np.concatenate(found, axis=1).astype(np.float64)


def _history(
    bundle: Bundle,
    edge_type: EdgeType,
    feature: str,
    edge_features: Sequence[str],
    nodes: np.ndarray,
    until: np.ndarray | None,
) -> list[np.ndarray]:
    csc, source_type = bundle.csc(edge_type), edge_type[0]
    sources, first, last = csc.indices, csc.indptr[nodes], csc.indptr[nodes + 1]
    times: np.ndarray | None = None
    order: Any = slice(None)
    if TIME in bundle.columns(edge_type):
        times = np.asarray(bundle.column(edge_type, TIME))  # ascending within a row
    elif TIME in bundle.columns(source_type):
        times = np.asarray(bundle.column(source_type, TIME))[sources]
        targets = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
        order = np.lexsort((times, targets))
        sources, times = sources[order], times[order]
    ages = np.empty((len(nodes), 0))
    if times is not None and until is not None:
        last = _ends_of_known(times, first, last, until)
        has_any = last > first
        ages = np.full((len(nodes), 1), np.nan)
        ages[has_any, 0] = until[has_any] - times[last[has_any] - 1]
    of_sources = dense_features(bundle, source_type, feature)
    of_edges = [dense_features(bundle, edge_type, name) for name in edge_features]
    if len(sources) * sum(rows.shape[1] for rows in (of_sources, *of_edges)) > _MAX_VALUES:
        return [(last - first)[:, None], ages]
    rows = np.concatenate([of_sources[sources], *(each[order] for each in of_edges)], axis=1)
    means, count = _means(np.nan_to_num(rows), first, last, np.nan)
    return [count, ages, means]


def _ends_of_known(
    times: np.ndarray, first: np.ndarray, last: np.ndarray, until: np.ndarray
) -> np.ndarray:
    """Ends of what is known at a time, in ranges [first, last) of ascending times: a binary search
    of all ranges together.
    """
    while (is_open := first < last).any():
        middle = np.where(is_open, (first + last) // 2, 0)
        is_known = is_open & (times[middle] <= until)
        first = np.where(is_known, middle + 1, first)
        last = np.where(is_open & ~is_known, middle, last)
    return first


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
    return values.reshape(len(values), -1)


class BoostedTrees:
    """LightGBM on columns of training rows.

    Args:
        columns: float [num_rows, num_columns].
        labels: classes or numbers, [num_rows].
        num_classes: None for numbers.
    """

    def __init__(self, columns: np.ndarray, labels: np.ndarray, num_classes: int | None) -> None:
        import lightgbm

        settings: dict[str, object] = {
            "verbosity": -1,
            "seed": 0,
            "deterministic": True,
            "force_row_wise": True,
            "learning_rate": 0.05,
            "objective": "regression",
        }
        if num_classes is not None:
            settings |= {"objective": "multiclass", "num_class": num_classes}
        data = lightgbm.Dataset(columns, labels)
        self._model = lightgbm.train(settings, data, _NUM_TREES)

    def guess(self, columns: np.ndarray) -> np.ndarray:
        """float64 [num_rows, num_outputs]: numbers or class probabilities."""
        return np.asarray(self._model.predict(columns)).reshape(len(columns), -1)


def columns_of_label(columns: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Columns that are a linear function of the labels, such as a copy of them. int64.

    Args:
        columns: [num_rows, num_columns].
        labels: [num_rows], numbers or two classes.
    """
    x, y = columns - columns.mean(axis=0), labels - labels.mean()
    scale = np.sqrt((x**2).sum(axis=0) * (y**2).sum())
    return np.flatnonzero((scale > 0) & (np.abs(y @ x) > (1 - _ROUNDING) * scale))
