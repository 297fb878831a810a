"""Optional steps of converters: splits, both directions, largest component, normalized rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from raygnn.data.splits import SPLIT_NAMES, hash_split
from raygnn.data.tables.columns import Features, SparseRows, split_column
from raygnn.data.tables.graph_tables import NodeRows
from raygnn.errors import DataError


def largest_component(source: np.ndarray, target: np.ndarray, num_nodes: int) -> np.ndarray:
    """Nodes of the largest weakly connected component, int64 ascending; the first of equal ones.

    `source`, `target`: int64 [num_edges], in [0, num_nodes).
    """
    links = sparse.coo_matrix((np.ones(len(source), bool), (source, target)), (num_nodes,) * 2)
    _, component = csgraph.connected_components(links, directed=False)
    return np.flatnonzero(component == np.bincount(component, minlength=1).argmax())


@dataclass(frozen=True)
class UndirectedEdges:
    """Both directions of every edge, sorted by (source, target).

    Attributes:
        entry: input entry of each edge (the reversed one if only that exists), to gather weights.
        note: changes, for the user.
    """

    source: np.ndarray
    target: np.ndarray
    entry: np.ndarray
    note: str


def undirected_edges(source: np.ndarray, target: np.ndarray, num_nodes: int) -> UndirectedEdges:
    """Makes entries between nodes 0..num_nodes-1, int64 [num_entries], symmetric."""
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


def normalize_rows(features: Features) -> Features:
    if isinstance(features, SparseRows):
        lengths = np.diff(features.indptr)
        rows = np.repeat(np.arange(features.num_rows), lengths)
        values = np.ones(len(rows), np.float32) if features.values is None else features.values
        sums = np.bincount(rows, weights=values, minlength=features.num_rows)
        return replace(features, values=(values / _nonzero(sums)[rows]).astype(np.float32))
    rows_2d = features.reshape(len(features), -1).astype(np.float64)
    normalized = rows_2d / _nonzero(rows_2d.sum(axis=1, keepdims=True))
    return normalized.reshape(features.shape).astype(np.float32)


def _nonzero(sums: np.ndarray) -> np.ndarray:
    return np.where(sums == 0, 1.0, sums)


def with_split(nodes: NodeRows, codes: np.ndarray) -> NodeRows:
    table = nodes.table.append_column("split", split_column(codes))
    return replace(nodes, table=table, split="split")


def with_hash_split(nodes: NodeRows, seed: int, *shares: float) -> NodeRows:
    """Adds a split column that the manifest declares, by a hash of (seed, id)."""
    ids = nodes.table.column(nodes.id).combine_chunks()
    return with_split(nodes, hash_split(ids, shares, seed))


MASK_NAMES = tuple(f"{name}_mask" for name in SPLIT_NAMES)


def split_nodes(
    nodes: NodeRows, masks: Mapping[str, np.ndarray], where: str
) -> tuple[NodeRows, tuple[str, ...]]:
    """Declares the split of the masks, if there are any; with a note on it."""
    codes = mask_codes(masks, nodes.table.num_rows, where)
    if codes is None:
        return nodes, ("no split written: the source has none. Set data.splits in the config",)
    return with_split(nodes, codes), ("split taken from the masks of the source",)


def mask_codes(masks: Mapping[str, np.ndarray], num_nodes: int, where: str) -> np.ndarray | None:
    """uint8 codes [num_nodes] of train_mask, val_mask and test_mask; None without masks.

    Args:
        masks: existing masks by name.
        where: owner of the masks, for messages.
    Raises:
        DataError: a mask is not one value per node, or a node is in two splits.
    """
    codes = np.zeros(num_nodes, np.uint8)
    for code, name in enumerate(MASK_NAMES, start=1):
        if name not in masks:
            continue
        mask = masks[name]
        if mask.shape != (num_nodes,):
            raise DataError(
                f"{where}: {name} has shape {mask.shape}, but needs ({num_nodes},). Keep one "
                "column of it. [prepare-mask-shape]"
            )
        mask = mask.astype(bool)
        both = np.flatnonzero(mask & (codes > 0))
        if len(both):
            raise DataError(
                f"{where}: {len(both):,} nodes are in {name} and an earlier mask, first "
                f"{both[:5].tolist()}. Make them disjoint. [prepare-masks-overlap]"
            )
        codes[mask] = code
    return codes if masks else None
