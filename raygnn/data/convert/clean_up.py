"""Optional steps of converters: both directions, largest component, normalized rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numba import njit

from raygnn.data.tables.columns import Features, SparseRows


def largest_component(source: np.ndarray, target: np.ndarray, num_nodes: int) -> np.ndarray:
    """Nodes of the largest weakly connected component, ascending; of equals, the first.

    Args:
        source: int64 [num_edges], in [0, num_nodes).
        target: int64 [num_edges], likewise.
    Returns:
        int64 [num_nodes of the component].
    """
    roots = _roots(source, target, num_nodes)
    sizes = np.bincount(roots, minlength=1)
    return np.flatnonzero(roots == np.argmax(sizes))


@njit(nogil=True, cache=True)
def _roots(source: np.ndarray, target: np.ndarray, num_nodes: int) -> np.ndarray:
    parent = np.arange(num_nodes)
    for edge in range(len(source)):
        a, b = source[edge], target[edge]
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        parent[max(a, b)] = min(a, b)
    for node in range(num_nodes):
        # parents are smaller than their children, so the parent's own root is known
        parent[node] = parent[parent[node]]
    return parent


@dataclass(frozen=True)
class UndirectedEdges:
    """Both directions of every edge, sorted by (source, target).

    Attributes:
        entry: for each edge the input entry it stands for (the reversed one where only that was
            given), to gather weights and the like with.
        note: what was changed, for the user.
    """

    source: np.ndarray
    target: np.ndarray
    entry: np.ndarray
    note: str


def undirected_edges(source: np.ndarray, target: np.ndarray, num_nodes: int) -> UndirectedEdges:
    """Symmetrises entries between nodes 0..num_nodes-1.

    Args:
        source: int64 [num_entries].
        target: int64 [num_entries].
    """
    kept = np.flatnonzero(source != target)
    forward = source[kept] * num_nodes + target[kept]
    backward = target[kept] * num_nodes + source[kept]
    num_distinct = len(np.unique(forward))
    # unique takes the first of equal keys: an entry in the wanted direction before a reversed one
    keys, first = np.unique(np.concatenate([forward, backward]), return_index=True)
    note = (
        f"made undirected: {len(source):,} entries became {len(keys):,} directed edges "
        f"({len(source) - len(kept):,} self-loops and {len(kept) - num_distinct:,} repeated "
        f"entries dropped, {len(keys) - num_distinct:,} missing reverse directions added)"
    )
    entry = kept[first % max(1, len(kept))]
    return UndirectedEdges(keys // num_nodes, keys % num_nodes, entry, note)


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
