"""Requests that the parts of a graph answer, each for its own nodes and edges."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.edge_types import EdgeType
from raygnn.data.links.message_graph import Messages
from raygnn.data.partition.part import Outline, Part, PartMessages
from raygnn.data.partition.record import Folder, PartitionRecord
from raygnn.data.partition.transfer import absolute_folder
from raygnn.sampling import pick as kernels
from raygnn.sampling.gather import copy_sparse_rows, gather_rows
from raygnn.sampling.hot_rows import Traffic
from raygnn.sampling.local_pick import LocalPicker
from raygnn.sampling.protocols import PickRequest, Picks
from raygnn.sampling.rng import hop_key
from raygnn.sampling.scratch import Pool, Scratch
from raygnn.sampling.temporal import Horizon

Question = Literal["pick", "degrees", "count_sources", "num_edges", "rows", "num_values"]


class Answer(Protocol):
    def result(self) -> Any:
        """The answer, once available.

        Raises:
            RaygnnError: the part could not answer, or not in time.
        """


class PartService(Protocol):
    """Answers for a part. Thread-safe; crosses process boundaries."""

    def ask(self, question: Question, *given: Any) -> Answer:
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
        key = np.uint64(hop_key(request.key, request.hop, edge_type))
        picker, first_edge = self._picker(edge_type, messages), self._part.first_row(edge_type)
        with self._scratches.lend() as scratch:
            picks = picker.pick(request, key, scratch)
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
        counts = np.zeros(self._part.num_nodes(edge_type[0]), np.int64)
        kernels.count_neighbors(self._picker(edge_type, messages).adjacency.indices, counts)
        return counts

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
        found = np.empty((len(ids), *stored.shape[1:]), stored.dtype)
        gather_rows(stored, ids, found)
        return found

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

    Raises:
        DataError: a part is missing, damaged, or of another partition.
    """
    place = absolute_folder(folder)
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

    def ask(self, question: Question, *given: Any) -> Answer:
        return _Computed(partial(getattr(self._answers, question), *given))
