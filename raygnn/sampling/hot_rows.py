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
    """Thread-safe counts of requests to parts that the process does not map.

    A copy in another process starts at zero.

    Attributes:
        num_bytes: bytes of arrays in requests and answers.
        num_cached_rows: rows read from the cache.
    """

    def __init__(self) -> None:
        self.num_requests = self.num_bytes = self.num_cached_rows = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Traffic], tuple[()]]:
        return Traffic, ()

    def add(self, *, requests: int = 0, num_bytes: int = 0, cached_rows: int = 0) -> None:
        with self._lock:
            self.num_requests += requests
            self.num_bytes += num_bytes
            self.num_cached_rows += cached_rows

    def counts(self) -> tuple[int, int, int]:
        with self._lock:
            return self.num_requests, self.num_bytes, self.num_cached_rows


def array_bytes(value: Any) -> int:
    """Bytes of the arrays in a value and, recursively, in its fields."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, tuple):
        return sum(map(array_bytes, value))
    if is_dataclass(value):
        return sum(array_bytes(getattr(value, field.name)) for field in fields(value))
    return 0


@dataclass(frozen=True)
class HotRows:
    """Stored rows of a column.

    Attributes:
        ids: int64 [n], ascending.
        rows: [n, ...], rows of these nodes.
    """

    ids: np.ndarray
    rows: np.ndarray

    def slots(self, ids: np.ndarray) -> np.ndarray:
        """int64, position of each id, or -1."""
        if not len(self.ids):
            return np.full(len(ids), -1)
        found = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[found] == ids, found, -1)


def most_wanted(
    graph: GraphStore, node_type: str, among: Sequence[range], num_kept: int
) -> np.ndarray:
    """int64, ascending: at most `num_kept` nodes of `among` with the highest, non-zero out-degree.

    Needs memory for these nodes and one chunk.
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
    return max(1, _MAX_FETCHED_BYTES // max(1, row_bytes(rows)))


def row_bytes(rows: np.ndarray) -> int:
    return int(rows.dtype.itemsize * math.prod(rows.shape[1:]))
