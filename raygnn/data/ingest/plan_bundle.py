"""The tables of a graph, and their conversion: files, schema, transforms and plans."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from raygnn.data.bundle_record import FORMAT_VERSION
from raygnn.data.edge_types import EdgeType, edge_type_name, reversed_edge_type
from raygnn.data.ingest.fit_features import FeatureTable, fit_features
from raygnn.data.ingest.scan import ScannedTable, fingerprint, scan_tables
from raygnn.data.ingest.schedule import Schedule
from raygnn.data.ingest.table_plan import (
    EdgePlan,
    NodePlan,
    TrainingPlan,
    id_columns,
    plan_edges,
    plan_label_edges,
    plan_nodes,
    plan_training,
    table_columns,
)
from raygnn.data.manifest import (
    EdgeTable,
    LabelEdgeTable,
    Manifest,
    NodeTable,
    TrainingTable,
    manifest_folder,
    reverses,
)
from raygnn.data.storage_retry import retried
from raygnn.data.tables.files import TableFile, list_files, unread_files
from raygnn.data.time_units import shown_units, unit_words
from raygnn.data.transforms.fitted import Transforms
from raygnn.errors import ConfigError, DataError, choose_from

FeatureDtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class IngestOptions:
    """Options that change the content of a bundle.

    Attributes:
        on_error: `fail` raises with all bad rows; `drop` leaves them out and reports them.
        undirected: treats edge types within one node type as `directed: false`.
        reverse_edges: adds (d, rev_r, s), with the same columns, for each directed edge type (s, r,
            d) without a reverse. None does so if no edge type leads from d to s. Names of edge
            types exclude these from what None adds.
        allow_outside: folders outside of the graph's that may have its files. They do not change
            the bundle or its name.
        feature_dtype: storage type of floating-point features. Default: the table's, with float64
            reduced to float32.
        transforms: of features transformed as in an earlier training. Others are fitted.
    """

    on_error: Literal["fail", "drop"] = "fail"
    undirected: bool = False
    reverse_edges: bool | tuple[str, ...] | None = None
    feature_dtype: FeatureDtype | None = None
    allow_outside: tuple[str, ...] = ()
    transforms: Transforms = field(default_factory=dict)

    def of_the_content(self) -> dict[str, Any]:
        """Options that determine a bundle's name, as JSON."""
        content = {name: value for name, value in asdict(self).items() if name != "allow_outside"}
        if not self.transforms:
            del content["transforms"]
        return content

    def doubles(self, table: EdgeTable) -> bool:
        """Whether each edge of a table also represents its reverse, in the same edge type."""
        return not table.directed or (self.undirected and table.type[0] == table.type[2])

    def added_reverses(self, tables: Sequence[EdgeTable]) -> dict[EdgeType, EdgeType]:
        """Added edge types, by the edge type whose reverse they are."""
        declared, linked = reverses(tables), {(table.type[0], table.type[2]) for table in tables}
        left_out = self.reverse_edges if isinstance(self.reverse_edges, tuple) else ()
        names = [edge_type_name(table.type) for table in tables]
        if unknown := [name for name in left_out if name not in names]:
            raise ConfigError.invalid(
                "data.reverse_edges",
                list(left_out),
                f"the graph has no edge type {unknown[0]}",
                choose_from(unknown[0], names, "Leave out any of"),
                id="graph-edge-type-unknown",
            )

        def is_wanted(edge_type: EdgeType) -> bool:
            source, _, target = edge_type
            if isinstance(self.reverse_edges, bool):
                return self.reverse_edges
            is_one_way = source != target and (target, source) not in linked
            return is_one_way and edge_type_name(edge_type) not in left_out

        return {
            table.type: reversed_edge_type(table.type)
            for table in tables
            if is_wanted(table.type) and not self.doubles(table) and table.type not in declared
        }


@dataclass(frozen=True)
class GraphSource:
    """The tables of a graph.

    Attributes:
        roots: folders that may have the files; relative patterns start at the first.
    """

    manifest: Manifest
    roots: tuple[str, ...]
    files: Mapping[str, Sequence[TableFile]]

    @classmethod
    def open(cls, manifest_uri: str | os.PathLike[str], options: IngestOptions) -> GraphSource:
        """Reads the manifest and lists the files.

        Raises a DataError if the manifest breaks a rule, or a table has no files.
        """
        manifest = Manifest.load(manifest_uri, options.allow_outside)
        roots = (manifest_folder(manifest_uri), *options.allow_outside)
        return cls(manifest, roots, _list_files(manifest, roots))

    @property
    def num_bytes(self) -> int:
        return sum(file.size for table in self.files.values() for file in table)

    def fingerprint(self, options: IngestOptions) -> str:
        return fingerprint(self.manifest, options.of_the_content(), self.files, FORMAT_VERSION)

    def scan(self, schedule: Schedule) -> dict[str, ScannedTable]:
        needed = [
            (name, self.files[name], table_columns(table))
            for name, table in self.manifest.all_tables.items()
        ]
        return {table.name: table for table in scan_tables(needed, schedule)}

    def unread_files(self) -> list[str]:
        """Lines about files that look like more rows of the tables."""
        return list(unread_files(self.roots[0], {f.name for t in self.files.values() for f in t}))

    def check_unchanged(self) -> None:
        """Raises a DataError if a file has changed since they were listed."""
        now = _list_files(self.manifest, self.roots)
        for table, files in self.files.items():
            changed = {file.name for file in {*files} ^ {*now[table]}}
            if changed:
                raise DataError(
                    f"{table}.files is invalid: {min(changed)} changed while it was read. Start "
                    "again after the tables are written. [data-file-changed]"
                )


@dataclass(frozen=True)
class GraphPlan:
    """The conversion of every table of a graph. Reverse types are made from the rows of `edges`."""

    manifest: Manifest
    tables: Mapping[str, ScannedTable]
    nodes: Mapping[str, NodePlan]
    edges: Sequence[EdgePlan]
    label_edges: Sequence[EdgePlan]
    training_tables: Sequence[TrainingPlan]

    @property
    def node_tables(self) -> dict[str, ScannedTable]:
        return {name: self.tables[plan.table] for name, plan in self.nodes.items()}


def plan_graph(
    source: GraphSource, options: IngestOptions, schedule: Schedule, progress: Callable[[str], None]
) -> GraphPlan:
    """Scans all tables, fits their transforms and plans their conversion.

    Raises a DataError if tables do not fit the manifest. All problems of a stage are listed.
    """
    manifest, tables = source.manifest, source.scan(schedule)
    features = list(feature_tables(manifest, tables).values())
    tables |= fit_features(features, options.transforms, schedule, progress)
    nodes, edges, label_edges, training_tables = _plan(manifest, options, tables)
    if added := options.added_reverses(manifest.edge_types):
        names = ", ".join(map(edge_type_name, added.values()))
        progress(f"ingest: adding reverse edges: {names} (data.reverse_edges: false adds none)")
    if options.undirected and all(plan.edge_type[0] != plan.edge_type[2] for plan in edges):
        progress("ingest: data.undirected changes nothing: no edge type is within one node type")
    return GraphPlan(manifest, tables, nodes, edges, label_edges, training_tables)


def _node_table_name(node_type: str) -> str:
    return f"node_types.{node_type}"


def _list_files(manifest: Manifest, roots: Sequence[str]) -> dict[str, list[TableFile]]:
    return {
        name: retried(list_files)(roots[0], table.files, f"{name}.files", roots, table.csv)
        for name, table in manifest.all_tables.items()
    }


def feature_tables(
    manifest: Manifest, tables: Mapping[str, ScannedTable]
) -> dict[str | EdgeType, FeatureTable]:
    return {
        type_: FeatureTable(
            tables[name],
            table.features,
            table.id if isinstance(table, NodeTable) else None,
            table.split,
        )
        for (name, table), type_ in zip(manifest.all_tables.items(), manifest.tables, strict=False)
        if isinstance(table, NodeTable | EdgeTable)
    }


def _plan(
    manifest: Manifest, options: IngestOptions, tables: dict[str, ScannedTable]
) -> tuple[dict[str, NodePlan], list[EdgePlan], list[EdgePlan], list[TrainingPlan]]:
    problems: list[str] = []
    nodes: dict[str, NodePlan] = {}  # by name of the table
    edges: list[EdgePlan] = []
    label_edges: list[EdgePlan] = []
    training: list[TrainingPlan] = []
    added = options.added_reverses(manifest.edge_types)
    for name, table in manifest.all_tables.items():
        try:
            if isinstance(table, NodeTable):
                nodes[name] = plan_nodes(table, tables[name], options.feature_dtype)
                continue
            tables[name] = _with_id_types(table, tables[name], nodes)
            if isinstance(table, TrainingTable):
                short_name = name.removeprefix("training_tables.")
                training.append(plan_training(short_name, table, tables[name]))
                _check_time_unit(training[-1], [*nodes.values(), *edges])
            elif isinstance(table, LabelEdgeTable):
                label_edges.append(plan_label_edges(table, tables[name]))
            else:
                reverse, doubles = added.get(table.type), options.doubles(table)
                if reverse is not None:
                    _check_is_new(manifest, reverse, table.type)
                edges.append(
                    plan_edges(table, tables[name], doubles, reverse, options.feature_dtype)
                )
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    by_type = {name: nodes[_node_table_name(name)] for name in manifest.node_types}
    return by_type, edges, label_edges, training


def _check_time_unit(plan: TrainingPlan, graph: Sequence[NodePlan | EdgePlan]) -> None:
    units = {
        table.table: column.unit
        for table in (plan, *graph)
        for column in table.columns
        if column.role == "time"
    }
    of_graph = {name: unit for name, unit in units.items() if name != plan.table}
    if plan.table in units and of_graph and units[plan.table] not in of_graph.values():
        raise DataError(
            f"{plan.table}.time is invalid: its times are {unit_words(units[plan.table])}, and the "
            f"graph has {shown_units(of_graph)}. Write one kind. [training-table-time-unit]"
        )


def _check_is_new(manifest: Manifest, reverse: EdgeType, edge_type: EdgeType) -> None:
    if any(table.type == reverse for table in manifest.edge_types):
        raise DataError(
            f"data.reverse_edges is invalid: {edge_type_name(reverse)} is there, and is not "
            f"the reverse of {edge_type_name(edge_type)}. Rename its relation, set reverse_of in "
            "graph.yaml, or leave this type out of data.reverse_edges. [graph-reverse-taken]"
        )


def _with_id_types(
    table: EdgeTable | LabelEdgeTable | TrainingTable,
    scanned: ScannedTable,
    nodes: Mapping[str, NodePlan],
) -> ScannedTable:
    """Checks endpoints and entities against the ids of their node types. Those in CSV, or in a
    table without rows, get the same type.
    """
    types = dict(scanned.types)
    only_csv = all(shard.file.format == "csv" for shard in scanned.shards)
    ends = id_columns(table).items()
    node_types = (table.node_type,) if isinstance(table, TrainingTable) else table.type[::2]
    for (key, column), node_type in zip(ends, node_types, strict=True):
        plan = nodes.get(_node_table_name(node_type))
        if plan is None:
            continue  # its own problem is already listed
        if scanned.num_rows == 0:
            types[column] = pa.string() if plan.id_kind == "string" else pa.int64()
        if only_csv and plan.id_kind == "string":
            types[column] = pa.string()
        is_kind = pa.types.is_integer if plan.id_kind == "int" else pa.types.is_string
        if not is_kind(types[column]):
            wanted = "integers" if plan.id_kind == "int" else "strings"
            raise DataError(
                f"{scanned.name}.{key}={column!r} is invalid: the column is {types[column]}, but "
                f"the ids of node type {node_type!r} are {wanted}. Write both as the same kind. In "
                "CSV, ids are integers if all are, without leading zeros. [edges-id-kind]"
            )
    return replace(scanned, types=types)
