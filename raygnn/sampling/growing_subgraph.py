"""Sampled nodes and edges collected hop by hop, with local ids in order of arrival."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numba import njit

from raygnn.data.edge_types import EdgeType
from raygnn.errors import DataError
from raygnn.sampling.hash_tables import LocalIds
from raygnn.sampling.protocols import GraphStore, Picks, SampledSubgraph
from raygnn.sampling.scratch import Scratch
from raygnn.sampling.temporal import Horizon, Temporal, salts_of


class GrowingSubgraph:
    """Collects nodes and edges in arrays that are reused for the next batch.

    Args:
        edge_types: in the order of sampling.
    """

    def __init__(self, node_types: Sequence[str], edge_types: Sequence[EdgeType]) -> None:
        self.scratch = Scratch()
        self._ids = {node_type: LocalIds() for node_type in node_types}
        self._edges = {edge_type: _Edges() for edge_type in edge_types}
        # by type, how many nodes there were before each hop, and before the next one
        self._marks: dict[str, list[int]] = {}
        self._seed_index: dict[str, np.ndarray] = {}

    def start(self, seeds: Mapping[str, np.ndarray]) -> None:
        for ids in self._ids.values():
            ids.clear()
        for edges in self._edges.values():
            edges.clear()
        self._seed_index = {}
        for node_type, nodes in seeds.items():
            local = np.empty(len(nodes), np.int32)  # as edges have: one kernel serves both
            self._ids[node_type].add(nodes, local)
            self._seed_index[node_type] = local.astype(np.int64)
        self._marks = {node_type: [0, ids.num_nodes] for node_type, ids in self._ids.items()}

    def frontier(self, edge_type: EdgeType) -> np.ndarray:
        """int64, nodes of the last hop that may sample edges of this type."""
        first, last = self._marks[edge_type[2]][-2:]
        return self._ids[edge_type[2]].nodes[first:last]

    def add_edges(self, edge_type: EdgeType, picks: Picks) -> None:
        row = self._edges[edge_type].append(picks.e_id, picks.offsets)
        self._ids[edge_type[0]].add(picks.neighbors, row)

    def add_no_edges(self, edge_type: EdgeType) -> None:
        self._edges[edge_type].append_none(len(self.frontier(edge_type)))

    def end_hop(self) -> None:
        """Makes the new nodes of this hop the frontier of the next."""
        for node_type, ids in self._ids.items():
            self._marks[node_type].append(ids.num_nodes)

    def finish(self) -> SampledSubgraph:
        edges = {edge_type: buffer.copied() for edge_type, buffer in self._edges.items()}
        return SampledSubgraph(
            node={node_type: ids.nodes.copy() for node_type, ids in self._ids.items()},
            edge_index={edge_type: copy[0] for edge_type, copy in edges.items()},
            edge={edge_type: copy[1] for edge_type, copy in edges.items()},
            dst_ptr={edge_type: copy[2] for edge_type, copy in edges.items()},
            num_sampled_nodes={
                node_type: np.diff(marks).tolist() for node_type, marks in self._marks.items()
            },
            num_sampled_edges={
                edge_type: np.diff(rows.marks).tolist() for edge_type, rows in self._edges.items()
            },
            seed_index=self._seed_index,
        )


class _Edges:
    def __init__(self) -> None:
        # local ids of a batch fit into int32; half the bytes to write and to read back
        self._row = np.empty(0, np.int32)
        self._edge = np.empty(0, np.int64)
        self._dst_ptr = np.zeros(1, np.int64)
        self._num_dst = 0
        self.marks = [0]

    def clear(self) -> None:
        self._num_dst = 0
        self.marks = [0]

    def append(self, e_id: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        first, last = self.marks[-1], self.marks[-1] + len(e_id)
        self._row = _with_room(self._row, first, last)
        self._edge = _with_room(self._edge, first, last)
        self._edge[first:last] = e_id
        num_dst = self._num_dst + len(offsets) - 1
        self._dst_ptr = _with_room(self._dst_ptr, self._num_dst + 1, num_dst + 1)
        np.add(offsets[1:], first, out=self._dst_ptr[self._num_dst + 1 : num_dst + 1])
        self._num_dst = num_dst
        self.marks.append(last)
        return self._row[first:last]

    def append_none(self, num_dst: int) -> None:
        self.append(self._edge[:0], np.zeros(num_dst + 1, np.int64))

    def copied(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        num_edges = self.marks[-1]
        dst_ptr = self._dst_ptr[: self._num_dst + 1].copy()
        edge_index = np.empty((2, num_edges), np.int64)
        edge_index[0] = self._row[:num_edges]
        fill_columns(dst_ptr, edge_index[1])
        return edge_index, self._edge[:num_edges].copy(), dst_ptr


def _with_room(array: np.ndarray, num_kept: int, size: int) -> np.ndarray:
    if size <= len(array):
        return array
    grown = np.empty(size + size // 4, array.dtype)
    grown[:num_kept] = array[:num_kept]
    return grown


@njit(nogil=True, cache=True)
def fill_columns(dst_ptr, columns):  # type: ignore[no-untyped-def]
    """Fills the destinations of edges: dst_ptr[i] to dst_ptr[i + 1] have destination i."""
    for i in range(len(dst_ptr) - 1):
        for j in range(dst_ptr[i], dst_ptr[i + 1]):
            columns[j] = i


def share_leaves(subgraph: SampledSubgraph, node_types: Collection[str]) -> SampledSubgraph:
    """Keeps one copy of each node of the last hop, for some node types.

    These nodes sample no edges, so the copies for several seeds or times only differ in what a
    model reads of the seed.
    """
    node, edge_index = dict(subgraph.node), dict(subgraph.edge_index)
    seed = None if subgraph.seed is None else dict(subgraph.seed)
    seed_time = None if subgraph.seed_time is None else dict(subgraph.seed_time)
    num_sampled = dict(subgraph.num_sampled_nodes)
    for node_type in node_types:
        *before, num_leaves = num_sampled.get(node_type, [0])
        if not num_leaves or not before:
            continue
        first = sum(before)
        ids, local = LocalIds(), np.empty(num_leaves, np.int64)
        ids.add(node[node_type][first:], local)
        copy = np.empty(ids.num_nodes, np.int64)
        copy[local[::-1]] = np.arange(num_leaves)[::-1]  # the first of each node
        num_sampled[node_type] = [*before, ids.num_nodes]
        kept = np.concatenate([np.arange(first), first + copy])
        for part in (node, seed, seed_time):
            if part is not None:
                part[node_type] = part[node_type][kept]
        shared = np.concatenate([np.arange(first), first + local])
        for edge_type, (row, col) in edge_index.items():
            if edge_type[0] == node_type:
                edge_index[edge_type] = np.stack([shared[row], col])
    return replace(
        subgraph,
        node=node,
        edge_index=edge_index,
        num_sampled_nodes=num_sampled,
        seed=seed,
        seed_time=seed_time,
    )


_MAX_CODE = np.iinfo(np.int64).max


class DisjointIds:
    """Encodes a node and a number, of a time or of a seed, as one integer.

    Code that distinguishes nodes by id then distinguishes these pairs. With `temporal`, seeds of
    one time share neighborhoods; with `disjoint`, no two seeds do. Each pair is in a batch once.

    Args:
        seeds: by node type, dense ids.
        times: by node type, int64 or float64, time of each seed, only with `temporal`.
        salts: by node type, uint64, of each seed, only with `disjoint`. Default: its number.
    Raises:
        DataError: a seed has no time.
    """

    def __init__(
        self,
        graph: GraphStore,
        seeds: Mapping[str, np.ndarray],
        temporal: Temporal | None,
        times: Mapping[str, np.ndarray] | None,
        *,
        disjoint: bool,
        salts: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._graph = graph
        self._temporal = temporal
        self._disjoint = disjoint
        self._salts = None if salts is None else np.concatenate([salts[t] for t in seeds])
        lengths = [len(ids) for ids in seeds.values()]
        numbers = np.arange(sum(lengths))
        if temporal is not None:
            checked = [_checked(node_type, ids, times) for node_type, ids in seeds.items()]
            self._times = np.concatenate(checked) if checked else np.empty(0, np.int64)
            if not disjoint:
                self._times, numbers = np.unique(self._times, return_inverse=True)
        #: By node type, int64 [num_seeds], number of the time or of the seed.
        self.numbers = dict(zip(seeds, np.split(numbers, np.cumsum(lengths)[:-1]), strict=True))
        most = max((graph.num_nodes(node_type) for node_type in graph.node_types), default=0)
        assert most * (int(numbers.max(initial=0)) + 1) <= _MAX_CODE

    def encoded(self, seeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {t: self.code(t, ids, self.numbers[t]) for t, ids in seeds.items()}

    def split(self, node_type: str, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        numbers, nodes = np.divmod(codes, max(self._graph.num_nodes(node_type), 1))
        return nodes, numbers

    def horizon(self, numbers: np.ndarray) -> Horizon | None:
        """Latest edge times of nodes with these numbers. None without temporal sampling."""
        return None if self._temporal is None else Horizon(self._temporal, self._times[numbers])

    def salts(self, numbers: np.ndarray) -> np.ndarray | None:
        """uint64 salts for the draws of disjoint nodes; with only `temporal`, by time."""
        if not self._disjoint:
            return None
        return numbers.astype(np.uint64) if self._salts is None else self._salts[numbers]

    def inputs(self) -> tuple[np.ndarray, np.ndarray | None]:
        """uint64 salts of all numbers, and their times; None without temporal sampling."""
        if self._temporal is None or self._disjoint:
            salts = self.salts(np.arange(sum(map(len, self.numbers.values()))))
        else:
            salts = salts_of(self._times)
        assert salts is not None
        return salts, None if self._temporal is None else self._times

    def joined(self, node_type: str, picks: Picks, numbers: np.ndarray) -> Picks:
        """Picks with neighbors encoded with the number of the node that sampled them."""
        taken = np.repeat(numbers, np.diff(picks.offsets))
        return picks._replace(neighbors=self.code(node_type, picks.neighbors, taken))

    def decoded(self, subgraph: SampledSubgraph) -> SampledSubgraph:
        """Decodes a sample of codes into nodes, seeds and times."""
        pairs = {t: self.split(t, codes) for t, codes in subgraph.node.items()}
        numbers = {t: number for t, (_, number) in pairs.items()}
        times = None
        if self._temporal is not None:
            times = {t: self._times[number] for t, number in numbers.items()}
        return replace(
            subgraph,
            node={node_type: nodes for node_type, (nodes, _) in pairs.items()},
            seed=numbers if self._disjoint else None,
            seed_time=times,
            temporal=self._temporal,
        )

    def code(self, node_type: str, nodes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return nodes + numbers * self._graph.num_nodes(node_type)


def _checked(node_type: str, ids: np.ndarray, times: Mapping[str, np.ndarray] | None) -> np.ndarray:
    array = None if times is None else times.get(node_type)
    if array is None:
        raise DataError(
            f"seeds of node type {node_type!r} are invalid: sampling.temporal is set, and they "
            "have no times. Give them, or leave it out. [sampling-seed-times-missing]"
        )
    assert array.shape == ids.shape
    assert array.dtype in (np.int64, np.float64)
    return array
