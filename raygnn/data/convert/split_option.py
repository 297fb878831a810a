"""The split of converted nodes: an option where one is given, else the masks of the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from raygnn.data.splits import SPLIT_NAMES, hash_split, per_class_split
from raygnn.data.tables.columns import split_column
from raygnn.data.tables.graph_tables import NodeRows
from raygnn.errors import ConfigError, DataError

SPLIT_HELP = "hash:TRAIN,VAL,TEST (shares), per-class:TRAIN,VAL (nodes of each class) or none"
_FORMS = "hash:0.8,0.1,0.1 (shares), per-class:20,30 (train and val nodes of each class) or none"


@dataclass(frozen=True)
class SplitOption:
    """A parsed split option: `kind` is hash (three shares), per-class (two counts) or none."""

    kind: str
    numbers: tuple[float, ...]


def parse_split(text: str) -> SplitOption:
    """Reads a split option.

    Raises:
        ConfigError: the text has none of the forms.
    """
    kind, _, rest = text.partition(":")
    if text == "none":
        return SplitOption(text, ())
    try:
        numbers = tuple(float(part) for part in rest.split(","))
    except ValueError:
        numbers = ()
    is_hash = kind == "hash" and len(numbers) == 3
    is_per_class = kind == "per-class" and len(numbers) == 2 and all(n == int(n) for n in numbers)
    if not is_hash and not is_per_class:
        raise ConfigError(
            f"split={text!r} is invalid: it has none of the known forms. Set {_FORMS}.",
            id="split-option",
        )
    return SplitOption(kind, numbers)


def declare_split(nodes: NodeRows, split: str, seed: int, labels: np.ndarray | None) -> NodeRows:
    """Adds a split column that the manifest declares; a split of `none` adds nothing.

    Args:
        split: the option's text, see parse_split.
        labels: classes [n], needed by per-class; negative is unlabelled.
    Raises:
        ConfigError: the option is malformed.
        DataError: the split cannot be made of these nodes.
    """
    option = parse_split(split)
    if option.kind == "none":
        return nodes
    ids = nodes.table.column(nodes.id).combine_chunks()
    if option.kind == "hash":
        codes = hash_split(ids, option.numbers, seed)
    elif labels is None:
        raise DataError(
            f"split={split!r} is invalid: the nodes have no labels. Use hash:0.8,0.1,0.1 instead.",
            id="split-no-labels",
        )
    else:
        train, val = (int(number) for number in option.numbers)
        codes = per_class_split(ids, labels, train, val, seed)
    return with_split(nodes, codes)


def with_split(nodes: NodeRows, codes: np.ndarray) -> NodeRows:
    """Adds split codes (0 none, 1 train, 2 val, 3 test) as the declared column `split`."""
    table = nodes.table.append_column("split", split_column(codes))
    return replace(nodes, table=table, split="split")


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
                "value a node. Keep one column of it, or make a split with --split.",
                id="prepare-mask-shape",
            )
        mask = mask.astype(bool)
        both = np.flatnonzero(mask & (codes > 0))
        if len(both):
            raise DataError(
                f"{where}: {len(both):,} nodes are in {name} and in an earlier mask, first nodes "
                f"{both[:5].tolist()}. Make the masks disjoint, or make a split with --split.",
                id="prepare-masks-overlap",
            )
        codes[mask] = code
    return codes if masks else None
