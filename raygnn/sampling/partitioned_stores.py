"""A graph spread over parts as graph store and feature store."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from raygnn.data.arrays import create_array, open_array
from raygnn.data.bundle import SparseColumn
from raygnn.data.cache import Claim, build_once, remove_unclaimed
from raygnn.data.edge_types import EdgeType
from raygnn.data.links.message_graph import Messages
from raygnn.data.partition.part import Outline
from raygnn.data.standardization import Affine, Standardization
from raygnn.errors import ConfigError
from raygnn.sampling import protocols, stores
from raygnn.sampling.parts import (
    HotRows,
    PartitionedGraph,
    Question,
    array_bytes,
    most_wanted,
    row_bytes,
    rows_at_a_time,
)
from raygnn.sampling.scratch import Scratch
from raygnn.sampling.temporal import Horizon


def no_times_of_types(column: str) -> ConfigError:
    return ConfigError(
        f"sampling.temporal.column={column!r} is invalid: with data.mode partitioned a graph of "
        "several types is sampled with timestamps only where each edge type has another as its "
        "reverse, since no part has all edges out of a node. Partition it with --reverse-edges "
        "true, or set data.mode to in_memory. [partition-temporal-types]"
    )


class PartitionedGraphStore(stores.StoreOfBundle):
    """A `GraphStore` of a partitioned graph.

    Picks equal those of a `LocalGraphStore` on the complete graph.

    Args:
        messages: includes only edges that carry these, as in `message_graph`; None includes all.
    """

    def __init__(
        self, outline: Outline, graph: PartitionedGraph, messages: Messages | None = None
    ) -> None:
        super().__init__(outline)
        self._graph, self._messages = graph, messages
        self._first = {t: np.array(graph.record.first_ids(t)) for t in outline.node_types}

    def __reduce__(self) -> tuple[type[PartitionedGraphStore], tuple[Any, ...]]:
        return PartitionedGraphStore, (self._bundle, self._graph, self._messages)

    def num_edges(self, edge_type: EdgeType) -> int:
        """Number of edges of a type that carry messages, counted by the parts."""
        if self._messages is None:
            return super().num_edges(edge_type)
        return sum(self._ask_all("num_edges", edge_type))

    def pick(
        self, edge_type: EdgeType, request: protocols.PickRequest, scratch: Scratch | None = None
    ) -> protocols.Picks:
        shares = list(stores.shares_of(self._first[edge_type[2]], request.nodes))
        picks: list[protocols.Picks] = _ask(
            self._graph,
            shares,
            "pick",
            lambda share: (edge_type, stores.restricted(request, share.positions), self._messages),
        )
        return stores.merged_picks(shares, picks, len(request.nodes))

    def _degrees(
        self, edge_type: EdgeType, direction: str, nodes: np.ndarray, horizon: Horizon | None
    ) -> np.ndarray:
        """Raises a ConfigError for out-edges, which have a horizon, without a reverse type.

        No part has all edges out of a node, and an undirected edge may have another time than its
        reverse.
        """
        if direction == "out":
            assert horizon is not None
            reverse = self._bundle.reverse_of(edge_type)
            if reverse is None or reverse == edge_type:
                raise no_times_of_types(horizon.temporal.column)
            edge_type = reverse
        shares = list(stores.shares_of(self._first[edge_type[2]], nodes))
        answers = _ask(
            self._graph,
            shares,
            "degrees",
            lambda share: (
                edge_type,
                nodes[share.positions],
                stores.restricted_horizon(horizon, share.positions),
                self._messages,
            ),
        )
        degrees = np.empty(len(nodes), np.int64)
        for share, counts in zip(shares, answers, strict=True):
            degrees[share.positions] = counts
        return degrees

    def _count_sources(self, edge_type: EdgeType) -> np.ndarray:
        none = np.zeros(self.num_nodes(edge_type[0]), np.int64)
        return sum(self._ask_all("count_sources", edge_type), start=none)

    def adjacency(self, edge_type: EdgeType) -> protocols.EdgesByNode:
        """All edges of a type, read range by range. Ranges contain complete nodes."""
        nodes = np.arange(self.num_nodes(edge_type[2]))
        indptr = np.concatenate([[0], np.cumsum(self.degrees(edge_type, nodes))])

        def picked(edges: slice) -> protocols.Picks:
            first = int(np.searchsorted(indptr, edges.start, side="right")) - 1
            last = int(np.searchsorted(indptr, edges.stop, side="left"))
            taken = nodes[first : max(first, last)]
            picks = self.pick(edge_type, protocols.PickRequest(taken, fanout=-1, key=0, hop=0))
            assert picks.offsets[-1] == edges.stop - edges.start
            return picks

        return protocols.EdgesByNode(
            indptr,
            protocols.LazyRows(lambda edges: picked(edges).neighbors),
            protocols.LazyRows(lambda edges: picked(edges).e_id),
        )

    def _ask_all(self, question: Question, edge_type: EdgeType) -> Iterator[Any]:
        services = self._graph.services
        requests = [service.ask(question, edge_type, self._messages) for service in services]
        return (answer.result() for answer in requests)


class PartitionedFeatureStore(stores.LocalFeatureStore):
    """A `FeatureStore` of a partitioned graph.

    Columns of the outline are read here, others by the parts. Rows equal those of a
    `LocalFeatureStore` on the complete graph. Dense features of frequent nodes of other parts come
    from a `HotRowCache`.
    """

    def __init__(
        self,
        outline: Outline,
        graph: PartitionedGraph,
        standardization: Standardization = MappingProxyType({}),
        *,
        keeps_sparse: bool = False,
        device_columns: protocols.DeviceColumns = protocols.NO_COLUMNS,
    ) -> None:
        super().__init__(
            outline, standardization, keeps_sparse=keeps_sparse, device_columns=device_columns
        )
        self._outline, self._graph = outline, graph
        self._num_values: dict[tuple[str | EdgeType, str], int] = {}
        self._no_rows: dict[tuple[str | EdgeType, str], np.ndarray | SparseColumn] = {}
        self._cache: HotRowCache | None = None
        if graph.cache_bytes and len(graph.mapped) < len(graph.services):
            edges = partial(PartitionedGraphStore, outline, graph)
            self._cache = HotRowCache(outline, graph, edges, self._fetched)
        first = graph.record.first_ids, graph.record.first_edges
        self._first = {
            t: np.array(first[0](t) if isinstance(t, str) else first[1](t)) for t in outline.types
        }

    def __reduce__(self) -> tuple[Callable[[], PartitionedFeatureStore], tuple[()]]:
        arguments = (self._outline, self._graph, dict(self._standardization))
        return partial(PartitionedFeatureStore, *arguments, keeps_sparse=self._keeps_sparse), ()

    def _is_in_parts(self, type_: str | EdgeType, column: str) -> bool:
        # An unknown column is refused by the outline.
        return column in self.columns(type_) and not self._outline.holds(type_, column)

    def _stored(self, type_: str | EdgeType, column: str) -> np.ndarray | SparseColumn:
        """No rows of a column in parts, requested from one of them once."""
        if not self._is_in_parts(type_, column):
            return super()._stored(type_, column)
        key = (type_, column)
        if key not in self._no_rows:
            self._no_rows[key] = self._graph.no_rows(type_, column)
        return self._no_rows[key]

    def _fill(
        self,
        type_: str | EdgeType,
        column: str,
        ids: np.ndarray,
        out: np.ndarray,
        affine: Affine | None,
    ) -> None:
        if not self._is_in_parts(type_, column):
            super()._fill(type_, column, ids, out, affine)
            return

        def place(
            rows: np.ndarray | SparseColumn, taken: np.ndarray, positions: np.ndarray
        ) -> None:
            part = np.empty((len(taken), *out.shape[1:]), out.dtype)
            stores.read_rows(rows, taken, part, affine)
            out[positions] = part

        missing = np.arange(len(ids))
        hot = self._hot_rows(type_, column)
        if hot is not None:
            slots = hot.slots(ids)
            cached, missing = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
            place(hot.rows, slots[cached], cached)
            self._graph.traffic.add(cached_rows=len(cached))
        if len(missing):
            for share, rows in self._fetched(type_, column, ids[missing]):
                local = np.arange(len(share.positions))
                place(_writable(rows), local, missing[share.positions])

    def _stays_sparse(self, type_: str | EdgeType, column: str, rows: SparseColumn) -> bool:
        key = (type_, column)
        if key not in self._num_values:
            sent = [service.ask("num_values", *key) for service in self._graph.services]
            self._num_values[key] = sum(answer.result() for answer in sent)
        return stores.is_sparse_enough(self._num_values[key], int(self._first[type_][-1]), rows.dim)

    def _sparse_rows(
        self, type_: str | EdgeType, column: str, ids: np.ndarray
    ) -> tuple[SparseColumn, np.ndarray]:
        fetched = list(self._fetched(type_, column, ids))
        position = np.empty(len(ids), np.int64)
        position[np.concatenate([share.positions for share, _ in fetched])] = np.arange(len(ids))
        return _joined([rows for _, rows in fetched]), position

    def _hot_rows(self, type_: str | EdgeType, column: str) -> HotRows | None:
        if self._cache is None or not isinstance(type_, str):
            return None
        return None if self.columns(type_)[column].sparse else self._cache.rows(type_, column)

    def _fetched(
        self, type_: str | EdgeType, column: str, ids: np.ndarray
    ) -> Iterator[tuple[stores.Share, Any]]:
        shares = list(stores.shares_of(self._first[type_], ids))
        rows = _ask(
            self._graph, shares, "rows", lambda share: (type_, column, ids[share.positions])
        )
        return zip(shares, rows, strict=True)


def _ask(
    graph: PartitionedGraph,
    shares: list[stores.Share],
    question: Question,
    arguments_for: Callable[[stores.Share], tuple[Any, ...]],
) -> list[Any]:
    questions = [arguments_for(share) for share in shares]
    requests = [
        graph.services[share.part].ask(question, *each)
        for share, each in zip(shares, questions, strict=True)
    ]
    answers = [answer.result() for answer in requests]
    for share, each, answer in zip(shares, questions, answers, strict=True):
        if not graph.is_mapped(share.part):
            graph.traffic.add(requests=1, num_bytes=array_bytes(each) + array_bytes(answer))
    return answers


def _writable(rows: np.ndarray | SparseColumn) -> np.ndarray | SparseColumn:
    if isinstance(rows, SparseColumn):
        return _joined([rows])
    return rows if rows.flags.writeable else rows.copy()


def _joined(parts: list[SparseColumn]) -> SparseColumn:
    ends = np.cumsum([0, *(len(rows.indices) for rows in parts)])
    starts = [rows.indptr[:-1] + end for rows, end in zip(parts, ends[:-1], strict=True)]
    values = [rows.values for rows in parts if rows.values is not None]
    return SparseColumn(
        np.append(np.concatenate(starts), ends[-1]),
        np.concatenate([rows.indices for rows in parts]),
        np.concatenate(values) if values else None,
        parts[0].dim,
    )


_LAYOUT = 1  # version of the files and of the choice of nodes; other versions are not read
_WHAT = "the most wanted rows of other nodes"

Fetch = Callable[[str, str, np.ndarray], Iterable[tuple[stores.Share, np.ndarray]]]


class HotRowCache:
    """Cached dense features of nodes with the highest out-degree, of parts not mapped here.

    Each column has the same share of nodes, in all `cache_bytes`, in files next to the outline. The
    first process requests the degrees and the rows of each column from the parts and writes them;
    others on the machine wait for it. Files depend on the partition, the mapped parts and
    `cache_bytes`, so later runs map them too. The process that chooses nodes removes unused files
    with other parts or another size.

    Args:
        edges: opens the graph's edges; the counts for choosing nodes are not kept.
        fetch: returns stored rows of a column.
    """

    def __init__(
        self,
        outline: Outline,
        graph: PartitionedGraph,
        edges: Callable[[], protocols.GraphStore],
        fetch: Fetch,
    ) -> None:
        self._outline, self._graph, self._edges, self._fetch = outline, graph, edges, fetch
        text = json.dumps([_LAYOUT, graph.mapped, graph.cache_bytes])
        self._all = outline.path.with_name(f"{graph.record.fingerprint}-hot")
        self._folder = self._all / hashlib.sha256(text.encode()).hexdigest()[:16]
        self._claim: Claim | None = None
        self._rows: dict[tuple[str, str], HotRows] = {}
        self._lock = threading.Lock()

    def rows(self, node_type: str, column: str) -> HotRows:
        """The cached rows of a column. The first call maps them or fetches them from the parts.

        Raises:
            RaygnnError: a part does not answer.
            ResourceError: the files cannot be written.
        """
        with self._lock:
            if (node_type, column) not in self._rows:
                self._claim = self._claim or Claim(self._folder, _WHAT)
                ids = self._wanted(node_type)
                folder = build_once(
                    self._folder / "rows" / node_type / f"{column}.rows",
                    lambda folder: self._build_rows(node_type, column, ids, folder),
                    _WHAT,
                )
                self._rows[node_type, column] = HotRows(ids, open_array(folder / "rows.npy"))
            return self._rows[node_type, column]

    def _wanted(self, node_type: str) -> np.ndarray:
        """int64, ascending: nodes of a type with cached rows."""
        folder = build_once(self._folder / "wanted", self._build_wanted, _WHAT)
        return open_array(folder / f"{node_type}.npy")

    def _build_rows(self, node_type: str, column: str, ids: np.ndarray, folder: Path) -> None:
        none = self._graph.no_rows(node_type, column)
        path, size = folder / "rows.npy", rows_at_a_time(none)
        rows = create_array(path, (len(ids), *none.shape[1:]), none.dtype)
        for start in range(0, len(ids), size):
            for share, values in self._fetch(node_type, column, ids[start : start + size]):
                rows[start + share.positions] = values

    def _build_wanted(self, folder: Path) -> None:
        remove_unclaimed(self._all)
        for node_type, ids in self._choose().items():
            create_array(folder / f"{node_type}.npy", ids.shape, ids.dtype)[:] = ids

    def _choose(self) -> dict[str, np.ndarray]:
        others = {t: self._nodes_of_others(t) for t in self._outline.node_types}
        widths = {
            t: sum(
                row_bytes(self._graph.no_rows(t, name))
                for name, info in self._outline.columns(t).items()
                if not self._outline.holds(t, name) and not info.sparse
            )
            for t in others
        }
        counts = {t: sum(map(len, ids)) for t, ids in others.items()}
        total = sum(counts[t] * widths[t] for t in others)
        share, edges = min(1.0, self._graph.cache_bytes / max(1, total)), self._edges()
        return {t: most_wanted(edges, t, ids, int(share * counts[t])) for t, ids in others.items()}

    def _nodes_of_others(self, node_type: str) -> list[range]:
        first = self._graph.record.first_ids(node_type)
        return [
            range(first[part], first[part + 1])
            for part in range(self._graph.record.num_parts)
            if not self._graph.is_mapped(part)
        ]
