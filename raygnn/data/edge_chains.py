"""Edges that are added to a graph batch after batch, by the nodes at their ends."""

from __future__ import annotations

import threading

import numpy as np
from numba import njit

_MIN_ROWS = 256


class GrowingArray:
    """Rows in a buffer of up to twice their number."""

    def __init__(self, rows: np.ndarray) -> None:
        self._buffer, self._size = rows, len(rows)

    def append(self, rows: np.ndarray) -> None:
        end = self._size + len(rows)
        if end > len(self._buffer):
            # Zeros take no memory before they are written.
            shape = (max(2 * end, _MIN_ROWS), *self._buffer.shape[1:])
            larger = np.zeros(shape, self._buffer.dtype)
            larger[: self._size] = self._buffer[: self._size]
            self._buffer = larger
        self._buffer[self._size : end] = rows
        self._size = end

    def view(self) -> np.ndarray:
        return self._buffer[: self._size]


class EdgeChains:
    """Added edges by node: each node's newest edge, and before each edge the older one.

    Searches may run while edges are appended.

    Args:
        num_known: nodes that have been in the graph.
    """

    def __init__(self, num_known: int) -> None:
        self._num_known = num_known
        self._of_known = np.zeros(num_known, np.int64)  # 1 + edge; takes no memory before use
        self._of_new = GrowingArray(np.zeros(0, np.int64))
        self._older = GrowingArray(np.zeros(0, np.int64))
        self._lock = threading.Lock()

    @classmethod
    def of(cls, num_known: int, num_new: int, nodes: np.ndarray) -> EdgeChains:
        """`nodes`: int64 [num_edges], the node of each edge."""
        chains = cls(num_known)
        chains.append(num_new, nodes)
        return chains

    def append(self, num_new: int, nodes: np.ndarray) -> None:
        """Appends new nodes, and edges of any nodes."""
        with self._lock:
            self._of_new.append(np.zeros(num_new, np.int64))
            first = len(self._older.view())
            self._older.append(np.zeros(len(nodes), np.int64))
            heads = self._of_known, self._of_new.view()
            _link(nodes, first, *heads, self._older.view())

    def find(self, nodes: np.ndarray, num_edges: int) -> tuple[np.ndarray, np.ndarray]:
        """The edges of nodes among the first `num_edges`, in their order.

        Returns:
            int64 [num_found] twice: the position in `nodes`, ascending, and the edge.
        """
        counts = np.zeros(len(nodes), np.int64)
        with self._lock:
            arrays = (self._of_known, self._of_new.view(), self._older.view())
            _count(nodes, num_edges, *arrays, counts)
            edges = np.empty(int(counts.sum()), np.int64)
            _fill(nodes, num_edges, *arrays, np.cumsum(counts), edges)
        return np.repeat(np.arange(len(nodes)), counts), edges


@njit(nogil=True, cache=True)
def _link(nodes, first, of_known, of_new, older):  # type: ignore[no-untyped-def]
    num_known = len(of_known)
    for i in range(len(nodes)):
        node = nodes[i]
        if node < num_known:
            older[first + i] = of_known[node]
            of_known[node] = first + i + 1
        else:
            older[first + i] = of_new[node - num_known]
            of_new[node - num_known] = first + i + 1


@njit(nogil=True, cache=True)
def _newest(node, num_edges, of_known, of_new, older):  # type: ignore[no-untyped-def]
    num_known = len(of_known)
    edge = of_known[node] if node < num_known else of_new[node - num_known]
    while edge > num_edges:
        edge = older[edge - 1]
    return edge


@njit(nogil=True, cache=True)
def _count(nodes, num_edges, of_known, of_new, older, counts):  # type: ignore[no-untyped-def]
    for i in range(len(nodes)):
        edge = _newest(nodes[i], num_edges, of_known, of_new, older)
        while edge > 0:
            counts[i] += 1
            edge = older[edge - 1]


@njit(nogil=True, cache=True)
def _fill(nodes, num_edges, of_known, of_new, older, ends, out):  # type: ignore[no-untyped-def]
    for i in range(len(nodes)):
        position = ends[i]
        edge = _newest(nodes[i], num_edges, of_known, of_new, older)
        while edge > 0:
            position -= 1
            out[position] = edge - 1
            edge = older[edge - 1]
