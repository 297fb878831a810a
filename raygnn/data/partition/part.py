"""A partitioned graph without opening it whole: the outline that all read, and single parts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raygnn.data.arrays import sync_folder
from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.bundle_check import check_part_arrays
from raygnn.data.bundle_record import BundleRecord
from raygnn.data.cache import build_once
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.ingest.build_bundle import bundle_folder
from raygnn.data.ingest.edge_plan import edge_folder
from raygnn.data.links.folder import message_codes
from raygnn.data.links.message_graph import MessageGraph, Messages
from raygnn.data.links.split import LinkSplit
from raygnn.data.partition.record import PartitionRecord, check_part, check_parts, part_folder
from raygnn.data.partition.whole import absolute_folder, is_whole, join_edges, join_nodes
from raygnn.errors import DataError

#: Edge types of which pairs are read, and the features that are read of each.
Pairs = Mapping[EdgeType, Sequence[str]]

_OF_PAIRS = ("time", "split", "label")  # roles of columns that come with pairs
_OF_TABLES = ("nodes/", "edges/", "label_edges/")


class Outline(Bundle):
    """A graph without its edges and features: ids, splits, labels and times of all nodes.

    For a task of links or edges it has their pairs too: those of some edge types, and the label
    edges. Its record is that of the whole graph, without label edges where it has no pairs.
    """

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike[str],
        cache_dir: str | os.PathLike[str] | None = None,
        pairs: Pairs | None = None,
    ) -> Outline:
        """Gives the outline of a partitioned graph, which is kept in the cache.

        Args:
            pairs: edge types whose pairs it has, with their times, splits and labels, and names of
                features that it has too; None is of a task that reads no pairs and no label edges.
        Raises:
            DataError: a part is missing, damaged, or of another partition.
        """
        place = absolute_folder(folder)
        record, parts = check_parts(place)

        def build(target: Path) -> None:
            nodes = {}
            for name, found in record.whole.nodes.items():
                held = tuple(c for c in found.columns if c.role != "feature")
                folders = [part / "nodes" / name for part in parts]
                joined = join_nodes(replace(found, columns=held), folders, target / "nodes" / name)
                nodes[name] = replace(joined, columns=found.columns)
            for edge in record.whole.edges:
                if pairs is not None and edge.type in pairs:
                    names = pairs[edge.type]
                    read = [c for c in edge.columns if c.role in _OF_PAIRS or c.name in names]
                    join_edges(read, parts, edge_folder(edge.type), target)
            labels = () if pairs is None else record.whole.label_edges
            for each in labels:
                join_edges(each.columns, parts, each.folder, target)
            sync_folder(target)
            replace(record.whole, nodes=nodes, label_edges=labels).save(target)

        name = f"{record.fingerprint}-outline"
        if pairs is not None:
            listed = "\n".join(sorted("\t".join([edge_type_name(t), *n]) for t, n in pairs.items()))
            name += f"-{hashlib.sha256(listed.encode()).hexdigest()[:8]}"
        path = bundle_folder(cache_dir) / name
        build_once(
            path,
            build,
            "the outline of the graph",
            is_whole=lambda built: is_whole(built, BundleRecord.load),
        )
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Outline:
        """Opens the folder of an outline.

        Raises:
            DataError: it is none, of an unknown version, or a file is cut off.
        """
        folder = Path(path).absolute()
        return cls(folder, BundleRecord.load(folder))

    def __reduce__(self) -> tuple[Callable[..., Bundle], tuple[Any, ...]]:
        return Outline.open, (str(self.path),)

    def of_types(self, node_types: Sequence[str], edge_types: Sequence[EdgeType]) -> Bundle:
        """See `Bundle.of_types`; all types of the graph, since its parts have all.

        Raises:
            DataError: they are not all, or in another order.
        """
        if [*node_types, *edge_types] != [*self.node_types, *self.edge_types]:
            raise DataError(
                f"data.mode='partitioned' is invalid: the graph has the types "
                f"{_names(self.node_types, self.edge_types)}, and the model reads "
                f"{_names(node_types, edge_types)}. Set data.mode to in_memory, and data.uri to "
                "the tables of the graph.",
                id="partition-types",
            )
        return self

    def holds(self, type_: str | EdgeType, column: str) -> bool:
        """Whether a column is here, and not in the parts alone."""
        return isinstance(type_, str) and self.columns(type_)[column].role != "feature"

    def _open(self, path: Path) -> np.ndarray:
        name = path.relative_to(self.path).as_posix()
        if name.startswith(_OF_TABLES) and name not in self._record.file_sizes:
            raise DataError(
                f"data.mode='partitioned' is invalid: something reads {name} of the whole graph, "
                "which only its parts have. Set data.mode to in_memory, and data.uri to the "
                "tables of the graph.",
                id="partition-not-whole",
            )
        return super()._open(path)


def _names(node_types: Sequence[str], edge_types: Sequence[EdgeType]) -> str:
    return ", ".join([*node_types, *map(edge_type_name, edge_types)])


class Part(Bundle):
    """One part of a graph: the edges into its nodes, and the columns of both.

    Rows of `csc` and of columns are those of the part; neighbors are dense ids of the whole graph.
    Columns of nodes that the outline holds are of all nodes.

    Args:
        folder: of the partitioned graph.
    Raises:
        DataError: the part is missing, damaged, or of another partition.
    """

    def __init__(self, folder: Path, number: int, outline: Outline) -> None:
        self.record = PartitionRecord.load(folder)
        self.number = number
        path = part_folder(folder, number)
        check_part(path, self.record.fingerprint, number)
        super().__init__(path, self.record.whole)
        self.outline = outline
        # On a disk of this node: that of the parts may be slow, and only read.
        self._derived = outline.path.with_name(f"{self.record.fingerprint}-{path.name}")
        try:
            for edge_type in self.edge_types:
                num_targets = self.record.nodes[edge_type[2]][number]
                check_part_arrays(self, edge_type, num_targets)
        except (ValueError, OSError) as error:
            raise DataError(
                f"part {number} in {path} is damaged: {error}. Remove the folder of the "
                "partitioned graph and partition again.",
                id="partition-damaged",
            ) from error

    def column(self, type_: str | EdgeType, name: str) -> np.ndarray | SparseColumn:
        """See `Bundle.column`; of the part's rows, or of all nodes where the outline holds it."""
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

    How links are split follows from the pairs of the outline, of which this node keeps the codes.
    """

    def __init__(self, part: Part, messages: Messages) -> None:
        super().__init__(part, messages)
        self._part = part

    def codes(self, link: LinkSplit, edge_type: EdgeType) -> np.ndarray:
        """Of the edges of the part; see `MessageGraph.codes`."""
        first, num_edges = self._part.first_row(edge_type), len(self._part.csc(edge_type).indices)
        return message_codes(self._part.outline, link, edge_type)[first : first + num_edges]
