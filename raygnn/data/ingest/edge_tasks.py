"""The first pass over one piece of an edge table, as a plain function for any scheduler.

Endpoints become dense ids, in input order, with their columns; destinations are counted. It runs on
any node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from raygnn.data import edge_kernels
from raygnn.data.bundle_record import column_path
from raygnn.data.id_map import IdIndex, IdMap, table_files
from raygnn.data.ingest.array_tasks import Rows, Write
from raygnn.data.ingest.column_plan import DensePlan
from raygnn.data.ingest.decode import (
    class_name_rows,
    dense_rows,
    label_rows,
    null_mask,
    split_rows,
)
from raygnn.data.ingest.edge_buckets import DST, SRC, DestinationRanges
from raygnn.data.ingest.edge_plan import EdgePlan
from raygnn.data.ingest.findings import Finding, FindingCollector
from raygnn.data.ingest.pieces import Piece, read_blocks


@dataclass(frozen=True)
class Endpoints:
    """The id map of a node type, as something that travels to a task."""

    folder: Path
    index: IdIndex

    @property
    def inputs(self) -> tuple[Rows, ...]:
        """The tables."""
        return tuple(Rows(self.folder / name) for name in table_files(self.index.kind))

    def open(self, tables: Sequence[np.ndarray]) -> IdMap:
        """An id map over the tables."""
        return IdMap(self.index, tables)


class LooksUpIds(Protocol):
    """Finds dense ids of original ids, as `IdMap`."""

    def lookup(self, ids: pa.Array) -> np.ndarray:
        """int64 [n]; -1 where no node has the id, and for nulls."""
        ...


class OpensIds(Protocol):
    """A picklable place of the ids of a node type."""

    @property
    def inputs(self) -> tuple[Rows, ...]:
        """What of the folder of the ingest the look-up needs."""

    def open(self, tables: Sequence[np.ndarray]) -> LooksUpIds:
        """What looks ids up.

        Args:
            tables: the arrays of `inputs`.
        """
        ...


@dataclass(frozen=True)
class EdgeTask:
    """First pass over one piece of an edge table.

    Attributes:
        index_dtype: of dense ids on disk.
        ranges: of destinations; and of sources, where the reverse type is made too.
        rows: work folder with the edge type's rows in input order.
    """

    piece: Piece
    plan: EdgePlan
    source: OpensIds
    target: OpensIds
    index_dtype: np.dtype
    ranges: DestinationRanges
    reverse_ranges: DestinationRanges | None
    rows: Path

    @property
    def inputs(self) -> tuple[Rows, ...]:
        """The tables that ids are looked up in."""
        tables = self.source.inputs
        return tables if self.target == self.source else (*tables, *self.target.inputs)


@dataclass(frozen=True)
class EdgeResult:
    """What the first pass over a piece found.

    Attributes:
        counts: edges per destination range, reverse copies included.
        reverse_counts: edges per range of sources, where the reverse type is made too.
        num_dropped: rows that break some rule.
        class_names: per string label, the names in the order of the codes that were written.
    """

    findings: tuple[Finding, ...]
    counts: np.ndarray
    reverse_counts: np.ndarray | None
    num_dropped: int
    class_names: Mapping[str, tuple[str, ...]]


def convert_edges(task: EdgeTask, tables: Sequence[np.ndarray], write: Write) -> EdgeResult:
    """First pass: maps the endpoints of one piece, checks its rows, counts destinations."""
    plan, piece = task.plan, task.piece
    findings = FindingCollector(plan.table)
    num_source_tables = len(task.source.inputs)
    source = target = task.source.open(tables[:num_source_tables])
    if task.target != task.source:
        target = task.target.open(tables[num_source_tables:])
    counts = np.zeros(task.ranges.num_ranges, np.int64)
    reverse_counts = None
    if task.reverse_ranges is not None:
        reverse_counts = np.zeros(task.reverse_ranges.num_ranges, np.int64)
    num_dropped = 0
    class_names: dict[str, dict[str, int]] = {}
    for offset, file, file_row, columns in read_blocks(piece, plan.types):
        num_rows = len(columns[plan.source])
        start = piece.row_start + offset
        findings.start_block(file, file_row, num_rows)
        src = _lookup(source, plan.source, plan.edge_type[0], columns, findings)
        dst = _lookup(target, plan.target, plan.edge_type[2], columns, findings)
        for column in plan.columns:
            # Each column is checked by itself, so that one bad column hides no other.
            earlier, findings.bad = findings.bad, np.zeros(num_rows, bool)
            values = _values(column, columns, findings, class_names)
            write(column_path(task.rows, column.name), start, values)
            findings.bad |= earlier
        src[findings.bad] = edge_kernels.DROPPED
        dst[findings.bad] = edge_kernels.DROPPED
        num_dropped += int(findings.bad.sum())
        write(task.rows / SRC, start, src.astype(task.index_dtype))
        write(task.rows / DST, start, dst.astype(task.index_dtype))
        edge_kernels.count_ranges(src, dst, plan.undirected, task.ranges.shift, counts)
        if task.reverse_ranges is not None and reverse_counts is not None:
            edge_kernels.count_ranges(dst, src, False, task.reverse_ranges.shift, reverse_counts)
    names = {label: tuple(codes) for label, codes in class_names.items()}
    return EdgeResult(tuple(findings.findings()), counts, reverse_counts, num_dropped, names)


def _values(
    column: DensePlan,
    columns: Mapping[str, pa.Array],
    findings: FindingCollector,
    class_names: dict[str, dict[str, int]],
) -> np.ndarray:
    name = column.sources[0].column
    if column.role == "split":
        return split_rows(columns[name], name, findings)
    if column.label == "class_name":
        return class_name_rows(columns[name], class_names.setdefault(column.name, {}))
    if column.label is not None:
        return label_rows(column, columns, findings)
    return dense_rows(column, columns, findings)


def _lookup(
    ids: LooksUpIds,
    name: str,
    node_type: str,
    columns: Mapping[str, pa.Array],
    findings: FindingCollector,
) -> np.ndarray:
    column = columns[name]
    dense = ids.lookup(column)
    null = null_mask(column)
    remedy = "Give both endpoints, or set data.on_error=drop to leave these edges out."
    findings.add(name, "null ids", remedy, null, id="edges-null-ids")
    remedy = "Add the nodes, or set data.on_error=drop to leave these edges out."
    rule = f"ids that node type {node_type!r} does not have (dangling)"
    findings.add(name, rule, remedy, (dense < 0) & ~null, column, id="edges-dangling")
    return dense
