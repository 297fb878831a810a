"""Neighbor sampling as its definition says it, in plain Python: what the kernels must equal."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import numpy as np

from raygnn.data.edge_types import EdgeType

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15

# neighbors and e_id of each node's edges, by edge type and node
Adjacency = Mapping[EdgeType, list[list[tuple[int, int]]]]


def splitmix64(value: int) -> int:
    z = (value + GAMMA) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def chain(*parts: int) -> int:
    key = 0
    for part in parts:
        key = splitmix64(key ^ (part & MASK))
    return key


def fnv1a(text: str) -> int:
    key = 0xCBF29CE484222325
    for byte in text.encode():
        key = ((key ^ byte) * 0x100000001B3) & MASK
    return key


def batch_key(seed: int, split: str, epoch: int, index: int) -> int:
    return chain(1, seed, fnv1a(split), epoch, index)


def draw(key: int, hop: int, edge_type: EdgeType, node: int, number: int, bound: int) -> int:
    base = splitmix64(chain(key, fnv1a("__".join(edge_type)), hop) ^ node)
    return (splitmix64((base + number * GAMMA) & MASK) * bound) >> 64


def pick(degree: int, fanout: int, key: int, hop: int, edge_type: EdgeType, node: int) -> list[int]:
    """Places among a node's edges."""
    if fanout == -1 or degree <= fanout:
        return list(range(degree))
    chosen: list[int] = []
    for j in range(fanout):
        last = degree - fanout + j
        place = draw(key, hop, edge_type, node, j, last + 1)
        chosen.append(last if place in chosen else place)
    return chosen


def sample(
    adjacency: Adjacency,
    ends: Mapping[EdgeType, tuple[str, str]],
    seeds: Mapping[str, list[int]],
    fanouts: Mapping[EdgeType, list[int]],
    key: int,
) -> dict[str, dict]:
    """A subgraph as lists.

    Args:
        ends: types of the neighbors and of the nodes that take them.
    """
    node: dict[str, list[int]] = {t: [] for pair in ends.values() for t in pair}
    node.update({t: list(dict.fromkeys(ids)) for t, ids in seeds.items()})
    frontier = {t: list(nodes) for t, nodes in node.items()}
    counts = {t: [len(nodes)] for t, nodes in node.items()}
    edges: dict[EdgeType, list[tuple[int, int, int]]] = {et: [] for et in fanouts}
    edge_counts: dict[EdgeType, list[int]] = {et: [] for et in fanouts}
    for hop in range(len(next(iter(fanouts.values())))):
        before = {t: len(nodes) for t, nodes in node.items()}
        for edge_type in sorted(fanouts):
            neighbor_type, taker_type = ends[edge_type]
            num_before = len(edges[edge_type])
            for taker in frontier[taker_type]:
                own = adjacency[edge_type][taker]
                fanout = fanouts[edge_type][hop]
                for place in pick(len(own), fanout, key, hop, edge_type, taker):
                    neighbor, e_id = own[place]
                    if neighbor not in node[neighbor_type]:
                        node[neighbor_type].append(neighbor)
                    row = node[neighbor_type].index(neighbor)
                    edges[edge_type].append((row, node[taker_type].index(taker), e_id))
            edge_counts[edge_type].append(len(edges[edge_type]) - num_before)
        frontier = {t: nodes[before[t] :] for t, nodes in node.items()}
        for node_type, nodes in frontier.items():
            counts[node_type].append(len(nodes))
    return {"node": node, "edges": edges, "num_nodes": counts, "num_edges": edge_counts}


def check_law(counts: np.ndarray, expected: np.ndarray | float, spread: float = 1.0) -> None:
    """Chi-square test of counts, of which none is where none is expected.

    Args:
        spread: their variance by that of independent draws.
    """
    expected = np.broadcast_to(np.asarray(expected, float), counts.shape)
    possible = expected > 0
    assert not counts[~possible].any()
    chi2 = ((counts - expected)[possible] ** 2 / expected[possible]).sum() / spread
    dof = possible.sum() - 1
    assert abs(chi2 - dof) < 4 * np.sqrt(2 * dof)


def law_of_pairs(weights: np.ndarray) -> np.ndarray:
    """[n, n], above the diagonal: probabilities of pairs drawn one after the other by weight."""
    law, pairs = weights / weights.sum(), np.zeros((len(weights),) * 2)
    for a, b in permutations(np.flatnonzero(law), 2):
        pairs[min(a, b), max(a, b)] += law[a] * law[b] / (1 - law[a])
    return pairs
