"""Approximate personalised PageRank of single nodes, by forward push."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def push_all(indptr, indices, sources, settings, slots, neighbors, weights, counts):  # type: ignore[no-untyped-def]
    """Finds the nodes of the largest personalised PageRank of each source, but itself.

    A walk from a source steps to a neighbor, each edge as likely as any other, and starts again
    with probability `alpha`, or where a node has no edges. PageRank is how often it is where.
    The residual of a node is pushed on while it is above `epsilon` for each of its edges. On an
    undirected graph what is found of a node then falls short by at most that.

    Args:
        indptr: int64 [num_nodes + 1], `indices`: [num_edges], where a walk steps to.
        settings: (top_k, alpha, epsilon).
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
    found, residual = np.empty(most, np.float64), np.empty(most, np.float64)
    is_waiting = np.empty(most, np.bool_)
    queue = np.empty(most, np.int64)
    local = (nodes, found, residual, is_waiting, queue)
    for i in range(len(sources)):
        num_nodes = _push(indptr, indices, sources[i], settings, slots, local)
        # What a residual leaves where it is, without being pushed on.
        found[:num_nodes] += alpha * residual[:num_nodes]
        others = slice(1, num_nodes)
        counts[i] = _keep_largest(nodes[others], found[others], neighbors[i], weights[i])
        for j in range(num_nodes):
            slots[nodes[j]] = 0


@njit(nogil=True, cache=True)
def _push(indptr, indices, source, settings, slots, local):  # type: ignore[no-untyped-def]
    """Fills nodes, the source first, and their PageRank; returns how many there are."""
    _, alpha, epsilon = settings
    nodes, found, residual, is_waiting, queue = local
    nodes[0], found[0], residual[0], is_waiting[0], queue[0] = source, 0.0, 1.0, True, 0
    slots[source] = 1
    num_nodes, head, num_waiting = 1, 0, 1
    while num_waiting > 0:
        slot = queue[head]
        head = head + 1 if head + 1 < len(queue) else 0
        num_waiting -= 1
        is_waiting[slot] = False
        mass = residual[slot]
        residual[slot] = 0.0
        found[slot] += alpha * mass
        first, last = indptr[nodes[slot]], indptr[nodes[slot] + 1]
        is_end = first == last
        share = (1.0 - alpha) * mass / (1 if is_end else last - first)
        for edge in range(first, first + 1 if is_end else last):
            node = source if is_end else np.int64(indices[edge])
            to = slots[node] - 1
            if to < 0:
                to = num_nodes
                nodes[to], found[to], residual[to], is_waiting[to] = node, 0.0, 0.0, False
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
def _keep_largest(nodes, found, neighbors, weights):  # type: ignore[no-untyped-def]
    """Keeps those of the most PageRank, ascending, of equal ones the lower; returns how many."""
    kept = np.arange(len(nodes))
    if len(nodes) > len(neighbors):
        least = np.partition(found, len(nodes) - len(neighbors))[len(nodes) - len(neighbors)]
        above, equal = np.flatnonzero(found > least), np.flatnonzero(found == least)
        equal = equal[np.argsort(nodes[equal])][: len(neighbors) - len(above)]
        kept = np.concatenate((above, equal))
    kept = kept[np.argsort(nodes[kept])]
    for j in range(len(kept)):
        neighbors[j], weights[j] = nodes[kept[j]], found[kept[j]]
    return len(kept)
