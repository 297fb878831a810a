"""Decodes rows of new nodes and edges in memory, by the rules of a graph's tables."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.console import say
from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, edge_type_name, type_name
from raygnn.data.extended_bundle import AddedEdges, Addition, ExtendedIds
from raygnn.data.filesystem import absolute, exists, is_below, join, redact
from raygnn.data.id_map import integer_ids
from raygnn.data.ingest.column_plan import (
    DensePlan,
    SourceColumn,
    SparsePlan,
    inspect,
    needed_columns,
)
from raygnn.data.ingest.decode import (
    REPAIR,
    dense_rows,
    null_mask,
    sparse_rows,
    without_table_remedies,
)
from raygnn.data.ingest.findings import Finding, FindingCollector, describe
from raygnn.data.ingest.pieces import cut_table, read_blocks
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.ingest.scan import TableColumns, scan_tables
from raygnn.data.ingest.schedule import in_process
from raygnn.data.ingest.table_plan import edge_columns, node_columns
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
from raygnn.data.tables.files import CsvFormat, list_files, match_files
from raygnn.data.transforms.state import FittedColumn
from raygnn.data.transforms.values import is_text_type
from raygnn.errors import DataError, choose_from

#: Rows of a table: values by column; a column that is left out is empty.
Rows: TypeAlias = Sequence[Mapping[str, Any]]
#: Columns of a type as the graph stores them.
Columns: TypeAlias = dict[str, Any]
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
class _Table:
    type: str | EdgeType
    spec: NodeTable | EdgeTable
    wanted: tuple[ColumnInfo, ...]

    @property
    def name(self) -> str:
        kind = "node_types" if isinstance(self.spec, NodeTable) else "edge_types"
        return f"{kind}.{type_name(self.type)}"

    @property
    def id_columns(self) -> dict[str, str]:
        if isinstance(self.spec, NodeTable):
            return {self.spec.id: str(self.type)}
        return {self.spec.source: self.type[0], self.spec.target: self.type[2]}

    @property
    def columns(self) -> list[str]:
        spec = self.spec
        return node_columns(spec) if isinstance(spec, NodeTable) else edge_columns(spec)

    @property
    def needed(self) -> list[str]:
        names = {info.name for info in self.wanted}
        features = {n: feature for n, feature in self.spec.features.items() if n in names}
        time = self.spec.time if "time" in names else None
        weight = getattr(self.spec, "weight", None) if "weight" in names else None
        return needed_columns(features, {}, time, [*self.id_columns, weight])


class _Given(NamedTuple):
    arrays: Mapping[str, pa.Array]
    num_rows: int
    source: str = "new rows"

    def collector(self, table: _Table) -> FindingCollector:
        found = FindingCollector(table.name)
        found.start_block(self.source, 0, self.num_rows)
        return found


class RowReader:
    """Decodes new rows as the graph's ingest would have.

    Args:
        graph: the part of the graph that the model reads.
        columns: names of required columns.
    """

    def __init__(
        self, uri: str, graph: Bundle, columns: Iterable[str], options: IngestOptions
    ) -> None:
        self._uri, self._graph, self._options = uri, graph, options
        self._manifest = manifest = Manifest.load(uri, options.allow_outside)
        self._reverses = options.added_reverses(manifest.edge_types)
        read, known = frozenset(columns), graph.node_types
        self._infos = {
            type_: {name: info for name, info in graph.columns(type_).items() if name in read}
            for type_ in graph.types
        }
        tables = {
            type_: _Table(type_, spec, tuple(self._infos.get(type_, {}).values()))
            for type_, spec in manifest.tables.items()
            if set([type_] if isinstance(type_, str) else type_[::2]) <= set(known)
        }
        self._nodes = {t: table for t, table in tables.items() if isinstance(t, str)}
        self._edges = {edge_type_name(t): tables[t] for t in tables if not isinstance(t, str)}
        self._widths: dict[tuple[str, str], list[int]] = {}

    def read(self, rows: AddedRows) -> Addition:
        """Decodes rows in memory.

        Raises a DataError if a type or column is unknown, a new id is already known, an end is not
        a node, or a value breaks a rule of its column.
        """
        _check_types("nodes", rows.nodes, list(self._nodes))
        _check_types("edges", rows.edges, list(self._edges))
        nodes = {n: _given(self._nodes[n], found) for n, found in rows.nodes.items() if found}
        edges = {n: _given(self._edges[n], found) for n, found in rows.edges.items() if found}
        try:
            return self._addition(nodes, edges)
        except DataError as error:
            raise DataError(without_table_remedies(str(error))) from error

    def read_tables(self, uri: str) -> Addition:
        """Decodes rows of files, with the columns of the graph's manifest.

        With `on_error: drop`, edges that break a rule are left out, but never nodes.

        Args:
            uri: a folder with files named like the graph's, or with a `graph.yaml`, of which only
                types and files are read.
        Raises:
            DataError: as in `read`, or there is no such file.
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
        self, table: _Table, uri: str, patterns: Sequence[str], csv: CsvFormat | None
    ) -> _Given:
        roots = (absolute(manifest_folder(uri)), *self._options.allow_outside)
        files = list_files(roots[0], patterns, "--new-nodes", roots, csv)
        names = table.needed
        columns = TableColumns(names, frozenset(names) - table.id_columns.keys())
        (scanned,) = scan_tables([(table.name, files, columns)], in_process)
        types = dict(scanned.types)
        if all(file.format == "csv" for file in files):
            # The texts of a CSV file may all be numbers.
            texts = [c for c, n in table.id_columns.items() if self._graph.id_map(n).kind != "int"]
            fitted = [info.transforms.parts for info in table.wanted if info.transforms]
            for part in itertools.chain.from_iterable(fitted):
                if isinstance(part, FittedColumn) and part.state.kind == "text":
                    texts.append(part.column)
            types |= dict.fromkeys(texts, pa.string())
        blocks = [b for piece in cut_table(scanned) for b in read_blocks(piece, types)]
        arrays = {
            name: pa.chunked_array([b.columns[name] for b in blocks], types[name]).combine_chunks()
            for name in names
        }
        return _Given(arrays, scanned.num_rows, files[0].name if len(files) == 1 else "new rows")

    def _addition(
        self, nodes: Mapping[str, _Given], edges: Mapping[str, _Given], *, of_tables: bool = False
    ) -> Addition:
        drop = of_tables and self._options.on_error == "drop"
        findings: list[Finding] = []
        num_new, ids = {}, {}
        columns: dict[str | EdgeType, Columns] = {
            type_: {name: _empty(info) for name, info in infos.items()}
            for type_, infos in self._infos.items()
        }
        for name in self._graph.node_types:
            num_new[name], ids[name] = 0, self._graph.ids(name)[:0]
            if name in nodes:
                table, new = self._nodes[name], nodes[name]
                wrong = new.collector(table)
                num_new[name] = new.num_rows
                (id_column,) = table.id_columns
                self._check_unknown(name, new.arrays[id_column], of_tables=of_tables)
                ids[name] = self._new_ids(name, id_column, new.arrays[id_column], wrong)
                columns[name] = self._decoded(table, new.arrays, wrong)
                findings += wrong.findings()
        every = {name: ExtendedIds(self._graph.id_map(name), ids[name]) for name in num_new}
        none = np.empty(0, np.int64)
        added = {edge_type: AddedEdges(none, none) for edge_type in self._graph.edge_types}
        for name, new in edges.items():
            table = self._edges[name]
            if table.type not in added:
                continue
            wrong = new.collector(table)
            source, target = (
                _looked_up(every[node_type], node_type, column, new.arrays[column], wrong)
                for column, node_type in _ends(table)
            )
            decoded = self._decoded(table, new.arrays, wrong)
            rows = np.arange(new.num_rows)
            if drop and wrong.bad.any():
                dropped = describe(wrong.findings(), are_dropped=True)
                say(f"data.on_error=drop left out invalid rows:\n{dropped}")
                rows = np.flatnonzero(~wrong.bad)
            else:
                findings += wrong.findings()
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
        id_map = self._graph.id_map(name)
        known = np.flatnonzero(id_map.lookup(_typed(ids, self._graph.ids(name).type)) >= 0)
        if len(known):
            shown = [ids[int(row)].as_py() for row in known[:_EXAMPLES]]
            raise DataError(
                f"{'--new-nodes' if of_tables else f'new.nodes.{name}'} is invalid: {len(known):,} "
                f"of {len(ids):,} ids of {name!r}, such as {shown}, are in the graph already. "
                "Give new nodes ids of their own.",
                id="append-ids-known" if of_tables else "rows-id-known",
            )

    def _new_ids(
        self, name: str, column: str, ids: pa.Array, findings: FindingCollector
    ) -> pa.Array:
        graph_ids = self._graph.ids(name)
        ids = _typed(ids, graph_ids.type)
        remedy = "Give each node an id."
        null = null_mask(ids)
        findings.add(column, "null ids", remedy, null, id="nodes-null-ids")
        if pa.types.is_integer(ids.type):
            values, too_large = integer_ids(ids)
            rule = "ids above 2**63 - 1"
            findings.add(column, rule, REPAIR, too_large, ids, id="nodes-id-range")
            ids = pa.array(values)
        _, first = np.unique(ids.to_numpy(zero_copy_only=False).astype(str), return_index=True)
        repeated = ~np.isin(np.arange(len(ids)), first) & ~null
        rule = "ids that an earlier row has"
        findings.add(column, rule, "Give each node one row.", repeated, ids, id="nodes-id-repeated")
        return ids.cast(graph_ids.type)

    def _decoded(
        self, table: _Table, arrays: Mapping[str, pa.Array], findings: FindingCollector
    ) -> Columns:
        decoded: Columns = {}
        for info in table.wanted:
            # Each column is checked by itself, so that one bad column hides no other.
            earlier, findings.bad = findings.bad, np.zeros_like(findings.bad)
            spec = table.spec.features.get(info.name) if info.role == "feature" else None
            if isinstance(spec, SparseFeature):
                stored = {c: _typed(arrays[c], pa.list_(pa.float64())) for c in _names(spec)}
                stored[spec.indices] = _typed(stored[spec.indices], pa.list_(pa.int64()))
                plan = SparsePlan(info.name, spec.indices, spec.values, spec.dim, info.dtype)
                lengths, indices, values = sparse_rows(plan, stored, findings)
                indptr = np.append(0, np.cumsum(lengths))
                decoded[info.name] = SparseColumn(indptr, indices, values, spec.dim)
            else:
                decoded[info.name] = self._dense(table, info, spec, arrays, findings)
            findings.bad |= earlier
        return decoded

    def _dense(
        self,
        table: _Table,
        info: ColumnInfo,
        spec: DenseFeature | None,
        arrays: Mapping[str, pa.Array],
        findings: FindingCollector,
    ) -> np.ndarray:
        sources, typed = [], dict(arrays)
        for part in self._parts(table, info, spec):
            name = part.column
            if part.fitted is not None:
                _check_transform(findings.table, part.fitted, arrays[name].type)
                if pa.types.is_null(arrays[name].type):
                    # As in CSV files: every transform accepts gaps in numbers.
                    typed[name] = arrays[name].cast(pa.float64())
            else:
                if info.role == "time":
                    _check_time(type_name(table.type), arrays[name].type, info.unit)
                if part.layout == "time":
                    typed[name] = _typed(arrays[name], pa.timestamp("us"))
                else:
                    part, typed[name] = _numbers(type_name(table.type), part, arrays[name])
            sources.append(part)
        # Floats in a column of integers are checked as floats.
        is_cut = np.dtype(info.dtype).kind in "iub" and info.quantization is None
        is_cut &= any(np.dtype(part.dtype or "int64").kind == "f" for part in sources)
        dtype = "float64" if is_cut else info.dtype
        quantization = info.quantization
        plan = DensePlan(
            info.name, info.role, tuple(sources), dtype, info.shape, quantization=quantization
        )
        return dense_rows(plan, typed, findings).astype(info.dtype, copy=False)

    def _parts(
        self,
        table: _Table,
        info: ColumnInfo,
        spec: DenseFeature | None,
    ) -> list[SourceColumn]:
        if info.role == "time":
            time = table.spec.time
            assert time is not None
            layout: Any = "time" if info.unit else "scalar"
            return [SourceColumn(time.column, layout, "", (), format=time.format)]
        if info.role == "weight":
            weight = getattr(table.spec, "weight", None)
            assert weight is not None
            return [SourceColumn(weight, "scalar", "", ())]
        assert spec is not None
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

    def _widths_of(
        self,
        table: _Table,
        info: ColumnInfo,
        spec: DenseFeature,
    ) -> list[int]:
        names = spec.column_names
        if info.width == len(names):
            return [1] * len(names)
        key = (table.name, info.name)
        if key not in self._widths:
            roots = (manifest_folder(self._uri), *self._options.allow_outside)
            place = f"features.{info.name}"
            files = list_files(roots[0], table.spec.files, place, roots, table.spec.csv)[:1]
            columns = TableColumns(names, frozenset(names))
            (scanned,) = scan_tables([(place, files, columns)], in_process)
            self._widths[key] = [inspect(scanned, c, place, spec.dtype).width for c in names]
        return self._widths[key]


def _check_types(what: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise DataError(
                f"new.{what}.{name} is invalid: the graph has no such type. "
                f"{choose_from(name, known)}.",
                id="rows-type-unknown",
            )


def _given(table: _Table, rows: Rows) -> _Given:
    name, columns = type_name(table.type), table.columns
    for row in rows:
        for column in row:
            if column not in columns:
                raise DataError(
                    f"new rows of {name!r} are invalid: graph.yaml has no column {column!r} of "
                    f"them. {choose_from(column, columns, 'Their columns are')}.",
                    id="rows-column-unknown",
                )
    return _Given({column: _array(name, column, rows) for column in table.needed}, len(rows))


def _ends(table: _Table) -> list[tuple[str, str]]:
    assert isinstance(table.spec, EdgeTable)
    return list(zip((table.spec.source, table.spec.target), table.type[::2], strict=True))


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
            f"named like one of the graph's, such as {expected[0]}. Name a folder with tables of "
            "new nodes.",
            id="append-no-files",
        )
    unknown = [str(type_) for type_ in files if type_ not in base.tables]
    if unknown:
        raise DataError(
            f"--new-nodes is invalid: the graph has no {', '.join(unknown)}. Append rows of types "
            "that its graph.yaml declares.",
            id="append-type-unknown",
        )
    return files


def _present(folder: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns that match a file. Patterns that lead out of the folder do not."""
    inside = [pattern for pattern in patterns if is_below(join(folder, pattern), [folder])]
    return tuple(p for p in inside if match_files(folder, p, "--new-nodes"))


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
            f"new rows of {name!r} are invalid: the values of {column!r} are of several kinds "
            f"({str(error)[:100]}). Give numbers, texts, or lists of one of them.",
            id="rows-column-kinds",
        ) from error


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Gives a column its type if its values do not determine it (none, or only empty lists)."""
    is_empty = pa.types.is_null(column.type)
    if pa.types.is_list(column.type) and pa.types.is_nested(kind):
        is_empty |= pa.types.is_null(column.type.value_type)
    return column.cast(kind) if is_empty else column


def _looked_up(
    ids: ExtendedIds, node_type: str, column: str, values: pa.Array, findings: FindingCollector
) -> np.ndarray:
    values = _typed(values, pa.int64() if ids.kind == "int" else pa.string())
    dense = ids.lookup(values)
    null = null_mask(values)
    findings.add(column, "null ids", "Give both endpoints.", null, id="edges-null-ids")
    rule = f"ids that node type {node_type!r} does not have (dangling)"
    unknown = (dense < 0) & ~null
    findings.add(column, rule, "Add the nodes.", unknown, values, id="edges-dangling")
    return dense


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


def _names(spec: SparseFeature) -> list[str]:
    return [spec.indices, *([spec.values] if spec.values else [])]


def _empty(info: ColumnInfo) -> np.ndarray | SparseColumn:
    if info.sparse:
        none = np.empty(0, np.int64)
        return SparseColumn(np.zeros(1, np.int64), none, np.empty(0, np.float32), info.shape[0])
    return np.empty((0, *info.shape), info.dtype)


def _check_transform(table: str, fitted: FittedColumn, kind: pa.DataType) -> None:
    if not pa.types.is_null(kind) and not fitted.takes(kind):
        raise DataError(
            f"{table}: column {fitted.column!r} is invalid: it is {kind}, which does not fit "
            f"{fitted.state.type}, its transform in training. Write it as it was in training.",
            id="transform-type",
        )


def _check_time(table: str, kind: pa.DataType, unit: str | None) -> None:
    is_date = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or is_text_type(kind)
    if not pa.types.is_null(kind) and is_date != (unit is not None):
        actual, wanted = ("dates", "plain numbers") if is_date else ("plain numbers", "dates")
        raise DataError(
            f"new rows of {table!r} are invalid: their times are {actual}, those of the graph "
            f"{wanted}. Give such.",
            id="rows-time-unit",
        )


def _numbers(table: str, source: SourceColumn, column: pa.Array) -> tuple[SourceColumn, pa.Array]:
    is_scalar = source.layout == "scalar"
    column = _typed(column, pa.float64() if is_scalar else pa.list_(pa.float64()))
    kind = column.type
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width // np.dtype(source.dtype).itemsize
        _check_widths(table, source, np.full(1, width), is_list=True)
        return dataclasses.replace(source, layout="binary"), column
    if isinstance(column, pa.ExtensionArray):
        column, kind = column.storage, column.storage.type
    is_list = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    element = kind.value_type if is_list else kind
    is_number = pa.types.is_integer(element) or pa.types.is_floating(element)
    if not is_number and not pa.types.is_boolean(element):
        raise DataError(
            f"new rows of {table!r} are invalid: column {source.column!r} is {kind}, which is "
            f"not numeric. Give numbers, or lists of them.",
            id="table-column-type",
        )
    dtype = np.dtype(element.to_pandas_dtype()).name
    if not is_list:
        widths = np.ones(len(column), np.int64)
        plain = SourceColumn(source.column, "scalar", dtype, ())
    else:
        column = column.cast(pa.list_(element))
        widths = pc.fill_null(column.value_lengths(), source.width).to_numpy()
        plain = SourceColumn(source.column, "list", dtype, source.shape)
    _check_widths(table, source, widths, is_list=is_list)
    return plain, column


def _check_widths(table: str, source: SourceColumn, widths: np.ndarray, *, is_list: bool) -> None:
    is_scalar = source.layout == "scalar"
    wrong = np.flatnonzero(widths != source.width)
    if len(wrong) or (is_list and is_scalar):
        has = f"{widths[wrong[0]]} elements" if len(wrong) else "a list"
        wanted = "one number" if is_scalar else f"{source.width}"
        raise DataError(
            f"new rows of {table!r} are invalid: {source.column!r} has {has}, in the graph it has "
            f"{wanted}. Give as many.",
            id="rows-feature-width",
        )
