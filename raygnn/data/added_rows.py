"""Rows of new nodes and edges in memory, read by the rules of a graph's tables."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType, edge_type_name, type_name
from raygnn.data.filesystem import write_text
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.ingest.decode import without_table_remedies
from raygnn.data.ingest.edge_plan import edge_columns
from raygnn.data.ingest.node_tasks import node_columns
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.manifest import MANIFEST_NAME, DenseFeature, EdgeTable, Manifest
from raygnn.data.tables.read_ids import original_ids
from raygnn.errors import DataError, choose_from

#: Rows of a table: values by column; a column that is left out is empty.
Rows: TypeAlias = Sequence[Mapping[str, Any]]
_EXAMPLES = 5


@dataclass(frozen=True)
class AddedRows:
    """New nodes and edges, in the columns of a graph's tables. Crosses process boundaries.

    Attributes:
        nodes: rows by node type.
        edges: rows by edge type, `src__rel__dst`; their ends are known or new nodes.
    """

    nodes: Mapping[str, Rows]
    edges: Mapping[str, Rows] = field(default_factory=dict)


@dataclass(frozen=True)
class Addition:
    """Added rows as a bundle, in which the known nodes that their edges join stand as well.

    Attributes:
        bundle: of its columns of nodes only the rows of new nodes are of use.
        num_new: by node type, how many new nodes there are; they come first in the bundle.
        ids: by node type, int64 [num_nodes of the bundle], dense ids in the extended graph, in
            which the new nodes come behind the known ones.
    """

    bundle: Bundle
    num_new: Mapping[str, int]
    ids: Mapping[str, np.ndarray]


@contextmanager
def read_added_rows(
    rows: AddedRows,
    manifest: Manifest,
    graph: Bundle,
    columns: Iterable[str],
    options: IngestOptions,
) -> Iterator[Addition]:
    """Reads added rows by the rules of the graph's ingest. Their files are gone at the end.

    Args:
        manifest: of the graph's tables.
        graph: all node types of the manifest.
        columns: the features of nodes and edges, `weight` and `time` that are read; rows need no
            others.
        options: of the graph's ingest, with the transforms of training.
    Raises:
        DataError: a type or column is not the graph's, a new id is known already, an end is not a
            node, or a value breaks a rule of its column.
    """
    links = {edge_type_name(table.type): table for table in manifest.edge_types}
    _check_types(rows, manifest, links)
    read = frozenset(columns)
    edges = {
        name: _table(name, given, edge_columns(table), edge_columns(_read(table, read)))
        if (given := rows.edges.get(name, ()))
        else _no_edges(graph, table)
        for name, table in links.items()
    }
    nodes, num_new, ids = {}, {}, {}
    for name, table in manifest.node_types.items():
        given = rows.nodes.get(name, ())
        own = _table(name, given, node_columns(table), node_columns(_read(table, read)))
        ends = [
            edges[edge_type_name(link.type)].column(column)
            for link in manifest.edge_types
            for end, column in ((link.type[0], link.source), (link.type[2], link.target))
            if end == name and rows.edges.get(edge_type_name(link.type))
        ]
        known = _known_ends(graph, name, own.column(table.id), ends)
        nodes[name] = _with_known(own, table.id, original_ids(graph, name, known))
        num_new[name] = len(given)
        ids[name] = np.concatenate([graph.num_nodes(name) + np.arange(len(given)), known])
    reduced = Manifest(
        node_types={
            name: _read(table, read if num_new[name] else frozenset())
            for name, table in manifest.node_types.items()
        },
        edge_types=[
            _read(link, read if rows.edges.get(name) else frozenset())
            for name, link in links.items()
        ],
    )
    with tempfile.TemporaryDirectory(prefix="raygnn-rows-") as folder:
        _write(Path(folder), reduced, nodes, edges)
        as_written = replace(options, on_error="fail", feature_dtype=None, allow_outside=())
        try:
            bundle = ingest(folder, as_written, Path(folder) / "cache")
        except DataError as error:
            raise DataError(without_table_remedies(str(error))) from error
        _check_columns(graph, bundle)
        yield Addition(bundle, num_new, ids)


def _check_columns(graph: Bundle, added: Bundle) -> None:
    """Checks that the rows' columns are as those of the graph.

    Raises:
        DataError: a feature is of another width, or times are dates in one of both alone.
    """
    types: list[str | EdgeType] = [*graph.node_types, *graph.edge_types]
    for type_ in types:
        known = graph.columns(type_)
        for name, column in added.columns(type_).items():
            place = f"new rows of {type_name(type_)!r} are invalid"
            if column.unit != known[name].unit:
                given, wanted = (
                    "dates" if info.unit else "plain numbers" for info in (column, known[name])
                )
                raise DataError(
                    f"{place}: their times are {given}, those of the graph {wanted}. Give such.",
                    id="rows-time-unit",
                )
            if column.shape != known[name].shape:
                raise DataError(
                    f"{place}: {name!r} has {column.width} elements, in the graph it has "
                    f"{known[name].width}. Give as many.",
                    id="rows-feature-width",
                )


def _check_types(rows: AddedRows, manifest: Manifest, links: Mapping[str, EdgeTable]) -> None:
    kinds: tuple[tuple[str, Iterable[str], list[str]], ...] = (
        ("nodes", rows.nodes, list(manifest.node_types)),
        ("edges", rows.edges, list(links)),
    )
    for what, given, known in kinds:
        for name in given:
            if name not in known:
                raise DataError(
                    f"new.{what}.{name} is invalid: the graph has no such type. "
                    f"{choose_from(name, known)}.",
                    id="rows-type-unknown",
                )


def _table(name: str, rows: Rows, columns: Sequence[str], read: Sequence[str]) -> pa.Table:
    """Rows as a table of the columns that are read.

    Args:
        columns: that rows may have.
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
    return pa.table({column: _column(name, column, rows) for column in read})


def _column(name: str, column: str, rows: Rows) -> pa.Array:
    try:
        values = pa.array([row.get(column) for row in rows])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise DataError(
            f"new rows of {name!r} are invalid: the values of {column!r} are of several kinds "
            f"({error}). Give numbers, texts, or lists of one of them.",
            id="rows-column-kinds",
        ) from error
    # As CSV files are read: of a column without values any transform takes gaps of numbers.
    return values.cast(pa.float64()) if pa.types.is_null(values.type) else values


def _no_edges(graph: Bundle, table: EdgeTable) -> pa.Table:
    ends = ((table.source, table.type[0]), (table.target, table.type[2]))
    kinds = {"int": pa.int64(), "string": pa.string()}
    return pa.table({column: pa.array([], kinds[graph.id_map(name).kind]) for column, name in ends})


def _known_ends(
    graph: Bundle, name: str, new: pa.Array, ends: Sequence[pa.ChunkedArray]
) -> np.ndarray:
    """Dense ids of the known nodes that stand in the bundle of the rows: at least one node does.

    Raises:
        DataError: a new id is known already, or ids are of the other kind.
    """
    id_map = graph.id_map(name)
    is_given = len(new) > 0
    repeated = np.flatnonzero(id_map.lookup(new) >= 0) if is_given else np.empty(0, np.int64)
    if len(repeated):
        shown = [new[int(row)].as_py() for row in repeated[:_EXAMPLES]]
        raise DataError(
            f"new.nodes.{name} is invalid: the graph has nodes with the ids {shown}. Ask for "
            "these without rows of their own, or give new ones other ids.",
            id="rows-id-known",
        )
    dense = [id_map.lookup(column.combine_chunks()) for column in ends]
    known = np.unique(np.concatenate([np.empty(0, np.int64), *dense]))
    known = known[known >= 0]  # an end that is no node at all is the ingest's to refuse
    return known if is_given or len(known) else np.zeros(1, np.int64)


def _with_known(new: pa.Table, id_column: str, known: pa.Array) -> pa.Table:
    """The new rows, and rows of known nodes, whose columns repeat those of the first new one."""
    if not new.num_rows:
        return pa.table({id_column: known})
    first = new.take(pa.array([0] * len(known), pa.int64()))
    place = new.column_names.index(id_column)
    kept = new.column(id_column)
    return pa.concat_tables([new, first.set_column(place, id_column, known.cast(kept.type))])


def _read(table: Any, columns: frozenset[str]) -> Any:
    """A node or edge table of the manifest with the columns that are read alone."""
    features = {
        name: spec.model_copy(update={"dtype": None}) if isinstance(spec, DenseFeature) else spec
        for name, spec in table.features.items()
        if name in columns
    }
    kept = {name: None for name in ("weight", "time") if name not in columns}
    dropped = {name: None for name in kept if hasattr(table, name)}
    update = {"features": features, "labels": {}, "split": None, **dropped}
    return table.model_copy(update=update)


def _write(
    folder: Path,
    manifest: Manifest,
    nodes: Mapping[str, pa.Table],
    edges: Mapping[str, pa.Table],
) -> None:
    """Writes tables and manifest: each table is one file of the name of its type."""

    def written(table: Any, name: str, rows: pa.Table) -> Any:
        file = f"{name}.parquet"
        pq.write_table(rows, folder / file)
        return table.model_copy(update={"files": (file,)})

    content = Manifest(
        node_types={
            name: written(table, name, nodes[name]) for name, table in manifest.node_types.items()
        },
        edge_types=[
            written(table, edge_type_name(table.type), edges[edge_type_name(table.type)])
            for table in manifest.edge_types
        ],
    )
    write_text(str(folder / MANIFEST_NAME), content.dump())
