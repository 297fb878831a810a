"""Splits as pure functions of ids, labels and a seed: the same in a preparer and in a config.

All give uint8 codes: 0 no split, 1 train, 2 validation, 3 test.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from raygnn.data.hashing import hash_ids
from raygnn.errors import DataError

_SUM_TOLERANCE = 1e-6  # shares are written with few decimals, and summed in binary


def hash_split(ids: pa.Array | np.ndarray, fractions: Sequence[float], seed: int) -> np.ndarray:
    """Splits by the hash of (seed, id): a node keeps its split when the graph grows.

    Args:
        ids: original ids [n], integers or strings, without nulls.
        fractions: shares of train, val and test; what they leave is in no split.
    Returns:
        uint8 codes [n]; the shares hold in expectation, not exactly.
    Raises:
        DataError: not three shares in [0, 1] with a sum in (0, 1].
    """
    position = (hash_ids(ids, seed) >> np.uint64(11)) * 2.0**-53  # uniform in [0, 1)
    bounds = split_bounds(fractions)
    codes = (np.searchsorted(bounds, position, side="right") + 1).astype(np.uint8)
    codes[codes == 4] = 0
    return codes


def split_bounds(fractions: Sequence[float]) -> np.ndarray:
    """Where train, val and test end on [0, 1): float64 [3].

    Raises:
        DataError: not three shares in [0, 1] with a sum in (0, 1].
    """
    total = sum(fractions)
    if len(fractions) != 3 or min(fractions) < 0 or not 0 < total <= 1 + _SUM_TOLERANCE:
        raise DataError(
            f"splits.fractions={list(fractions)!r} is invalid: needs three shares of at least 0 "
            "with a sum above 0 and at most 1. Set train, val and test, as in [0.8, 0.1, 0.1]."
        )
    bounds = np.cumsum(np.asarray(fractions, np.float64))
    if total > 1 - _SUM_TOLERANCE:
        bounds[-1] = 1.0  # 0.7 + 0.2 + 0.1 is below 1 in floats; all nodes are meant
    return bounds


def per_class_split(
    ids: pa.Array | np.ndarray, labels: np.ndarray, train: int, val: int, seed: int
) -> np.ndarray:
    """Draws `train` and `val` nodes of each class by the hash of (seed, id); the rest are test.

    Args:
        ids: original ids [n], integers or strings, without nulls.
        labels: class of each node [n]; negative or NaN is unlabelled and in no split.
        train: training nodes per class.
        val: validation nodes per class.
    Returns:
        uint8 codes [n].
    Raises:
        DataError: the labels are no classes, the counts no counts, or a class has too few nodes.
    Source: Shchur et al., Pitfalls of Graph Neural Network Evaluation, arXiv:1811.05868.
    """
    if train < 1 or val < 0:
        raise DataError(
            f"splits.train={train!r}, splits.val={val!r} is invalid: needs at least one training "
            "and no negative number of validation nodes per class. Set such as train: 20, val: 30."
        )
    if labels.ndim != 1:
        raise DataError(
            f"splits.type='per_class' is invalid: labels of shape {labels.shape} are no classes. "
            "Use type: hash, which needs no labels."
        )
    labelled = np.flatnonzero(labels >= 0)  # NaN compares false
    classes, class_of = np.unique(labels[labelled], return_inverse=True)
    counts = np.bincount(class_of, minlength=len(classes))
    if len(classes) == 0 or counts.min() < train + val:
        few = [f"{c} ({n} nodes)" for c, n in zip(classes, counts, strict=True) if n < train + val]
        what = f"too few in class {', '.join(few[:5])}" if few else "no node has a label"
        raise DataError(
            f"splits.train={train!r}, splits.val={val!r} is invalid: needs {train + val} labelled "
            f"nodes in each of {len(classes)} classes, {what}. "
            "Lower the counts, or use type: hash."
        )
    order = np.lexsort((hash_ids(ids, seed)[labelled], class_of))
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    codes = np.zeros(len(labels), np.uint8)
    codes[labelled[order]] = np.where(rank < train, 1, np.where(rank < train + val, 2, 3))
    return codes
