"""A subgraph while it is sampled: what the hops so far have found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numba import njit

from raygnn.data.edge_types import EdgeType
from raygnn.sampling.local_ids import LocalIds
from raygnn.sampling.protocols import Picks
from raygnn.sampling.scratch import Scratch
from raygnn.sampling.subgraph import SampledSubgraph


class GrowingSubgraph:
    """Collects nodes and edges in arrays that are kept from one batch to the next.

    Args:
        ends: by edge type, in the order of sampling, the types of its neighbors and of the nodes
            that take them.
    """

    def __init__(self, node_types: Sequence[str], ends: Mapping[EdgeType, tuple[str, str]]) -> None:
        self.scratch = Scratch()
        self._ends = dict(ends)
        self._ids = {node_type: LocalIds() for node_type in node_types}
        self._edges = {edge_type: _Edges() for edge_type in ends}
        # by type, how many nodes there were before each hop, and before the next one
        self._marks: dict[str, list[int]] = {}
        self._seed_index: dict[str, np.ndarray] = {}

    def start(self, seeds: Mapping[str, np.ndarray]) -> None:
        """Forgets the last batch and takes the seeds as first nodes."""
        for ids in self._ids.values():
            ids.clear()
        for edges in self._edges.values():
            edges.clear()
        self._seed_index = {}
        for node_type, nodes in seeds.items():
            local = np.empty(len(nodes), np.int32)  # as of the edges: one kernel for both
            self._ids[node_type].add(nodes, local)
            self._seed_index[node_type] = local.astype(np.int64)
        self._marks = {node_type: [0, ids.num_nodes] for node_type, ids in self._ids.items()}

    def frontier(self, edge_type: EdgeType) -> np.ndarray:
        """int64, the nodes of the last hop that may take edges of this type."""
        _, destination = self._ends[edge_type]
        first, last = self._marks[destination][-2:]
        return self._ids[destination].nodes[first:last]

    def add_edges(self, edge_type: EdgeType, picks: Picks) -> None:
        """Takes the edges that the frontier picked in this hop."""
        neighbor_type, _ = self._ends[edge_type]
        edges = self._edges[edge_type]
        row = edges.append(picks.e_id, picks.offsets)
        self._ids[neighbor_type].add(picks.neighbors, row)

    def add_no_edges(self, edge_type: EdgeType) -> None:
        """Notes that no node of the frontier takes an edge of this type in this hop."""
        self._edges[edge_type].append_none(len(self.frontier(edge_type)))

    def end_hop(self) -> None:
        """Makes the nodes found in this hop the frontier of the next."""
        for node_type, ids in self._ids.items():
            self._marks[node_type].append(ids.num_nodes)

    def finish(self) -> SampledSubgraph:
        """Copies the batch out."""
        edges = {edge_type: kept.copied() for edge_type, kept in self._edges.items()}
        return SampledSubgraph(
            node={node_type: ids.nodes.copy() for node_type, ids in self._ids.items()},
            edge_index={edge_type: copy[0] for edge_type, copy in edges.items()},
            edge={edge_type: copy[1] for edge_type, copy in edges.items()},
            dst_ptr={edge_type: copy[2] for edge_type, copy in edges.items()},
            num_sampled_nodes={
                node_type: np.diff(marks).tolist() for node_type, marks in self._marks.items()
            },
            num_sampled_edges={
                edge_type: np.diff(kept.marks).tolist() for edge_type, kept in self._edges.items()
            },
            seed_index=self._seed_index,
        )


class _Edges:
    """The edges of one type so far."""

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
        """Adds the edges of one hop; returns the array for their rows."""
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
        """Adds a hop in which `num_dst` nodes take no edge."""
        self.append(self._edge[:0], np.zeros(num_dst + 1, np.int64))

    def copied(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Copies of edge_index, e_id and dst_ptr."""
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
    """Fills in where each edge leads: those from dst_ptr[i] to dst_ptr[i + 1] lead to i."""
    for i in range(len(dst_ptr) - 1):
        for j in range(dst_ptr[i], dst_ptr[i + 1]):
            columns[j] = i
