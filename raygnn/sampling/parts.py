"""Questions that the parts of a graph answer, and the rows that are wanted most."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.edge_types import EdgeType
from raygnn.data.filesystem import absolute
from raygnn.data.links.message_graph import Messages
from raygnn.data.partition.part import Outline, Part, PartMessages
from raygnn.data.partition.record import Folder, PartitionRecord
from raygnn.sampling.gather import copy_sparse_rows, gather_rows
from raygnn.sampling.local_pick import LocalPicker
from raygnn.sampling.protocols import GraphStore, PickRequest, Picks
from raygnn.sampling.scratch import Pool, Scratch
from raygnn.sampling.temporal import Horizon

_MAX_ASKED = 1 << 20  # ids per request for degrees
_MAX_FETCHED_BYTES = 32 << 20  # of rows per request


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
        positions = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[positions] == ids, positions, -1)


def most_wanted(
    graph: GraphStore, node_type: str, among: Sequence[range], num_kept: int
) -> np.ndarray:
    """int64, ascending: at most `num_kept` nodes of `among` with the highest, non-zero out-degree.

    Needs memory for these nodes and one chunk.
    """
    top, degrees = np.empty((2, 0), np.int64)
    edge_types = [edge_type for edge_type in graph.edge_types if edge_type[0] == node_type]
    for ids in among if num_kept else ():
        for start in range(ids.start, ids.stop, _MAX_ASKED):
            nodes = np.arange(start, min(start + _MAX_ASKED, ids.stop))
            node_degrees = np.zeros(len(nodes), np.int64)
            for edge_type in edge_types:
                node_degrees += graph.neighbor_degrees(edge_type, nodes)
            top = np.concatenate([top, nodes[node_degrees > 0]])
            degrees = np.concatenate([degrees, node_degrees[node_degrees > 0]])
            first = np.argsort(-degrees, kind="stable")[:num_kept]
            top, degrees = top[first], degrees[first]
    return np.sort(top)


def rows_at_a_time(rows: np.ndarray) -> int:
    return max(1, _MAX_FETCHED_BYTES // max(1, row_bytes(rows)))


def row_bytes(rows: np.ndarray) -> int:
    return int(rows.dtype.itemsize * math.prod(rows.shape[1:]))


Question = Literal["pick", "degrees", "count_sources", "num_edges", "rows", "num_values"]


class Answer(Protocol):
    def result(self) -> Any:
        """The answer, once available.

        Raises a RaygnnError if the part could not answer, or not in time.
        """


class PartService(Protocol):
    """Answers for a part. Thread-safe; crosses process boundaries."""

    def ask(self, question: Question, *arguments: Any) -> Answer:
        """Requests a method of `PartAnswers`, without waiting."""


@dataclass(frozen=True)
class PartitionedGraph:
    """The parts of a graph, as seen by a worker. Crosses process boundaries.

    Attributes:
        services: one per part, in their order.
        cache_bytes: size of a node's cache for frequent rows of unmapped parts.
        traffic: this process's requests to unmapped parts.
    """

    record: PartitionRecord
    services: tuple[PartService, ...]
    cache_bytes: int = 0
    traffic: Traffic = field(default_factory=Traffic, compare=False)

    def is_mapped(self, part: int) -> bool:
        return isinstance(self.services[part], MappedPart)

    @property
    def mapped(self) -> list[int]:
        return [part for part in range(len(self.services)) if self.is_mapped(part)]

    def no_rows(self, type_: str | EdgeType, column: str) -> Any:
        """Zero rows of a column, with its stored dtype and shape."""
        return self.services[0].ask("rows", type_, column, np.empty(0, np.int64)).result()


class PartAnswers:
    """Answers from the files of one part. Pure, so requests may be repeated.

    Ids of nodes and edges are those of the complete graph. With `messages`, only edges that carry
    these are included.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._graphs: dict[str, Bundle] = {}
        self._pickers: dict[tuple[EdgeType, str], LocalPicker] = {}
        self._scratches = Pool(Scratch)
        self._lock = threading.Lock()

    def pick(
        self, edge_type: EdgeType, request: PickRequest, messages: Messages | None = None
    ) -> Picks:
        picker, first_edge = self._picker(edge_type, messages), self._part.first_row(edge_type)
        with self._scratches.lend() as scratch:
            picks = picker.pick(request, scratch)
            e_id = picks.e_id.astype(np.int64) + first_edge
            return Picks(picks.neighbors.copy(), e_id, picks.offsets.copy())

    def degrees(
        self,
        edge_type: EdgeType,
        nodes: np.ndarray,
        horizon: Horizon | None,
        messages: Messages | None = None,
    ) -> np.ndarray:
        return self._picker(edge_type, messages).degrees(nodes, horizon)

    def count_sources(self, edge_type: EdgeType, messages: Messages | None = None) -> np.ndarray:
        """int64 [num_source_nodes], edges of this part by source."""
        num_sources = self._part.num_nodes(edge_type[0])
        return self._picker(edge_type, messages).count_neighbors(num_sources)

    def num_edges(self, edge_type: EdgeType, messages: Messages | None = None) -> int:
        return len(self._picker(edge_type, messages).adjacency.indices)

    def rows(
        self, type_: str | EdgeType, column: str, ids: np.ndarray
    ) -> np.ndarray | SparseColumn:
        """Stored rows of a column, float32 if sparse, of nodes or edges of this part, int64 [n]."""
        stored, ids = self._part.column(type_, column), ids - self._part.first_row(type_)
        if isinstance(stored, SparseColumn):
            rows = copy_sparse_rows(stored.indptr, stored.indices, stored.values, ids)
            return SparseColumn(*rows, stored.dim)
        out = np.empty((len(ids), *stored.shape[1:]), stored.dtype)
        gather_rows(stored, ids, out)
        return out

    def num_values(self, type_: str | EdgeType, column: str) -> int:
        stored = self._part.column(type_, column)
        assert isinstance(stored, SparseColumn)
        return len(stored.indices)

    def _picker(self, edge_type: EdgeType, messages: Messages | None) -> LocalPicker:
        name = "" if messages is None else messages.name
        with self._lock:
            if (edge_type, name) not in self._pickers:
                if name not in self._graphs:
                    part = self._part
                    self._graphs[name] = part if messages is None else PartMessages(part, messages)
                first = self._part.first_row(edge_type[2])
                picker = LocalPicker(self._graphs[name], edge_type, "in", first)
                self._pickers[edge_type, name] = picker
            return self._pickers[edge_type, name]


@dataclass(frozen=True)
class _Computed:
    result: Callable[[], Any]


def map_parts(folder: Folder, outline: Outline) -> PartitionedGraph:
    """A partitioned graph with all parts mapped by this process; `folder` is a path or fsspec URI.

    Raises a DataError if a part is missing, damaged, or of another partition.
    """
    place = absolute(folder)
    record = PartitionRecord.load(place)
    parts = (MappedPart(place, part, outline.path) for part in range(record.num_parts))
    return PartitionedGraph(record, tuple(parts))


class MappedPart:
    """A `PartService` for a part of the absolute `folder` that this process maps.

    Raises:
        DataError: the part is missing, damaged, or of another partition.
    """

    def __init__(self, folder: Folder, number: int, outline_path: Path) -> None:
        self._given = (folder, number, outline_path)
        self._answers = PartAnswers(Part(folder, number, Outline.open(outline_path)))

    def __reduce__(self) -> tuple[type[MappedPart], tuple[Folder, int, Path]]:
        return MappedPart, self._given

    def ask(self, question: Question, *arguments: Any) -> Answer:
        return _Computed(partial(getattr(self._answers, question), *arguments))
