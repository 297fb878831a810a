"""The bundle: a graph as memory-mapped arrays, one copy for all processes of a node."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

from raygnn.data import bundle_record, edge_kernels
from raygnn.data.arrays import (
    array_bytes_below,
    create_array,
    expect_random_reads,
    index_dtype,
    open_array,
    outgrows_memory,
    summable,
)
from raygnn.data.cache import build_once
from raygnn.data.edge_kernels import edge_weights, fill_alias
from raygnn.data.edge_types import EdgeType, edge_type_name, type_name
from raygnn.data.id_map import IdMap, stored_ids
from raygnn.errors import DataError

_CSR = "csr"
_PARTS = ("indptr", "indices", "e_id")
_ALIAS = "alias"
_EDGE_INPUTS = ("feature", "weight")  # roles of columns


@dataclass(frozen=True)
class Csc:
    """In-neighbors: row i of `indptr` spans the sources of edges into node i.

    Attributes:
        indptr: int64 [num_dst + 1].
        indices: int32 or int64 [num_edges], sources.
        e_id: CSC position of each edge in the complete edge type, if these are only some edges;
            null if the position in `indices` is `e_id`.
    """

    indptr: np.ndarray
    indices: np.ndarray
    e_id: np.ndarray | None = None


@dataclass(frozen=True)
class Csr:
    """Out-neighbors: row i of `indptr` spans the destinations of edges out of node i. `e_id`: CSC
    position of each edge, as int32 if possible, else int64.
    """

    indptr: np.ndarray
    indices: np.ndarray
    e_id: np.ndarray


@dataclass(frozen=True)
class LabelEdges:
    """Supervision edges of one type and sign: row i of `indptr` spans the targets of anchor i.

    An anchor's edges are ordered by (target, input row). Sampling never follows them.

    Attributes:
        edge_type: (anchor type, relation, target type).
        indptr: int64 [num_anchor_nodes + 1].
        targets: int32 or int64 [num_edges], dense ids.
        split: uint8 [num_edges] as in `SeedRows`.
        time: int64 or float64 [num_edges], or null.
        weight: float32 [num_edges], or null.
        columns: all columns by name; see `Bundle.label_column`.
    """

    edge_type: EdgeType
    sign: Literal["positive", "negative"]
    indptr: np.ndarray
    targets: np.ndarray
    split: np.ndarray | None
    time: np.ndarray | None
    weight: np.ndarray | None
    time_unit: str | None = None
    columns: Mapping[str, bundle_record.ColumnInfo] = field(default_factory=dict)


@dataclass(frozen=True)
class SeedRows:
    """Rows of (node, time) to learn or predict, identified by position.

    They are rows of a training table, or the nodes of a type: row i is then node i.

    Attributes:
        name: name of the training table; null for nodes of a type.
        nodes: int32 or int64 [num_rows], dense ids; null for nodes of a type.
        time: int64 or float64 [num_rows], or null.
        split: uint8 [num_rows], 0 none, 1 train, 2 validation, 3 test; null if not declared.
        time_unit: "us" for dates: microseconds since 1970; else null.
        columns: labels, `time`, `split` and `weight` by name; see `Bundle.row_column`.
        window: time after which a label is known: a duration such as 30d, or a number.
    """

    name: str | None
    node_type: str
    num_rows: int
    nodes: np.ndarray | None
    time: np.ndarray | None
    split: np.ndarray | None
    time_unit: str | None
    columns: Mapping[str, bundle_record.ColumnInfo]
    window: str | float | None = None

    @classmethod
    def of_nodes(cls, bundle: Bundle, node_type: str) -> SeedRows:
        columns = bundle.columns(node_type)
        time = bundle.dense(node_type, "time") if "time" in columns else None
        return cls(
            None,
            node_type,
            bundle.num_nodes(node_type),
            None,
            time,
            bundle.declared_split(node_type),
            columns["time"].unit if "time" in columns else None,
            columns,
        )

    def take(self, positions: np.ndarray) -> SeedRows:
        """Some of the rows, without their split."""
        time = None if self.time is None else np.asarray(self.time[positions])
        nodes = self.node_ids(positions)
        return replace(self, num_rows=len(nodes), nodes=nodes, time=time, split=None)

    @property
    def place(self) -> str:
        """The rows' key in graph.yaml, for messages."""
        if self.name is None:
            return f"node_types.{self.node_type}"
        return f"training_tables.{self.name}"

    def node_ids(self, positions: np.ndarray) -> np.ndarray:
        nodes = positions if self.nodes is None else self.nodes[positions]
        return nodes.astype(np.int64, copy=False)


@dataclass(frozen=True)
class SparseColumn:
    """Sparse rows: row i has `values[indptr[i]:indptr[i+1]]` (null for ones) at `indices[...]`."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray | None
    dim: int


class Bundle:
    """A finished bundle. Arrays are mapped on first use.

    Arrays are copy-on-write, so writes are private to a process. A bundle is pickled as its path.
    """

    def __init__(self, path: Path, record: bundle_record.BundleRecord) -> None:
        self._path = path
        #: folder of values derived from the arrays
        self._derived = path
        self._record = record
        self._edges: dict[EdgeType, bundle_record.EdgeRecord] = {
            edge.type: edge for edge in record.edges
        }
        self._arrays: dict[Path, np.ndarray] = {}
        self._id_maps: dict[str, IdMap] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Opens a bundle folder.

        Raises a DataError if it is not a bundle, has an unknown version, or a file is truncated.
        """
        folder = Path(path).absolute()
        return cls(folder, bundle_record.BundleRecord.load(folder))

    def __reduce__(self) -> tuple[Callable[..., Bundle], tuple[Any, ...]]:
        return Bundle.open, (str(self._path),)

    def __repr__(self) -> str:
        return f"Bundle({str(self._path)!r})"

    def of_types(self, node_types: Sequence[str], edge_types: Sequence[EdgeType]) -> Bundle:
        """Restricts the graph to these types, in this order. Raises a DataError for other types."""
        return _TypesOfBundle(self, tuple(node_types), tuple(edge_types))

    @property
    def path(self) -> Path:
        return self._path

    @property
    def num_bytes(self) -> int:
        """Size of the arrays of nodes and edges, without derived arrays."""
        folders = (self._path / "nodes", self._path / "edges")
        return sum(map(array_bytes_below, folders))

    @cached_property
    def is_larger_than_memory(self) -> bool:
        """Whether arrays are mapped for random reads; see `raygnn.data.arrays`."""
        return outgrows_memory(self.num_bytes)

    @property
    def fingerprint(self) -> str:
        return self._record.fingerprint

    @property
    def is_of_parts(self) -> bool:
        return self._record.is_of_parts

    @property
    def parts_fit(self) -> bundle_record.PartsFit | None:
        return self._record.fit

    @property
    def node_types(self) -> list[str]:
        return list(self._record.nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        return list(self._edges)

    @property
    def types(self) -> list[str | EdgeType]:
        return [*self.node_types, *self.edge_types]

    def num_nodes(self, node_type: str) -> int:
        return self._node(node_type).num_nodes

    def num_edges(self, edge_type: EdgeType) -> int:
        """Number of edges of a type, including reverse copies of undirected ones."""
        return self._edge(edge_type).num_edges

    def columns(self, type_: str | EdgeType) -> dict[str, bundle_record.ColumnInfo]:
        """Features, labels, `weight` and `time` of a node or edge type, by name."""
        record = self._node(type_) if isinstance(type_, str) else self._edge(type_)
        return {column.name: column for column in record.columns}

    def feature_widths(self, name: str) -> dict[str, int]:
        infos = {node_type: self.columns(node_type).get(name) for node_type in self.node_types}
        return {t: info.width for t, info in infos.items() if info and info.role == "feature"}

    def edge_widths(self, name: str) -> dict[EdgeType, int]:
        infos = {edge_type: self.columns(edge_type).get(name) for edge_type in self.edge_types}
        return {t: info.width for t, info in infos.items() if info and info.role in _EDGE_INPUTS}

    def column(self, type_: str | EdgeType, name: str) -> np.ndarray | SparseColumn:
        """A column as stored: [n, *shape] by dense node id or by `e_id`.

        Raises a DataError if there is no such column.
        """
        columns = self.columns(type_)
        if name not in columns:
            raise DataError(
                f"column {name!r} is invalid: {type_name(type_)} has {sorted(columns) or 'none'}. "
                "Use one of these. [graph-column-unknown]"
            )
        folder = self._folder(type_)
        info = columns[name]
        if not info.sparse:
            return self._open(bundle_record.column_path(folder, name))
        values = bundle_record.column_path(folder, name, "values")
        return SparseColumn(
            self._open(bundle_record.column_path(folder, name, "indptr")),
            self._open(bundle_record.column_path(folder, name, "indices")),
            self._open(values) if values.exists() else None,
            info.shape[0],
        )

    def dense(self, type_: str | EdgeType, name: str) -> np.ndarray:
        """A column that is not sparse."""
        column = self.column(type_, name)
        assert isinstance(column, np.ndarray)
        return column

    def csc(self, edge_type: EdgeType) -> Csc:
        """In-neighbors; edges of a row are ordered by (time, source, input row)."""
        self._edge(edge_type)
        folder = self._folder(edge_type)
        return Csc(
            self._open(folder / bundle_record.INDPTR), self._open(folder / bundle_record.INDICES)
        )

    def csr(self, edge_type: EdgeType) -> Csr:
        """Out-neighbors, ordered by (time, destination, input row).

        Built at the first call, then stored in the bundle's folder. Raises a DataError if it must
        be built, and the folder is not writable.
        """
        self._edge(edge_type)
        folder = build_once(
            self._derived / _CSR / edge_type_name(edge_type),
            lambda building: self._build_csr(edge_type, building),
            f"the out-neighbors of {edge_type_name(edge_type)}",
        )
        return Csr(*self._adjacency(folder))

    def alias(self, edge_type: EdgeType, column: str) -> np.ndarray:
        """Alias table to draw each node's edges in proportion to a column; see `fill_alias`.

        Built at the first call, then stored in the bundle's folder and mapped: 8 bytes per edge.
        Raises a DataError if the column cannot weight edges, or the table must be built and the
        folder is not writable.
        """
        edges = self.csc(edge_type)

        def build(folder: Path) -> None:
            weights = edge_weights(self.column(edge_type, column), edge_type, column)
            table = create_array(folder / "table.npy", (len(edges.indices),), np.int64)
            fill_alias(edges.indptr, edges.e_id, weights, table)

        folder = build_once(
            self._derived / _ALIAS / f"{self._edges_name(edge_type)}.{column}",
            build,
            f"the weights of {edge_type_name(edge_type)}",
        )
        return self._open(folder / "table.npy")

    def reverse_of(self, edge_type: EdgeType) -> EdgeType | None:
        return self._edge(edge_type).reverse

    @property
    def label_edge_columns(self) -> dict[EdgeType, Mapping[str, bundle_record.ColumnInfo]]:
        """Also of the outline of a partitioned graph, which lacks the label edges."""
        positive = [record for record in self._record.label_edges if record.sign == "positive"]
        return {record.type: {c.name: c for c in record.columns} for record in positive}

    @property
    def label_edges(self) -> list[LabelEdges]:
        return [self._label_edges(record) for record in self._record.label_edges]

    def _label_edges(self, record: bundle_record.LabelEdgeRecord) -> LabelEdges:
        folder = self._path / record.folder
        columns = {column.name: column for column in record.columns}
        split, time, weight = self._open_some(folder, columns, "split", "time", "weight")
        return LabelEdges(
            record.type,
            record.sign,
            self._open(folder / bundle_record.INDPTR),
            self._open(folder / bundle_record.INDICES),
            split,
            time,
            weight,
            columns["time"].unit if "time" in columns else None,
            columns,
        )

    def label_column(self, edges: LabelEdges, name: str) -> np.ndarray:
        """A column of one of `label_edges`: [num_edges, ...], in the order of its targets."""
        folder = self._path / bundle_record.label_edge_folder(edges.edge_type, edges.sign)
        return self._open(bundle_record.column_path(folder, name))

    @property
    def training_tables(self) -> dict[str, SeedRows]:
        return {table.name: self._seed_rows(table) for table in self._record.training_tables}

    def _seed_rows(self, record: bundle_record.TrainingTableRecord) -> SeedRows:
        folder = self._path / record.folder
        columns = {column.name: column for column in record.columns}
        time, split = self._open_some(folder, columns, "time", "split")
        return SeedRows(
            record.name,
            record.node_type,
            record.num_rows,
            self._open(folder / bundle_record.NODES),
            time,
            split,
            columns["time"].unit if "time" in columns else None,
            columns,
            record.window,
        )

    def row_column(self, rows: SeedRows, name: str) -> np.ndarray:
        if rows.name is None:
            return self.dense(rows.node_type, name)
        return self._open(
            bundle_record.column_path(
                self._path / bundle_record.training_table_folder(rows.name), name
            )
        )

    def row_weights(self, rows: SeedRows) -> np.ndarray | None:
        """Weights of rows of a training table, as by `summable`; None without a weight column."""
        has_weights = rows.name is not None and "weight" in rows.columns
        return summable(self.row_column(rows, "weight")) if has_weights else None

    def declared_split(self, node_type: str) -> np.ndarray | None:
        """uint8 [num_nodes] of the split column: 0 none, 1 train, 2 validation, 3 test."""
        if not self._node(node_type).has_split:
            return None
        return self._open(self._folder(node_type) / bundle_record.SPLIT)

    def ids(self, node_type: str) -> pa.Array:
        """Original ids by dense id: int64 or large_string, without a copy."""
        kind = self._node(node_type).ids.id_kind
        return stored_ids(self._folder(node_type), kind, self._open)

    def take_ids(self, node_type: str, dense: np.ndarray) -> pa.Array:
        """Original ids by dense ids, which may repeat."""
        return self.ids(node_type).take(pa.array(dense))

    def id_map(self, node_type: str) -> IdMap:
        record = self._node(node_type)
        with self._lock:
            if node_type not in self._id_maps:
                self._id_maps[node_type] = IdMap.open(self._folder(node_type), record.ids)
            return self._id_maps[node_type]

    def _node(self, node_type: str) -> bundle_record.NodeRecord:
        if node_type not in self._record.nodes:
            raise DataError(
                f"node type {node_type!r} is invalid: the graph has {self.node_types}. Use one of "
                "these. [graph-node-type-unknown]"
            )
        return self._record.nodes[node_type]

    def _edge(self, edge_type: EdgeType) -> bundle_record.EdgeRecord:
        if edge_type not in self._edges:
            raise DataError(
                f"edge type {type_name(edge_type)!r} is invalid: the graph has "
                f"{[edge_type_name(t) for t in self._edges]}. Use one. [graph-edge-type-unknown]"
            )
        return self._edges[edge_type]

    def _edges_name(self, edge_type: EdgeType) -> str:
        return edge_type_name(edge_type)

    def _folder(self, type_: str | EdgeType) -> Path:
        if isinstance(type_, str):
            return bundle_record.node_folder(self._path, type_)
        return self._path / bundle_record.edge_folder(type_)

    def _open(self, path: Path) -> np.ndarray:
        with self._lock:
            if path not in self._arrays:
                self._arrays[path] = open_array(path)
                if self.is_larger_than_memory:
                    expect_random_reads(self._arrays[path])
            return self._arrays[path]

    def _adjacency(self, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        indptr, indices, e_id = (self._open(folder / f"{part}.npy") for part in _PARTS)
        return indptr, indices, e_id

    def _open_some(
        self, folder: Path, columns: Mapping[str, bundle_record.ColumnInfo], *names: str
    ) -> list[np.ndarray | None]:
        return [
            self._open(bundle_record.column_path(folder, n)) if n in columns else None
            for n in names
        ]

    def _build_csr(self, edge_type: EdgeType, folder: Path) -> None:
        csc = self.csc(edge_type)
        num_edges = len(csc.indices)
        limits = (self.num_nodes(edge_type[2]), num_edges)
        lengths = (self.num_nodes(edge_type[0]) + 1, num_edges, num_edges)
        dtypes = (np.dtype(np.int64), *map(index_dtype, limits))
        arrays = [
            create_array(folder / f"{part}.npy", (length,), dtype)
            for part, length, dtype in zip(_PARTS, lengths, dtypes, strict=True)
        ]
        edge_kernels.transpose(csc.indptr, csc.indices, *arrays)
        if "time" in self.columns(edge_type):
            times = edge_kernels.time_keys(
                self._open(bundle_record.column_path(self._folder(edge_type), "time"))
            )
            edge_kernels.sort_rows_by_time(*arrays, times)


class _TypesOfBundle(Bundle):
    def __init__(
        self, bundle: Bundle, node_types: tuple[str, ...], edge_types: tuple[EdgeType, ...]
    ) -> None:
        edges = [bundle._edge(edge_type) for edge_type in edge_types]
        record = replace(
            bundle._record,
            nodes={name: bundle._node(name) for name in node_types},
            edges=tuple(
                edge if edge.reverse in edge_types else replace(edge, reverse=None)
                for edge in edges
            ),
            label_edges=tuple(
                labels
                for labels in bundle._record.label_edges
                if {labels.type[0], labels.type[2]} <= set(node_types)
            ),
            training_tables=tuple(
                table for table in bundle._record.training_tables if table.node_type in node_types
            ),
        )
        super().__init__(bundle.path, record)
        self._whole = bundle

    def __reduce__(self) -> tuple[Callable[..., Bundle], tuple[Any, ...]]:
        return _TypesOfBundle, (self._whole, tuple(self.node_types), tuple(self.edge_types))
