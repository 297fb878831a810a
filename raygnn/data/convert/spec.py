"""Graph tables from any set of CSV, TSV, text or Parquet tables that a spec describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.convert.spec_tables import (
    SourceTable,
    empty_rows,
    feature_rows,
    ids,
    labels,
    numbers,
    read_files,
    times,
)
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.hashing import splitmix64_array
from raygnn.data.links.split import node_hashes
from raygnn.data.splits import hash_split, split_bounds
from raygnn.data.tables.columns import Features, split_column
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, NodeRows, edge_rows, node_rows
from raygnn.data.tables.spec import (
    Column,
    EdgeSpec,
    HashShares,
    LabelEdgeSpec,
    NodeSpec,
    RelationColumn,
    TablesSpec,
)
from raygnn.errors import DataError


@dataclass
class _Ends:
    """The rows of one file of an edge table."""

    table: SourceTable
    spec: EdgeSpec | LabelEdgeSpec
    source: pa.Array
    target: pa.Array


@dataclass
class _Tables:
    """All tables of a spec, read, and the ids that each node type is named by."""

    nodes: dict[str, list[tuple[SourceTable, pa.Array]]] = field(default_factory=dict)
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
    nodes, notes = {}, []
    kinds: dict[str, bool] = {}
    for name, node in spec.node_types.items():
        found = [column for _, column in read.nodes.get(name, [])]
        named = [*found, *_named(read, name)]
        kinds[name] = all(pa.types.is_integer(column.type) for column in named)
        if node.files is not None:
            nodes[name] = _node_rows(spec, name, read.nodes[name], kinds[name])
            continue
        known = _implied_ids(name, node, named, kinds[name])
        nodes[name] = node_rows(known)
        if node.count is None:
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
    return GraphTables(nodes, edges, tuple(notes), label_edges)


def _read_all(spec: TablesSpec, folder: str) -> _Tables:
    read = _Tables()
    for name, node in spec.node_types.items():
        if node.files is not None and node.id is not None:
            place = f"node_types.{name}"
            read.nodes[name] = [
                (table, ids(table, node.id, "id"))
                for table in read_files(folder, node.files, node, spec, place)
            ]
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


def _implied_ids(
    name: str, node: NodeSpec, named: Sequence[pa.Array], is_integer: bool
) -> pa.Array:
    if node.count is not None:
        return pa.array(np.arange(node.first_id, node.first_id + node.count))
    if not named:
        raise DataError(
            f"node_types.{name} is invalid: it has no table, and no edge names its nodes. Set "
            "files, or count, or take the type out.",
            id="spec-node-type-empty",
        )
    found = pc.unique(pa.chunked_array([_in_kind(column, is_integer) for column in named]))
    return found.take(pc.array_sort_indices(found)) if is_integer else found


def _in_kind(column: pa.Array, is_integer: bool) -> pa.Array:
    return column if is_integer else pc.cast(column, pa.large_string())


def _node_rows(
    spec: TablesSpec, name: str, read: Sequence[tuple[SourceTable, pa.Array]], is_integer: bool
) -> NodeRows:
    node = spec.node_types[name]
    tables = [table for table, _ in read]
    columns = [_in_kind(column, is_integer) for _, column in read]
    features: dict[str, Features] = {
        feature: np.concatenate([feature_rows(t, specs, f"features.{feature}") for t in tables])
        for feature, specs in node.features.items()
    }
    label_columns = {
        label: _joined([labels(table, column, f"labels.{label}") for table in tables])
        for label, column in node.labels.items()
    }
    rows = node_rows(_joined(columns), features, label_columns)
    table = rows.table
    if node.time is not None:
        table = table.append_column("time", _joined([times(t, node.time, "time") for t in tables]))
    if node.split is not None:
        splits = []
        for source, column in zip(tables, columns, strict=True):
            shares = source.shares(node.split)
            if shares is None:
                splits.append(_split_text(source, node.split))
            else:
                splits.append(split_column(hash_split(column, shares.hash, shares.seed)))
        table = table.append_column("split", _joined(splits))
    return NodeRows(
        table,
        rows.id,
        rows.features,
        rows.labels,
        None if node.split is None else "split",
        None if node.time is None else "time",
    )


def _joined(columns: Iterable[pa.Array]) -> pa.Array:
    """One array of the narrowest type that holds all: whole numbers, numbers, texts."""
    parts = list(columns)
    kinds = {part.type for part in parts if not pa.types.is_null(part.type)}
    if len(kinds) > 1:
        is_number = all(pa.types.is_integer(k) or pa.types.is_floating(k) for k in kinds)
        is_whole = all(pa.types.is_integer(k) for k in kinds)
        kind = pa.int64() if is_whole else pa.float64() if is_number else pa.large_string()
        parts = [pc.cast(part, kind) for part in parts]
    elif kinds:
        parts = [pc.cast(part, next(iter(kinds))) for part in parts]
    return pa.chunked_array(parts).combine_chunks()


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
        _check_known(part, "source", part.source, source_type, known[source_type])
        _check_known(part, "target", part.target, target_type, known[target_type])
    rows = _edge_rows(parts)
    if not isinstance(relation, RelationColumn):
        yield (source_type, relation, target_type), rows
        return
    for part in parts:
        _check_named(part, relation)
    values = _joined([part.table.column(relation, "type") for part in parts])
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
    """Orders relations: whole numbers by value, then texts."""
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
    )


def _edge_rows(parts: Sequence[_Ends]) -> EdgeRows:
    spec = parts[0].spec
    tables = [part.table for part in parts]
    features: dict[str, Features] = {}
    if isinstance(spec, EdgeSpec):
        features = {
            name: np.concatenate([feature_rows(t, specs, f"features.{name}") for t in tables])
            for name, specs in spec.features.items()
        }
    weight = None
    if spec.weight is not None:
        weight = np.concatenate([numbers(table, spec.weight, "weight") for table in tables])
    rows = edge_rows(
        pa.chunked_array([part.source for part in parts]).combine_chunks(),
        pa.chunked_array([part.target for part in parts]).combine_chunks(),
        features,
        weight,
    )
    table = rows.table
    if spec.time is not None:
        table = table.append_column("time", _joined([times(t, spec.time, "time") for t in tables]))
    if spec.split is not None:
        table = table.append_column("split", _joined([_edge_split(part) for part in parts]))
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
    )


def _edge_split(part: _Ends) -> pa.Array:
    assert part.spec.split is not None
    shares = part.table.shares(part.spec.split)
    if shares is None:
        return _split_text(part.table, part.spec.split)
    return split_column(_pair_split(part, shares))


def _pair_split(part: _Ends, shares: HashShares) -> np.ndarray:
    """By the hash of (seed, unordered pair of ids), as data.splits of type hash has it."""
    source = node_hashes(part.source, part.spec.type[0], shares.seed)
    target = node_hashes(part.target, part.spec.type[2], shares.seed)
    low, high = np.minimum(source, target), np.maximum(source, target)
    hashed = splitmix64_array(splitmix64_array(low) + high)
    position = (hashed >> np.uint64(11)) * 2.0**-53
    codes = np.searchsorted(split_bounds(shares.hash), position, side="right") + 1
    return (codes & 3).astype(np.uint8)


def _check_known(part: _Ends, role: str, column: pa.Array, node_type: str, known: pa.Array) -> None:
    unknown = np.flatnonzero(pc.index_in(column, known).is_null().to_numpy(zero_copy_only=False))
    if len(unknown):
        example = column[int(unknown[0])].as_py()
        rule = f"{len(unknown):,} ids, such as {example!r}, are no nodes of type {node_type!r}"
        remedy = "Add the nodes, or set offset, count or first_id right"
        raise part.table.error(role, rule, unknown, remedy, id="edges-dangling")
