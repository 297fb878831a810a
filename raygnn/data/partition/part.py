"""A partitioned graph: the outline that all processes read, single parts, and all parts joined."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raygnn.data.arrays import Source, gather_ragged_rows, gather_rows, sync_folder
from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.bundle_record import (
    INDICES,
    INDPTR,
    NODES,
    SPLIT,
    BundleRecord,
    ColumnInfo,
    NodeRecord,
    column_path,
    edge_folder,
)
from raygnn.data.cache import build_once
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.filesystem import absolute, redact
from raygnn.data.id_map import build_index, gather_ids
from raygnn.data.ingest.build_bundle import bundle_folder, check_arrays, check_edges, is_whole
from raygnn.data.ingest.nodes import gather_sparse
from raygnn.data.links.folder import message_codes
from raygnn.data.links.message_graph import MessageGraph, Messages
from raygnn.data.links.split import LinkSplit
from raygnn.data.partition.record import PART_SEAL, Folder, PartitionRecord, check_parts, part_name
from raygnn.data.partition.transfer import part_on_disk, parts_on_disk
from raygnn.errors import DataError

#: Columns by folder in the bundle.
_ColumnsByType = dict[str, Sequence[ColumnInfo]]


def open_partitioned(
    folder: Folder,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Returns the bundle of a partitioned graph. Joins its parts if the cache does not have it.

    Nodes have the dense ids of the partition, starting with part 0.

    Args:
        folder: written by `raygnn.partition`, a path or any fsspec URI.
        cache_dir: local folder for bundles. Default: $RAYGNN_CACHE_DIR or ~/.cache/raygnn.
    Raises:
        DataError: a part is missing, damaged, or of another partition.
    """
    place = absolute(folder)
    record = check_parts(place)
    edges = {edge_folder(edge.type): edge.columns for edge in record.whole.edges}
    columns = _columns_of_nodes(record.whole) | edges | _columns_of_labels(record.whole)

    def build(target: Path) -> None:
        progress(f"joining {record.num_parts} parts of {redact(place)}")
        _join(place, record, columns, target, progress)
        check(target)

    def check(path: Path) -> None:
        check_arrays(Bundle.open(path))

    path = bundle_folder(cache_dir) / record.fingerprint
    build_once(path, build, is_whole=lambda built: is_whole(built, check))
    return Bundle.open(path)


def _join(
    place: str,
    record: PartitionRecord,
    columns: _ColumnsByType,
    target: Path,
    progress: Callable[[str], None],
) -> None:
    """Writes a bundle with ids, splits and some columns of all parts.

    Label edges belong to it only if they are among the folders of `columns`.
    """
    nodes, is_read = dict(record.whole.nodes), partial(_is_read, columns)
    with parts_on_disk(place, record, target / "fetched", is_read, progress) as parts:
        for folder, infos in columns.items():
            sources: list[Source] = [(part / folder, None) for part in parts]
            kind, _, name = folder.partition("/")
            if kind == "nodes":
                nodes[name] = _join_ids(nodes[name], sources, target / folder)
            elif kind == "training_tables":
                gather_rows(sources, NODES, target / folder)
            else:
                gather_ragged_rows(sources, INDPTR, [INDICES], target / folder)
            for info in infos:
                if info.sparse:
                    gather_sparse(sources, info.name, target / folder)
                else:
                    gather_rows(sources, column_path(Path(), info.name), target / folder)
    sync_folder(target)
    labels = tuple(edges for edges in record.whole.label_edges if edges.folder in columns)
    replace(record.whole, nodes=nodes, label_edges=labels).save(target)


def _join_ids(record: NodeRecord, sources: Sequence[Source], target: Path) -> NodeRecord:
    kind = record.ids.id_kind
    if record.has_split:
        gather_rows(sources, SPLIT, target)
    gather_ids(sources, kind, target)
    index, _ = build_index(target, np.zeros(record.num_nodes, bool), kind)
    return replace(record, ids=index)


def _is_read(columns: _ColumnsByType, name: str) -> bool:
    folder, has_columns, _ = name.partition("/columns/")
    if not has_columns:
        return name.rpartition("/")[0] in columns
    return any(
        name == column_path(Path(folder), info.name, part).as_posix()
        for info in columns.get(folder, ())
        for part in ("", "indptr", "indices", "values")
    )


def _columns_of_nodes(graph: BundleRecord, *, features: bool = True) -> _ColumnsByType:
    """Columns of node types and training tables."""
    nodes = {
        f"nodes/{name}": [c for c in rows.columns if features or c.role != "feature"]
        for name, rows in graph.nodes.items()
    }
    return nodes | {table.folder: table.columns for table in graph.training_tables}


def _columns_of_labels(graph: BundleRecord) -> _ColumnsByType:
    return {edges.folder: edges.columns for edges in graph.label_edges}


#: Edge types whose pairs are read, with the features to read of each.
Pairs = Mapping[EdgeType, Sequence[str]]

_OF_PAIRS = ("time", "split", "label", "row")  # roles of columns that come with pairs
_OF_TABLES = ("nodes/", "edges/", "label_edges/")


class Outline(Bundle):
    """A graph without edges and features: ids, splits, labels and times of all nodes.

    Training tables are complete. For a task of links or edges it also has pairs of some edge types,
    and the label edges. Its record is that of the whole graph, without label edges if it has no
    pairs.
    """

    @classmethod
    def build(
        cls,
        folder: Folder,
        cache_dir: str | os.PathLike[str] | None = None,
        pairs: Pairs | None = None,
        progress: Callable[[str], None] = lambda _: None,
        record: PartitionRecord | None = None,
    ) -> Outline:
        """Builds the outline of a partitioned graph, stored in the cache.

        Args:
            record: of parts without partition.json, which are not checked.
            pairs: edge types with pairs, times, splits and labels, and names of their features;
                None for tasks without pairs and label edges.
        Raises:
            DataError: a part is missing, damaged, or of another partition.
        """
        place = absolute(folder)
        record = record or check_parts(place)
        columns = _columns_of_nodes(record.whole, features=False)
        if pairs is not None:
            columns |= _columns_of_labels(record.whole) | {
                edge_folder(edge.type): [
                    c for c in edge.columns if c.role in _OF_PAIRS or c.name in pairs[edge.type]
                ]
                for edge in record.whole.edges
                if edge.type in pairs
            }
        name = f"{record.fingerprint}-outline"
        if pairs is not None:
            listed = "\n".join(sorted("\t".join([edge_type_name(t), *n]) for t, n in pairs.items()))
            name += f"-{hashlib.sha256(listed.encode()).hexdigest()[:8]}"
        path = bundle_folder(cache_dir) / name
        build_once(
            path,
            lambda target: _join(place, record, columns, target, progress),
            "the outline of the graph",
            is_whole=lambda built: is_whole(built, BundleRecord.load),
        )
        return cls.open(path)

    def __reduce__(self) -> tuple[Callable[..., Bundle], tuple[Any, ...]]:
        return Outline.open, (str(self.path),)

    def of_types(self, node_types: Sequence[str], edge_types: Sequence[EdgeType]) -> Bundle:
        """All types of the graph. Raises a DataError for others, or another order."""
        if [*node_types, *edge_types] != [*self.node_types, *self.edge_types]:
            raise DataError(
                "data.mode='partitioned' is invalid: the graph has the types "
                f"{_names(self.node_types, self.edge_types)}, and the model reads "
                f"{_names(node_types, edge_types)}. Set it to in_memory, and data.uri to the "
                "tables. [partition-types]"
            )
        return self

    def holds(self, type_: str | EdgeType, column: str) -> bool:
        """Whether a column is here, and not only in the parts."""
        return isinstance(type_, str) and self.columns(type_)[column].role != "feature"

    def _open(self, path: Path) -> np.ndarray:
        name = path.relative_to(self.path).as_posix()
        if name.startswith(_OF_TABLES) and name not in self._record.file_sizes:
            raise DataError(
                f"data.mode='partitioned' is invalid: something reads {name} of the whole graph. "
                "Set it to in_memory, and data.uri to the tables. [partition-not-whole]"
            )
        return super()._open(path)


def _names(node_types: Sequence[str], edge_types: Sequence[EdgeType]) -> str:
    return ", ".join([*node_types, *map(edge_type_name, edge_types)])


class Part(Bundle):
    """One part of a graph: the edges into its nodes, and the columns of both.

    Rows of `csc` and columns are the part's; neighbors are dense ids of the whole graph. Node
    columns of the outline contain all nodes. A part in a bucket is fetched to the outline's disk.

    Raises:
        DataError: the part is missing, damaged, or of another partition.
        ResourceError: the part cannot be stored on this machine.
    """

    def __init__(
        self,
        folder: Folder,
        number: int,
        outline: Outline,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.record = PartitionRecord.load(folder)
        self.number = number
        path = part_on_disk(folder, self.record, number, outline.path.parent, progress)
        super().__init__(path, self.record.whole)
        self.outline = outline
        # On a disk of this node: that of the parts may be slow, and only read.
        self._derived = outline.path.with_name(f"{self.record.fingerprint}-{part_name(number)}")
        try:
            for edge_type in self.edge_types:
                num_targets = self.record.nodes[edge_type[2]][number]
                check_edges(self, edge_type, num_targets)
        except (ValueError, OSError) as error:
            raise PART_SEAL.damage(path, error) from error

    def column(self, type_: str | EdgeType, name: str) -> np.ndarray | SparseColumn:
        """The part's rows, or all nodes if the outline has the column."""
        if name in self.columns(type_) and self.outline.holds(type_, name):
            return self.outline.column(type_, name)
        return super().column(type_, name)

    def first_row(self, type_: str | EdgeType) -> int:
        """Dense id of the part's first node of a type, or CSC position of its first edge."""
        if isinstance(type_, str):
            return self.record.first_ids(type_)[self.number]
        return self.record.first_edges(type_)[self.number]


class PartMessages(MessageGraph):
    """The edges of a part that carry messages.

    Link splits follow from the outline's pairs, whose codes this node stores.
    """

    def __init__(self, part: Part, messages: Messages) -> None:
        super().__init__(part, messages)
        self._part = part

    def codes(self, link: LinkSplit, edge_type: EdgeType) -> np.ndarray:
        first, num_edges = self._part.first_row(edge_type), len(self._part.csc(edge_type).indices)
        return message_codes(self._part.outline, link, edge_type)[first : first + num_edges]
