"""Parts by neighbors. Linear deterministic greedy assigns a node to the part of most neighbors.

METIS gives better initial parts for graphs that fit into memory many times over.

Sources: Stanton and Kliot, Streaming Graph Partitioning for Large Distributed Graphs, KDD 2012;
more passes over the same stream: Nishimura and Ugander, Restreaming Graph Partitioning, KDD 2013;
METIS: Karypis and Kumar, A Fast and High Quality Multilevel Scheme for Partitioning Irregular
Graphs, SIAM Journal on Scientific Computing 20, 1998.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from scipy import sparse

from raygnn.data import edge_kernels
from raygnn.data.arrays import create_array, index_dtype, memory_bytes, open_array, outgrows_memory
from raygnn.data.ingest.table_plan import DST, SRC
from raygnn.errors import ConfigError, ResourceError

# How much larger than the mean a part may be, of each node type.
_SLACK = 1.05
_NO_PART = -1
# Later passes know the parts of all neighbors; docs/decisions.md has the cut by passes.
_PASSES = 10
# METIS has assigned all parts; this only spreads each node type evenly.
_PASSES_AFTER_METIS = 1
# Measured on random graphs, which coarsen worst; docs/decisions.md has the command.
_BYTES_PER_NEIGHBOR = 120
_BYTES_PER_NODE = 100


def check_metis() -> None:
    try:
        import pymetis  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"method='metis' cannot be used: {error}. Run `pip install -e '.[metis]'` in raygnn's "
            "folder, or "
            "set ldg.",
            id="partition-metis-missing",
        ) from error


def _metis_parts(indptr: np.ndarray, neighbors: np.ndarray, num_parts: int) -> np.ndarray:
    """Balanced parts with few cut edges, int32 [num_nodes].

    Args:
        indptr: int64 [num_nodes + 1], start of each node's neighbors.
        neighbors: [2 num_edges], both ends of each edge; parallel edges count separately.
    Raises:
        ResourceError: METIS would need more memory than this machine has.
    """
    import pymetis

    num_nodes = len(indptr) - 1
    needed = _BYTES_PER_NEIGHBOR * len(neighbors) + _BYTES_PER_NODE * num_nodes
    if outgrows_memory(needed):
        raise ResourceError(
            f"method='metis' cannot be used: with {num_nodes:,} nodes and {len(neighbors) // 2:,} "
            f"edges it needs up to {needed / 2**30:,.1f} GiB of memory, and this machine has "
            f"{memory_bytes() / 2**30:,.1f} GiB. Set ldg.",
            id="partition-metis-memory",
        )
    if num_parts == 1:
        return np.zeros(num_nodes, np.int32)
    ones = np.ones(len(neighbors), np.int64)
    rows = (ones, neighbors, indptr)
    graph = sparse.csr_array(rows, shape=(num_nodes, num_nodes), copy=True)  # changed in place
    graph.sum_duplicates()
    graph.setdiag(0)  # an edge to itself is never cut
    graph.eliminate_zeros()
    adjacency = pymetis.CSRAdjacency(graph.indptr.astype(np.int64), graph.indices.astype(np.int64))
    _, parts = pymetis.part_graph(num_parts, adjacency=adjacency, eweights=graph.data)
    return np.asarray(parts, np.int32)


def parts_path(folder: Path, node_type: str) -> Path:
    """File of int32 [num_nodes], the part of each node, in the folder of `assign_parts`."""
    return folder / f"{node_type}.npy"


def assign_parts(
    num_nodes: Mapping[str, int],
    folder: Path,
    *,
    edges: Sequence[tuple[str, str, Sequence[Path]]],
    num_parts: int,
    by_metis: bool,
) -> dict[str, Any]:
    """Assigns each node to the part with most of its neighbors, weighted by the remaining capacity.

    With `by_metis`, all start in METIS's parts. Nodes are visited breadth first, along and against
    edges of all types, so that most have neighbors with parts. Parts of each node type are at most
    5 % larger than the mean. Memory is 21 bytes per node, besides METIS; neighbors, 8 bytes per
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
    if by_metis:
        part = _metis_parts(indptr, neighbors, num_parts)
    for _ in range(_PASSES_AFTER_METIS if by_metis else _PASSES):
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
