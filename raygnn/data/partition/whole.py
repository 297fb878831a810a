"""Joins the parts of a partitioned graph to an ordinary bundle in the cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from raygnn.data.arrays import Source, gather_ragged_rows, gather_rows, sync_folder
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_check import check_arrays
from raygnn.data.bundle_record import (
    INDICES,
    INDPTR,
    NODES,
    SPLIT,
    BundleRecord,
    ColumnInfo,
    NodeRecord,
    TrainingTableRecord,
    column_path,
)
from raygnn.data.bundle_record import RECORD_NAME as BUNDLE_NAME
from raygnn.data.cache import build_once
from raygnn.data.filesystem import redact
from raygnn.data.id_map import IdKind, build_index, gather_ids
from raygnn.data.ingest.build_bundle import bundle_folder
from raygnn.data.ingest.nodes import gather_sparse
from raygnn.data.ingest.table_plan import edge_folder
from raygnn.data.partition.record import Folder, PartitionRecord, check_parts
from raygnn.data.partition.transfer import absolute_folder, parts_on_disk
from raygnn.errors import DataError


def open_partitioned(
    folder: Folder,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Returns the bundle of a partitioned graph. Joins its parts if the cache does not have it.

    Nodes have the dense ids of the partition, starting with part 0.

    Args:
        folder: written by `raygnn.partition`, a path or any fsspec URI.
        cache_dir: local folder for bundles. Default: $RAYGNN_CACHE_DIR or ~/.cache/raygnn.
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
    """Whether a folder of the cache has its record and passes a check, which raises a DataError."""
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
    for table in record.whole.training_tables:
        join_training_rows(table, parts, target)
    return replace(record.whole, nodes=nodes)


def join_nodes(record: NodeRecord, parts: Sequence[Path], target: Path) -> NodeRecord:
    """Joins columns, splits and ids of the nodes of one type, from its folder in each part."""
    kind: IdKind = "string" if record.ids.kind == "strings" else "int"
    sources = [(part, None) for part in parts]
    _join_columns(record.columns, sources, target)
    if record.has_split:
        gather_rows(sources, SPLIT, target)
    gather_ids(sources, kind, target)
    index, _ = build_index(target, np.zeros(record.num_nodes, bool), kind)
    return replace(record, ids=index)


def join_edges(
    columns: Sequence[ColumnInfo], parts: Sequence[Path], name: str, target: Path
) -> None:
    """Joins the pairs and columns of one set of edges.

    Args:
        columns: columns to join.
        parts: their folders.
        name: the set's folder in each part.
        target: folder of the joined graph.
    """
    sources = [(part / name, None) for part in parts]
    gather_ragged_rows(sources, INDPTR, [INDICES], target / name)
    _join_columns(columns, sources, target / name)


def join_training_rows(table: TrainingTableRecord, parts: Sequence[Path], target: Path) -> None:
    sources = [(part / table.folder, None) for part in parts]
    gather_rows(sources, NODES, target / table.folder)
    _join_columns(table.columns, sources, target / table.folder)


def _join_columns(columns: Sequence[ColumnInfo], sources: Sequence[Source], target: Path) -> None:
    for column in columns:
        if column.sparse:
            gather_sparse(sources, column.name, target)
        else:
            gather_rows(sources, column_path(Path(), column.name), target)
