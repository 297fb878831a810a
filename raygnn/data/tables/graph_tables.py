"""Graph tables in memory, with writing and summary. Every converter returns them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raygnn.data.bundle_record import label_edge_folder, training_table_folder
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.filesystem import is_remote, join, open_fs, redact
from raygnn.data.manifest import FORMAT, MANIFEST_NAME, Manifest
from raygnn.data.splits import SPLIT_NAMES
from raygnn.data.tables.columns import (
    FeatureColumns,
    Features,
    FeatureSpec,
    feature_columns,
    label_columns,
)
from raygnn.documents import dump_yaml
from raygnn.errors import DataError

_FOLDERS = ("nodes", "edges", "label_edges", "training_tables")
_OUR_SHARD = re.compile(rf"({'|'.join(_FOLDERS)})/[^/]+/part-\d{{5,}}-of-\d{{5,}}\.parquet")
_ROW_GROUP_BYTES = 64 << 20  # one task of the ingest holds a row group or a few in memory
_MAX_ROW_GROUP_ROWS = 1 << 20


@dataclass(frozen=True)
class _TableRows:
    """A table with the roles of its columns. DataFrames and mappings of arrays become Arrow. The
    rows of a `ray.data.Dataset` are read when a graph of them is opened.
    """

    table: pa.Table

    def __post_init__(self) -> None:
        if isinstance(self.table, pd.DataFrame):
            table = pa.Table.from_pandas(self.table, preserve_index=False)
            object.__setattr__(self, "table", table)
        elif isinstance(self.table, Mapping):
            object.__setattr__(self, "table", pa.table(dict(self.table)))


@dataclass(frozen=True)
class NodeRows(_TableRows):
    id: str
    features: Mapping[str, FeatureSpec] = field(default_factory=dict)
    labels: Mapping[str, FeatureSpec] = field(default_factory=dict)
    split: str | None = None
    time: str | None = None


@dataclass(frozen=True)
class EdgeRows(_TableRows):
    source: str
    target: str
    features: Mapping[str, FeatureSpec] = field(default_factory=dict)
    weight: str | None = None
    time: str | None = None
    directed: bool = True
    split: str | None = None
    reverse_of: EdgeType | None = None
    labels: Mapping[str, FeatureSpec] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingRows(_TableRows):
    """A training table: rows of (entity, time, label). See `raygnn.data.manifest.TrainingTable`."""

    node_type: str
    node: str
    labels: Mapping[str, FeatureSpec] = field(default_factory=dict)
    time: str | None = None
    split: str | None = None
    window: str | float | None = None
    weight: str | None = None


@dataclass(frozen=True)
class GraphTables:
    """A graph as tables per node and edge type.

    Attributes:
        notes: changes during conversion, a sentence each.
        label_edges: by type and sign (`positive`, `negative`).
    """

    nodes: Mapping[str, NodeRows]
    edges: Mapping[EdgeType, EdgeRows]
    notes: tuple[str, ...] = ()
    label_edges: Mapping[tuple[EdgeType, str], EdgeRows] = field(default_factory=dict)
    training_tables: Mapping[str, TrainingRows] = field(default_factory=dict)


def node_rows(
    ids: pa.Array | np.ndarray,
    features: Mapping[str, Features | FeatureColumns] | None = None,
    labels: Mapping[str, pa.Array | np.ndarray] | None = None,
    time: np.ndarray | None = None,
    id_name: str = "id",
) -> NodeRows:
    """Builds a node table from arrays; each feature and label is a column of its name.

    `labels`: classes, targets or rows of them; Arrow arrays (strings, nulls) are kept unchanged.
    """
    columns = {id_name: ids if isinstance(ids, pa.Array) else pa.array(ids)}
    feature_specs = _add_features(columns, features)
    label_specs = _add_labels(columns, labels)
    if time is not None:
        columns["time"] = pa.array(time)
    return NodeRows(
        pa.table(columns),
        id_name,
        feature_specs,
        label_specs,
        time=None if time is None else "time",
    )


def edge_rows(
    source: pa.Array | np.ndarray,
    target: pa.Array | np.ndarray,
    features: Mapping[str, Features | FeatureColumns] | None = None,
    weight: np.ndarray | None = None,
    time: np.ndarray | None = None,
    labels: Mapping[str, pa.Array | np.ndarray] | None = None,
) -> EdgeRows:
    columns = {
        name: ids if isinstance(ids, pa.Array) else pa.array(ids)
        for name, ids in (("source", source), ("target", target))
    }
    specs = _add_features(columns, features, may_be_sparse=False)
    label_specs = _add_labels(columns, labels)
    if weight is not None:
        columns["weight"] = pa.array(weight)
    if time is not None:
        columns["time"] = pa.array(time)
    return EdgeRows(
        pa.table(columns),
        source="source",
        target="target",
        features=specs,
        weight=None if weight is None else "weight",
        time=None if time is None else "time",
        labels=label_specs,
    )


def _add_labels(
    columns: dict[str, pa.Array], labels: Mapping[str, pa.Array | np.ndarray] | None
) -> dict[str, FeatureSpec]:
    specs: dict[str, FeatureSpec] = {}
    for name, values in (labels or {}).items():
        if isinstance(values, np.ndarray):
            made = label_columns(name, values)
            columns.update(made.columns)
            specs[name] = made.spec
        else:
            columns[name] = values
            specs[name] = name
    return specs


def _add_features(
    columns: dict[str, pa.Array],
    features: Mapping[str, Features | FeatureColumns] | None,
    may_be_sparse: bool = True,
) -> dict[str, FeatureSpec]:
    specs: dict[str, FeatureSpec] = {}
    for name, values in (features or {}).items():
        made = values
        if not isinstance(made, FeatureColumns):
            made = feature_columns(name, made, may_be_sparse)
        columns.update(made.columns)
        specs[name] = made.spec
    return specs


def write_tables(
    tables: GraphTables,
    out_uri: str,
    num_shards: int = 1,
    overwrite: bool = False,
    progress: Callable[[str], None] | None = None,
) -> str:
    """Writes Parquet shards, then graph.yaml, and returns the URI of graph.yaml.

    Edge types without edges are left out, because readers treat an empty table as a mistake. On a
    local disk, everything is written next to the target and moved when complete. On a remote store,
    shards are written in place and removed after an error.

    Args:
        num_shards: files per node and edge type, at most its number of rows.
        overwrite: replaces an existing graph (graph.yaml and the shards, nothing else).
    Raises:
        DataError: the folder is in use, num_shards is not positive, a type's name is invalid, or a
            node type has no nodes.
    """
    empty = [name for name, node in tables.nodes.items() if node.table.num_rows == 0]
    if empty:
        raise DataError(
            f"node type {empty[0]!r} is invalid: it is empty. Remove it. [graph-node-type-empty]"
        )
    filled = {key: edge for key, edge in tables.edges.items() if edge.table.num_rows}
    labels = {key: edge for key, edge in tables.label_edges.items() if edge.table.num_rows}
    tables = replace(tables, edges=filled, label_edges=labels)
    if num_shards < 1:
        raise DataError(
            f"num_shards={num_shards} is invalid: below 1. Set 1 or more. [prepare-num-shards]"
        )
    check_folder(out_uri, overwrite)
    fs, root = open_fs(out_uri)
    root = root.rstrip("/")
    folders = _shard_folders(tables)
    manifest = _manifest(tables, folders)
    rows: list[tuple[str, pa.Table]] = [
        *((folders[name], node.table) for name, node in tables.nodes.items()),
        *((folders[edge_type], edge.table) for edge_type, edge in tables.edges.items()),
        *((label_edge_folder(*key), edge.table) for key, edge in tables.label_edges.items()),
        *((training_table_folder(name), r.table) for name, r in tables.training_tables.items()),
    ]
    with _staging(fs, root, in_place=is_remote(out_uri)) as staged:
        for folder, table in rows:
            _write_shards(fs, f"{staged}/{folder}", table, num_shards)
            if progress is not None:
                progress(f"wrote {folder}: {table.num_rows:,} rows")
        with fs.open(f"{staged}/{MANIFEST_NAME}", "w") as file:
            file.write(manifest)
    return join(out_uri, MANIFEST_NAME)


def check_folder(out_uri: str, overwrite: bool = False) -> None:
    """Raises a DataError if a folder cannot take a graph: it is a file, or has files to keep."""
    fs, root = open_fs(out_uri)
    fs.invalidate_cache()  # remote listings are cached, and others write there too
    if fs.isfile(root):
        raise DataError(
            f"out={redact(out_uri)!r} is invalid: it is a file. Name a folder. [output-is-file]"
        )
    files = fs.find(root) if fs.exists(root) else []
    prefix = root.rstrip("/") + "/"
    relative = [path.removeprefix(prefix) for path in files]
    if relative and not overwrite:
        what = "already holds a graph" if MANIFEST_NAME in relative else "is not empty"
        raise DataError(
            f"out={redact(out_uri)!r} is invalid: the folder {what} ({len(relative)} files). Name "
            "another folder, or pass --overwrite (overwrite=True) to replace it. [output-not-empty]"
        )
    foreign = [
        path
        for path in relative
        if path.split("/")[0] in _FOLDERS and not _OUR_SHARD.fullmatch(path)
    ]
    if foreign:
        raise DataError(
            f"out={redact(out_uri)!r} is invalid: {'/, '.join(_FOLDERS)}/ hold {len(foreign)} "
            f"files of others, such as {foreign[0]}. Name another folder. [output-foreign-files]"
        )


@contextmanager
def _staging(fs: fsspec.AbstractFileSystem, root: str, in_place: bool) -> Iterator[str]:
    """Yields the folder to write into. At the end the graph is at root, or nothing new is."""
    staged = root if in_place else f"{root}.partial-{uuid4().hex[:8]}"
    if in_place:
        _remove_graph(fs, root)
    try:
        yield staged
        if not in_place:
            _remove_graph(fs, root)
            _move_graph(fs, staged, root)
    except BaseException:
        _remove_graph(fs, staged)
        if not in_place and fs.exists(staged):
            fs.rm(staged, recursive=True)
        raise


def _remove_graph(fs: fsspec.AbstractFileSystem, root: str) -> None:
    # the manifest is removed first, so that no reader considers the rest a graph
    for name in (MANIFEST_NAME, *_FOLDERS):
        if fs.exists(f"{root}/{name}"):
            fs.rm(f"{root}/{name}", recursive=True)


def _move_graph(fs: fsspec.AbstractFileSystem, staged: str, root: str) -> None:
    for path in fs.find(staged):
        relative = path.removeprefix(fs._strip_protocol(staged) + "/")
        if relative != MANIFEST_NAME:
            fs.makedirs(f"{root}/{relative}".rpartition("/")[0], exist_ok=True)
            fs.mv(path, f"{root}/{relative}")
    fs.mv(f"{staged}/{MANIFEST_NAME}", f"{root}/{MANIFEST_NAME}")
    fs.rm(staged, recursive=True)


def _shard_folders(tables: GraphTables) -> dict[str | EdgeType, str]:
    """nodes/<type> and edges/<relation>; edges/<src__rel__dst> if relations share a name."""
    relations = Counter(relation for _, relation, _ in tables.edges)
    folders: dict[str | EdgeType, str] = {name: f"nodes/{name}" for name in tables.nodes}
    for edge_type in tables.edges:
        unique = relations[edge_type[1]] == 1
        folders[edge_type] = f"edges/{edge_type[1] if unique else edge_type_name(edge_type)}"
    return folders


def _write_shards(
    fs: fsspec.AbstractFileSystem, folder: str, table: pa.Table, num_shards: int
) -> None:
    num_shards = max(1, min(num_shards, table.num_rows))
    bytes_per_row = max(1, table.nbytes // max(1, table.num_rows))
    row_group_rows = min(_MAX_ROW_GROUP_ROWS, max(1024, _ROW_GROUP_BYTES // bytes_per_row))
    # Dense rows hardly compress, and are read much faster without an attempt. Dictionaries of
    # numbers take four times as long as their values, and more room.
    plain = {field.name for field in table.schema if pa.types.is_fixed_size_binary(field.type)}
    numbers = {field.name for field in table.schema if pa.types.is_primitive(field.type)}
    compression = {name: "none" if name in plain else "snappy" for name in table.column_names}
    fs.makedirs(folder, exist_ok=True)
    for shard in range(num_shards):
        start = shard * table.num_rows // num_shards
        stop = (shard + 1) * table.num_rows // num_shards
        with fs.open(f"{folder}/part-{shard:05d}-of-{num_shards:05d}.parquet", "wb") as file:
            pq.write_table(
                table.slice(start, stop - start),
                file,
                row_group_size=row_group_rows,
                compression=compression,
                use_dictionary=[name for name in table.column_names if name not in plain | numbers],
            )


def rows_to_read(tables: GraphTables) -> tuple[Manifest, dict[str, Any]] | None:
    """The manifest, and rows by name of the table; None if no table is a Ray dataset."""
    manifest = Manifest.parse(_manifest(tables, _shard_folders(tables)))
    groups = (tables.nodes, tables.edges, tables.label_edges, tables.training_tables)
    rows = [entry.table for group in groups for entry in group.values()]
    if all(isinstance(table, pa.Table) for table in rows):
        return None
    return manifest, dict(zip(manifest.all_tables, rows, strict=True))


def _manifest(tables: GraphTables, folders: Mapping[str | EdgeType, str]) -> str:
    content = {
        "format": FORMAT,
        "node_types": {
            name: _described(rows, folders[name]) for name, rows in tables.nodes.items()
        },
        "edge_types": [
            {"type": list(edge_type), **_described(rows, folders[edge_type])}
            for edge_type, rows in tables.edges.items()
        ],
        "label_edges": [
            {
                **{"type": list(edge_type), "sign": sign},
                **_described(rows, label_edge_folder(edge_type, sign), _NOT_OF_LABEL_EDGES),
            }
            for (edge_type, sign), rows in tables.label_edges.items()
        ],
        "training_tables": {
            name: _described(rows, training_table_folder(name))
            for name, rows in tables.training_tables.items()
        },
    }
    return Manifest.parse(dump_yaml(content)).dump()


_NOT_OF_LABEL_EDGES = ("features", "directed", "reverse_of")


def _described(rows: _TableRows, folder: str, left_out: Sequence[str] = ()) -> dict[str, object]:
    roles = {role.name: getattr(rows, role.name) for role in fields(rows)}
    kinds = {Mapping: dict, tuple: list}
    return {"files": f"{folder}/*.parquet"} | {
        name: next((new(value) for kind, new in kinds.items() if isinstance(value, kind)), value)
        for name, value in roles.items()
        if name not in ("table", *left_out)
    }


# A type for each relation of a knowledge graph would fill the screen.
_MAX_EDGE_TYPES = 20
_FEW_EDGE_TYPES = 5


def summarize_tables(tables: GraphTables) -> Iterator[str]:
    for name, node in tables.nodes.items():
        parts = [f"{node.table.num_rows:,} nodes"]
        parts += [_feature(node.table, name, spec) for name, spec in node.features.items()]
        parts += [_label(node.table, name, spec) for name, spec in node.labels.items()]
        if node.split is not None:
            parts.append(_split_sizes(node))
        yield f"node type {name}: {'; '.join(parts)}"
    shown = list(tables.edges.items())
    for edge_type, edge in shown if len(shown) <= _MAX_EDGE_TYPES else shown[:_FEW_EDGE_TYPES]:
        yield f"edge type {edge_type_name(edge_type)}: {_edges(edge)}"
    if len(shown) > _MAX_EDGE_TYPES:
        num_edges = sum(edge.table.num_rows for _, edge in shown)
        yield f"... {len(shown)} edge types with {num_edges:,} edges in all"
    for (edge_type, sign), edge in tables.label_edges.items():
        yield f"{sign} label edges {edge_type_name(edge_type)}: {_edges(edge)}"
    for note in tables.notes:
        yield f"note: {note}"


def _edges(edge: EdgeRows) -> str:
    if edge.table.num_rows == 0:
        return "no edges, left out"
    parts = [f"{edge.table.num_rows:,} {'directed' if edge.directed else 'undirected'} edges"]
    parts += [_feature(edge.table, name, spec) for name, spec in edge.features.items()]
    parts += [role for role in ("weight", "time") if getattr(edge, role) is not None]
    if edge.split is not None:
        parts.append(_split_sizes(edge))
    return "; ".join(parts)


def _feature(table: pa.Table, name: str, spec: FeatureSpec) -> str:
    if isinstance(spec, list):
        return f"feature {name} of {len(spec)} columns"
    if isinstance(spec, dict) and "dim" in spec:
        return f"feature {name} of {spec['dim']:,} dimensions, sparse"
    column, dtype = (
        (spec["columns"], spec["dtype"]) if isinstance(spec, dict) else (spec, "float32")
    )
    column_type = table.schema.field(column).type
    if not pa.types.is_fixed_size_binary(column_type):
        return f"feature {name}, a {column_type}"
    width = column_type.byte_width // np.dtype(str(dtype)).itemsize
    return f"feature {name} of {width:,} dimensions, {dtype}"


def _label(table: pa.Table, name: str, spec: FeatureSpec) -> str:
    column = table.column(spec["columns"] if isinstance(spec, dict) else spec)
    if pa.types.is_fixed_size_list(column.type):
        return f"label {name} of {column.type.list_size} targets"
    if pa.types.is_floating(column.type):
        return f"label {name}, a number"
    classes = pc.unique(column.drop_null())
    if pa.types.is_integer(column.type):
        classes = classes.filter(pc.greater_equal(classes, 0))
    return f"label {name} of {len(classes)} classes"


def _split_sizes(rows: NodeRows | EdgeRows) -> str:
    counts = {
        entry["values"]: entry["counts"]
        for entry in pc.value_counts(rows.table.column(rows.split)).to_pylist()
    }
    sizes = [f"{name} {counts.get(name, 0):,}" for name in SPLIT_NAMES]
    if counts.get(None):
        sizes.append(f"none {counts[None]:,}")
    return f"split {', '.join(sizes)}"
