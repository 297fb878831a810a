"""A bundle whose edges come from the nodes of highest personalized PageRank."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from raygnn.config import Config
from raygnn.config.loader_section import PprSampling
from raygnn.console import say
from raygnn.data.arrays import create_array, open_array
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import INDICES, INDPTR, ColumnInfo, column_path
from raygnn.data.cache import build_once
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import DataError

#: The column of the edges that holds the PageRank of the neighbor, over the node's mean.
PAGERANK = "ppr"
_FOLDER = "ppr"
_VERSION = 1  # of the cached graph; changes when the same settings give other edges
_SOURCES_AT_A_TIME = 16_384


def _name(settings: PprSampling) -> str:
    return f"{settings.top_k}-{settings.alpha!r}-{settings.epsilon!r}-v{_VERSION}"


def pagerank_graph(
    bundle: Bundle, settings: PprSampling, progress: Callable[[str], None] = lambda line: None
) -> Bundle:
    """Graph in which each node has in-edges from its nodes of highest personalized PageRank.

    Walks go against the edges, from a node to its message sources, and parallel edges count
    separately. A node is not its own neighbor. The edge column `ppr` is the neighbor's PageRank
    over the mean of the node's neighbors, so that factors on messages are 1 on average, minus the
    residual of forward push. Made once per node, on demand, stored next to the bundle, and mapped.

    Raises:
        DataError: the graph has several types of nodes or edges.
        ResourceError: the edges cannot be stored.

    Source: PPRGo, arXiv:2007.01570; GDC, arXiv:1911.05485.
    """
    if len(bundle.node_types) != 1 or len(bundle.edge_types) != 1:
        shown = [edge_type_name(edge_type) for edge_type in bundle.edge_types]
        raise DataError(
            "sampling.ppr is invalid: walks need one edge type within one node type, and the graph "
            f"has {bundle.node_types} and {shown}. Leave it out. [sampling-ppr-types]"
        )
    (edge_type,) = bundle.edge_types

    def build(folder: Path) -> None:
        progress(f"computing personalized PageRank of {bundle.num_nodes(edge_type[0]):,} nodes")
        _build(bundle, edge_type, settings, folder)

    folder = build_once(
        bundle._derived / _FOLDER / f"{edge_type_name(edge_type)}.{_name(settings)}",
        build,
        "personalised PageRank",
    )
    return _PagerankGraph(bundle, settings, folder)


class _PagerankGraph(Bundle):
    def __init__(self, bundle: Bundle, settings: PprSampling, folder: Path) -> None:
        self._whole, self._settings, self._edge_folder = bundle, settings, folder
        (edge,) = bundle._edges.values()
        info = ColumnInfo(PAGERANK, "weight", "float32", ())
        num_edges = int(open_array(folder / INDPTR)[-1])
        made = replace(edge, num_edges=num_edges, directed=True, columns=(info,), reverse=None)
        record = replace(bundle._record, edges=(made,))
        super().__init__(bundle.path, record)
        self._derived = folder

    def __reduce__(self) -> tuple[Callable[..., Bundle], tuple[Any, ...]]:
        return pagerank_graph, (self._whole, self._settings)

    @property
    def fingerprint(self) -> str:
        return f"{self._whole.fingerprint}.{_name(self._settings)}"

    def of_types(self, node_types: Sequence[str], edge_types: Sequence[EdgeType]) -> Bundle:
        whole = self._whole.of_types(node_types, edge_types)
        return _PagerankGraph(whole, self._settings, self._edge_folder)

    def _folder(self, type_: str | EdgeType) -> Path:
        return super()._folder(type_) if isinstance(type_, str) else self._edge_folder


def _build(bundle: Bundle, edge_type: EdgeType, settings: PprSampling, folder: Path) -> None:
    csc, num_nodes = bundle.csc(edge_type), bundle.num_nodes(edge_type[0])
    arguments = (settings.top_k, settings.alpha, settings.epsilon)

    def ranked(sources: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        neighbors = np.empty((len(sources), settings.top_k), csc.indices.dtype)
        weights = np.zeros(neighbors.shape, np.float32)
        counts = np.empty(len(sources), np.int64)
        slots = np.zeros(num_nodes, np.int32)
        push_all(csc.indptr, csc.indices, sources, arguments, slots, neighbors, weights, counts)
        is_filled = np.arange(settings.top_k) < counts[:, None]
        mean = weights.sum(1) / np.maximum(counts, 1)
        relative = weights / np.where(counts, mean, 1)[:, None]
        return counts, neighbors[is_filled], relative[is_filled].astype(np.float32)

    pieces = [
        np.arange(first, min(first + _SOURCES_AT_A_TIME, num_nodes))
        for first in range(0, num_nodes, _SOURCES_AT_A_TIME)
    ]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        top = list(pool.map(ranked, pieces))
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.concatenate([np.empty(0, np.int64), *(part[0] for part in top)]), out=indptr[1:])
    num_edges = int(indptr[-1])
    create_array(folder / INDPTR, indptr.shape, np.int64)[:] = indptr
    for path, number, dtype in (
        (folder / INDICES, 1, csc.indices.dtype),
        (column_path(folder, PAGERANK), 2, np.float32),
    ):
        out = create_array(path, (num_edges,), dtype)
        for part, start in zip(top, indptr[:-1:_SOURCES_AT_A_TIME], strict=True):
            out[start : start + len(part[number])] = part[number]


def neighborhood_graph(config: Config, bundle: Bundle) -> Bundle:
    """The graph of neighborhoods: the bundle, or its edges by personalized PageRank. Raises as
    `pagerank_graph`.
    """
    settings = config.sampling.ppr
    return bundle if settings is None else pagerank_graph(bundle, settings, say)


@njit(nogil=True, cache=True)
def push_all(indptr, indices, sources, settings, slots, neighbors, weights, counts):  # type: ignore[no-untyped-def]
    """Finds the nodes of the highest personalized PageRank of each source, except itself.

    A walk from a source follows each edge with equal probability, and restarts with probability
    `alpha`, or at a node without edges. PageRank is its distribution. A node's residual is pushed
    while it is above `epsilon` per edge. On an undirected graph, results fall short by at most
    that.

    Args:
        indptr: int64 [num_nodes + 1], `indices`: [num_edges], steps of a walk.
        slots: int32 zeros [num_nodes], left as zeros.
        neighbors: [num_sources, top_k], filled with `counts` nodes of each source, ascending.
        weights: float32 [num_sources, top_k], filled with their PageRank.
        counts: int64 [num_sources], filled.

    Source: Andersen, Chung and Lang, Local Graph Partitioning using PageRank Vectors, 2006.
    """
    _, alpha, epsilon = settings
    widest = np.int64(0)
    for i in range(len(sources)):
        widest = max(widest, indptr[sources[i] + 1] - indptr[sources[i]])
    # A first push goes along all edges; any other pays alpha * epsilon of 1 for each edge.
    most = np.int64(min(len(slots), 1.0 / (alpha * epsilon) + widest + 2.0))
    nodes = np.empty(most, np.int64)
    scores, residual = np.empty(most, np.float64), np.empty(most, np.float64)
    is_waiting = np.empty(most, np.bool_)
    queue = np.empty(most, np.int64)
    local = (nodes, scores, residual, is_waiting, queue)
    for i in range(len(sources)):
        num_nodes = _push(indptr, indices, sources[i], settings, slots, local)
        # Mass that stays at the node.
        scores[:num_nodes] += alpha * residual[:num_nodes]
        others = slice(1, num_nodes)
        counts[i] = _keep_largest(nodes[others], scores[others], neighbors[i], weights[i])
        for j in range(num_nodes):
            slots[nodes[j]] = 0


@njit(nogil=True, cache=True)
def _push(indptr, indices, source, settings, slots, local):  # type: ignore[no-untyped-def]
    _, alpha, epsilon = settings
    nodes, scores, residual, is_waiting, queue = local
    nodes[0], scores[0], residual[0], is_waiting[0], queue[0] = source, 0.0, 1.0, True, 0
    slots[source] = 1
    num_nodes, head, num_waiting = 1, 0, 1
    while num_waiting > 0:
        slot = queue[head]
        head = head + 1 if head + 1 < len(queue) else 0
        num_waiting -= 1
        is_waiting[slot] = False
        mass = residual[slot]
        residual[slot] = 0.0
        scores[slot] += alpha * mass
        first, last = indptr[nodes[slot]], indptr[nodes[slot] + 1]
        is_end = first == last
        share = (1.0 - alpha) * mass / (1 if is_end else last - first)
        for edge in range(first, first + 1 if is_end else last):
            node = source if is_end else np.int64(indices[edge])
            to = slots[node] - 1
            if to < 0:
                to = num_nodes
                nodes[to], scores[to], residual[to], is_waiting[to] = node, 0.0, 0.0, False
                num_nodes += 1
                slots[node] = num_nodes
            residual[to] += share
            degree = max(indptr[node + 1] - indptr[node], 1)
            if not is_waiting[to] and residual[to] > epsilon * degree:
                is_waiting[to] = True
                tail = head + num_waiting
                queue[tail if tail < len(queue) else tail - len(queue)] = to
                num_waiting += 1
    return num_nodes


@njit(nogil=True, cache=True)
def _keep_largest(nodes, scores, neighbors, weights):  # type: ignore[no-untyped-def]
    largest = np.arange(len(nodes))
    if len(nodes) > len(neighbors):
        least = np.partition(scores, len(nodes) - len(neighbors))[len(nodes) - len(neighbors)]
        above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
        equal = equal[np.argsort(nodes[equal])][: len(neighbors) - len(above)]
        largest = np.concatenate((above, equal))
    largest = largest[np.argsort(nodes[largest])]
    for j in range(len(largest)):
        neighbors[j], weights[j] = nodes[largest[j]], scores[largest[j]]
    return len(largest)
