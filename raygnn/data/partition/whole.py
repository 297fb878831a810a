"""A partitioned graph opened whole: its parts, joined to an ordinary bundle in the cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from raygnn.data.arrays import create_array, open_array, sync_folder
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_check import check_arrays
from raygnn.data.bundle_record import (
    INDICES,
    INDPTR,
    SPLIT,
    BundleRecord,
    ColumnInfo,
    NodeRecord,
    column_path,
)
from raygnn.data.bundle_record import RECORD_NAME as BUNDLE_NAME
from raygnn.data.cache import build_once
from raygnn.data.filesystem import redact
from raygnn.data.id_map import BYTES, IDS, OFFSETS, IdKind, build_index
from raygnn.data.ingest.build_bundle import bundle_folder
from raygnn.data.ingest.edge_plan import edge_folder
from raygnn.data.partition.record import Folder, PartitionRecord, check_parts
from raygnn.data.partition.transfer import absolute_folder, parts_on_disk
from raygnn.errors import DataError


def open_partitioned(
    folder: Folder,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Gives the bundle of a partitioned graph, joining its parts where the cache does not have it.

    Nodes have the dense ids of the partition: those of part 0 first.

    Args:
        folder: that `raygnn.partition` has written, a path or any fsspec URI.
        cache_dir: local folder for bundles; null means $RAYGNN_CACHE_DIR or ~/.cache/raygnn.
    Raises:
        DataError: a part is missing, damaged, or of another partition.
    """
    place = absolute_folder(folder)
    record = check_parts(place)

    def build(target: Path) -> None:
        progress(f"joining {record.num_parts} parts of {redact(place)}")
        with parts_on_disk(place, record, target / "fetched", progress=progress) as parts:
            joined = _join(record, parts, target)
        sync_folder(target)
        joined.save(target)
        _check_bundle(target)

    path = bundle_folder(cache_dir) / record.fingerprint
    build_once(path, build, is_whole=lambda built: is_whole(built, _check_bundle))
    return Bundle.open(path)


def is_whole(path: Path, check: Callable[[Path], object]) -> bool:
    """Whether a folder of the cache has its record, and is as it was built.

    Args:
        check: raises a DataError where it is not.
    """
    if not (path / BUNDLE_NAME).exists():
        return False
    try:
        check(path)
    except DataError:
        return False
    return True


def _check_bundle(path: Path) -> None:
    check_arrays(Bundle.open(path))


def _join(record: PartitionRecord, parts: Sequence[Path], target: Path) -> BundleRecord:
    nodes = {
        name: join_nodes(found, [part / "nodes" / name for part in parts], target / "nodes" / name)
        for name, found in record.whole.nodes.items()
    }
    for edge in record.whole.edges:
        join_edges(edge.columns, parts, edge_folder(edge.type), target)
    for labels in record.whole.label_edges:
        join_edges(labels.columns, parts, labels.folder, target)
    return replace(record.whole, nodes=nodes)


def join_nodes(record: NodeRecord, parts: Sequence[Path], target: Path) -> NodeRecord:
    """Joins the columns, splits and ids of the nodes of one type.

    Args:
        record: of all its nodes, with the columns to join.
        parts: the type's folder in each part.
    """
    kind: IdKind = "string" if record.ids.kind == "strings" else "int"
    _join_columns(record.columns, parts, target)
    if record.has_split:
        _join_rows([part / SPLIT for part in parts], target / SPLIT)
    if kind == "int":
        _join_rows([part / IDS for part in parts], target / IDS)
    else:
        _join_offsets([part / OFFSETS for part in parts], target / OFFSETS)
        _join_rows([part / BYTES for part in parts], target / BYTES)
    index, _ = build_index(target, np.zeros(record.num_nodes, bool), kind)
    return replace(record, ids=index)


def join_edges(
    columns: Sequence[ColumnInfo], parts: Sequence[Path], name: str, target: Path
) -> None:
    """Joins the pairs and columns of one set of edges.

    Args:
        columns: those to join.
        parts: their folders.
        name: the set's folder in each part.
        target: folder of the joined graph.
    """
    folders = [part / name for part in parts]
    _join_offsets([folder / INDPTR for folder in folders], target / name / INDPTR)
    _join_rows([folder / INDICES for folder in folders], target / name / INDICES)
    _join_columns(columns, folders, target / name)


def _join_columns(columns: Sequence[ColumnInfo], parts: Sequence[Path], target: Path) -> None:
    for column in columns:
        if not column.sparse:
            paths = [column_path(part, column.name) for part in parts]
            _join_rows(paths, column_path(target, column.name))
            continue
        offsets = [column_path(part, column.name, "indptr") for part in parts]
        _join_offsets(offsets, column_path(target, column.name, "indptr"))
        for element in ("indices", "values"):
            paths = [column_path(part, column.name, element) for part in parts]
            if paths[0].exists():
                _join_rows(paths, column_path(target, column.name, element))


def _join_rows(paths: Sequence[Path], target: Path) -> None:
    arrays = [open_array(path, "r") for path in paths]
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    create_array(target, shape, arrays[0].dtype)
    out, start = open_array(target, "r+"), 0
    for array in arrays:
        out[start : start + len(array)] = array
        start += len(array)


def _join_offsets(paths: Sequence[Path], target: Path) -> None:
    arrays = [open_array(path, "r") for path in paths]
    create_array(target, (sum(len(array) - 1 for array in arrays) + 1,), np.int64)
    out, start, total = open_array(target, "r+"), 0, 0
    for array in arrays:
        stop = start + len(array)
        np.add(array, total, out=out[start:stop])
        start, total = stop - 1, int(out[stop - 1])
