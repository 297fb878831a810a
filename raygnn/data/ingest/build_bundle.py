"""Builds a bundle from graph tables once, under a lock, named by its content."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from raygnn.data.arrays import sync_folder
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_check import check_arrays
from raygnn.data.bundle_record import RECORD_NAME, node_folder
from raygnn.data.cache import build_once, cache_folder
from raygnn.data.ingest.edges import build_edges, measured_record
from raygnn.data.ingest.nodes import build_nodes
from raygnn.data.ingest.plan_bundle import GraphPlan, GraphSource, IngestOptions, plan_graph
from raygnn.data.ingest.schedule import BuildContext, Schedule, in_process
from raygnn.data.ingest.training_rows import build_training_tables
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
        progress: receives a line for each step, and the number of dropped rows.
        min_scheduled_bytes: smaller tables are converted in this process.
        elsewhere: lets another machine build the bundle if the cache does not have it, and returns
            a function that copies it into a folder. Both machines may share the cache.
    Raises:
        DataError: the manifest or the tables break a rule.
        ResourceError: the cache cannot be read or written, or its disk is full.
    """
    options, progress = options or IngestOptions(), progress or (lambda _: None)
    source = GraphSource.open(manifest_uri, options)
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
