"""Rows of the most wanted nodes, which are kept so that no part is asked for them."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from raygnn.sampling.protocols import GraphStore

_MAX_ASKED = 1 << 20  # ids whose degrees are asked for at a time
_MAX_FETCHED_BYTES = 32 << 20  # rows that are asked for at a time


class Traffic:
    """Counts of requests to parts that the process does not map. Thread-safe.

    Another process that gets it begins at zero.

    Attributes:
        num_bytes: of the arrays in questions and answers.
        num_cached_rows: rows that were taken from the cache.
    """

    def __init__(self) -> None:
        self.num_requests = self.num_bytes = self.num_cached_rows = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Traffic], tuple[()]]:
        return Traffic, ()

    def add(self, *, requests: int = 0, num_bytes: int = 0, cached_rows: int = 0) -> None:
        """Adds to the counts."""
        with self._lock:
            self.num_requests += requests
            self.num_bytes += num_bytes
            self.num_cached_rows += cached_rows

    def counts(self) -> tuple[int, int, int]:
        """Requests, bytes and rows from the cache, so far."""
        with self._lock:
            return self.num_requests, self.num_bytes, self.num_cached_rows


def array_bytes(value: Any) -> int:
    """Bytes of the arrays in a value, in its fields and in theirs."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, tuple):
        return sum(map(array_bytes, value))
    if is_dataclass(value):
        return sum(array_bytes(getattr(value, field.name)) for field in fields(value))
    return 0


@dataclass(frozen=True)
class HotRows:
    """Rows of a column as they are stored.

    Attributes:
        ids: int64 [n], ascending.
        rows: [n, ...], of these nodes.
    """

    ids: np.ndarray
    rows: np.ndarray

    def slots(self, ids: np.ndarray) -> np.ndarray:
        """int64, the row of each id, and -1 of an id that is not here."""
        if not len(self.ids):
            return np.full(len(ids), -1)
        found = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[found] == ids, found, -1)


def most_wanted(
    graph: GraphStore, node_type: str, among: Sequence[range], num_kept: int
) -> np.ndarray:
    """int64, ascending: the nodes that are the source of most edges; at most `num_kept`.

    Nodes that are the source of no edge are left out. Memory is of those kept and of a chunk.

    Args:
        among: ids of the nodes to choose from.
    """
    kept, degrees = np.empty((2, 0), np.int64)
    edge_types = [edge_type for edge_type in graph.edge_types if edge_type[0] == node_type]
    for ids in among if num_kept else ():
        for start in range(ids.start, ids.stop, _MAX_ASKED):
            nodes = np.arange(start, min(start + _MAX_ASKED, ids.stop))
            found = np.zeros(len(nodes), np.int64)
            for edge_type in edge_types:
                found += graph.neighbor_degrees(edge_type, nodes)
            kept = np.concatenate([kept, nodes[found > 0]])
            degrees = np.concatenate([degrees, found[found > 0]])
            first = np.argsort(-degrees, kind="stable")[:num_kept]
            kept, degrees = kept[first], degrees[first]
    return np.sort(kept)


def rows_at_a_time(rows: np.ndarray) -> int:
    """Number of such rows to request at a time."""
    return max(1, _MAX_FETCHED_BYTES // max(1, row_bytes(rows)))


def row_bytes(rows: np.ndarray) -> int:
    return int(rows.dtype.itemsize * math.prod(rows.shape[1:]))
