"""Splits the links of one edge type: the rule, and the code of each edge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raygnn.data.arrays import create_array, summable
from raygnn.data.bundle import Bundle, LabelEdges
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.hashing import hash_ids, splitmix64_array
from raygnn.data.links import kernels as link_kernels
from raygnn.data.splits import has_label, split_bounds, split_by_hash, temporal_codes
from raygnn.errors import DataError

if TYPE_CHECKING:
    from raygnn.config.data_section import HashSplit, TemporalSplit

# Part of the fingerprint of files derived in a bundle's folder.
_VERSION = 1


@dataclass(frozen=True)
class LinkSplit:
    """Training, validation and test links of an edge type.

    Attributes:
        edge_type: (anchor type, relation, target type).
        labels: links are the positive label edges of the type instead of its message edges.
        rule: null uses the split column. `hash` draws each unordered pair of original ids, so that
            an edge, its reverse and parallel edges stay together; `temporal` uses the time column
            of the edges.
        seed: default seed of the rule, and of the disjoint share.
        disjoint_train_ratio: share of the training pairs only for supervision, while the others are
            only for messages; 0 makes every training edge both.
        label: a label column: each edge with a value is supervision by its own split, including
            parallel edges and reverses, and no other edge is. Null makes a link of each pair.
        by_time: a pair is a link again at each of its times, in the split of that time. The links
            are label edges with times whose type carries no messages.
    """

    edge_type: EdgeType
    labels: bool = False
    rule: HashSplit | TemporalSplit | None = None
    seed: int = 0
    disjoint_train_ratio: float = 0.0
    label: str | None = None
    by_time: bool = False

    @property
    def fingerprint(self) -> str:
        """Identifies results of the split in a bundle."""
        rule = None if self.rule is None else self.rule.model_dump(mode="json")
        if rule is not None and rule.get("per", "") is None:
            del rule["per"]  # older folders keep their names
        content = [
            _VERSION,
            self.edge_type,
            self.labels,
            rule,
            self.seed,
            self.disjoint_train_ratio,
        ]
        content += [] if self.label is None else [self.label]  # older folders keep their names
        content += [True] if self.by_time else []
        content += ["hashed ties"] if rule is not None and "per" in rule else []
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class LinkTable:
    """Links by row: the out-edges of anchors, or the in-edges of targets.

    `is_sorted`: edges of a row are in the order of their columns.
    """

    row_type: str
    column_type: str
    indptr: np.ndarray
    indices: np.ndarray
    split: np.ndarray | None
    time: np.ndarray | None
    unit: str | None
    is_sorted: bool


def find_label_edges(bundle: Bundle, edge_type: EdgeType, sign: str) -> LabelEdges | None:
    for labels in bundle.label_edges:
        if (labels.edge_type, labels.sign) == (edge_type, sign):
            return labels
    return None


def label_table(bundle: Bundle, link: LinkSplit) -> LinkTable:
    """The positive label edges, by anchor. Raises a DataError if there are none of the type."""
    labels = find_label_edges(bundle, link.edge_type, "positive")
    if labels is None:
        have = [edge_type_name(e.edge_type) for e in bundle.label_edges if e.sign == "positive"]
        raise DataError(
            f"the graph has no label edges {edge_type_name(link.edge_type)!r}, only "
            f"{have or 'none'}. Name these, or set labels to false. [links-label-edges-missing]"
        )
    return table_of(labels)


def table_of(labels: LabelEdges) -> LinkTable:
    anchor, _, target = labels.edge_type
    return LinkTable(
        anchor,
        target,
        labels.indptr,
        labels.targets,
        labels.split,
        labels.time,
        labels.time_unit,
        is_sorted=True,
    )


def message_table(bundle: Bundle, edge_type: EdgeType) -> LinkTable:
    """The edges of a type, by destination. Raises a DataError if there is no such type."""
    csc = bundle.csc(edge_type)
    columns = bundle.columns(edge_type)
    split, time = (
        bundle.dense(edge_type, name) if name in columns else None for name in ("split", "time")
    )
    unit = columns["time"].unit if "time" in columns else None
    source, _, target = edge_type
    is_sorted = time is None
    return LinkTable(target, source, csc.indptr, csc.indices, split, time, unit, is_sorted)


def split_links(bundle: Bundle, link: LinkSplit, table: LinkTable, folder: Path) -> np.ndarray:
    """The code of every link of the table, uint8 [num_edges], as in `raygnn.data.links.kernels`.

    Raises a DataError if the table lacks a column that the rule needs. `folder`: for temporary
    arrays.
    """
    if link.by_time:
        return own_splits(bundle, link, table) << link_kernels.SUPERVISION_SHIFT
    if link.label is not None:
        splits = _splits_of_labelled(bundle, link, table)
        stages = _resolved(table, splits, folder, earliest=False) & link_kernels.STAGE_MASK
        return stages | splits << link_kernels.SUPERVISION_SHIFT
    if link.rule is not None and link.rule.type == "hash":
        codes = hash_links(bundle, link, table)
        codes |= codes << link_kernels.SUPERVISION_SHIFT
    else:
        splits = own_splits(bundle, link, table)
        codes = _resolved(table, splits, folder, earliest=link.rule is not None)
    if link.disjoint_train_ratio:
        hold_disjoint(bundle, link, table, codes)
    return codes


def _resolved(table: LinkTable, splits: np.ndarray, folder: Path, *, earliest: bool) -> np.ndarray:
    codes = np.zeros_like(splits)
    order = column_order(table, folder / "order.npy")
    columns = table.indices if order is None else table.indices[order]
    ordered = splits if order is None else splits[order]
    is_symmetric = table.row_type == table.column_type
    resolved = codes if order is None else np.zeros_like(codes)
    link_kernels.resolve_pairs(table.indptr, columns, ordered, is_symmetric, earliest, resolved)
    if order is not None:
        codes[order] = resolved
    return codes


def label_values(bundle: Bundle, link: LinkSplit) -> np.ndarray:
    """The label of each edge: [num_edges, ...], in the order of the table."""
    assert link.label is not None
    if not link.labels:
        return bundle.dense(link.edge_type, link.label)
    edges = find_label_edges(bundle, link.edge_type, "positive")
    assert edges is not None
    return bundle.label_column(edges, link.label)


def edge_weights(bundle: Bundle, link: LinkSplit) -> np.ndarray | None:
    """Weights of label edges, as by `summable`; None without a weight column."""
    edges = find_label_edges(bundle, link.edge_type, "positive") if link.labels else None
    return None if edges is None or edges.weight is None else summable(edges.weight)


def _splits_of_labelled(bundle: Bundle, link: LinkSplit, table: LinkTable) -> np.ndarray:
    is_labelled, weights = has_label(label_values(bundle, link)), edge_weights(bundle, link)
    if weights is not None:
        is_labelled &= weights > 0
    splits = own_splits(bundle, link, table, is_labelled)
    return np.where(is_labelled, splits, 0).astype(np.uint8)


def own_splits(
    bundle: Bundle, link: LinkSplit, table: LinkTable, counted: np.ndarray | None = None
) -> np.ndarray:
    """The split of every edge by its own column, time or pair, independently of its pair's other
    edges.

    `counted`: bool mask of the edges whose time quantiles are used; null means all. Raises a
    DataError if the table lacks a column that the rule needs.
    """
    name = edge_type_name(link.edge_type)
    where = "label_edges" if link.labels else "edge_types"
    if link.rule is None:
        if table.split is None:
            raise DataError(
                f"the links of {name} have no split column. Name one under {where}, or set "
                "data.splits to {type: hash, fractions: [0.8, 0.1, 0.1]}. [links-no-split]"
            )
        return table.split
    if link.rule.type == "hash":
        return hash_links(bundle, link, table)
    if table.time is None:
        raise DataError(
            f"the links of {name} cannot be split by time: they have no times. Name a column as "
            f"time under {where} in graph.yaml, or set hash. [links-no-times]"
        )
    if link.rule.per == "anchor":
        return _codes_by_anchor(bundle, link, table)
    return temporal_codes(table.time, counted, table.unit, link.rule)


def _codes_by_anchor(bundle: Bundle, link: LinkSplit, table: LinkTable) -> np.ndarray:
    """Codes by the position of each link among those of its anchor, in the order of time.

    Links of one time are in the order of a hash. In the order of ids, new nodes would be last.
    """
    rule, times = link.rule, table.time
    assert rule is not None and rule.type == "temporal" and rule.quantiles is not None  # noqa: PT018
    assert times is not None
    rows = np.repeat(np.arange(len(table.indptr) - 1), np.diff(table.indptr))
    anchors = rows if link.labels else np.asarray(table.indices)
    row_hashes, column_hashes = _pair_hashes(bundle, table, link.seed)
    hashes = splitmix64_array(row_hashes[rows] + column_hashes[table.indices])
    order = np.lexsort((hashes, times, anchors))
    counts = np.bincount(anchors)
    position = np.empty(len(anchors), np.int64)
    position[order] = np.arange(len(anchors)) - (np.cumsum(counts) - counts)[anchors[order]]
    codes = np.ones(len(anchors), np.uint8)
    for share in rule.quantiles:
        codes += position >= np.ceil(np.round(share * counts, 10))[anchors]
    return codes


def time_unit_of(bundle: Bundle, link: LinkSplit) -> str | None:
    if not link.labels:
        return bundle.columns(link.edge_type)["time"].unit
    edges = find_label_edges(bundle, link.edge_type, "positive")
    return None if edges is None else edges.time_unit


def hash_links(bundle: Bundle, link: LinkSplit, table: LinkTable) -> np.ndarray:
    assert link.rule is not None
    assert link.rule.type == "hash"
    seed = link.seed if link.rule.seed is None else link.rule.seed
    rows, columns = _pair_hashes(bundle, table, seed)
    bounds = split_bounds(link.rule.fractions)
    splits = np.zeros(len(table.indices), np.uint8)
    link_kernels.hash_splits(table.indptr, table.indices, rows, columns, bounds, splits)
    return splits


def hold_disjoint(bundle: Bundle, link: LinkSplit, table: LinkTable, codes: np.ndarray) -> None:
    rows, columns = _pair_hashes(bundle, table, link.seed)
    ratio = link.disjoint_train_ratio
    link_kernels.hold_share(table.indptr, table.indices, rows, columns, ratio, codes)


def column_order(table: LinkTable, path: Path) -> np.ndarray | None:
    """Positions of the edges with each row sorted by column; null if already sorted."""
    if table.is_sorted:
        return None
    order = create_array(path, (len(table.indices),), np.int64)
    link_kernels.sort_rows(table.indptr, table.indices, order)
    return order


def _pair_hashes(bundle: Bundle, table: LinkTable, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rows = node_hashes(bundle.ids(table.row_type), table.row_type, seed)
    if table.row_type == table.column_type:
        return rows, rows
    return rows, node_hashes(bundle.ids(table.column_type), table.column_type, seed)


def node_hashes(ids: pa.Array, node_type: str, seed: int) -> np.ndarray:
    """uint64 hashes of (seed, node type, original id); user 5 and item 5 differ."""
    key = int(hash_ids(pa.array([node_type]), 0)[0])
    return splitmix64_array(hash_ids(ids, seed), key)


def pair_split(
    source: tuple[str, pa.Array],
    target: tuple[str, pa.Array],
    fractions: Sequence[float],
    seed: int,
) -> np.ndarray:
    """Splits by the hash of (seed, unordered pair of ids), as `data.splits` of type hash.

    `source`, `target`: node type and original ids of an end of each edge. Returns uint8 codes.
    Raises a DataError if the fractions are not shares.
    """
    one, other = (node_hashes(ids, node_type, seed) for node_type, ids in (source, target))
    hashed = splitmix64_array(splitmix64_array(np.minimum(one, other)) + np.maximum(one, other))
    return split_by_hash(hashed, fractions)
