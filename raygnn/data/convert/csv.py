"""Edge lists in CSV or TSV files, with optional files of labels and of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.convert.clean_up import normalize_rows, undirected_edges
from raygnn.data.convert.spec_tables import whole_numbers
from raygnn.data.convert.split_option import split_nodes
from raygnn.data.convert.text_files import TextTable, read_ragged_features, read_text_table
from raygnn.data.tables.columns import Features, SparseRows
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, edge_rows, node_rows
from raygnn.errors import DataError


@dataclass(frozen=True)
class CsvSource:
    """Where the columns are; a column that is None is found by its place.

    Attributes:
        edges: edge list; source and target default to its first two columns.
        nodes: labels; id and label default to its first two columns.
        features: numbers beside an id column (CSV), or `{id: [feature indices]}` (.json).
        has_header: false counts columns from 0, in all files.
    """

    edges: str
    source: str | None = None
    target: str | None = None
    nodes: str | None = None
    id: str | None = None
    label: str | None = None
    features: str | None = None
    separator: str | None = None
    has_header: bool = True


@dataclass(frozen=True)
class _Rows:
    """What a file says of the ids in it."""

    where: str
    ids: pa.Array
    values: Features | pa.Array


def csv_tables(
    files: CsvSource,
    directed: bool = False,
    split: str | None = None,
    split_seed: int = 0,
    normalize: bool = False,
) -> GraphTables:
    """Converts an edge list and what describes its nodes.

    Nodes are all ids of all files: whole numbers, in their order, where every id is one; else
    texts, in the order of appearance.

    Args:
        directed: keeps the rows as they are; else they are symmetrised, without repeats and loops.
        split: option text (see split_option); None declares no split.
        normalize: divides each feature row by its sum.
    Raises:
        DataError: a file or column is missing or malformed, an id is given twice, or a node has no
            row in a CSV of features.
    """
    notes: list[str] = []
    edge_table = read_text_table(files.edges, files.separator, files.has_header)
    source_name = edge_table.column_name(files.source, 0, "--source")
    target_name = edge_table.column_name(files.target, 1, "--target")
    notes += _unread(edge_table, [source_name, target_name])
    labels = None if files.nodes is None else _read_labels(files.nodes, files, notes)
    features = None if files.features is None else _read_features(files.features, files, notes)
    given = [rows.ids for rows in (labels, features) if rows is not None]
    ends = [edge_table.texts(source_name), edge_table.texts(target_name)]
    ids, columns = _unified_ids([*given, *ends])

    edges, edge_note = _edges(ids, columns[-2], columns[-1], directed)
    notes.append(edge_note)
    label_column, codes = None, None
    if labels is not None:
        label_column = _place_labels(labels, _positions(columns[0], ids), len(ids), notes)
        codes = _class_codes(label_column)
    node_features: dict[str, Features] = {}
    if features is not None:
        rows = _positions(columns[len(given) - 1], ids)
        placed = _place_features(features, rows, ids, notes)
        node_features["x"] = normalize_rows(placed) if normalize else placed
    nodes = node_rows(ids, node_features, {} if label_column is None else {"y": label_column})
    nodes, split_notes = split_nodes(nodes, {}, codes, split, split_seed, edge_table.where)
    return GraphTables({"node": nodes}, {("node", "to", "node"): edges}, (*notes, *split_notes))


def _unread(table: TextTable, read: Sequence[str]) -> list[str]:
    left = [name for name in table.table.column_names if name not in read]
    return [f"{table.where}: columns not written: {', '.join(left)}"] if left else []


def _read_labels(uri: str, files: CsvSource, notes: list[str]) -> _Rows:
    table = read_text_table(uri, files.separator, files.has_header)
    id_name = table.column_name(files.id, 0, "--id")
    names = table.table.column_names
    if files.label is None and len(names) > 2:
        choices = ", ".join(name for name in names if name != id_name)
        raise DataError(
            f"{table.where}: --label is needed: the file has {len(names)} columns. "
            f"Choose from: {choices}.",
            id="prepare-label-missing",
        )
    other = next((i for i, name in enumerate(names) if name != id_name), len(names))
    label_name = table.column_name(files.label, other, "--label")
    notes += _unread(table, [id_name, label_name])
    rows = _Rows(table.where, table.texts(id_name), _typed_labels(table.table.column(label_name)))
    _check_distinct(rows)
    return rows


def _typed_labels(column: pa.ChunkedArray) -> pa.Array:
    """Whole numbers where all are, else numbers, else texts; empty fields are null (unlabelled)."""
    texts = pc.utf8_trim_whitespace(column).combine_chunks()
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
    for label_type in (pa.int64(), pa.float64()):
        try:
            return pc.cast(texts, label_type)
        except pa.ArrowInvalid:
            continue
    return texts


def _read_features(uri: str, files: CsvSource, notes: list[str]) -> _Rows:
    if uri.lower().removesuffix(".gz").endswith(".json"):
        ids, values, num_repeats = read_ragged_features(uri)
        if num_repeats:
            notes.append(f"{uri}: {num_repeats:,} repeated feature indices dropped")
        return _Rows(uri, ids, values)
    table = read_text_table(uri, files.separator, files.has_header)
    wanted = files.id if files.id in table.table.column_names or not files.has_header else None
    id_name = table.column_name(wanted, 0, "--id")
    names = [name for name in table.table.column_names if name != id_name]
    if not names:
        raise DataError(
            f"{table.where}: has no column beside {id_name!r}. Give numbers per id.",
            id="prepare-features-missing",
        )
    rows = _Rows(table.where, table.texts(id_name), table.numbers(names))
    _check_distinct(rows)
    return rows


def _check_distinct(rows: _Rows) -> None:
    counts = pc.value_counts(rows.ids)
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise DataError(
            f"{rows.where}: {len(repeated):,} ids are given more than once, such as "
            f"{', '.join(repeated[:5].to_pylist())}. Keep one row an id.",
            id="prepare-ids-repeated",
        )


def _unified_ids(columns: Sequence[pa.Array]) -> tuple[pa.Array, list[pa.Array]]:
    """The distinct ids of all columns, and the columns in the ids' type."""
    integers = [whole_numbers(column) for column in columns]
    if any(column is None for column in integers):
        return pc.unique(pa.chunked_array(columns)), list(columns)
    ids = pc.unique(pa.chunked_array(integers))
    return ids.take(pc.array_sort_indices(ids)), integers


def _edges(
    ids: pa.Array, source: pa.Array, target: pa.Array, directed: bool
) -> tuple[EdgeRows, str]:
    if directed:
        return edge_rows(source, target), "edges kept as they are: --directed was given"
    edges = undirected_edges(_positions(source, ids), _positions(target, ids), len(ids))
    return edge_rows(ids.take(edges.source), ids.take(edges.target)), edges.note


def _positions(column: pa.Array, ids: pa.Array) -> np.ndarray:
    return pc.index_in(column, ids).to_numpy().astype(np.int64)


def _place_labels(labels: _Rows, rows: np.ndarray, num_nodes: int, notes: list[str]) -> pa.Array:
    position = np.full(num_nodes, -1)
    position[rows] = np.arange(len(rows))
    num_missing = int((position < 0).sum())
    if num_missing:
        notes.append(f"{num_missing:,} nodes have no row in {labels.where}: no label")
    return labels.values.take(pa.array(position, mask=position < 0))


def _class_codes(labels: pa.Array) -> np.ndarray | None:
    """Classes as int64, -1 for unlabelled; None where the labels are no classes."""
    if pa.types.is_floating(labels.type):
        return None
    codes = labels.dictionary_encode().indices if pa.types.is_large_string(labels.type) else labels
    return pc.fill_null(codes, -1).to_numpy().astype(np.int64)


def _place_features(features: _Rows, rows: np.ndarray, ids: pa.Array, notes: list[str]) -> Features:
    """The feature rows in the order of the nodes."""
    position = np.full(len(ids), -1)
    position[rows] = np.arange(len(rows))
    missing = np.flatnonzero(position < 0)
    values = features.values
    if isinstance(values, SparseRows):
        if len(missing):
            notes.append(f"{len(missing):,} nodes have no row in {features.where}: no features set")
        return values.take(position)
    if len(missing):
        examples = ", ".join(str(ids[int(row)].as_py()) for row in missing[:5])
        raise DataError(
            f"{features.where}: {len(missing):,} nodes have no row, such as {examples}. Add a row "
            "of numbers for each id of the edges and labels.",
            id="prepare-features-incomplete",
        )
    return values[position]
