"""Labels of training rows that are known at a time, as columns and as guesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from raygnn.data.bundle import SeedRows
from raygnn.data.events import running_sums, sums_between
from raygnn.data.history_spec import HistoryColumn
from raygnn.data.time_units import window_as_time

#: Their column in a batch.
PAST = "past labels"
_NUM_AVERAGED = 32  # latest labels of a node that are averaged
_LABELS_AT_A_TIME = 1 << 20


@dataclass(frozen=True)
class PastLabels:
    """The labels of a training table in the order of (node, time when known).

    The node is the entity of a row, or one that the entity refers to. A label counts once its
    window is over; if the training table declares no window, from the row after it.

    Attributes:
        codes: int64 [num_labels], ascending: node * (1 + number of instants) + instant.
        instants: distinct times when labels are known, ascending.
        scores: [num_labels, num_scores].
        weights: float64 [num_labels], in the means of `guesses`.
        counts_own_time: whether labels that are known at a row's time are past ones.
        span: unit of ages.
    """

    codes: np.ndarray
    instants: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    counts_own_time: bool
    span: float

    @classmethod
    def of(
        cls,
        rows: SeedRows,
        known: np.ndarray,
        scores: np.ndarray,
        weights: np.ndarray | None = None,
        span: float = 1.0,
        nodes: np.ndarray | None = None,
    ) -> PastLabels:
        """`known`: int64, positions of rows with a label. `scores`: [num_known, num_scores].
        `weights`: float64 [num_known]; labels of weight 0 are ignored. `nodes`: int64 [num_known],
        nodes that the entities refer to, -1 for none; default: the entities.
        """
        assert rows.time is not None
        weights = np.ones(len(known)) if weights is None else weights
        nodes = rows.node_ids(known) if nodes is None else nodes
        counted = (weights > 0) & (nodes >= 0)
        known, scores, weights, nodes = (each[counted] for each in (known, scores, weights, nodes))
        window = window_as_time(rows.window, rows.time_unit, f"{rows.place}.window")
        times = np.asarray(rows.time)[known] + (window or 0)
        instants, ranks = np.unique(times, return_inverse=True)
        codes = nodes * (1 + len(instants)) + ranks
        order = np.argsort(codes, kind="stable")
        is_over = window is not None
        return cls(codes[order], instants, scores[order], weights[order], is_over, span)

    @classmethod
    def none(cls, num_scores: int) -> PastLabels:
        """The past labels of a graph that has none."""
        none = np.empty(0, np.int64)
        scores = np.empty((0, num_scores), np.float32)
        return cls(none, none, scores, np.empty(0), counts_own_time=True, span=1.0)

    @staticmethod
    def width(num_scores: int) -> int:
        return 2 + 2 * num_scores

    @staticmethod
    def describe(table: str, scores: Sequence[str]) -> list[HistoryColumn]:
        """Descriptions of the columns. `scores`: names of the numbers that stand for a label."""
        found = [
            HistoryColumn("earlier labels", table, "count", "all"),
            HistoryColumn("earlier labels", table, "since last", is_age=True),
        ]
        for what in ("last", "mean"):
            found += [HistoryColumn(f"earlier {name}", table, what) for name in scores]
        return found

    def columns(self, nodes: np.ndarray, times: np.ndarray) -> np.ndarray:
        """float32 [num_nodes, width]: logarithm of the number of labels known at a time, age of the
        latest, the latest, and the mean of the latest 32; 0 without labels.

        `nodes`: int64 [num_nodes], dense ids. `times`: [num_nodes].
        """
        out = np.zeros((len(nodes), self.width(self.scores.shape[1])), np.float32)
        entities, starts, stops = self._spans(nodes, times)
        has_labels = np.flatnonzero(stops > starts)
        starts, stops = starts[has_labels], stops[has_labels]
        latest = self.instants[self.codes[stops - 1] - entities[has_labels]]
        out[has_labels] = self._without_ages(starts, stops)
        out[has_labels, 1] = (times[has_labels] - latest) / self.span
        return out

    def rows_after_labels(self) -> np.ndarray:
        """float32 [num_labels, width], `columns` after each label, but with ages of 0."""
        entities = self.codes // (1 + len(self.instants))
        starts, stops = np.searchsorted(entities, entities), np.arange(1, 1 + len(entities))
        out = np.empty((len(entities), self.width(self.scores.shape[1])), np.float32)
        for first in range(0, len(out), _LABELS_AT_A_TIME):
            some = slice(first, first + _LABELS_AT_A_TIME)
            out[some] = self._without_ages(starts[some], stops[some])
        return out

    def _without_ages(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        num_scores = self.scores.shape[1]
        out = np.zeros((len(starts), self.width(num_scores)), np.float32)
        out[:, 0] = np.log1p(stops - starts)
        out[:, 2 : 2 + num_scores] = self.scores[stops - 1]
        places = stops[:, None] - 1 - np.arange(_NUM_AVERAGED)
        is_own = places >= starts[:, None]
        averaged = self.scores[np.maximum(places, 0)] * is_own[:, :, None]
        out[:, 2 + num_scores :] = averaged.sum(axis=1) / is_own.sum(axis=1)[:, None]
        return out

    def means(self, nodes: np.ndarray, times: np.ndarray) -> np.ndarray:
        """float64 [num_nodes, 1 + num_scores]: number of labels known at a time, and their means;
        NaN without labels.

        Args:
            nodes: int64 [num_nodes], dense ids.
            times: [num_nodes].
        """
        _, first, last = self._spans(nodes, times)
        return np.column_stack([last - first, self._means(first, last)])

    def _means(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        *totals, weights = (sums_between(sums, first, first, last) for sums in self._sums)
        return np.stack(totals, axis=1) / np.where(weights > 0, weights, np.nan)[:, None]

    @cached_property
    def _sums(self) -> list[np.ndarray]:
        """Running sums of each score and of the weights, float64 [num_labels] each.

        They start again at each node, so that labels of other nodes change no bit.
        """
        is_first = np.diff(self.codes // (1 + len(self.instants)), prepend=-1) > 0
        indptr = np.append(np.flatnonzero(is_first), len(self.codes))
        found = []
        for values in (*(self.scores * self.weights[:, None]).T, self.weights):
            found.append(np.empty(len(values)))
            running_sums(indptr, values.astype(np.float64), 0.0, found[-1])
        return found

    def guesses(
        self, nodes: np.ndarray, until: np.ndarray, default: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The mean and the last of the past labels of entities, float64 [num, num_scores].

        Args:
            nodes: int64 [num], entities.
            until: [num], times.
            default: float [num_scores], for entities without a past label.
        """
        _, first, last = self._spans(nodes, until)
        means = self._means(first, last)
        means = np.where(np.isnan(means), default, means)
        if not len(self.scores):
            return {"entity_mean": means, "last_label": means}
        has_any = (last > first)[:, None]
        latest = np.where(has_any, self.scores[np.maximum(last - 1, 0)], default)
        return {"entity_mean": means, "last_label": latest}

    def _spans(self, nodes: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, ...]:
        """First code of each node; first and last + 1 position of its labels known at a time."""
        side: Literal["left", "right"] = "right" if self.counts_own_time else "left"
        entities = nodes * (1 + len(self.instants))
        stops = np.searchsorted(self.codes, entities + np.searchsorted(self.instants, times, side))
        return entities, np.searchsorted(self.codes, entities), stops


@dataclass(frozen=True)
class TableLabels:
    """The labels of a training table, for columns of the nodes that its entities refer to.

    Attributes:
        rows: null without the table.
        known: int64, positions of rows with a label.
        scores: float64 [num_known, num_scores], numbers that stand for a label, in its unit.
        weights: float64 [num_known], or null.
        table: name of the table.
        names: of the scores.
    """

    rows: SeedRows | None
    known: np.ndarray
    scores: np.ndarray
    weights: np.ndarray | None
    table: str
    names: Sequence[str]

    @property
    def described(self) -> list[HistoryColumn]:
        """Descriptions of the columns of `PastLabels.means`."""
        means = [HistoryColumn(f"earlier {name}", self.table, "mean", "all") for name in self.names]
        return [HistoryColumn("earlier labels", self.table, "count", "all"), *means]

    def of(self, ends: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> PastLabels:
        """The labels by nodes that the entities refer to.

        `ends`: from entities and times of rows to the nodes, -1 for none.
        """
        rows, known = self.rows, self.known
        if rows is None:
            return PastLabels.none(self.scores.shape[1])
        nodes = ends(rows.node_ids(known), np.asarray(rows.time)[known])
        return PastLabels.of(rows, known, self.scores, self.weights, nodes=nodes)
