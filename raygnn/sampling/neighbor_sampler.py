"""Multi-hop neighbor sampling over any graph store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from raygnn.data.edge_types import EdgeType, parse_edge_type
from raygnn.sampling import kernels
from raygnn.sampling.rng import hop_key
from raygnn.sampling.stores import GraphStore, check_fanouts
from raygnn.sampling.subgraph import SampledSubgraph


class NeighborSampler:
    """Samples neighborhoods hop by hop; fanouts[0] is the hop next to the seeds."""

    def __init__(
        self,
        graph: GraphStore,
        fanouts: Sequence[int] | Mapping[str, Sequence[int]],
        *,
        replace: bool = False,
    ) -> None:
        self.graph = graph
        self.replace = replace
        if isinstance(fanouts, Mapping):
            by_type = {parse_edge_type(name): list(f) for name, f in fanouts.items()}
            check_fanouts(by_type, graph.edge_types)
        else:
            by_type = {et: list(fanouts) for et in graph.edge_types}
        self.fanouts: dict[EdgeType, list[int]] = by_type
        self.num_hops = max(len(f) for f in by_type.values())

    def sample(self, node_type: str, seeds: np.ndarray, key: int) -> SampledSubgraph:
        """Samples the neighborhood of distinct seeds of one type."""
        (edge_type,) = self.graph.edge_types
        fanouts = self.fanouts[edge_type]
        nodes, slots = seeds.astype(np.int64), _new_slots(seeds)
        rows, cols, edges, node_counts = [], [], [], [len(seeds)]
        first = 0
        for hop, fanout in enumerate(fanouts):
            frontier = nodes[first:]
            picks = self.graph.pick(
                edge_type, frontier, fanout, self.replace, hop_key(key, hop, 0)
            )
            num_edges, before = len(picks.neighbors), len(nodes)
            nodes, slots = _reserve(nodes, slots, num_edges)
            local, col = np.empty(num_edges, np.int64), np.empty(num_edges, np.int64)
            total = kernels.relabel(slots, nodes, before, picks.neighbors, local)
            kernels.repeat(picks.offsets, first, col)
            nodes = nodes[:total]
            rows.append(local)
            cols.append(col)
            edges.append(picks.e_id)
            node_counts.append(total - before)
            first = before
        return SampledSubgraph(
            node={node_type: nodes},
            row={edge_type: np.concatenate(rows)},
            col={edge_type: np.concatenate(cols)},
            edge={edge_type: np.concatenate(edges)},
            num_sampled_nodes={node_type: node_counts},
            num_sampled_edges={edge_type: [len(r) for r in rows]},
        )


def _new_slots(seeds: np.ndarray) -> np.ndarray:
    slots = np.zeros(1 << max(4, (4 * len(seeds)).bit_length()), np.int32)
    kernels.relabel(slots, seeds.copy(), 0, seeds, np.empty(len(seeds), np.int64))
    return slots


def _reserve(
    nodes: np.ndarray, slots: np.ndarray, num_more: int
) -> tuple[np.ndarray, np.ndarray]:
    room = np.empty(len(nodes) + num_more, np.int64)
    room[: len(nodes)] = nodes
    if len(slots) < 2 * len(room):
        slots = np.zeros(1 << (2 * len(room)).bit_length(), np.int32)
        kernels.relabel(slots, nodes.copy(), 0, nodes, np.empty(len(nodes), np.int64))
    return room, slots
