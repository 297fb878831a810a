"""Labels of entities that are known at a time, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raygnn.data.bundle import SeedRows
from raygnn.data.history import HistoryColumn
from raygnn.data.time_units import window_as_time

#: Their column in a batch.
PAST = "past labels"
_NUM_AVERAGED = 32  # latest labels of an entity that are averaged


@dataclass(frozen=True)
class PastLabels:
    """The labels of a training table in the order of (entity, time when known).

    Attributes:
        codes: int64 [num_labels], ascending: entity * (1 + number of instants) + instant.
        instants: distinct times when labels are known, ascending.
        scores: float32 [num_labels, num_scores].
        span: unit of ages.
    """

    codes: np.ndarray
    instants: np.ndarray
    scores: np.ndarray
    span: float

    @classmethod
    def of(cls, rows: SeedRows, known: np.ndarray, scores: np.ndarray, span: float) -> PastLabels:
        """Labels count from the end of their window on.

        `known`: int64, positions of rows with a label. `scores`: [num_known, num_scores].
        """
        assert rows.time is not None
        window = window_as_time(rows.window, rows.time_unit, f"{rows.place}.window")
        assert window is not None
        times = np.asarray(rows.time)[known] + window
        instants, ranks = np.unique(times, return_inverse=True)
        codes = rows.node_ids(known) * (1 + len(instants)) + ranks
        order = np.argsort(codes, kind="stable")
        return cls(codes[order], instants, scores[order].astype(np.float32), span)

    @classmethod
    def none(cls, num_scores: int) -> PastLabels:
        """The past labels of a graph that has none."""
        none = np.empty(0, np.int64)
        return cls(none, none, np.empty((0, num_scores), np.float32), 1.0)

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
        num_scores = self.scores.shape[1]
        out = np.zeros((len(nodes), self.width(num_scores)), np.float32)
        entities = nodes * (1 + len(self.instants))
        instants = np.searchsorted(self.instants, times, side="right")
        starts = np.searchsorted(self.codes, entities)
        stops = np.searchsorted(self.codes, entities + instants)
        has_labels = np.flatnonzero(stops > starts)
        starts, stops = starts[has_labels], stops[has_labels]
        latest = self.instants[self.codes[stops - 1] - entities[has_labels]]
        out[has_labels, 0] = np.log1p(stops - starts)
        out[has_labels, 1] = (times[has_labels] - latest) / self.span
        out[has_labels, 2 : 2 + num_scores] = self.scores[stops - 1]
        places = stops[:, None] - 1 - np.arange(_NUM_AVERAGED)
        is_own = places >= starts[:, None]
        averaged = self.scores[np.maximum(places, 0)] * is_own[:, :, None]
        out[has_labels, 2 + num_scores :] = averaged.sum(axis=1) / is_own.sum(axis=1)[:, None]
        return out
