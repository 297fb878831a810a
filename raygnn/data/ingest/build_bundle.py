"""From graph tables to a bundle: built once, under a lock, and named by what it was made of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from raygnn.data.arrays import sync_folder
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_check import check_arrays
from raygnn.data.bundle_record import (
    FORMAT_VERSION,
    RECORD_NAME,
    BundleRecord,
    ColumnInfo,
    EdgeRecord,
    LabelEdgeRecord,
    NodeRecord,
    label_edge_folder,
)
from raygnn.data.cache import build_once, cache_folder
from raygnn.data.edge_types import EdgeType, edge_type_name, reversed_edge_type
from raygnn.data.id_map import IdKind
from raygnn.data.ingest.build_edges import BuiltEdges, build_edges
from raygnn.data.ingest.build_nodes import build_nodes
from raygnn.data.ingest.edge_plan import EdgePlan, edge_columns, plan_edges, plan_label_edges
from raygnn.data.ingest.feature_statistics import measure_features
from raygnn.data.ingest.fit_features import FeatureTable, fit_features
from raygnn.data.ingest.node_tasks import NodePlan, node_columns, plan_nodes
from raygnn.data.ingest.scan import ScannedTable, fingerprint, scan_tables
from raygnn.data.ingest.schedule import BuildContext, Schedule, in_process
from raygnn.data.manifest import (
    EdgeTable,
    LabelEdgeTable,
    Manifest,
    manifest_folder,
    reverses,
)
from raygnn.data.tables.files import TableFile, list_files
from raygnn.data.transforms.state import Transforms
from raygnn.errors import DataError


@dataclass(frozen=True)
class IngestOptions:
    """Options that change what a bundle holds.

    Attributes:
        on_error: `fail` raises with all bad rows; `drop` leaves them out and says so.
        undirected: edge types within one node type are taken as `directed: false`.
        reverse_edges: for each directed edge type (s, r, d) that has no reverse, (d, rev_r, s) is
            added, with the same columns.
        allow_outside: roots outside of the graph's folder that its files may lie in. They do not
            change what a bundle holds, which is named without them.
        feature_dtype: storage type of floating-point features; null keeps the table's, but
            float64 becomes float32.
        transforms: of features that are transformed as in an earlier training. Others are fitted.
    """

    on_error: Literal["fail", "drop"] = "fail"
    undirected: bool = False
    reverse_edges: bool = False
    feature_dtype: Literal["float32", "float16", "bfloat16"] | None = None
    allow_outside: tuple[str, ...] = ()
    transforms: Transforms = field(default_factory=dict)

    def of_the_content(self) -> dict[str, Any]:
        """The options that a bundle's name follows from, as JSON values."""
        content = {name: value for name, value in asdict(self).items() if name != "allow_outside"}
        if not self.transforms:
            del content["transforms"]
        return content


def ingest(
    manifest_uri: str | os.PathLike[str],
    options: IngestOptions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    schedule: Schedule = in_process,
    progress: Callable[[str], None] | None = None,
    min_scheduled_bytes: int = 0,
    elsewhere: Callable[[Path], None] | None = None,
) -> Bundle:
    """Gives the bundle of a graph, building it first where the cache does not have it.

    Several processes may ask for the same graph at once: one builds, the others wait for it.

    Args:
        manifest_uri: the graph's folder or its graph.yaml; a local path or any fsspec URI.
        cache_dir: local folder for bundles; null means $RAYGNN_CACHE_DIR or ~/.cache/raygnn.
        schedule: runs the tasks; they need the same cache folder.
        progress: receives a line for each step, and what was dropped.
        min_scheduled_bytes: tables of fewer bytes than that are converted in this process.
        elsewhere: fills the bundle's folder with what another machine has built of other tables.
    Raises:
        DataError: the manifest or the tables break a rule.
        ResourceError: the cache cannot be read or written, or its disk is full.
    """
    options = options or IngestOptions()
    progress = progress or _say_nothing
    manifest = Manifest.load(manifest_uri, options.allow_outside)
    roots = (manifest_folder(manifest_uri), *options.allow_outside)
    files = _list_tables(manifest, roots)
    if sum(file.size for table in files.values() for file in table) < min_scheduled_bytes:
        schedule, elsewhere = in_process, None
    name = fingerprint(manifest, options.of_the_content(), files, FORMAT_VERSION)

    def build(folder: Path) -> None:
        if elsewhere is None:
            context = BuildContext(folder, options.on_error == "drop", schedule, progress)
            _build(manifest, files, options, name, context)
        else:
            elsewhere(folder)
        _check_unchanged(files, _list_tables(manifest, roots))
        progress(f"ingest: wrote bundle {path}")

    path = bundle_folder(cache_dir) / name
    build_once(
        path,
        build,
        is_whole=lambda folder: _is_finished(folder, progress),
        on_wait=lambda: progress("ingest: waiting for another process that builds this bundle"),
    )
    return Bundle.open(path)


def bundle_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds all bundles of a cache, as `cache_folder`."""
    return cache_folder(cache_dir, "bundles")


def _say_nothing(_: str) -> None:
    pass


def _node_table_name(node_type: str) -> str:
    return f"node_types.{node_type}"


def _edge_table_name(edge_type: EdgeType) -> str:
    return f"edge_types.{edge_type_name(edge_type)}"


def _label_table_name(table: LabelEdgeTable) -> str:
    return f"label_edges.{table.name}"


def _list_tables(manifest: Manifest, roots: Sequence[str]) -> dict[str, list[TableFile]]:
    """The files of each table.

    Args:
        roots: where they may lie; relative patterns start at the first.
    """
    folder, files = roots[0], {}
    for node_type, node_table in manifest.node_types.items():
        name = _node_table_name(node_type)
        files[name] = list_files(folder, node_table.files, f"{name}.files", roots)
    for edge_table in manifest.edge_types:
        name = _edge_table_name(edge_table.type)
        files[name] = list_files(folder, edge_table.files, f"{name}.files", roots)
    for label_table in manifest.label_edges:
        name = _label_table_name(label_table)
        files[name] = list_files(folder, label_table.files, f"{name}.files", roots)
    return files


def _check_unchanged(
    before: Mapping[str, Sequence[TableFile]], after: Mapping[str, Sequence[TableFile]]
) -> None:
    for table, files in before.items():
        changed = {file.name for file in {*files} ^ {*after[table]}}
        if changed:
            raise DataError(
                f"{table}.files is invalid: {min(changed)} changed while it was read. Start again "
                "when the tables are written.",
                id="data-file-changed",
            )


def _is_finished(path: Path, progress: Callable[[str], None]) -> bool:
    if not (path / RECORD_NAME).exists():
        return False
    try:
        check_arrays(Bundle.open(path))
    except DataError as error:
        progress(f"ingest: building again, because {error}")
        return False
    progress(f"ingest: reusing bundle {path}")
    return True


def _build(
    manifest: Manifest,
    files: Mapping[str, Sequence[TableFile]],
    options: IngestOptions,
    name: str,
    context: BuildContext,
) -> None:
    tables = _scan(manifest, files, context.schedule)
    tables |= _fit(manifest, options, tables, context)
    node_plans, edge_plans, label_plans = _plan(manifest, options, tables)
    if options.undirected and all(plan.edge_type[0] != plan.edge_type[2] for plan in edge_plans):
        context.progress(
            "ingest: data.undirected changes nothing: no edge type is within one node type"
        )
    node_tables = {t: tables[_node_table_name(t)] for t in manifest.node_types}
    nodes = build_nodes(node_plans, node_tables, context)
    built = build_edges([*edge_plans, *label_plans], tables, nodes, context)
    shutil.rmtree(context.work)
    nodes, built = _measured(nodes, built, context)
    edges, label_edges = _records(manifest, built)
    record = BundleRecord(name, nodes, edges, label_edges)
    # The record comes after everything it vouches for is on the disk.
    sync_folder(context.folder)
    record.save(context.folder)


def _measured(
    nodes: Mapping[str, NodeRecord],
    edges: Sequence[BuiltEdges],
    context: BuildContext,
) -> tuple[dict[str, NodeRecord], list[BuiltEdges]]:
    """The same records, with statistics of their features."""
    node_folders = {name: context.node_folder(name) for name in nodes}
    edge_folders = [context.folder / made.plan.folder for made in edges]
    columns: dict[Path, Sequence[ColumnInfo]] = {
        node_folders[name]: record.columns for name, record in nodes.items()
    }
    columns |= {folder: made.columns for folder, made in zip(edge_folders, edges, strict=True)}
    found = measure_features(columns, context.schedule)
    return (
        {n: replace(record, columns=found[node_folders[n]]) for n, record in nodes.items()},
        [
            replace(made, columns=found[folder])
            for folder, made in zip(edge_folders, edges, strict=True)
        ],
    )


def _scan(
    manifest: Manifest, files: Mapping[str, Sequence[TableFile]], schedule: Schedule
) -> dict[str, ScannedTable]:
    needed = {_node_table_name(t): node_columns(table) for t, table in manifest.node_types.items()}
    needed |= {_edge_table_name(table.type): edge_columns(table) for table in manifest.edge_types}
    needed |= {_label_table_name(table): edge_columns(table) for table in manifest.label_edges}
    scanned = scan_tables(
        [(name, files[name], columns) for name, columns in needed.items()], schedule
    )
    return {table.name: table for table in scanned}


def _fit(
    manifest: Manifest,
    options: IngestOptions,
    tables: Mapping[str, ScannedTable],
    context: BuildContext,
) -> dict[str, ScannedTable]:
    """The tables of features with their transforms."""
    features = [
        FeatureTable(tables[_node_table_name(name)], table.features, table.id, table.split)
        for name, table in manifest.node_types.items()
    ]
    features += [
        FeatureTable(tables[_edge_table_name(table.type)], table.features, None, table.split)
        for table in manifest.edge_types
    ]
    return fit_features(features, options.transforms, context.schedule, context.progress)


def _plan(
    manifest: Manifest, options: IngestOptions, tables: dict[str, ScannedTable]
) -> tuple[dict[str, NodePlan], list[EdgePlan], list[EdgePlan]]:
    problems: list[str] = []
    nodes: dict[str, NodePlan] = {}
    edges: list[EdgePlan] = []
    label_edges: list[EdgePlan] = []
    declared = reverses(manifest.edge_types)
    for node_type, table in manifest.node_types.items():
        try:
            scanned = tables[_node_table_name(node_type)]
            nodes[node_type] = plan_nodes(table, scanned, options.feature_dtype)
        except DataError as error:
            problems.append(str(error))
    kinds = {node_type: plan.id_kind for node_type, plan in nodes.items()}
    for edge_table in manifest.edge_types:
        undirected = not edge_table.directed or (
            options.undirected and edge_table.type[0] == edge_table.type[2]
        )
        try:
            name = _edge_table_name(edge_table.type)
            tables[name] = _with_endpoint_types(edge_table, tables[name], kinds)
            wanted = options.reverse_edges and not undirected and edge_table.type not in declared
            reverse = _new_reverse(manifest, edge_table.type) if wanted else None
            edges.append(
                plan_edges(edge_table, tables[name], undirected, reverse, options.feature_dtype)
            )
        except DataError as error:
            problems.append(str(error))
    for label_table in manifest.label_edges:
        try:
            name = _label_table_name(label_table)
            tables[name] = _with_endpoint_types(label_table, tables[name], kinds)
            label_edges.append(plan_label_edges(label_table, tables[name]))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return nodes, edges, label_edges


def _new_reverse(manifest: Manifest, edge_type: EdgeType) -> EdgeType:
    reverse = reversed_edge_type(edge_type)
    if any(table.type == reverse for table in manifest.edge_types):
        raise DataError(
            f"data.reverse_edges=True is invalid: {edge_type_name(reverse)} is the reverse of "
            f"another edge type than {edge_type_name(edge_type)}. Rename its relation in "
            "graph.yaml, or say with reverse_of which types are each other's reverse.",
            id="graph-reverse-taken",
        )
    return reverse


def _records(
    manifest: Manifest, built: Sequence[BuiltEdges]
) -> tuple[tuple[EdgeRecord, ...], tuple[LabelEdgeRecord, ...]]:
    by_folder = {edges.plan.folder: edges for edges in built}
    labels = []
    for table in manifest.label_edges:
        made = by_folder.pop(label_edge_folder(table.type, table.sign))
        labels.append(LabelEdgeRecord(table.type, table.sign, made.num_edges, made.columns))
    declared = reverses(manifest.edge_types)
    edges = []
    for made in by_folder.values():
        plan = made.plan
        reverse = plan.edge_type if plan.undirected else plan.reverse
        reverse = reverse or declared.get(plan.edge_type)
        edges.append(
            EdgeRecord(plan.edge_type, made.num_edges, not plan.undirected, made.columns, reverse)
        )
    return tuple(edges), tuple(labels)


def _with_endpoint_types(
    table: EdgeTable | LabelEdgeTable, scanned: ScannedTable, kinds: Mapping[str, IdKind]
) -> ScannedTable:
    """Checks the endpoints against the ids of their node types.

    Those in CSV are read as these are, and so are those of a table without rows.
    """
    types = dict(scanned.types)
    only_csv = all(shard.file.format == "csv" for shard in scanned.shards)
    for key, column, node_type in (
        ("source", table.source, table.type[0]),
        ("target", table.target, table.type[2]),
    ):
        if node_type not in kinds:
            continue  # its own problem is already listed
        if scanned.num_rows == 0:
            types[column] = pa.string() if kinds[node_type] == "string" else pa.int64()
        if only_csv and kinds[node_type] == "string":
            types[column] = pa.string()
        is_right = (
            pa.types.is_integer(types[column])
            if kinds[node_type] == "int"
            else pa.types.is_string(types[column])
        )
        if not is_right:
            wanted = "integers" if kinds[node_type] == "int" else "strings"
            raise DataError(
                f"{scanned.name}.{key}={column!r} is invalid: the column is {types[column]}, "
                f"but the ids of node type {node_type!r} are {wanted}. "
                "Write both as the same kind.",
                id="edges-id-kind",
            )
    return replace(scanned, types=types)
