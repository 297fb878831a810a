"""Edge lists of one node type made undirected: both directions, no repeats, no self-loops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class UndirectedEdges:
    """Both directions of every edge, sorted by (source, target).

    Attributes:
        entry: for each edge the input entry it stands for (the reversed one where only that was
            given), to gather weights and the like with.
        note: what was changed, for the user.
    """

    source: np.ndarray
    target: np.ndarray
    entry: np.ndarray
    note: str


def undirected_edges(source: np.ndarray, target: np.ndarray, num_nodes: int) -> UndirectedEdges:
    """Symmetrises entries between nodes 0..num_nodes-1.

    Args:
        source: int64 [num_entries].
        target: int64 [num_entries].
    """
    kept = np.flatnonzero(source != target)
    forward = source[kept] * num_nodes + target[kept]
    backward = target[kept] * num_nodes + source[kept]
    num_distinct = len(np.unique(forward))
    # unique takes the first of equal keys: an entry in the wanted direction before a reversed one
    keys, first = np.unique(np.concatenate([forward, backward]), return_index=True)
    note = (
        f"made undirected: {len(source):,} entries became {len(keys):,} directed edges "
        f"({len(source) - len(kept):,} self-loops and {len(kept) - num_distinct:,} repeated "
        f"entries dropped, {len(keys) - num_distinct:,} missing reverse directions added)"
    )
    entry = kept[first % max(1, len(kept))]
    return UndirectedEdges(keys // num_nodes, keys % num_nodes, entry, note)
