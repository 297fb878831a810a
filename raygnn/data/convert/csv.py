"""The options of `prepare csv` for one edge list, as a tables spec made on the fly."""

from __future__ import annotations

import glob
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.convert.clean_up import undirected_edges
from raygnn.data.convert.spec import spec_tables
from raygnn.data.convert.spec_tables import is_json
from raygnn.data.convert.split_option import split_nodes
from raygnn.data.convert.text_files import TextFormat, text_columns
from raygnn.data.filesystem import redact
from raygnn.data.tables.files import is_parquet, open_parquet
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, NodeRows, edge_rows
from raygnn.data.tables.spec import FORMAT, TablesSpec
from raygnn.errors import DataError

_EDGE_TYPE = ("node", "to", "node")


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
    spec = csv_spec(files, normalize)
    try:
        read = spec_tables(spec, ".")
    except DataError as error:
        raise DataError(_in_flags(str(error), spec)) from error
    nodes, edges = read.nodes["node"], read.edges[_EDGE_TYPE]
    note = "edges kept as they are: --directed was given"
    if not directed:
        edges, note = _undirected(nodes, edges)
    codes = _class_codes(nodes.table.column("y").combine_chunks()) if nodes.labels else None
    where = redact(files.edges)
    nodes, split_notes = split_nodes(nodes, {}, codes, split, split_seed, where)
    return replace(
        read,
        nodes={"node": nodes},
        edges={_EDGE_TYPE: edges},
        notes=(*read.notes, note, *split_notes),
    )


def csv_spec(files: CsvSource, normalize: bool = False) -> TablesSpec:
    """The spec that the options stand for.

    Raises:
        DataError: a file is missing, cannot be read, or lacks the columns that it needs.
    """
    if files.separator is not None and len(files.separator) != 1:
        raise DataError(
            f"--separator={files.separator!r} is invalid: it is not one character. Set one, such "
            "as ';' or '\\t'.",
            id="prepare-separator",
        )
    _columns(files.edges, files)
    tables = []
    if files.nodes is not None:
        tables.append(_labels(files.nodes, files))
    if files.features is not None:
        tables.append(_features(files.features, files))
    node: dict[str, Any] = {}
    if tables:
        node = {**tables[0], "more": tables[1:], "add_unlisted": True}
    edges = {
        "type": _EDGE_TYPE,
        "files": glob.escape(files.edges),
        "source": _column(files.source, 0, files),
        "target": _column(files.target, 1, files),
    }
    return TablesSpec.model_validate(
        {
            "format": FORMAT,
            "separator": files.separator,
            "header": files.has_header,
            "node_types": {"node": node | {"normalize_features": "row" if normalize else None}},
            "edge_types": [edges],
        }
    )


def _labels(uri: str, files: CsvSource) -> dict[str, Any]:
    names = _columns(uri, files)
    id_column = _column(files.id, 0, files)
    if files.label is None and len(names) > 2:
        choices = ", ".join(name for name in names if name != id_column)
        raise DataError(
            f"{redact(uri)}: --label is needed: the file has {len(names)} columns. "
            f"Choose from: {choices}.",
            id="prepare-label-missing",
        )
    other = 1 if id_column in (0, names[0]) else 0
    label = _column(files.label, other, files)
    return {"files": glob.escape(uri), "id": id_column, "labels": {"y": label}}


def _features(uri: str, files: CsvSource) -> dict[str, Any]:
    table = {"files": glob.escape(uri)}
    if is_json(uri):
        return {**table, "id": "id", "features": {"x": {"indices": "indices"}}}
    names = _columns(uri, files)
    is_id = files.id in names or not files.has_header
    id_column = _column(files.id if is_id else None, 0, files)
    place = names.index(id_column) if isinstance(id_column, str) else id_column
    others = [i for i in range(len(names)) if i != place]
    if not others:
        raise DataError(
            f"{redact(uri)}: has no column beside {names[0]!r}. Give numbers per id.",
            id="prepare-features-missing",
        )
    return {**table, "id": id_column, "features": {"x": others}}


def _columns(uri: str, files: CsvSource) -> list[str]:
    if is_parquet(uri):
        with open_parquet(uri, footer_only=True) as file:
            return list(file.schema_arrow.names)
    return text_columns(uri, TextFormat(files.separator, files.has_header))


def _column(given: str | None, position: int, files: CsvSource) -> str | int:
    if given is None:
        return position
    return int(given) if given.isdigit() and not files.has_header else given


def _in_flags(message: str, spec: TablesSpec) -> str:
    """Replaces keys of the spec by the options that they stand for."""
    node = spec.node_types["node"]
    names = {
        "edge_types.0.source": "--source",
        "edge_types.0.target": "--target",
        "edge_types.0": "--edges",
        "header: false": "--no-header",
        ", or set missing: median": "",
    }
    for place, table in [
        *((f"node_types.node.more.{i}", table) for i, table in enumerate(node.more)),
        ("node_types.node", node),
    ]:
        names |= {
            f"{place}.id": "--id",
            f"{place}.labels.y": "--label",
            f"{place}.features.x": "--features",
            place: "--nodes" if table.labels else "--features",
        }
    for key in sorted(names, key=len, reverse=True):
        message = message.replace(key, names[key])
    return message


def _undirected(nodes: NodeRows, rows: EdgeRows) -> tuple[EdgeRows, str]:
    ids = nodes.table.column(nodes.id).combine_chunks()
    source, target = (
        pc.index_in(rows.table.column(name).combine_chunks(), ids).to_numpy().astype(np.int64)
        for name in (rows.source, rows.target)
    )
    edges = undirected_edges(source, target, len(ids))
    return edge_rows(ids.take(edges.source), ids.take(edges.target)), edges.note


def _class_codes(labels: pa.Array) -> np.ndarray | None:
    """Classes as int64, -1 for unlabelled. None for labels that are numbers."""
    if pa.types.is_floating(labels.type):
        return None
    codes = labels.dictionary_encode().indices if pa.types.is_large_string(labels.type) else labels
    return pc.fill_null(codes, -1).to_numpy().astype(np.int64)
