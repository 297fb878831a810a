"""Biases and factors of both ends, fitted to the labels of edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raygnn.data.hashing import splitmix64_array
from raygnn.data.splits import Splits
from raygnn.recommender.peers import factorize, factorized

#: Width of the factors beside the biases.
NUM_FACTORS = 8
_BIASES, _FACTORS = (1.0, 3.0, 10.0, 30.0), (6.0, 10.0, 20.0)  # penalties to choose among
_DEFAULT = 10.0  # penalty of biases, if there are no validation edges
_MAX_FACTORIZED = 1 << 20  # training edges; of more only biases are fitted
_NUM_FOLDS = 5
_Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class LabelFactors:
    """Biases and factors of sources and of targets, [num_nodes, 1 + NUM_FACTORS].

    Attributes:
        ends: int64 [2, num_edges], of all edges.
        rows: the best on the validation edges.
        biases: the best of those without factors.
        held_out: float32 [num_edges]. For each training edge, the value by rows that are fitted to
            four fifths of the pairs, without its own.
    """

    ends: np.ndarray
    mean: float
    rows: _Pair
    biases: _Pair
    held_out: np.ndarray

    @classmethod
    def fit(
        cls,
        ends: np.ndarray,
        values: np.ndarray,
        num_nodes: tuple[int, int],
        splits: Splits,
        *,
        only_biases: bool = False,
    ) -> LabelFactors:
        """Chooses the penalties on the validation edges. `values`: float64 [num_edges], the labels.

        `only_biases`: fits no factors, and `held_out` is 0.
        """
        train, val = np.asarray(splits.train), np.asarray(splits.val)
        mean = float(values[train].mean())
        values = values - mean

        def fitted(edges: np.ndarray, width: int, l2: tuple[float, float]) -> _Pair:
            rows = factorize(ends[:, edges], values[edges], num_nodes, width, l2)
            padding = ((0, 0), (0, NUM_FACTORS - width))
            return np.pad(rows[0], padding), np.pad(rows[1], padding)

        def error(rows: _Pair) -> float:
            return float(np.square(_values(rows, ends[:, val]) - values[val]).mean())

        penalties = _BIASES if len(val) else (_DEFAULT,)
        tried = [((0, (l2, 0.0)), fitted(train, 0, (l2, 0.0))) for l2 in penalties]
        setting, biases = min(tried, key=lambda pair: error(pair[1]) if len(val) else 0.0)
        rows = biases
        held_out = np.zeros(len(values), np.float32)
        if only_biases:
            return cls(ends, mean, biases, biases, held_out)
        if len(val) and len(train) <= _MAX_FACTORIZED:
            settings = [(NUM_FACTORS, (setting[1][0], l2)) for l2 in _FACTORS]
            tried = [(setting, biases), *((each, fitted(train, *each)) for each in settings)]
            setting, rows = min(tried, key=lambda pair: error(pair[1]))
        folds = _folds(ends[:, train])
        for fold in range(_NUM_FOLDS):
            of_others = fitted(train[folds != fold], *setting)
            edges = train[folds == fold]
            held_out[edges] = mean + _values(of_others, ends[:, edges])
        return cls(ends, mean, rows, biases, held_out)

    def of_pairs(self, ends: np.ndarray) -> np.ndarray:
        """float64 [num_pairs], the values by `rows` of pairs, int64 [2, num_pairs]."""
        return self.mean + _values(self.rows, ends)

    def by_biases(self, edges: np.ndarray) -> np.ndarray:
        """float64 [num_edges], the mean and the biases of both ends."""
        return self.mean + _values(self.biases, self.ends[:, edges])


def _values(rows: _Pair, ends: np.ndarray) -> np.ndarray:
    return factorized(rows[0][ends[0]], rows[1][ends[1]])


def _folds(ends: np.ndarray) -> np.ndarray:
    """Folds of edges: parallel edges and reverses, which may share a label, fall together."""
    low, high = np.sort(ends, axis=0).astype(np.uint64)
    return splitmix64_array(splitmix64_array(low) + high) % np.uint64(_NUM_FOLDS)
