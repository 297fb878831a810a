"""Samples padded to a few sizes, so that a device can repeat the same kernels for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from math import ceil, sqrt
from typing import Any

import numpy as np
from numba import njit

from raygnn.sampling.protocols import GraphStore, SampledSubgraph

#: Sizes of `Padding`, each larger than the last.
NUM_SIZES = 4
#: Counts by hop of a sample, under "nodes" and a node type, and for each edge type under "edges",
#: of two nodes, and "loops", from a node to itself.
Counts = Mapping[tuple[str, Any], list[int]]


class Padding:
    """Adds nodes and edges to samples until they have one of `NUM_SIZES` sizes.

    The sizes follow from one sample, so they are the same on each rank and after a resume. Added
    nodes are copies of sampled ones, and come last in their hop. Added edges end at them, so what
    the seeds read stays the same.

    Args:
        reference: a sample with as many seeds as those to pad.
    """

    def __init__(self, reference: SampledSubgraph, graph: GraphStore) -> None:
        self._num_seeds = _num_seeds(reference)
        counts = dict(_counts(reference))
        for node_type, index in reference.seed_index.items():  # more nodes than seeds: see `Batch`
            counts["nodes", node_type] = [len(index), *counts["nodes", node_type][1:]]
        # Each seed has a neighborhood of its own size, so counts vary by about this share.
        share = 2 / sqrt(max(self._num_seeds, 1))
        self.sizes = [_enlarged(counts, graph, share, k) for k in range(1, NUM_SIZES + 1)]

    def __call__(self, subgraph: SampledSubgraph) -> SampledSubgraph:
        """The padded sample; as it is with fewer seeds than the reference, and if no size fits."""
        if _num_seeds(subgraph) != self._num_seeds:
            return subgraph
        counts = _counts(subgraph)
        number = self.number_of(counts)
        return subgraph if number is None else self._padded(subgraph, counts, self.sizes[number])

    def number_of(self, counts: Counts) -> int | None:
        """Number of the size of samples with these counts; None if no size fits."""
        return next((i for i, sizes in enumerate(self.sizes) if _fits(counts, sizes)), None)

    def _padded(self, subgraph: SampledSubgraph, have: Counts, want: Counts) -> SampledSubgraph:
        added = _Added({t: (have["nodes", t], want["nodes", t]) for t in subgraph.node})
        edge_index, edge, dst_ptr, num_edges = {}, {}, {}, {}
        for edge_type, index in subgraph.edge_index.items():
            loops = want["loops", edge_type]
            num_edges[edge_type] = np.add(want["edges", edge_type], loops).tolist()
            edge_index[edge_type], edge[edge_type], dst_ptr[edge_type] = added.edges(
                (edge_type[0], edge_type[2]),
                (index, subgraph.edge[edge_type], subgraph.dst_ptr[edge_type]),
                num_edges[edge_type],
                np.subtract(loops, have["loops", edge_type]),
            )
        seed, times = subgraph.seed, subgraph.seed_time
        # The latest time: no row of the sample is later, so none has a negative age.
        latest = None if times is None else max(x.max() for x in times.values() if len(x))
        total = sum(len(e_id) for e_id in subgraph.edge.values())
        return replace(
            subgraph,
            node=added.nodes(subgraph.node),
            edge_index=edge_index,
            edge=edge,
            dst_ptr=dst_ptr,
            num_sampled_nodes={t: want["nodes", t] for t in subgraph.node},
            num_sampled_edges=num_edges,
            seed=None if seed is None else added.nodes(seed),
            seed_time=None if times is None else added.nodes(times, latest),
            num_added_edges=sum(map(sum, num_edges.values())) - total,
        )


def _num_seeds(subgraph: SampledSubgraph) -> int:
    return sum(map(len, subgraph.seed_index.values()))


def _counts(subgraph: SampledSubgraph) -> Counts:
    counts: dict[tuple[str, Any], list[int]] = {
        ("nodes", t): hops for t, hops in subgraph.num_sampled_nodes.items()
    }
    for edge_type, hops in subgraph.num_sampled_edges.items():
        neighbor, _, sampler = edge_type
        loops = [0] * len(hops)
        if neighbor == sampler:
            row, col = subgraph.edge_index[edge_type]
            parts = np.split(row == col, np.cumsum(hops)[:-1])
            loops = [int(np.count_nonzero(part)) for part in parts]
        counts["loops", edge_type] = loops
        counts["edges", edge_type] = np.subtract(hops, loops).tolist()
    return counts


def _fits(have: Counts, want: Counts) -> bool:
    """Whether a sample may grow to a size, with a node to spare for edges wherever it has some."""
    for (kind, name), counts in have.items():
        spare = 1 if kind == "nodes" else 0
        for count, size in zip(counts, want[kind, name], strict=True):
            if size < count + min(spare, size):
                return False
    return True


def _enlarged(counts: Counts, graph: GraphStore, share: float, k: int) -> Counts:
    """Size number k, from 1, for samples like the counted one."""

    def enlarged(count: int) -> int:
        return count + ceil(k * (share * count + 4 * sqrt(count) + 4))

    sizes: dict[tuple[str, Any], list[int]] = {}
    for (kind, name), hops in counts.items():
        if kind == "nodes":
            possible = [bool(graph.num_nodes(name) and (i or n)) for i, n in enumerate(hops)]
        else:
            neighbor, _, sampler = name
            is_possible = graph.num_edges(name) > 0
            # Layers skip work where nothing points to itself, so the first size adds no first one.
            is_possible &= kind == "edges" or (neighbor == sampler and (k > 1 or any(hops)))
            possible = [is_possible and n > 0 for n in sizes["nodes", sampler][: len(hops)]]
        sizes[kind, name] = [
            enlarged(n) if can else 0 for n, can in zip(hops, possible, strict=True)
        ]
    return sizes


class _Added:
    """Added nodes: by type, the counts by hop that a sample has and gets."""

    def __init__(self, counts: Mapping[str, tuple[list[int], list[int]]]) -> None:
        self._counts = counts
        self._marks = {
            node_type: tuple(np.array([0, *accumulate(hops)]) for hops in both)
            for node_type, both in counts.items()
        }

    def nodes(self, arrays: Mapping[str, np.ndarray], value: Any = None) -> dict[str, np.ndarray]:
        """By type, [num_nodes], with `value` for added nodes; default: that of the first node."""
        return {t: self._rows(t, array, value) for t, array in arrays.items()}

    def _rows(self, node_type: str, array: np.ndarray, value: Any) -> np.ndarray:
        have, want = self._counts[node_type]
        first = array[0] if len(array) else 0
        rows = np.full(sum(want), first if value is None else value, array.dtype)
        old, new = self._marks[node_type]
        for count, source, target in zip(have, old, new, strict=False):
            rows[target : target + count] = array[source : source + count]
        return rows

    def edges(
        self,
        types: tuple[str, str],
        edges: tuple[np.ndarray, np.ndarray, np.ndarray],
        num_edges: list[int],
        num_loops: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Edges among the nodes, with added ones.

        Args:
            types: of the neighbors, and of the nodes that sampled them.
            edges: edge_index, e_id and dst_ptr.
            num_edges: edges to have, by hop.
            num_loops: edges to add that point to themselves, by hop.
        """
        neighbor, sampler = types
        edge_index = np.empty((2, sum(num_edges)), np.int64)
        e_id = np.empty(sum(num_edges), np.int64)
        dst_ptr = np.empty(self._marks[sampler][1][len(num_edges)] + 1, np.int64)
        _pad_edges(
            *edges,
            *self._marks[neighbor],
            *self._marks[sampler],
            np.cumsum(num_edges),
            num_loops,
            neighbor == sampler,
            edge_index,
            e_id,
            dst_ptr,
        )
        return edge_index, e_id, dst_ptr


@njit(nogil=True, cache=True)
def _pad_edges(  # type: ignore[no-untyped-def]
    edge_index, edge, ptr, src_old, src_new, dst_old, dst_new, ends, loops, one_type, out, e_id, to
):
    place = 0
    for hop in range(len(ends)):
        first, last = dst_old[hop], dst_old[hop + 1]
        shift = dst_new[hop] - first
        for i in range(first, last):
            to[i + shift] = place
            for j in range(ptr[i], ptr[i + 1]):
                row = edge_index[0, j]
                section = 0
                while row >= src_old[section + 1]:
                    section += 1
                out[0, place] = row - src_old[section] + src_new[section]
                out[1, place] = i + shift
                e_id[place] = edge[j]
                place += 1
        # Spread evenly over the added nodes, and over sources: a sum over one node's edges has no
        # parallel part.
        first, last = last + shift, dst_new[hop + 1]
        num_sources, left, source = src_new[hop + 2], loops[hop], 0
        missing = ends[hop] - place
        for i in range(first, last):
            to[i] = place
            share = missing // (last - first) + (i - first < missing % (last - first))
            for _ in range(share):
                if left > 0:
                    out[0, place] = i
                    left -= 1
                else:
                    row = source % (num_sources - one_type)
                    out[0, place] = row + (one_type and row >= i)
                    source += 1
                out[1, place] = i
                e_id[place] = edge[0] if len(edge) else 0
                place += 1
    to[len(to) - 1] = place
