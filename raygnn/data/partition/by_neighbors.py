"""Parts by neighbors. Linear deterministic greedy assigns a node to the part of most neighbors.

Sources: Stanton and Kliot, Streaming Graph Partitioning for Large Distributed Graphs, KDD 2012;
more passes over the same stream: Nishimura and Ugander, Restreaming Graph Partitioning, KDD 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from raygnn.data import edge_kernels
from raygnn.data.arrays import create_array, index_dtype, open_array
from raygnn.data.ingest.table_plan import DST, SRC

# How much larger than the mean a part may be, of each node type.
_SLACK = 1.05
_NO_PART = -1
# Later passes know the parts of all neighbors; docs/decisions.md has the cut by passes.
_PASSES = 10


def parts_path(folder: Path, node_type: str) -> Path:
    """File of int32 [num_nodes], the part of each node, in the folder of `assign_parts`."""
    return folder / f"{node_type}.npy"


def assign_parts(
    num_nodes: Mapping[str, int],
    folder: Path,
    *,
    edges: Sequence[tuple[str, str, Sequence[Path]]],
    num_parts: int,
) -> dict[str, Any]:
    """Assigns each node to the part with most of its neighbors, weighted by the remaining capacity.

    Nodes are visited breadth first, along and against
    edges of all types, so that most have neighbors with parts. Parts of each node type are at most
    5 % larger than the mean. Memory is 21 bytes per node; neighbors, 8 bytes per
    edge (16 above 2^31 nodes), are on the disk. `edges`: source type, target type, and the folders
    of the pieces that have been read.
    """
    first = dict(zip(num_nodes, np.cumsum([0, *num_nodes.values()]), strict=False))
    total = sum(num_nodes.values())
    pieces = [
        (open_array(piece / SRC, "r"), open_array(piece / DST, "r"), first[source], first[target])
        for source, target, folders in edges
        for piece in folders
    ]
    indptr = np.zeros(total + 1, np.int64)
    for piece in pieces:
        _count(*piece, edge_kernels.DROPPED, indptr)
    np.cumsum(indptr, out=indptr)
    path = folder / "neighbors.npy"
    neighbors = create_array(path, (int(indptr[-1]),), index_dtype(total))
    filled = indptr[:-1].copy()
    for piece in pieces:
        _scatter(*piece, edge_kernels.DROPPED, filled, neighbors)
    bounds = np.array([*first.values(), total], np.int64)
    capacity = np.ceil(np.diff(bounds) / num_parts * _SLACK)
    order, part = filled, np.full(total, _NO_PART, np.int32)
    _breadth_first(indptr, neighbors, order)
    for _ in range(_PASSES):
        _assign(indptr, neighbors, order, bounds, capacity, num_parts, part)
    path.unlink()
    for name, start in first.items():
        np.save(parts_path(folder, name), part[start : start + num_nodes[name]])
    return {}


@njit(nogil=True, cache=True)
def _count(src, dst, first_source, first_target, dropped, indptr):  # type: ignore[no-untyped-def]
    for i in range(len(src)):
        if src[i] != dropped:
            indptr[first_source + src[i] + 1] += 1
            indptr[first_target + dst[i] + 1] += 1


@njit(nogil=True, cache=True)
def _scatter(src, dst, first_source, first_target, dropped, filled, neighbors):  # type: ignore[no-untyped-def]
    for i in range(len(src)):
        if src[i] != dropped:
            source, target = first_source + src[i], first_target + dst[i]
            neighbors[filled[source]] = target
            filled[source] += 1
            neighbors[filled[target]] = source
            filled[target] += 1


@njit(nogil=True, cache=True)
def _breadth_first(indptr, neighbors, order):  # type: ignore[no-untyped-def]
    is_visited = np.zeros(len(order), np.bool_)
    head = tail = 0
    for root in range(len(order)):
        if is_visited[root]:
            continue
        is_visited[root] = True
        order[tail] = root
        tail += 1
        while head < tail:
            node = order[head]
            head += 1
            for i in range(indptr[node], indptr[node + 1]):
                other = neighbors[i]
                if not is_visited[other]:
                    is_visited[other] = True
                    order[tail] = other
                    tail += 1


@njit(nogil=True, cache=True)
def _assign(indptr, neighbors, order, bounds, capacity, num_parts, part):  # type: ignore[no-untyped-def]
    """One pass: `part` of later nodes is that of the previous pass, or negative.

    `bounds`: int64 [num_types + 1], start of each type's nodes; `capacity`: [num_types].
    """
    size = np.zeros((len(capacity), num_parts), np.int64)
    score = np.zeros(num_parts, np.int64)
    for node in order:
        score[:] = 0
        for i in range(indptr[node], indptr[node + 1]):
            if part[neighbors[i]] >= 0:
                score[part[neighbors[i]]] += 1
        kind = np.searchsorted(bounds, node, side="right") - 1
        best, best_value = -1, -1.0
        for p in range(num_parts):
            if size[kind, p] >= capacity[kind]:
                continue
            value = score[p] * (1.0 - size[kind, p] / capacity[kind])
            is_tie = value == best_value and size[kind, p] < size[kind, best]
            if value > best_value or is_tie:
                best, best_value = p, value
        part[node] = best
        size[kind, best] += 1
