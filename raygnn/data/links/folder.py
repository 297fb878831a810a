"""Files of a link split in the bundle's folder: codes of edges, supervision edges."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from raygnn.data.arrays import create_array, open_array
from raygnn.data.bundle import Bundle
from raygnn.data.cache import build_once
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.links import kernels as link_kernels
from raygnn.data.links.split import (
    LinkSplit,
    LinkTable,
    column_order,
    find_label_edges,
    hash_links,
    hold_disjoint,
    label_table,
    message_table,
    own_splits,
    split_links,
    table_of,
)
from raygnn.data.splits import SPLIT_NAMES

_ANCHORS, _INDPTR, _TARGETS, _TIMES = "anchors.npy", "indptr.npy", "targets.npy", "times.npy"
_MESSAGE_BITS = np.uint8(link_kernels.STAGE_MASK | link_kernels.HELD)


def link_folder(bundle: Bundle, link: LinkSplit) -> Path:
    """The folder of a link split, built by one process of the node on demand.

    Raises:
        DataError: the links cannot be split this way, or the bundle's folder is not writable.
    """
    return build_once(
        bundle.path / "links" / link.fingerprint,
        lambda folder: _build(bundle, link, folder),
        f"the splits of {edge_type_name(link.edge_type)}",
    )


def message_codes(bundle: Bundle, link: LinkSplit, edge_type: EdgeType) -> np.ndarray:
    """Codes of the edges of a type by CSC position; see `raygnn.data.links.kernels`."""
    return open_array(_codes_path(link_folder(bundle, link), edge_type))


def message_types(bundle: Bundle, link: LinkSplit) -> list[EdgeType]:
    """Edge types whose messages a link split restricts: the type itself, and its reverse."""
    if link.edge_type not in bundle.edge_types:
        return []
    reverse = bundle.reverse_of(link.edge_type)
    return [link.edge_type] + ([] if reverse in (None, link.edge_type) else [reverse])


def rows_of(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    anchors, indptr, targets = (open_array(folder / name) for name in (_ANCHORS, _INDPTR, _TARGETS))
    times = folder / _TIMES
    return anchors, indptr, targets, open_array(times) if times.exists() else None


def labelled_positions(folder: Path, split: str) -> np.ndarray:
    return open_array(_positions_path(folder, split))


def _positions_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.npy"


def _codes_path(folder: Path, edge_type: EdgeType) -> Path:
    return folder / "codes" / f"{edge_type_name(edge_type)}.npy"


def _build(bundle: Bundle, link: LinkSplit, folder: Path) -> None:
    work = folder / "work"
    work.mkdir()
    (folder / "codes").mkdir()
    table = label_table(bundle, link) if link.labels else message_table(bundle, link.edge_type)
    codes = split_links(bundle, link, table, work)
    for edge_type in message_types(bundle, link):
        if not link.labels and edge_type == link.edge_type:
            np.save(_codes_path(folder, edge_type), codes)
        else:
            followers = _followers(bundle, link, table, codes, edge_type, work)
            np.save(_codes_path(folder, edge_type), followers)
    if not (link.labels or link.label or link.by_time):
        table, codes = _by_anchor(bundle, link, codes, work)
    for split, name in enumerate(SPLIT_NAMES, start=1):
        if link.label is not None:
            is_seed = (codes >> link_kernels.SUPERVISION_SHIFT & 3) == split
            np.save(_positions_path(folder, name), np.flatnonzero(is_seed))
        elif link.by_time:
            is_chosen = codes >> link_kernels.SUPERVISION_SHIFT == split
            _write_links_by_time(table, is_chosen, folder / name)
        else:
            indptr = _distinct(table, codes, split, folder / name)
            anchors = np.flatnonzero(np.diff(indptr))
            _save_rows(folder / name, anchors, indptr)
            _write_negatives(bundle, link, split, anchors, folder / f"{name}-negatives")
    shutil.rmtree(work)


def _followers(
    bundle: Bundle,
    link: LinkSplit,
    table: LinkTable,
    codes: np.ndarray,
    edge_type: EdgeType,
    work: Path,
) -> np.ndarray:
    csc = bundle.csc(edge_type)
    if not link.labels:
        csr = bundle.csr(link.edge_type)
        if np.array_equal(csr.indptr, csc.indptr) and np.array_equal(csr.indices, csc.indices):
            return codes[csr.e_id] & _MESSAGE_BITS
        if link.rule is not None and link.rule.type == "hash" and link.label is None:
            reverse = message_table(bundle, edge_type)
            followers = hash_links(bundle, link, reverse)
            if link.disjoint_train_ratio:
                hold_disjoint(bundle, link, reverse, followers)
            return followers
    followers = np.zeros(len(csc.indices), np.uint8)
    columns = table.indices
    order = column_order(table, work / "table-order.npy")
    if order is not None:
        columns, codes = columns[order], codes[order]
    is_symmetric = table.row_type == table.column_type
    # Label edges are by anchor, message edges by target, and their reverses by anchor again.
    by_row = link.labels and edge_type != link.edge_type
    link_kernels.look_up_codes(
        csc.indptr,
        csc.indices,
        (table.indptr, columns, codes),
        by_row or is_symmetric,
        not by_row or is_symmetric,
        followers,
    )
    return followers


def _by_anchor(
    bundle: Bundle, link: LinkSplit, codes: np.ndarray, work: Path
) -> tuple[LinkTable, np.ndarray]:
    csr = bundle.csr(link.edge_type)
    csc = message_table(bundle, link.edge_type)
    time = None if csc.time is None else csc.time[csr.e_id]
    table = LinkTable(
        csc.column_type, csc.row_type, csr.indptr, csr.indices, None, time, None, time is None
    )
    codes = codes[csr.e_id]
    order = column_order(table, work / "anchor-order.npy")
    if order is None or time is None:
        return table, codes
    by_anchor = replace(table, indices=csr.indices[order], time=time[order], is_sorted=True)
    return by_anchor, codes[order]


def _write_links_by_time(table: LinkTable, is_chosen: np.ndarray, folder: Path) -> None:
    assert table.time is not None
    chosen = np.flatnonzero(is_chosen)
    anchors = np.searchsorted(table.indptr, chosen, side="right") - 1
    times, targets = table.time[chosen], table.indices[chosen].astype(np.int64)
    order = np.lexsort((targets, times, anchors))
    anchors, times, targets = anchors[order], times[order], targets[order]
    starts_row, is_new = np.ones((2, len(order)), bool)
    starts_row[1:] = (np.diff(anchors) != 0) | (times[1:] != times[:-1])
    is_new[1:] = starts_row[1:] | (np.diff(targets) != 0)
    anchors, times, targets = anchors[is_new], times[is_new], targets[is_new]
    starts = np.flatnonzero(starts_row[is_new])
    folder.mkdir(exist_ok=True)
    np.save(folder / _ANCHORS, anchors[starts])
    np.save(folder / _INDPTR, np.append(starts, len(targets)))
    np.save(folder / _TARGETS, targets)
    np.save(folder / _TIMES, times)


def _distinct(table: LinkTable, codes: np.ndarray, split: int, folder: Path) -> np.ndarray:
    times = np.zeros(0, np.int64) if table.time is None else table.time
    indptr = np.zeros(len(table.indptr), np.int64)
    none = np.zeros(0, np.int64)
    arguments = ((table.indptr, table.indices), codes, split, times, indptr)
    link_kernels.distinct_in_rows(*arguments, none, none.astype(times.dtype))
    num_pairs = int(indptr[-1])
    targets = create_array(folder / _TARGETS, (num_pairs,), np.int64)
    out_times = np.zeros(0, times.dtype)
    if table.time is not None:
        out_times = create_array(folder / _TIMES, (num_pairs,), times.dtype)
    if num_pairs:
        link_kernels.distinct_in_rows(*arguments, targets, out_times)
    return indptr


def _write_negatives(
    bundle: Bundle, link: LinkSplit, split: int, anchors: np.ndarray, folder: Path
) -> None:
    labels = find_label_edges(bundle, link.edge_type, "negative")
    if labels is None:
        return
    table = table_of(labels)
    needs_column = link.rule is None or link.rule.type == "temporal"
    declared = table.split if link.rule is None else table.time
    if needs_column and declared is None:
        # Nothing says when they are known, so they are negatives of every split.
        splits = np.full(len(table.indices), split, np.uint8)
    else:
        splits = own_splits(bundle, link, table)
    is_anchor = np.zeros(len(table.indptr) - 1, bool)
    is_anchor[anchors] = True
    used = np.repeat(is_anchor, np.diff(table.indptr))
    codes = np.where(used, splits << link_kernels.SUPERVISION_SHIFT, 0).astype(np.uint8)
    _save_rows(folder, anchors, _distinct(table, codes, split, folder))


def _save_rows(folder: Path, anchors: np.ndarray, indptr: np.ndarray) -> None:
    np.save(folder / _ANCHORS, anchors)
    np.save(folder / _INDPTR, np.concatenate([indptr[:1], indptr[anchors + 1]]))
