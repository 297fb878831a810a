"""The largest connected component of a graph, as benchmarks on citation graphs often take it."""

from __future__ import annotations

import numpy as np
from numba import njit


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
    """Each node's least neighbor in reach, by union-find with path halving."""
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
