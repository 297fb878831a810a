"""Two npz layouts: adj_*, attr_*, labels, masks; and edges, node_features, node_labels, *_masks."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raygnn.data.filesystem import naming_missing, open_fs, redact
from raygnn.data.tables import clean_up
from raygnn.data.tables.columns import Features, SparseRows
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows
from raygnn.errors import DataError

_CSR_PARTS = ("data", "indices", "indptr", "shape")
_FILE_SPLITS = ("train", "valid", "test")
_WANTED = (
    *(f"adj_{part}" for part in _CSR_PARTS),
    *(f"attr_{part}" for part in _CSR_PARTS),
    "attr_matrix",
    "labels",
    *clean_up.MASK_NAMES,
    "edges",
    "node_features",
    "node_labels",
    *(f"{name}s" for name in clean_up.MASK_NAMES),
)


def npz_tables(
    uri: str,
    directed: bool = False,
    normalize: bool = False,
    is_largest_component: bool = False,
    split_index: int | None = None,
    split_file: str | None = None,
) -> GraphTables:
    """Converts an npz file; never unpickles. Arguments are the options of `raygnn prepare npz`.

    Keys: adj_data, adj_indices, adj_indptr, adj_shape (CSR, row to column); optional attr_*
    likewise or a dense attr_matrix; optional labels, train_mask, val_mask, test_mask. Or the layout
    of the heterophilous graphs (Platonov et al., arXiv:2302.11640): edges [num_edges, 2],
    node_features, node_labels, and several splits, train_masks [num_splits, num_nodes] and so on.
    Other keys are not read.

    Raises:
        DataError: the file, or an array in it, is missing or malformed.
    """
    where = redact(uri)
    arrays = _read_arrays(uri, where, _WANTED)
    mask_notes = _take_split(arrays, split_index, where)
    num_nodes, entries = _entries(arrays, where)
    if split_file is not None:
        arrays.update(_masks_of_file(split_file, num_nodes))
    edges = _edges(*entries, num_nodes, directed)
    features = _features(arrays, num_nodes, where)
    if features is not None and normalize:
        features = clean_up.normalize_rows(features)
    labels = _labels(arrays, num_nodes, where)
    masks = {name: arrays[name] for name in clean_up.MASK_NAMES if name in arrays}
    kept = np.arange(num_nodes)
    if is_largest_component:
        kept = clean_up.largest_component(edges.source, edges.target, num_nodes)
        edges = edges.among(kept, num_nodes)
        features = features.take(kept) if isinstance(features, SparseRows) else _at(features, kept)
        labels = _at(labels, kept)
        clean_up.mask_codes(masks, num_nodes, where)
        masks = {name: mask[kept] for name, mask in masks.items()}
    nodes = node_rows(
        kept, {} if features is None else {"x": features}, {} if labels is None else {"y": labels}
    )
    nodes, split_note = clean_up.split_nodes(nodes, masks, where)
    rows = edge_rows(edges.source, edges.target, weight=edges.weight)
    return GraphTables(
        {"node": nodes}, {("node", "to", "node"): rows}, (*edges.notes, *mask_notes, *split_note)
    )


@dataclass(frozen=True)
class _Edges:
    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray | None
    notes: tuple[str, ...]

    def among(self, nodes: np.ndarray, num_nodes: int) -> _Edges:
        is_kept = np.isin(self.source, nodes)
        note = (
            f"largest connected component: {len(nodes):,} of {num_nodes:,} nodes kept, "
            f"{len(self.source) - int(is_kept.sum()):,} edges left out with the others"
        )
        return _Edges(
            self.source[is_kept],
            self.target[is_kept],
            None if self.weight is None else self.weight[is_kept],
            (*self.notes, note),
        )


def _read_arrays(uri: str, where: str, wanted: Sequence[str]) -> dict[str, np.ndarray]:
    fs, path = open_fs(uri)
    try:
        with naming_missing(where), fs.open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{where} holds one array. Give an .npz file. [prepare-npz-layout]")
            return {key: _read_array(archive, key, where) for key in wanted if key in archive}
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise DataError(
            f"{where} is not a readable .npz file: {error}. Copy it again. [prepare-npz-unreadable]"
        ) from error


def _read_array(archive: np.lib.npyio.NpzFile, key: str, where: str) -> np.ndarray:
    try:
        return archive[key]
    except ValueError as error:
        raise DataError(
            f"{where}: array {key!r} cannot be read without unpickling, which could run code of "
            f"the file ({error}). Save it again as a plain numeric array. [prepare-npz-pickled]"
        ) from error


def _array(arrays: Mapping[str, np.ndarray], key: str, where: str, ndim: int = 1) -> np.ndarray:
    if key not in arrays:
        raise DataError(
            f"{where}: array {key!r} is missing, found {', '.join(arrays) or 'nothing known'}. The "
            "layouts are adj_data, adj_indices, adj_indptr, adj_shape, attr_*, labels, *_mask; and "
            "edges, node_features, node_labels, *_masks. [prepare-npz-array-missing]"
        )
    array = arrays[key]
    if array.ndim != ndim or array.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: array {key!r} has shape {array.shape} and type {array.dtype}, but must be "
            f"numbers in {ndim} dimension{'s' if ndim > 1 else ''}. Save it so. [prepare-npz-array]"
        )
    return array


def _csr(arrays: Mapping[str, np.ndarray], prefix: str, where: str) -> SparseRows:
    data, indices, indptr, shape = (
        _array(arrays, f"{prefix}_{part}", where) for part in _CSR_PARTS
    )
    num_rows, dim = (int(size) for size in shape) if len(shape) == 2 else (-1, -1)
    is_valid = (
        num_rows >= 0
        and len(indptr) == num_rows + 1
        and indptr[0] == 0
        and indptr[-1] == len(indices) == len(data)
        and (np.diff(indptr) >= 0).all()
        and (len(indices) == 0 or (indices.min() >= 0 and indices.max() < dim))
    )
    if not is_valid:
        raise DataError(
            f"{where}: {prefix}_data, {prefix}_indices, {prefix}_indptr and {prefix}_shape are not "
            f"a CSR matrix: shape {shape.tolist()}, {len(indptr)} row pointers, {len(indices)} "
            f"indices, {len(data)} values. Save a scipy.sparse.csr_matrix. [prepare-npz-csr]"
        )
    return SparseRows(indptr.astype(np.int64), indices.astype(np.int64), data, dim)


def _take_split(
    arrays: dict[str, np.ndarray], split_index: int | None, where: str
) -> tuple[str, ...]:
    for name, other in (("node_features", "attr_matrix"), ("node_labels", "labels")):
        if name in arrays:
            arrays[other] = arrays.pop(name)
    several = {name: f"{name}s" for name in clean_up.MASK_NAMES if f"{name}s" in arrays}
    if not several:
        if split_index is not None:
            raise DataError(
                f"{where}: split index {split_index} is invalid: the file has no train_masks. "
                "Leave out --split-index. [prepare-split-index]"
            )
        return ()
    index = split_index or 0
    sizes = set()
    for name, plural in several.items():
        masks = _array(arrays, plural, where, ndim=2)
        sizes.add(len(masks))
        if not 0 <= index < len(masks):
            raise DataError(
                f"{where}: split index {index} is invalid: {plural} has {len(masks)} splits. Set "
                f"--split-index to 0 to {len(masks) - 1}. [prepare-split-index]"
            )
        arrays[name] = masks[index]
    if split_index is not None or sizes == {1}:
        return ()
    return (f"split 0 of {max(sizes)} taken: --split-index takes another",)


def _masks_of_file(uri: str, num_nodes: int) -> dict[str, np.ndarray]:
    where = redact(uri)
    arrays = _read_arrays(uri, where, (*_FILE_SPLITS, "val"))
    if "val" in arrays:
        arrays["valid"] = arrays.pop("val")
    missing = [name for name in _FILE_SPLITS if name not in arrays]
    if missing:
        raise DataError(
            f"{where}: array {missing[0]!r} is missing, found {', '.join(arrays) or 'none'}. Save "
            "the node numbers of each split as train, valid and test. [prepare-npz-array-missing]"
        )
    masks = {}
    for name, mask_name in zip(_FILE_SPLITS, clean_up.MASK_NAMES, strict=True):
        nodes = _array(arrays, name, where)
        if nodes.dtype.kind not in "iu" or ((nodes < 0) | (nodes >= num_nodes)).any():
            raise DataError(
                f"{where}: array {name!r} holds other values than node numbers from 0 to "
                f"{num_nodes - 1}. Give the split of this graph. [prepare-npz-split]"
            )
        masks[mask_name] = np.isin(np.arange(num_nodes), nodes)
    return masks


def _entries(
    arrays: Mapping[str, np.ndarray], where: str
) -> tuple[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    if "edges" not in arrays:
        adjacency = _csr(arrays, "adj", where)
        if adjacency.dim != adjacency.num_rows:
            raise DataError(
                f"{where}: adj_shape={(adjacency.num_rows, adjacency.dim)} is invalid: must be "
                "square. Give a graph of one node type. [prepare-npz-square]"
            )
        source = np.repeat(np.arange(adjacency.num_rows), np.diff(adjacency.indptr))
        return adjacency.num_rows, (source, adjacency.indices, np.asarray(adjacency.values))
    pairs = _array(arrays, "edges", where, ndim=2)
    rows = [len(arrays[name]) for name in ("attr_matrix", "labels") if name in arrays]
    if not rows or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise DataError(
            f"{where}: edges has shape {pairs.shape} and type {pairs.dtype}, beside "
            f"{'node rows' if rows else 'neither node_features nor node_labels'}. Save integers of "
            "the shape [num_edges, 2], and one row for each node. [prepare-npz-edges]"
        )
    pairs = pairs.astype(np.int64)
    num_nodes = rows[0]
    outside = np.flatnonzero((pairs < 0).any(axis=1) | (pairs >= num_nodes).any(axis=1))
    if len(outside):
        raise DataError(
            f"{where}: {len(outside):,} rows of edges name nodes outside of 0 to {num_nodes - 1}, "
            f"first rows {outside[:5].tolist()}. Save a row for each. [prepare-npz-edges-outside]"
        )
    return num_nodes, (pairs[:, 0], pairs[:, 1], np.ones(len(pairs), np.float32))


def _edges(
    source: np.ndarray, target: np.ndarray, weight: np.ndarray, num_nodes: int, directed: bool
) -> _Edges:
    is_weighted = bool((weight != 1).any())
    if directed:
        notes = ["edges are not changed, because of --directed"]
    else:
        edges = clean_up.undirected_edges(source, target, num_nodes)
        source, target, weight, notes = (
            edges.source,
            edges.target,
            weight[edges.entry],
            [edges.note],
        )
    if is_weighted:
        notes.append("adj_data is not all ones: written as the edges' weight")
    return _Edges(source, target, weight if is_weighted else None, tuple(notes))


def _at(rows: np.ndarray | None, kept: np.ndarray) -> np.ndarray | None:
    return None if rows is None else rows[kept]


def _features(arrays: Mapping[str, np.ndarray], num_nodes: int, where: str) -> Features | None:
    features: Features
    if "attr_matrix" in arrays:
        features = _array(arrays, "attr_matrix", where, ndim=2)
        num_rows = len(features)
    elif any(f"attr_{part}" in arrays for part in _CSR_PARTS):
        features = _csr(arrays, "attr", where).canonical()
        num_rows = features.num_rows
    else:
        return None
    if num_rows != num_nodes:
        raise DataError(
            f"{where}: the features (attr_*) have {num_rows:,} rows for {num_nodes:,} nodes. Save "
            "one row per node. [prepare-npz-rows]"
        )
    return features


def _labels(arrays: Mapping[str, np.ndarray], num_nodes: int, where: str) -> np.ndarray | None:
    if "labels" not in arrays:
        return None
    labels = _array(arrays, "labels", where, ndim=max(1, min(2, arrays["labels"].ndim)))
    if len(labels) != num_nodes:
        raise DataError(
            f"{where}: labels has {len(labels):,} rows for {num_nodes:,} nodes. Save one row per "
            "node. [prepare-npz-rows]"
        )
    return labels
