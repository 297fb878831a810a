"""Checks of the nodes that sampling starts from, and of the pairs that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import DataError
from raygnn.sampling.exclusion import Exclusion
from raygnn.sampling.protocols import GraphStore


def check_seeds(graph: GraphStore, node_type: str, seeds: np.ndarray) -> np.ndarray:
    """Gives seeds as a contiguous int64 array.

    Args:
        seeds: integers [num_seeds], dense ids, may repeat.
    Raises:
        DataError: the graph has no such node type, or a seed is not one of its nodes.
    """
    return _check_ids(graph, node_type, seeds, f"seeds of node type {node_type!r} are invalid")


def exclusions(
    graph: GraphStore, pairs: Mapping[EdgeType, np.ndarray]
) -> dict[EdgeType, Exclusion]:
    """Gives excluded pairs by the node that would take the edge.

    Args:
        pairs: by edge type, integers [2, num_pairs], (source, destination) dense ids.
    Raises:
        DataError: the graph has no such edge type, or an end is not one of its nodes.
    """
    found = {}
    for edge_type, both in pairs.items():
        where = f"excluded pairs of {edge_type_name(edge_type)} are invalid"
        if edge_type not in graph.edge_types:
            known = [edge_type_name(known) for known in graph.edge_types]
            raise DataError(f"{where}: the graph has {known}. Use one of these.")
        if both.ndim != 2 or len(both) != 2:
            raise DataError(
                f"{where}: they are of shape {list(both.shape)}. Give [2, num_pairs], sources and "
                "destinations."
            )
        source = _check_ids(graph, edge_type[0], both[0], where)
        target = _check_ids(graph, edge_type[2], both[1], where)
        destination, neighbor = (target, source) if graph.direction == "in" else (source, target)
        found[edge_type] = Exclusion.of(destination, neighbor)
    return found


def _check_ids(graph: GraphStore, node_type: str, seeds: np.ndarray, where: str) -> np.ndarray:
    if node_type not in graph.node_types:
        raise DataError(f"{where}: the graph has {list(graph.node_types)}. Use one of these.")
    if seeds.ndim != 1 or (seeds.dtype.kind not in "iu" and seeds.size):
        raise DataError(
            f"{where}: they are {seeds.dtype} of shape {list(seeds.shape)}. Give a list of dense "
            "ids; of a mask, np.flatnonzero(mask)."
        )
    ids = np.ascontiguousarray(seeds, np.int64)
    num_nodes = graph.num_nodes(node_type)
    outside = ids[(ids < 0) | (ids >= num_nodes)]
    if len(outside):
        raise DataError(
            f"{where}: {len(outside)} of {len(ids)} are outside of [0, {num_nodes}), such as "
            f"{outside[:5].tolist()}. Give dense ids."
        )
    return ids
