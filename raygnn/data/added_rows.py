"""Rows of new nodes and edges in memory, decoded by the rules of a graph's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, edge_type_name, type_name
from raygnn.data.extended_bundle import AddedEdges, Addition, ExtendedIds
from raygnn.data.id_map import integer_ids
from raygnn.data.ingest.column_plan import DensePlan, SourceColumn, SparsePlan, inspect
from raygnn.data.ingest.decode import (
    REPAIR,
    dense_rows,
    null_mask,
    sparse_rows,
    without_table_remedies,
)
from raygnn.data.ingest.findings import Finding, FindingCollector, describe
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.ingest.scan import TableColumns, scan_tables
from raygnn.data.ingest.schedule import in_process
from raygnn.data.ingest.table_plan import edge_columns, node_columns
from raygnn.data.manifest import (
    DenseFeature,
    EdgeTable,
    Manifest,
    NodeTable,
    SparseFeature,
    manifest_folder,
)
from raygnn.data.tables.files import list_files
from raygnn.data.transforms.state import FittedColumn
from raygnn.data.transforms.values import is_text_type
from raygnn.errors import DataError, choose_from

#: Rows of a table: values by column; a column that is left out is empty.
Rows: TypeAlias = Sequence[Mapping[str, Any]]
_EXAMPLES = 5
_SOURCE = "new rows"  # in place of a file in messages


@dataclass(frozen=True)
class AddedRows:
    """New nodes and edges, in the columns of a graph's tables. Crosses process boundaries.

    Attributes:
        nodes: rows by node type.
        edges: rows by edge type, `src__rel__dst`; their ends are known or new nodes.
    """

    nodes: Mapping[str, Rows]
    edges: Mapping[str, Rows] = field(default_factory=dict)


class RowReader:
    """Decodes new rows of a graph as its ingest would have.

    Args:
        uri: of the graph's tables.
        graph: the part of the graph that the model reads.
        columns: names of the graph's columns that are read; rows need no others.
        options: of the graph's ingest.
    """

    def __init__(
        self, uri: str, graph: Bundle, columns: Iterable[str], options: IngestOptions
    ) -> None:
        self._uri, self._graph, self._options = uri, graph, options
        self._columns = frozenset(columns)
        self._widths: dict[tuple[str, str], list[int]] = {}

    def read(self, rows: AddedRows) -> Addition:
        """Decodes rows.

        Raises:
            DataError: a type or column is not the graph's, a new id is known already, an end is not
                a node, or a value breaks a rule of its column.
        """
        nodes, links = self._node_tables, self._edge_tables
        _check_types("nodes", rows.nodes, list(nodes))
        _check_types("edges", rows.edges, list(links))
        findings: list[Finding] = []
        num_new, ids = {}, {}
        columns: dict[str | EdgeType, dict[str, np.ndarray | SparseColumn]] = {}
        for name in self._graph.node_types:
            given, wanted = rows.nodes.get(name, ()), self._wanted(name)
            num_new[name], ids[name] = len(given), self._graph.ids(name)[:0]
            columns[name] = {info.name: _empty(info) for info in wanted}
            if given:
                table = nodes[name]
                arrays = _arrays(name, given, node_columns(table), table.id)
                collector = FindingCollector(f"node_types.{name}")
                collector.start_block(_SOURCE, 0, len(given))
                ids[name] = self._new_ids(name, table.id, arrays[table.id], collector)
                columns[name] = self._decoded(name, table, wanted, arrays, collector)
                findings += collector.findings()
        every = {name: ExtendedIds(self._graph.id_map(name), ids[name]) for name in num_new}
        edges: dict[EdgeType, AddedEdges] = {}
        for edge_type in self._graph.edge_types:
            wanted = self._wanted(edge_type)
            edges[edge_type] = AddedEdges(np.empty(0, np.int64), np.empty(0, np.int64))
            columns[edge_type] = {info.name: _empty(info) for info in wanted}
        for name, given in rows.edges.items():
            link = links[name]
            if link.type not in edges or not given:
                continue
            arrays = _arrays(name, given, edge_columns(link), link.source, link.target)
            collector = FindingCollector(f"edge_types.{name}")
            collector.start_block(_SOURCE, 0, len(given))
            ends = [
                _looked_up(every[node_type], node_type, column, arrays[column], collector)
                for node_type, column in zip(
                    link.type[::2], (link.source, link.target), strict=True
                )
            ]
            found = self._decoded(link.type, link, self._wanted(link.type), arrays, collector)
            findings += collector.findings()
            edges |= self._directions(link, *ends)
            copies = np.arange(len(given))
            if self._options.doubles(link):
                edges[link.type], copies = _both_ways(*ends)
            columns[link.type] = {name: values[copies] for name, values in found.items()}  # type: ignore[index]
            if (reverse := self._reverses.get(link.type)) in edges:
                columns[reverse] = dict(found)
        if findings:
            raise DataError(without_table_remedies(describe(findings)))
        return Addition(self._graph, num_new, ids, edges, columns)

    @cached_property
    def _manifest(self) -> Manifest:
        return Manifest.load(self._uri, self._options.allow_outside)

    @property
    def _node_tables(self) -> dict[str, NodeTable]:
        known = self._graph.node_types
        return {name: t for name, t in self._manifest.node_types.items() if name in known}

    @property
    def _edge_tables(self) -> dict[str, EdgeTable]:
        """By name, the tables of edges between nodes that the model knows."""
        known, tables = set(self._graph.node_types), self._manifest.edge_types
        return {edge_type_name(t.type): t for t in tables if {t.type[0], t.type[2]} <= known}

    @cached_property
    def _reverses(self) -> dict[EdgeType, EdgeType]:
        return self._options.added_reverses(self._manifest.edge_types)

    def _wanted(self, type_: str | EdgeType) -> list[ColumnInfo]:
        return [c for name, c in self._graph.columns(type_).items() if name in self._columns]

    def _directions(
        self, link: EdgeTable, sources: np.ndarray, targets: np.ndarray
    ) -> dict[EdgeType, AddedEdges]:
        """The edges of a table, in each edge type that the ingest makes of it."""
        found = {link.type: AddedEdges(sources, targets)}
        reverse = self._reverses.get(link.type)
        if reverse is not None and reverse in self._graph.edge_types:
            found[reverse] = AddedEdges(targets, sources)
        return found

    def _new_ids(
        self, name: str, column: str, given: pa.Array, findings: FindingCollector
    ) -> pa.Array:
        """Ids of new nodes, in the type of the graph's.

        Raises:
            DataError: the graph has one already, or they are of another kind.
        """
        graph_ids = self._graph.ids(name)
        given = _typed(given, graph_ids.type)
        known = np.flatnonzero(self._graph.id_map(name).lookup(given) >= 0)
        if len(known):
            shown = [given[int(row)].as_py() for row in known[:_EXAMPLES]]
            raise DataError(
                f"new.nodes.{name} is invalid: the graph has nodes with the ids {shown}. Ask for "
                "these without rows of their own, or give new ones other ids.",
                id="rows-id-known",
            )
        remedy = "Give each node an id."
        null = null_mask(given)
        findings.add(column, "null ids", remedy, null, id="nodes-null-ids")
        if pa.types.is_integer(given.type):
            values, too_large = integer_ids(given)
            rule = "ids above 2**63 - 1"
            findings.add(column, rule, REPAIR, too_large, given, id="nodes-id-range")
            given = pa.array(values)
        _, first = np.unique(given.to_numpy(zero_copy_only=False).astype(str), return_index=True)
        repeated = ~np.isin(np.arange(len(given)), first) & ~null
        rule = "ids that an earlier row has"
        findings.add(
            column, rule, "Give each node one row.", repeated, given, id="nodes-id-repeated"
        )
        return given.cast(graph_ids.type)

    def _decoded(
        self,
        type_: str | EdgeType,
        table: NodeTable | EdgeTable,
        wanted: Sequence[ColumnInfo],
        arrays: Mapping[str, pa.Array],
        findings: FindingCollector,
    ) -> dict[str, np.ndarray | SparseColumn]:
        found: dict[str, np.ndarray | SparseColumn] = {}
        for info in wanted:
            # Each column is checked by itself, so that one bad column hides no other.
            earlier, findings.bad = findings.bad, np.zeros_like(findings.bad)
            spec = table.features.get(info.name) if info.role == "feature" else None
            if isinstance(spec, SparseFeature):
                kept = {c: _typed(arrays[c], pa.list_(pa.float64())) for c in _names(spec)}
                kept[spec.indices] = _typed(kept[spec.indices], pa.list_(pa.int64()))
                plan = SparsePlan(info.name, spec.indices, spec.values, spec.dim, info.dtype)
                lengths, indices, values = sparse_rows(plan, kept, findings)
                indptr = np.append(0, np.cumsum(lengths))
                found[info.name] = SparseColumn(indptr, indices, values, spec.dim)
            else:
                found[info.name] = self._dense(type_, table, info, spec, arrays, findings)
            findings.bad |= earlier
        return found

    def _dense(
        self,
        type_: str | EdgeType,
        table: NodeTable | EdgeTable,
        info: ColumnInfo,
        spec: DenseFeature | None,
        arrays: Mapping[str, pa.Array],
        findings: FindingCollector,
    ) -> np.ndarray:
        sources, kept = [], dict(arrays)
        for part in self._parts(type_, table, info, spec):
            name = part.column
            if part.fitted is not None:
                _check_transform(findings.table, part.fitted, arrays[name].type)
                if pa.types.is_null(arrays[name].type):
                    # As CSV files are read: any transform takes gaps of numbers.
                    kept[name] = arrays[name].cast(pa.float64())
            else:
                if info.role == "time":
                    _check_time(type_name(type_), arrays[name].type, info.unit)
                if part.layout == "time":
                    kept[name] = _typed(arrays[name], pa.timestamp("us"))
                else:
                    part, kept[name] = _numbers(type_name(type_), part, arrays[name])
            sources.append(part)
        # Floats in a column of integers are checked as floats.
        is_cut = np.dtype(info.dtype).kind in "iub" and info.quantization is None
        is_cut &= any(np.dtype(part.dtype or "int64").kind == "f" for part in sources)
        dtype = "float64" if is_cut else info.dtype
        quantization = info.quantization
        plan = DensePlan(
            info.name, info.role, tuple(sources), dtype, info.shape, quantization=quantization
        )
        return dense_rows(plan, kept, findings).astype(info.dtype, copy=False)

    def _parts(
        self,
        type_: str | EdgeType,
        table: NodeTable | EdgeTable,
        info: ColumnInfo,
        spec: DenseFeature | None,
    ) -> list[SourceColumn]:
        """The table columns that a column of the graph is made of, with their shapes."""
        if info.role == "time":
            assert table.time is not None
            layout: Any = "time" if info.unit else "scalar"
            return [SourceColumn(table.time.column, layout, "", (), format=table.time.format)]
        if info.role == "weight":
            assert isinstance(table, EdgeTable)
            assert table.weight is not None
            return [SourceColumn(table.weight, "scalar", "", ())]
        assert spec is not None
        if info.transforms is not None:
            return [
                SourceColumn(part.column, "any", "float32", (part.width,), part)
                if isinstance(part, FittedColumn)
                else SourceColumn(part.column, "list", "", (part.width,))
                for part in info.transforms.parts
            ]
        names = spec.column_names
        if len(names) == 1:
            return [SourceColumn(names[0], "list" if info.shape else "scalar", "", info.shape)]
        widths = self._widths_of(type_, table, info, spec)
        return [SourceColumn(c, "list", "", (w,)) for c, w in zip(names, widths, strict=True)]

    def _widths_of(
        self,
        type_: str | EdgeType,
        table: NodeTable | EdgeTable,
        info: ColumnInfo,
        spec: DenseFeature,
    ) -> list[int]:
        """Widths of the columns of a feature, which a bundle does not store: of the first file."""
        names = spec.column_names
        if info.width == len(names):
            return [1] * len(names)
        key = (str(type_), info.name)
        if key not in self._widths:
            roots = (manifest_folder(self._uri), *self._options.allow_outside)
            place = f"features.{info.name}"
            files = list_files(roots[0], table.files, place, roots)[:1]
            columns = TableColumns(names, frozenset(names))
            (scanned,) = scan_tables([(place, files, columns)], in_process)
            self._widths[key] = [inspect(scanned, c, place, spec.dtype).width for c in names]
        return self._widths[key]


def _check_types(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise DataError(
                f"new.{what}.{name} is invalid: the graph has no such type. "
                f"{choose_from(name, known)}.",
                id="rows-type-unknown",
            )


def _arrays(name: str, rows: Rows, columns: Sequence[str], *ids: str) -> dict[str, pa.Array]:
    """Rows by column; a column that no row has holds nulls.

    Raises:
        DataError: a row has another column, or a column has values of several kinds.
    """
    for row in rows:
        for column in row:
            if column not in columns:
                raise DataError(
                    f"new rows of {name!r} are invalid: graph.yaml has no column {column!r} of "
                    f"them. {choose_from(column, columns, 'Their columns are')}.",
                    id="rows-column-unknown",
                )
    return {column: _array(name, column, rows) for column in columns}


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
    """A column of this type where its values do not say: it has none, or empty lists alone."""
    is_empty = pa.types.is_null(column.type)
    if pa.types.is_list(column.type) and pa.types.is_nested(kind):
        is_empty |= pa.types.is_null(column.type.value_type)
    return column.cast(kind) if is_empty else column


def _looked_up(
    ids: ExtendedIds, node_type: str, column: str, given: pa.Array, findings: FindingCollector
) -> np.ndarray:
    """Dense ids of one end of edges."""
    given = _typed(given, pa.int64() if ids.kind == "int" else pa.string())
    dense = ids.lookup(given)
    null = null_mask(given)
    findings.add(column, "null ids", "Give both endpoints.", null, id="edges-null-ids")
    rule = f"ids that node type {node_type!r} does not have (dangling)"
    unknown = (dense < 0) & ~null
    findings.add(column, rule, "Add the nodes.", unknown, given, id="edges-dangling")
    return dense


def _both_ways(sources: np.ndarray, targets: np.ndarray) -> tuple[AddedEdges, np.ndarray]:
    """Each edge and, behind it, its copy the other way round; and the row of each.

    As in an ingest, a self-edge has no copy, nor has an edge whose other direction is a row too.
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
        given, wanted = ("dates", "plain numbers") if is_date else ("plain numbers", "dates")
        raise DataError(
            f"new rows of {table!r} are invalid: their times are {given}, those of the graph "
            f"{wanted}. Give such.",
            id="rows-time-unit",
        )


def _numbers(table: str, source: SourceColumn, column: pa.Array) -> tuple[SourceColumn, pa.Array]:
    """How a column of numbers, or of lists of them, is laid out.

    Raises:
        DataError: it holds something else, or a list of another width.
    """
    is_scalar = source.layout == "scalar"
    column = _typed(column, pa.float64() if is_scalar else pa.list_(pa.float64()))
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    element = kind.value_type if is_list else kind
    is_number = pa.types.is_integer(element) or pa.types.is_floating(element)
    if not is_number and not pa.types.is_boolean(element):
        raise DataError(
            f"new rows of {table!r} are invalid: column {source.column!r} is {kind}, which holds "
            "no numbers. Give numbers, or lists of them.",
            id="table-column-type",
        )
    dtype = np.dtype(element.to_pandas_dtype()).name
    if not is_list:
        widths = np.ones(len(column), np.int64)
        found = SourceColumn(source.column, "scalar", dtype, ())
    else:
        column = column.cast(pa.list_(element))
        widths = pc.fill_null(column.value_lengths(), source.width).to_numpy()
        found = SourceColumn(source.column, "list", dtype, source.shape)
    wrong = np.flatnonzero(widths != source.width)
    if len(wrong) or (is_list and is_scalar):
        has = f"{widths[wrong[0]]} elements" if len(wrong) else "a list"
        wanted = "one number" if is_scalar else f"{source.width}"
        raise DataError(
            f"new rows of {table!r} are invalid: {source.column!r} has {has}, in the graph it has "
            f"{wanted}. Give as many.",
            id="rows-feature-width",
        )
    return found, column
