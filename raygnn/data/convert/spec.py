"""Graph tables from any set of CSV, TSV, text or Parquet tables that a spec describes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.convert.clean_up import normalize_rows
from raygnn.data.convert.spec_features import read_feature
from raygnn.data.convert.spec_tables import (
    SourceTable,
    empty_rows,
    ids,
    joined,
    numbers,
    read_files,
    times,
    typed_values,
)
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.links.split import pair_split
from raygnn.data.splits import hash_split
from raygnn.data.tables.columns import FeatureColumns, Features, SparseRows, split_column
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, NodeRows, edge_rows, node_rows
from raygnn.data.tables.spec import (
    Column,
    EdgeSpec,
    LabelEdgeSpec,
    NodeColumns,
    NodeSpec,
    RelationColumn,
    TablesSpec,
)
from raygnn.errors import DataError


@dataclass
class _NodeTable:
    spec: NodeColumns
    files: list[SourceTable]
    ids: list[pa.Array]

    @property
    def where(self) -> str:
        return self.files[0].where


@dataclass
class _Ends:
    table: SourceTable
    spec: EdgeSpec | LabelEdgeSpec
    source: pa.Array
    target: pa.Array


@dataclass
class _Tables:
    nodes: dict[str, list[_NodeTable]] = field(default_factory=dict)
    edges: list[list[_Ends]] = field(default_factory=list)
    label_edges: list[list[_Ends]] = field(default_factory=list)


def spec_tables(spec: TablesSpec, folder: str) -> GraphTables:
    """Converts the tables of a spec.

    Args:
        folder: where the spec's file patterns start, any fsspec URI.
    Raises:
        DataError: a file or column is missing or malformed, an edge names a node that its type's
            table does not have, or two entries make one edge type.
    """
    read = _read_all(spec, folder)
    nodes: dict[str, NodeRows] = {}
    notes: list[str] = []
    kinds: dict[str, bool] = {}
    for name, node in spec.node_types.items():
        tables = read.nodes[name]
        named = [*(column for table in tables for column in table.ids), *_named(read, name)]
        kinds[name] = all(pa.types.is_integer(column.type) for column in named)
        for table in tables:
            table.ids = [_in_kind(column, kinds[name]) for column in table.ids]
        known = _node_ids(name, node, tables, named, kinds[name])
        nodes[name] = _node_rows(node, known, tables, notes)
        if node.files is None and node.count is None:
            notes.append(f"node type {name}: its {len(known):,} nodes are the ids that edges name")
    known_ids = {name: rows.table.column(rows.id).combine_chunks() for name, rows in nodes.items()}
    edges: dict[EdgeType, EdgeRows] = {}
    for i, parts in enumerate(read.edges):
        for edge_type, rows in _edge_types(parts, kinds, known_ids):
            if edge_type in edges:
                raise DataError(
                    f"edge_types.{i} is invalid: another entry makes edge type "
                    f"{edge_type_name(edge_type)} too. List the files of both under one entry, or "
                    "name the relations differently.",
                    id="graph-edge-type-twice",
                )
            edges[edge_type] = rows
    label_edges: dict[tuple[EdgeType, str], EdgeRows] = {}
    for i, parts in enumerate(read.label_edges):
        sign = spec.label_edges[i].sign
        for edge_type, rows in _edge_types(parts, kinds, known_ids):
            if (edge_type, sign) in label_edges:
                raise DataError(
                    f"label_edges.{i} is invalid: another entry makes {sign} label edges of type "
                    f"{edge_type_name(edge_type)} too. List the files of both under one entry.",
                    id="graph-label-edges-twice",
                )
            label_edges[edge_type, sign] = rows
    return GraphTables(nodes, edges, (*notes, *_unread(read)), label_edges)


def _read_all(spec: TablesSpec, folder: str) -> _Tables:
    read = _Tables()
    for name, node in spec.node_types.items():
        read.nodes[name] = []
        places = [f"node_types.{name}"]
        places += [f"node_types.{name}.more.{i}" for i in range(len(node.more))]
        for place, table in zip(places, [node, *node.more], strict=True):
            if table.files is None or table.id is None:
                continue
            files = list(read_files(folder, table.files, table, spec, place))
            columns = [ids(file, table.id, "id") for file in files]
            read.nodes[name].append(_NodeTable(table, files, columns))
    groups: list[tuple[str, Sequence[EdgeSpec | LabelEdgeSpec], list[list[_Ends]]]] = [
        ("edge_types", spec.edge_types, read.edges),
        ("label_edges", spec.label_edges, read.label_edges),
    ]
    for group, entries, out in groups:
        for i, edge in enumerate(entries):
            out.append(
                [
                    _Ends(
                        table,
                        edge,
                        ids(table, edge.source, "source"),
                        ids(table, edge.target, "target"),
                    )
                    for table in read_files(folder, edge.files, edge, spec, f"{group}.{i}")
                ]
            )
    return read


def _named(read: _Tables, node_type: str) -> Iterator[pa.Array]:
    for parts in (*read.edges, *read.label_edges):
        for part in parts:
            if part.spec.type[0] == node_type:
                yield part.source
            if part.spec.type[2] == node_type:
                yield part.target


def _unread(read: _Tables) -> Iterator[str]:
    tables = [table.files for group in read.nodes.values() for table in group]
    tables += [[part.table for part in parts] for parts in (*read.edges, *read.label_edges)]
    for files in tables:
        left = next((file for file in files if file.unread), None)
        if left is not None:
            yield f"{left.where}: columns not written: {left.unread}"


def _node_ids(
    name: str,
    node: NodeSpec,
    tables: Sequence[_NodeTable],
    named: Sequence[pa.Array],
    is_integer: bool,
) -> pa.Array:
    if node.more or node.add_unlisted:
        for table in tables:
            _check_distinct(table)
    if node.count is not None:
        known = pa.array(np.arange(node.first_id, node.first_id + node.count))
    elif node.files is not None and not node.add_unlisted:
        known = pa.chunked_array(tables[0].ids).combine_chunks()
    elif named:
        known = pc.unique(pa.chunked_array([_in_kind(column, is_integer) for column in named]))
        return known.take(pc.array_sort_indices(known)) if is_integer else known
    else:
        raise DataError(
            f"node_types.{name} is invalid: it has no table, and no edge names its nodes. Set "
            "files, or count, or take the type out.",
            id="spec-node-type-empty",
        )
    for table in tables:
        for file, column in zip(table.files, table.ids, strict=True):
            _check_known(file, "id", column, name, known)
    return known


def _check_distinct(table: _NodeTable) -> None:
    counts = pc.value_counts(pa.chunked_array(table.ids))
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise DataError(
            f"{table.where}: {len(repeated):,} ids are given more than once, such as "
            f"{', '.join(map(str, repeated[:5].to_pylist()))}. Keep one row an id.",
            id="prepare-ids-repeated",
        )


def _in_kind(column: pa.Array, is_integer: bool) -> pa.Array:
    return column if is_integer else pc.cast(column, pa.large_string())


def _node_rows(
    node: NodeSpec, known: pa.Array, tables: Sequence[_NodeTable], notes: list[str]
) -> NodeRows:
    features: dict[str, Features | FeatureColumns] = {}
    label_columns: dict[str, pa.Array] = {}
    others: dict[str, pa.Array] = {}
    for table in tables:
        rows = _Placement(table, known)
        for name, spec in table.spec.features.items():
            feature = read_feature(name, spec, table.files, notes)
            if node.normalize_features == "row" and not isinstance(feature, FeatureColumns):
                feature = normalize_rows(feature)
            features[name] = rows.place_feature(feature, notes)
        for name, column in table.spec.labels.items():
            values = typed_values(table.files, column, f"labels.{name}")
            label_columns[name] = rows.place(values)
            if rows.num_missing:
                notes.append(f"{rows.num_missing:,} nodes have no row in {table.where}: no label")
        if table.spec.time is not None:
            found = joined(times(file, table.spec.time, "time") for file in table.files)
            others["time"] = rows.place(found)
        if table.spec.split is not None:
            others["split"] = rows.place(_node_split(table, table.spec.split))
    made = node_rows(known, features, label_columns)
    columns = made.table
    for name, values in others.items():
        columns = columns.append_column(name, values)
    return NodeRows(
        columns,
        made.id,
        made.features,
        made.labels,
        "split" if "split" in others else None,
        "time" if "time" in others else None,
    )


class _Placement:
    def __init__(self, table: _NodeTable, known: pa.Array) -> None:
        ids = pa.chunked_array(table.ids).combine_chunks()
        self._table, self._known = table, known
        self._is_same = ids.equals(known)
        found = np.arange(len(known))
        if not self._is_same:
            found = pc.fill_null(pc.index_in(known, ids), -1).to_numpy().astype(np.int64)
        self._position = found
        self.num_missing = int((found < 0).sum())

    def place(self, values: pa.Array) -> pa.Array:
        if self._is_same:
            return values
        return values.take(pa.array(self._position, mask=self._position < 0))

    def place_feature(
        self, feature: Features | FeatureColumns, notes: list[str]
    ) -> Features | FeatureColumns:
        if isinstance(feature, FeatureColumns):
            columns = {name: self.place(column) for name, column in feature.columns.items()}
            return FeatureColumns(columns, feature.spec)
        where = self._table.where
        if isinstance(feature, SparseRows):
            if self.num_missing:
                notes.append(f"{self.num_missing:,} nodes have no row in {where}: no features set")
            return feature.take(self._position)
        if self.num_missing:
            missing = np.flatnonzero(self._position < 0)[:5]
            examples = ", ".join(str(self._known[int(row)].as_py()) for row in missing)
            raise DataError(
                f"{where}: {self.num_missing:,} nodes have no row, such as {examples}. Add a row "
                "of numbers for each id that edges and other tables name.",
                id="prepare-features-incomplete",
            )
        return feature[self._position]


def _node_split(table: _NodeTable, spec: Column) -> pa.Array:
    parts = []
    for file, column in zip(table.files, table.ids, strict=True):
        shares = file.shares(spec)
        if shares is None:
            parts.append(_split_text(file, spec))
        else:
            parts.append(split_column(hash_split(column, shares.hash, shares.seed)))
    return joined(parts)


def _split_text(table: SourceTable, spec: Column) -> pa.Array:
    column = table.column(spec, "split")
    return pc.cast(column, pa.string()) if pa.types.is_large_string(column.type) else column


def _edge_types(
    parts: Sequence[_Ends], kinds: dict[str, bool], known: dict[str, pa.Array]
) -> Iterator[tuple[EdgeType, EdgeRows]]:
    """The edge types of one entry: one, or one for each value of its relation column."""
    spec = parts[0].spec
    source_type, relation, target_type = spec.type
    for part in parts:
        part.source = _in_kind(part.source, kinds[source_type])
        part.target = _in_kind(part.target, kinds[target_type])
        _check_known(part.table, "source", part.source, source_type, known[source_type])
        _check_known(part.table, "target", part.target, target_type, known[target_type])
    rows = _edge_rows(parts)
    if not isinstance(relation, RelationColumn):
        yield (source_type, relation, target_type), rows
        return
    for part in parts:
        _check_named(part, relation)
    values = joined([part.table.column(relation, "type") for part in parts])
    encoded = pc.dictionary_encode(pc.cast(values, pa.string()))
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    by_relation = rows.table.take(pa.array(order))
    names = encoded.dictionary.to_pylist()
    for code in sorted(range(len(names)), key=lambda code: _relation_key(names[code])):
        start = int(bounds[code])
        table = by_relation.slice(start, int(bounds[code + 1]) - start)
        edge_type = (source_type, f"{relation.prefix}{names[code]}", target_type)
        yield edge_type, _with_table(rows, table)


def _check_named(part: _Ends, relation: RelationColumn) -> None:
    empty = empty_rows(part.table.column(relation, "type"))
    if len(empty):
        rule = f"{len(empty):,} relations are missing"
        raise part.table.error(
            "type", rule, empty, "Fill them in, or take these rows out", id="spec-values-missing"
        )


def _relation_key(value: str) -> tuple[int, int, str]:
    return (0, int(value), value) if value.isdecimal() else (1, 0, value)


def _with_table(rows: EdgeRows, table: pa.Table) -> EdgeRows:
    return EdgeRows(
        table,
        rows.source,
        rows.target,
        rows.features,
        rows.weight,
        rows.time,
        rows.directed,
        rows.split,
        rows.reverse_of,
        rows.labels,
    )


def _edge_rows(parts: Sequence[_Ends]) -> EdgeRows:
    spec = parts[0].spec
    tables = [part.table for part in parts]
    features: dict[str, Features | FeatureColumns] = {}
    if isinstance(spec, EdgeSpec):
        features = {
            name: read_feature(name, columns, tables, []) for name, columns in spec.features.items()
        }
    weight = None
    if spec.weight is not None:
        weight = np.concatenate([numbers(table, spec.weight, "weight") for table in tables])
    rows = edge_rows(
        pa.chunked_array([part.source for part in parts]).combine_chunks(),
        pa.chunked_array([part.target for part in parts]).combine_chunks(),
        features,
        weight,
        labels={
            name: typed_values(tables, column, f"labels.{name}")
            for name, column in spec.labels.items()
        },
    )
    table = rows.table
    if spec.time is not None:
        table = table.append_column("time", joined([times(t, spec.time, "time") for t in tables]))
    if spec.split is not None:
        table = table.append_column("split", joined([_edge_split(part) for part in parts]))
    directed, reverse_of = True, None
    if isinstance(spec, EdgeSpec):
        directed, reverse_of = spec.directed, spec.reverse_of
    return EdgeRows(
        table,
        rows.source,
        rows.target,
        rows.features,
        rows.weight,
        None if spec.time is None else "time",
        directed,
        None if spec.split is None else "split",
        reverse_of,
        rows.labels,
    )


def _edge_split(part: _Ends) -> pa.Array:
    assert part.spec.split is not None
    shares = part.table.shares(part.spec.split)
    if shares is None:
        return _split_text(part.table, part.spec.split)
    source_type, _, target_type = part.spec.type
    source, target = (source_type, part.source), (target_type, part.target)
    return split_column(pair_split(source, target, shares.hash, shares.seed))


def _check_known(
    table: SourceTable, role: str, column: pa.Array, node_type: str, known: pa.Array
) -> None:
    unknown = np.flatnonzero(pc.index_in(column, known).is_null().to_numpy(zero_copy_only=False))
    if len(unknown):
        example = column[int(unknown[0])].as_py()
        rule = f"{len(unknown):,} ids, such as {example!r}, are no nodes of type {node_type!r}"
        remedy = "Add the nodes, set add_unlisted: true, or set offset, count or first_id right"
        raise table.error(role, rule, unknown, remedy, id="edges-dangling")
