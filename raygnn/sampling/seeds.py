"""Checks of the nodes that sampling starts from."""

from __future__ import annotations

import numpy as np

from raygnn.errors import DataError
from raygnn.sampling.protocols import GraphStore


def check_seeds(graph: GraphStore, node_type: str, seeds: np.ndarray) -> np.ndarray:
    """Gives seeds as a contiguous int64 array.

    Args:
        seeds: integers [num_seeds], dense ids, may repeat.
    Raises:
        DataError: the graph has no such node type, or a seed is not one of its nodes.
    """
    where = f"seeds of node type {node_type!r} are invalid"
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
