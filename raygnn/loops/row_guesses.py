from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.edge_types import EdgeType
from raygnn.data.time_units import window_as_time

_ROUNDING = 1e-6


@dataclass(frozen=True)
class EarlierLabels:
    """Labels of a training table by entity, in the order of the times when they are known.

    A label counts once its window is over; if the training table declares no window, from the row
    after it.

    Attributes:
        codes: int64 [num_labels], ascending: entity * (1 + number of instants) + instant.
        instants: distinct times when labels are known, ascending.
        scores: float64 [num_labels, num_outputs], labels as predictions: one-hot for classes.
        weights: float64 [num_labels], in means.
        counts_own_time: whether labels that are known at a row's time are earlier ones.
    """

    codes: np.ndarray
    instants: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    counts_own_time: bool

    @classmethod
    def of(
        cls,
        rows: SeedRows,
        scores: np.ndarray,
        known: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> EarlierLabels:
        """`scores`: [num_rows, num_outputs]. `known`: int64, positions of rows with a label.
        `weights`: float64 [num_rows]; labels of weight 0 are none.
        """
        assert rows.time is not None
        weights = np.ones(rows.num_rows) if weights is None else weights
        known = known[weights[known] > 0]
        window = window_as_time(rows.window, rows.time_unit, f"{rows.place}.window")
        instants, ranks = np.unique(
            np.asarray(rows.time)[known] + (window or 0), return_inverse=True
        )
        codes = rows.node_ids(known) * (1 + len(instants)) + ranks
        order = np.argsort(codes, kind="stable")
        past = scores[known[order]].astype(np.float64)
        return cls(codes[order], instants, past, weights[known[order]], window is not None)

    @classmethod
    def none(cls, num_outputs: int) -> EarlierLabels:
        empty, weights = np.empty(0, np.int64), np.empty(0)
        return cls(empty, empty, np.empty((0, num_outputs)), weights, counts_own_time=False)

    def guesses(
        self, nodes: np.ndarray, until: np.ndarray, default: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The mean and the last of the earlier labels of entities, float64 [num, num_outputs].

        Args:
            nodes: int64 [num], entities.
            until: [num], times.
            default: float [num_outputs], for entities without an earlier label.
        """
        side: Literal["left", "right"] = "right" if self.counts_own_time else "left"
        entities = nodes * (1 + len(self.instants))
        first = np.searchsorted(self.codes, entities)
        known = np.searchsorted(self.instants, until, side)
        last = np.searchsorted(self.codes, entities + known)
        counted = np.column_stack([self.scores * self.weights[:, None], self.weights])
        sums = np.zeros((len(counted) + 1, counted.shape[1]))
        np.cumsum(counted, axis=0, out=sums[1:])
        within = sums[last] - sums[first]
        has_any = (last > first)[:, None]
        means = np.where(has_any, within[:, :-1] / np.where(has_any, within[:, -1:], 1), default)
        if not len(self.scores):
            return {"entity_mean": means, "last_label": means}
        latest = np.where(has_any, self.scores[np.maximum(last - 1, 0)], default)
        return {"entity_mean": means, "last_label": latest}


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
