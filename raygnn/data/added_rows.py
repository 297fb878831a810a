"""Decodes rows of new nodes and edges in memory, by the rules of a graph's tables."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.console import say
from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, edge_type_name, type_name
from raygnn.data.extended_bundle import AddedEdges, Addition, ExtendedIds
from raygnn.data.filesystem import absolute, exists, is_below, join, open_fs, redact
from raygnn.data.ingest.column_plan import DensePlan, SourceColumn, inspect, plan_sparse, plan_time
from raygnn.data.ingest.decode import dense_rows, null_mask, sparse_rows, without_table_remedies
from raygnn.data.ingest.findings import Finding, FindingCollector, describe
from raygnn.data.ingest.pieces import cut_table, read_blocks
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.ingest.read_rows import checked_ids, find_nodes
from raygnn.data.ingest.scan import ScannedTable, TableColumns, scan_tables
from raygnn.data.ingest.schedule import in_process
from raygnn.data.ingest.table_plan import DST, SRC, End, id_columns, table_columns
from raygnn.data.manifest import (
    MANIFEST_NAME,
    DenseFeature,
    EdgeTable,
    Manifest,
    NodeTable,
    SparseFeature,
    manifest_folder,
    manifest_uri,
)
from raygnn.data.tables.files import (
    CsvFormat,
    TableFile,
    list_files,
    match_files,
    suffix_and_format,
)
from raygnn.data.tables.read_ids import column_names
from raygnn.data.time_units import TIME_UNIT
from raygnn.data.transforms.fitted import FittedColumn
from raygnn.errors import DataError, choose_from

#: Rows of a table: values by column; a column that is left out is empty.
Rows: TypeAlias = Sequence[Mapping[str, Any]]
_EXAMPLES = 5


@dataclass(frozen=True)
class AddedRows:
    """New nodes and edges, with the columns of a graph's tables. Crosses process boundaries.

    Attributes:
        edges: rows by edge type, `src__rel__dst`, between known or new nodes.
    """

    nodes: Mapping[str, Rows]
    edges: Mapping[str, Rows] = field(default_factory=dict)


@dataclass(frozen=True)
class _GraphTable:
    type: str | EdgeType
    spec: NodeTable | EdgeTable
    wanted: tuple[ColumnInfo, ...]

    @property
    def name(self) -> str:
        kind = "node_types" if isinstance(self.spec, NodeTable) else "edge_types"
        return f"{kind}.{type_name(self.type)}"

    @property
    def id_columns(self) -> list[tuple[str, str]]:
        node_types = (self.type,) if isinstance(self.type, str) else self.type[::2]
        return list(zip(id_columns(self.spec).values(), node_types, strict=True))

    def scanned(self, columns: Mapping[str, pa.Array]) -> ScannedTable:
        return ScannedTable(self.name, (), {name: c.type for name, c in columns.items()})

    @property
    def needed(self) -> Sequence[str]:
        names = {info.name for info in self.wanted}
        features = {name: spec for name, spec in self.spec.features.items() if name in names}
        changes: dict[str, Any] = {"features": features, "labels": {}, "split": None}
        changes |= {role: None for role in ("time", "weight") if role not in names}
        return table_columns(self.spec.model_copy(update=changes)).names


class _NewRows(NamedTuple):
    arrays: Mapping[str, pa.Array]
    num_rows: int
    source: str = "new rows"

    def collector(self, table: _GraphTable) -> FindingCollector:
        found = FindingCollector(table.name)
        found.start_block(self.source, 0, self.num_rows)
        return found


class RowReader:
    """Decodes new rows as the graph's ingest would have.

    `graph`: the part of the graph that the model reads. `columns`: names of required columns.
    """

    def __init__(
        self, uri: str, graph: Bundle, columns: Iterable[str], options: IngestOptions
    ) -> None:
        self._uri, self._graph, self._options = uri, graph, options
        self._known = graph
        self._manifest = manifest = Manifest.load(uri, options.allow_outside)
        self._reverses = options.added_reverses(manifest.edge_types)
        read, known = frozenset(columns), graph.node_types
        self._infos = {
            type_: {name: info for name, info in graph.columns(type_).items() if name in read}
            for type_ in graph.types
        }
        tables = {
            type_: _GraphTable(type_, spec, tuple(self._infos.get(type_, {}).values()))
            for type_, spec in manifest.tables.items()
            if set([type_] if isinstance(type_, str) else type_[::2]) <= set(known)
        }
        self._nodes = {t: table for t, table in tables.items() if isinstance(t, str)}
        self._edges = {edge_type_name(t): tables[t] for t in tables if not isinstance(t, str)}
        self._widths: dict[tuple[str, str], list[int]] = {}
        self._names: dict[str, Collection[str]] = {}

    def on(self, graph: Bundle) -> RowReader:
        """A reader of rows that come after others: `graph` is this reader's with rows added."""
        reader = copy(self)
        reader._known = graph
        return reader

    def is_edge(self, type_name: str) -> bool:
        return type_name in self._edges

    def check_directed(self, type_names: Iterable[str]) -> None:
        """Raises a DataError if rows of an edge type stand for both directions.

        In an ingest, such a row replaces the copy of an earlier one.
        """
        for name in type_names:
            table = self._edges.get(name)
            if table is not None and self._options.doubles(cast("EdgeTable", table.spec)):
                raise DataError(
                    f"new rows of {name!r} would count both ways. Declare two edge types. "
                    "[events-undirected]"
                )

    def read(self, rows: AddedRows) -> Addition:
        """Decodes rows in memory.

        Raises a DataError if a type or column is unknown, a new id is already known, an end is not
        a node, or a value breaks a rule of its column.
        """
        _check_types("nodes", rows.nodes, list(self._nodes))
        _check_types("edges", rows.edges, list(self._edges))
        nodes = {n: self._decode(self._nodes[n], found) for n, found in rows.nodes.items() if found}
        edges = {n: self._decode(self._edges[n], found) for n, found in rows.edges.items() if found}
        return self._addition(nodes, edges)

    def _decode(self, table: _GraphTable, rows: Rows) -> _NewRows:
        """Leaves out columns that the files of the table have, and graph.yaml does not name."""
        name, columns = type_name(table.type), table_columns(table.spec).names
        for column in dict.fromkeys(itertools.chain.from_iterable(rows)):
            if column not in columns and column not in self._file_columns(table):
                raise DataError(
                    f"new rows of {name!r} are invalid: their tables have no column {column!r}. "
                    f"{choose_from(column, columns, 'Their columns are')}. [rows-column-unknown]"
                )
        return _NewRows({column: _array(name, column, rows) for column in table.needed}, len(rows))

    def _file_columns(self, table: _GraphTable) -> Collection[str]:
        if table.name not in self._names:
            self._names[table.name] = frozenset(*map(column_names, self._first_file(table)))
        return self._names[table.name]

    def _first_file(self, table: _GraphTable) -> Sequence[TableFile]:
        roots = (manifest_folder(self._uri), *self._options.allow_outside)
        return list_files(roots[0], table.spec.files, table.name, roots, table.spec.csv)[:1]

    def read_tables(self, uri: str) -> Addition:
        """Decodes rows of files, with the columns of the graph's manifest.

        With `on_error: drop`, edges that break a rule are left out, but never nodes. Raises a
        DataError as `read`, or if a file is missing.

        Args:
            uri: a folder with files named like the graph's, or with a `graph.yaml`, of which only
                types and files are read.
        """
        files = _files_by_type(self._manifest, uri, self._options.allow_outside)
        nodes, edges = (
            {
                name: self._read_files(table, uri, *files[table.type])
                for name, table in tables.items()
                if table.type in files
            }
            for tables in (self._nodes, self._edges)
        )
        return self._addition(nodes, edges, of_tables=True)

    def _read_files(
        self, table: _GraphTable, uri: str, patterns: Sequence[str], csv: CsvFormat | None
    ) -> _NewRows:
        roots = (absolute(manifest_folder(uri)), *self._options.allow_outside)
        files = list_files(roots[0], patterns, "--new-nodes", roots, csv)
        names = table.needed
        columns = TableColumns(names, frozenset(names) - dict(table.id_columns).keys())
        (scanned,) = scan_tables([(table.name, files, columns)], in_process)
        types = dict(scanned.types)
        if all(file.format == "csv" for file in files):
            # The texts of a CSV file may all be numbers.
            texts = [c for c, n in table.id_columns if self._graph.id_map(n).kind != "int"]
            fitted = [info.transforms.parts for info in table.wanted if info.transforms]
            for part in itertools.chain.from_iterable(fitted):
                if isinstance(part, FittedColumn) and part.state.kind == "text":
                    texts.append(part.column)
            types |= dict.fromkeys(texts, pa.string())
        blocks = [b for piece in cut_table(scanned) for b in read_blocks(piece, types)]
        arrays = {
            name: pa.chunked_array(
                [b.columns[name].cast(types[name]) for b in blocks], types[name]
            ).combine_chunks()
            for name in names
        }
        return _NewRows(arrays, scanned.num_rows, files[0].name if len(files) == 1 else "new rows")

    def _addition(
        self,
        nodes: Mapping[str, _NewRows],
        edges: Mapping[str, _NewRows],
        *,
        of_tables: bool = False,
    ) -> Addition:
        drop = of_tables and self._options.on_error == "drop"
        findings: list[Finding] = []
        num_new, ids = {}, {}
        columns: dict[str | EdgeType, dict[str, Any]] = {
            type_: {name: _empty(info) for name, info in infos.items()}
            for type_, infos in self._infos.items()
        }
        for name in self._graph.node_types:
            num_new[name], ids[name] = 0, self._graph.ids(name)[:0]
            if name in nodes:
                table, new = self._nodes[name], nodes[name]
                wrong = new.collector(table)
                num_new[name] = new.num_rows
                ((id_column, _),) = table.id_columns
                self._check_unknown(name, new.arrays[id_column], of_tables=of_tables)
                ids[name] = self._new_ids(name, id_column, new.arrays[id_column], wrong)
                columns[name] = self._decoded(table, new.arrays, wrong)
                findings += wrong.findings()
        findings = _never_dropped(findings)
        every = {name: ExtendedIds(self._known.id_map(name), ids[name]) for name in num_new}
        none = np.empty(0, np.int64)
        added = {edge_type: AddedEdges(none, none) for edge_type in self._graph.edge_types}
        for name, new in edges.items():
            table = self._edges[name]
            if table.type not in added:
                continue
            wrong = new.collector(table)
            ends = zip((SRC, DST), table.id_columns, strict=True)
            source, target = (
                find_nodes(
                    every[node_type],
                    End(array, column, node_type),
                    _typed(new.arrays[column], self._graph.ids(node_type).type),
                    wrong,
                )
                for array, (column, node_type) in ends
            )
            decoded = self._decoded(table, new.arrays, wrong)
            rows = np.arange(new.num_rows)
            if drop and wrong.bad.any():
                dropped = describe(wrong.findings(), are_dropped=True)
                say(f"data.on_error=drop left out invalid rows:\n{dropped}")
                rows = np.flatnonzero(~wrong.bad)
            else:
                invalid = wrong.findings()
                findings += invalid if of_tables else _never_dropped(invalid)
            both = AddedEdges(source[rows], target[rows])
            reverse = self._reverses.get(table.type)
            if reverse in added:
                added[reverse] = AddedEdges(both.targets, both.sources)
                columns[reverse] = {name: values[rows] for name, values in decoded.items()}
            assert isinstance(table.spec, EdgeTable)
            if self._options.doubles(table.spec) and len(rows):
                both, copies = _both_ways(*both)
                rows = rows[copies]
            added[table.type] = both
            columns[table.type] = {name: values[rows] for name, values in decoded.items()}
        if findings:
            raise DataError(describe(findings))
        return Addition(num_new, ids, added, columns, self._infos)

    def _check_unknown(self, name: str, ids: pa.Array, *, of_tables: bool) -> None:
        id_map = self._known.id_map(name)
        known = np.flatnonzero(id_map.lookup(_typed(ids, self._graph.ids(name).type)) >= 0)
        if len(known):
            shown = [ids[int(row)].as_py() for row in known[:_EXAMPLES]]
            what = "--new-nodes" if of_tables else f"new.nodes.{name}"
            raise DataError(
                f"{what} is invalid: {len(known):,} of {len(ids):,} ids of {name!r}, as {shown}, "
                "are in the graph. Give new nodes ids of their own.",
                id="append-ids-known" if of_tables else "rows-id-known",
            )

    def _new_ids(
        self, name: str, column: str, ids: pa.Array, findings: FindingCollector
    ) -> pa.Array:
        graph_ids = self._graph.ids(name)
        ids = _typed(ids, graph_ids.type)
        null = null_mask(ids)
        ids = checked_ids(column, ids, findings)
        _, first = np.unique(ids.to_numpy(zero_copy_only=False).astype(str), return_index=True)
        repeated = ~np.isin(np.arange(len(ids)), first) & ~null
        rule, remedy = "ids that an earlier row has", "Give each node one row."
        findings.add(column, rule, repeated, ids, remedy, id="nodes-id-repeated")
        return ids.cast(graph_ids.type)

    def _decoded(
        self, table: _GraphTable, arrays: Mapping[str, pa.Array], findings: FindingCollector
    ) -> dict[str, Any]:
        decoded: dict[str, Any] = {}
        for info in table.wanted:
            with findings.one_column():
                if info.sparse:
                    decoded[info.name] = _sparse(table, info, arrays, findings)
                else:
                    decoded[info.name] = self._dense(table, info, arrays, findings)
        return decoded

    def _dense(
        self,
        table: _GraphTable,
        info: ColumnInfo,
        arrays: Mapping[str, pa.Array],
        findings: FindingCollector,
    ) -> np.ndarray:
        typed = dict(arrays)
        sources = tuple(
            _typed_source(table, info, expected, typed) for expected in self._expected(table, info)
        )
        # Floats in a column of integers are checked as floats.
        is_cut = np.dtype(info.dtype).kind in "iub"
        is_cut &= any(np.dtype(source.dtype).kind == "f" for source in sources)
        dtype = "float64" if is_cut else info.dtype
        plan = DensePlan(info.name, info.role, sources, dtype, info.shape)
        return dense_rows(plan, typed, findings).astype(info.dtype, copy=False)

    def _expected(self, table: _GraphTable, info: ColumnInfo) -> list[SourceColumn]:
        """The table columns of a stored column, with their widths in the graph."""
        if info.role == "time":
            assert table.spec.time is not None
            return [SourceColumn(table.spec.time.column, "time", "int64", ())]
        if info.role == "weight":
            assert isinstance(table.spec, EdgeTable)
            assert table.spec.weight is not None
            return [SourceColumn(table.spec.weight, "scalar", "float32", ())]
        spec = table.spec.features[info.name]
        assert isinstance(spec, DenseFeature)
        element = spec.dtype or "float32"  # binary columns name their type
        if info.transforms is not None:
            return [
                SourceColumn(part.column, "any", "float32", (part.width,), part)
                if isinstance(part, FittedColumn)
                else SourceColumn(part.column, "list", element, (part.width,))
                for part in info.transforms.parts
            ]
        names = spec.column_names
        if len(names) == 1:
            return [SourceColumn(names[0], "list" if info.shape else "scalar", element, info.shape)]
        widths = self._widths_of(table, info, spec)
        return [SourceColumn(c, "list", element, (w,)) for c, w in zip(names, widths, strict=True)]

    def _widths_of(self, table: _GraphTable, info: ColumnInfo, spec: DenseFeature) -> list[int]:
        names = spec.column_names
        if info.width == len(names):
            return [1] * len(names)
        key = (table.name, info.name)
        if key not in self._widths:
            place, columns = f"features.{info.name}", TableColumns(names, frozenset(names))
            (scanned,) = scan_tables([(place, self._first_file(table), columns)], in_process)
            self._widths[key] = [inspect(scanned, c, place, spec.dtype).width for c in names]
        return self._widths[key]


def _check_types(what: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise DataError(
                f"new.{what}.{name} is invalid: the graph has no such type. "
                f"{choose_from(name, known)}. [rows-type-unknown]"
            )


def _never_dropped(findings: Iterable[Finding]) -> list[Finding]:
    return [replace(each, remedy=without_table_remedies(each.remedy)) for each in findings]


def _files_by_type(
    base: Manifest, uri: str, allow_outside: Sequence[str]
) -> dict[str | EdgeType, tuple[Sequence[str], CsvFormat | None]]:
    folder = absolute(manifest_folder(uri))
    is_named = exists(manifest_uri(uri))
    manifest = Manifest.load(uri, allow_outside) if is_named else base
    files: dict[str | EdgeType, tuple[Sequence[str], CsvFormat | None]] = {
        type_: (here, table.csv)
        for type_, table in manifest.tables.items()
        if (here := table.files if is_named else _present(folder, table.files))
    }
    if not files:
        expected = [name for table in base.node_types.values() for name in table.files]
        raise DataError(
            f"--new-nodes={redact(folder)!r} is invalid: it has no {MANIFEST_NAME}, and no file "
            f"like {expected[0]}. Name another. [append-no-files]"
        )
    if not is_named and (
        unread := _unread(folder, [p for here, _ in files.values() for p in here])
    ):
        expected = list(dict.fromkeys(p for table in base.tables.values() for p in table.files))
        raise DataError(
            f"--new-nodes={redact(folder)!r} is invalid: {', '.join(unread[:_EXAMPLES])} would not "
            f"be read. Name tables as the graph does, such as {', '.join(expected[:_EXAMPLES])}, "
            f"or write a {MANIFEST_NAME}. [append-file-unknown]"
        )
    unknown = [str(type_) for type_ in files if type_ not in base.tables]
    if unknown:
        raise DataError(
            f"--new-nodes: no type {', '.join(unknown)} in the graph. Remove it. "
            "[append-type-unknown]"
        )
    return files


def _present(folder: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns that match a file. Patterns that lead out of the folder do not."""
    inside = [pattern for pattern in patterns if is_below(join(folder, pattern), [folder])]
    return tuple(p for p in inside if match_files(folder, p, "--new-nodes"))


def _unread(folder: str, patterns: Sequence[str]) -> list[str]:
    """The tables of a folder, relative to it, that no pattern matches."""
    fs, root = open_fs(folder)
    matches = (match_files(folder, pattern, "--new-nodes") for pattern in patterns)
    read = {open_fs(uri)[1] for found in matches for uri, _ in found}
    paths = {path[len(root.rstrip("/")) + 1 :]: path for path in sorted(fs.find(root))}
    return [
        name
        for name, path in paths.items()
        if path not in read
        and suffix_and_format(name)
        and not name.rpartition("/")[2].startswith(("_", "."))
    ]


def _array(name: str, column: str, rows: Rows) -> pa.Array:
    try:
        return pa.array([row.get(column) for row in rows])
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
    ) as error:
        raise DataError(
            f"new rows of {name!r} are invalid: {column!r} has values of several kinds "
            f"({str(error)[:100]}). Give one kind. [rows-column-kinds]"
        ) from error


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Gives a column its type if its values do not determine it (none, or only empty lists)."""
    is_empty = pa.types.is_null(column.type)
    if pa.types.is_list(column.type) and pa.types.is_nested(kind):
        is_empty |= pa.types.is_null(column.type.value_type)
    return column.cast(kind) if is_empty else column


def _both_ways(sources: np.ndarray, targets: np.ndarray) -> tuple[AddedEdges, np.ndarray]:
    """Each edge followed by its reverse copy, and the row of each.

    As in an ingest, self-edges have no copy, nor do edges whose reverse is also a row.
    """
    size = max(sources.max(), targets.max()) + 1
    is_listed = np.isin(targets * size + sources, sources * size + targets)
    row = np.repeat(np.arange(len(sources)), np.where(is_listed, 1, 2))
    is_copy = np.append(False, row[1:] == row[:-1])
    ends = np.stack([sources[row], targets[row]])
    ends[:, is_copy] = ends[::-1, is_copy]
    return AddedEdges(*ends), row


def _empty(info: ColumnInfo) -> np.ndarray | SparseColumn:
    if info.sparse:
        none = np.empty(0, np.int64)
        return SparseColumn(np.zeros(1, np.int64), none, np.empty(0, np.float32), info.shape[0])
    return np.empty((0, *info.shape), info.dtype)


def _sparse(
    table: _GraphTable, info: ColumnInfo, arrays: Mapping[str, pa.Array], findings: FindingCollector
) -> SparseColumn:
    spec = table.spec.features[info.name]
    assert isinstance(spec, SparseFeature)
    columns = {spec.indices: _typed(arrays[spec.indices], pa.list_(pa.int64()))}
    if spec.values is not None:
        columns[spec.values] = _typed(arrays[spec.values], pa.list_(pa.float64()))
    plan = plan_sparse(table.scanned(columns), info.name, spec, info.dtype)
    lengths, indices, values = sparse_rows(plan, columns, findings)
    return SparseColumn(np.append(0, np.cumsum(lengths)), indices, values, spec.dim)


def _typed_source(
    table: _GraphTable, info: ColumnInfo, expected: SourceColumn, columns: dict[str, pa.Array]
) -> SourceColumn:
    """The layout of a column as new rows have it. Replaces a column without values by a typed one.

    Raises a DataError if it differs from what the graph has.
    """
    name, rows = expected.column, f"new rows of {type_name(table.type)!r}"
    if expected.fitted is not None:
        # As in CSV files: every transform accepts gaps in numbers.
        columns[name] = _typed(columns[name], pa.float64())
        expected.fitted.check_type(columns[name].type, table.name)
        return expected
    if expected.layout == "time":
        columns[name] = _typed(columns[name], pa.timestamp(TIME_UNIT) if info.unit else pa.int64())
        assert table.spec.time is not None
        plan = plan_time(table.scanned(columns), table.spec.time)
        if plan.unit != info.unit:
            actual, wanted = ("dates", "plain numbers")[:: 1 if plan.unit else -1]
            raise DataError(
                f"{rows}: times are {actual}, the graph's {wanted}. Use these. [rows-time-unit]"
            )
        return plan.sources[0]
    is_scalar = expected.layout == "scalar"
    column = _typed(columns[name], pa.float64() if is_scalar else pa.list_(pa.float64()))
    columns[name] = column
    source = inspect(table.scanned(columns), name, rows, expected.dtype, expected.width)
    widths = np.full(1, source.width)
    if source.layout == "list":
        widths = pc.fill_null(column.value_lengths(), expected.width).to_numpy()
    wrong = widths[widths != expected.width]
    if len(wrong) or (is_scalar and source.layout != "scalar"):
        actual = f"{wrong[0]} elements" if len(wrong) else "a list"
        wanted = "one number" if is_scalar else f"{expected.width}"
        raise DataError(
            f"{rows}: {name!r} has {actual} instead of {wanted}. Give as many. [rows-feature-width]"
        )
    return source
