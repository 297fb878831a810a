"""Row normalisation of features, as citation-graph baselines use it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from raygnn.data.tables.columns import Features, SparseRows


def normalize_rows(features: Features) -> Features:
    """Divides each row by its sum; rows that sum to zero stay as they are.

    Source: the preprocessing of Kipf and Welling, arXiv:1609.02907, section 5.
    """
    if isinstance(features, SparseRows):
        lengths = np.diff(features.indptr)
        rows = np.repeat(np.arange(features.num_rows), lengths)
        values = np.ones(len(rows), np.float32) if features.values is None else features.values
        sums = np.bincount(rows, weights=values, minlength=features.num_rows)
        return replace(features, values=(values / _nonzero(sums)[rows]).astype(np.float32))
    rows_2d = features.reshape(len(features), -1).astype(np.float64)
    normalized = rows_2d / _nonzero(rows_2d.sum(axis=1, keepdims=True))
    return normalized.reshape(features.shape).astype(np.float32)


def _nonzero(sums: np.ndarray) -> np.ndarray:
    return np.where(sums == 0, 1.0, sums)
