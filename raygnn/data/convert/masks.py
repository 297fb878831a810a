"""The split of converted nodes: an option where one is given, else the masks of the source."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from raygnn.data.convert.split_option import declare_split, with_split
from raygnn.data.tables.columns import SPLIT_NAMES
from raygnn.data.tables.graph_tables import NodeRows
from raygnn.errors import DataError

MASK_NAMES = tuple(f"{name}_mask" for name in SPLIT_NAMES)


def split_nodes(
    nodes: NodeRows,
    masks: Mapping[str, np.ndarray],
    labels: np.ndarray | None,
    split: str | None,
    split_seed: int,
    where: str,
) -> tuple[NodeRows, tuple[str, ...]]:
    """Declares the split asked for, else that of the masks, else none; with a note on it."""
    if split is not None:
        note = ("split masks ignored: --split was given",) if masks else ()
        return declare_split(nodes, split, split_seed, labels), note
    codes = mask_codes(masks, nodes.table.num_rows, where)
    if codes is None:
        return nodes, (
            "no split written: the source has none. Pass --split, or set data.splits in the config",
        )
    return with_split(nodes, codes), ("split taken from the masks of the source",)


def mask_codes(masks: Mapping[str, np.ndarray], num_nodes: int, where: str) -> np.ndarray | None:
    """uint8 codes [num_nodes] of train_mask, val_mask and test_mask; None when there are none.

    Args:
        masks: the masks that exist, by name.
        where: what the masks belong to, for error messages.
    Raises:
        DataError: a mask is not one value a node, or a node is in two splits.
    """
    codes = np.zeros(num_nodes, np.uint8)
    for code, name in enumerate(MASK_NAMES, start=1):
        if name not in masks:
            continue
        mask = masks[name]
        if mask.shape != (num_nodes,):
            raise DataError(
                f"{where}: {name} has shape {mask.shape}, but must have shape ({num_nodes},), one "
                "value a node. Keep one column of it, or make a split with --split."
            )
        mask = mask.astype(bool)
        both = np.flatnonzero(mask & (codes > 0))
        if len(both):
            raise DataError(
                f"{where}: {len(both):,} nodes are in {name} and in an earlier mask, first nodes "
                f"{both[:5].tolist()}. Make the masks disjoint, or make a split with --split."
            )
        codes[mask] = code
    return codes if masks else None
