"""Builds a bundle from graph tables once, under a lock, named by its content.

Kernels follow the pointers of a bundle, so its arrays are checked first.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from raygnn.data.arrays import sync_folder
from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.bundle_record import RECORD_NAME, SEAL, node_folder
from raygnn.data.cache import build_once, cache_folder
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.ingest.edges import build_edges, build_training_tables, measured_record
from raygnn.data.ingest.nodes import build_nodes
from raygnn.data.ingest.plan_bundle import GraphPlan, GraphSource, IngestOptions, plan_graph
from raygnn.data.ingest.schedule import BuildContext, Schedule, in_process
from raygnn.errors import DataError


def ingest(
    manifest_uri: str | os.PathLike[str],
    options: IngestOptions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    schedule: Schedule = in_process,
    progress: Callable[[str], None] | None = None,
    min_scheduled_bytes: int = 0,
    elsewhere: Callable[[], Callable[[Path], None]] | None = None,
) -> Bundle:
    """Returns the bundle of a graph. Builds it first if the cache does not have it.

    Several processes may ingest the same graph together: one builds, the others wait for it.

    Args:
        manifest_uri: the graph's folder or its graph.yaml; a local path or any fsspec URI.
        cache_dir: local folder for bundles. Default: $RAYGNN_CACHE_DIR or ~/.cache/raygnn.
        schedule: runs the tasks; they need the same cache folder.
        min_scheduled_bytes: smaller tables are converted in this process.
        elsewhere: lets another machine build the bundle if the cache does not have it, and returns
            a function that copies it into a folder. Both machines may share the cache.
    Raises:
        DataError: the manifest or the tables break a rule.
        ResourceError: the cache cannot be read or written, or its disk is full.
    """
    options, progress = options or IngestOptions(), progress or (lambda _: None)
    source = GraphSource.open(manifest_uri, options)
    for line in source.unread_files():
        progress(f"warning: {line}")
    if source.num_bytes < min_scheduled_bytes:
        schedule, elsewhere = in_process, None
    path = bundle_folder(cache_dir) / source.fingerprint(options)
    copy: Callable[[Path], None] | None = None
    # Before this process locks the bundle: the other machine may need that lock.
    if elsewhere is not None and not (path / RECORD_NAME).exists():
        copy = elsewhere()

    def build(folder: Path) -> None:
        if copy is None:
            context = BuildContext("ingest", options.on_error == "drop", schedule, progress)
            plan = plan_graph(source, options, schedule, progress)
            _build(plan, path.name, folder, context)
        else:
            copy(folder)
        source.check_unchanged()
        progress(f"ingest: wrote bundle {path}")

    def check(folder: Path) -> None:
        check_arrays(Bundle.open(folder))
        progress(f"ingest: reusing bundle {folder}")

    build_once(
        path,
        build,
        is_whole=lambda folder: is_whole(folder, check, progress),
        on_wait=lambda: progress("ingest: waiting for another process that builds this bundle"),
    )
    return Bundle.open(path)


def bundle_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    return cache_folder(cache_dir, "bundles")


def is_whole(
    path: Path, check: Callable[[Path], object], progress: Callable[[str], None] = lambda _: None
) -> bool:
    """Whether a folder of the cache has its record and passes a check, which raises a DataError."""
    if not (path / RECORD_NAME).exists():
        return False
    try:
        check(path)
    except DataError as error:
        progress(f"ingest: building again, because {error}")
        return False
    return True


def _build(plan: GraphPlan, fingerprint: str, folder: Path, context: BuildContext) -> None:
    work = folder / "work"
    work.mkdir()
    nodes = build_nodes(plan.nodes, plan.node_tables, folder, work, context)
    edges = build_edges([*plan.edges, *plan.label_edges], plan.tables, nodes, folder, work, context)
    rows = build_training_tables(plan.training_tables, plan.tables, nodes, folder, work, context)
    shutil.rmtree(work)
    folders = {name: [node_folder(folder, name)] for name in nodes}
    folders |= {made.plan.folder: [folder / made.plan.folder] for made in edges}
    manifest, schedule = plan.manifest, context.schedule
    record = measured_record(fingerprint, manifest, nodes, edges, rows, folders, schedule)
    # The record comes after everything it vouches for is on the disk.
    sync_folder(folder)
    record.save(folder)


def check_arrays(bundle: Bundle) -> None:
    """Checks that every array has its length, and that no pointer leads out of another array.

    Kernels check neither, so one changed byte could crash the process. Pointers are read once,
    which leaves them in the page cache; values of features and labels are not read. Raises a
    DataError if an array is damaged.
    """
    try:
        for node_type in bundle.node_types:
            _check_nodes(bundle, node_type)
        for edge_type in bundle.edge_types:
            num_edges = len(bundle.csc(edge_type).indices)
            _demand(num_edges == bundle.num_edges(edge_type), edge_type_name(edge_type))
            check_edges(bundle, edge_type, bundle.num_nodes(edge_type[2]))
        for labels in bundle.label_edges:
            anchor_type, _, target_type = labels.edge_type
            _check_rows(labels.indptr, bundle.num_nodes(anchor_type), len(labels.targets))
            _check_below(labels.targets, bundle.num_nodes(target_type))
        for name, rows in bundle.training_tables.items():
            assert rows.nodes is not None
            _check_below(rows.nodes, bundle.num_nodes(rows.node_type))
            lengths = {len(rows.nodes), *(len(bundle.row_column(rows, c)) for c in rows.columns)}
            _demand(lengths == {rows.num_rows}, f"training table {name}")
    except (ValueError, OSError) as error:  # by NumPy of a damaged head, by `_demand` of the rest
        raise SEAL.damage(bundle.path, error) from error


def check_edges(bundle: Bundle, edge_type: EdgeType, num_targets: int) -> None:
    """Checks the edges of one type. Raises a ValueError or OSError if an array is damaged."""
    csc = bundle.csc(edge_type)
    _check_rows(csc.indptr, num_targets, len(csc.indices))
    _check_below(csc.indices, bundle.num_nodes(edge_type[0]))
    _check_columns(bundle, edge_type, len(csc.indices))


def _check_nodes(bundle: Bundle, node_type: str) -> None:
    num_nodes = bundle.num_nodes(node_type)
    _check_columns(bundle, node_type, num_nodes)
    split = bundle.declared_split(node_type)
    _demand(split is None or len(split) == num_nodes, f"the split of {node_type}")
    ids = bundle.ids(node_type)
    ids.validate(full=True)
    _demand(len(ids) == num_nodes, f"the ids of {node_type}")
    slots = bundle.id_map(node_type).slots
    if slots is not None and slots.size:
        is_right = slots.min() >= -1 and slots.max() < num_nodes
        _demand(bool(is_right), f"the look-up of the ids of {node_type}")


def _check_columns(bundle: Bundle, type_: str | EdgeType, length: int) -> None:
    for name in bundle.columns(type_):
        column = bundle.column(type_, name)
        if isinstance(column, SparseColumn):
            _check_rows(column.indptr, length, len(column.indices))
            _check_below(column.indices, column.dim)
        else:
            _demand(len(column) == length, f"column {name}")


def _check_rows(indptr: np.ndarray, num_rows: int, num_entries: int) -> None:
    is_whole = len(indptr) == num_rows + 1 and indptr[0] == 0 and indptr[-1] == num_entries
    _demand(is_whole and bool((indptr[1:] >= indptr[:-1]).all()), "the ends of rows")


def _check_below(indices: np.ndarray, limit: int) -> None:
    if indices.size:
        unsigned = indices.view(f"u{indices.itemsize}")  # negative indices become large
        _demand(int(unsigned.max()) < limit, f"an index of at least {limit:,}")


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} does not match the record")
