"""Optional steps of converters: splits, both directions, largest component, normalized rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from raygnn.data.splits import SPLIT_NAMES, hash_split, per_class_split
from raygnn.data.tables.columns import Features, SparseRows, split_column
from raygnn.data.tables.graph_tables import NodeRows
from raygnn.errors import ConfigError, DataError


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


SPLIT_HELP = "hash:TRAIN,VAL,TEST (shares), per-class:TRAIN,VAL (nodes of each class) or none"
_FORMS = "hash:0.8,0.1,0.1 (shares), per-class:20,30 (train and val nodes of each class) or none"


@dataclass(frozen=True)
class SplitOption:
    """A parsed split option: `kind` is hash (three shares), per-class (two counts) or none."""

    kind: str
    numbers: tuple[float, ...]


def parse_split(text: str) -> SplitOption:
    """Parses a split option. Raises a ConfigError for other forms."""
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
            f"split={text!r} is invalid: unknown form. Set {_FORMS}.", id="split-option"
        )
    return SplitOption(kind, numbers)


def declare_split(nodes: NodeRows, split: str, seed: int, labels: np.ndarray | None) -> NodeRows:
    """Adds a split column that the manifest declares; a split of `none` adds nothing.

    Args:
        split: the option's text, see parse_split.
        labels: classes [n], required by per-class; negative is unlabelled.
    Raises:
        ConfigError: the option is malformed.
        DataError: these nodes cannot be split this way.
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
    """Declares the requested split, else that of the masks, else none; with a note on it."""
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
                f"{where}: {name} has shape {mask.shape}, but must have shape ({num_nodes},), "
                f"one value per node. Keep one column of it, or make a split with --split.",
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
