"""Edge tables to parts: read a piece with dense ids, order it by part, sort a part's edges."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from raygnn.data import edge_kernels
from raygnn.data.arrays import create_array, open_array
from raygnn.data.bundle_record import INDICES, column_path
from raygnn.data.ingest.array_tasks import OnAnyNode
from raygnn.data.ingest.build_edges import MAX_INT32_NODES, EdgeBuild, create_rows, sort_edges
from raygnn.data.ingest.build_nodes import class_numbers
from raygnn.data.ingest.edge_buckets import DST, SRC, destination_ranges
from raygnn.data.ingest.edge_plan import EdgePlan
from raygnn.data.ingest.edge_tasks import EdgeTask, convert_edges
from raygnn.data.ingest.pieces import Piece
from raygnn.data.partition.ids import BucketedIds

# Rows in the order of the part of their target, or of their source; ascending in each part.
_BY_TARGET = "by_target.npy"
_BY_SOURCE = "by_source.npy"
#: Below a task's folder: what goes into the part.
ARRAYS = "arrays"


@dataclass(frozen=True)
class ReadEdges:
    """One piece of an edge table.

    Attributes:
        first_sources: first dense id of each part, and the number of nodes, of the source type.
        first_targets: the same of the target type.
    """

    piece: Piece
    plan: EdgePlan
    source: BucketedIds
    target: BucketedIds
    first_sources: tuple[int, ...]
    first_targets: tuple[int, ...]


def read_edges(task: ReadEdges, folder: Path) -> dict[str, Any]:
    """Reads and checks a piece; orders its rows by the part that holds them."""
    plan, piece = task.plan, replace(task.piece, row_start=0)
    num_nodes = task.first_sources[-1], task.first_targets[-1]
    dtype = np.int32 if max(num_nodes) <= MAX_INT32_NODES else np.int64
    for name in (SRC, DST):
        create_array(folder / name, (piece.num_rows,), dtype)
    for column in plan.columns:
        path = column_path(folder, column.name)
        create_array(path, (piece.num_rows, *column.shape), column.dtype)
    ranges = destination_ranges(num_nodes[1])
    ids = task.source, task.target
    edges = EdgeTask(piece, plan, *ids, np.dtype(dtype), ranges, None, folder)
    found = OnAnyNode(convert_edges)(edges)
    src, dst = open_array(folder / SRC, "r"), open_array(folder / DST, "r")
    kept = np.flatnonzero(src != edge_kernels.DROPPED)
    result = {
        "findings": [asdict(finding) for finding in found.findings],
        "num_dropped": found.num_dropped,
        "class_names": found.class_names,
        "target_starts": _order_by_part(folder / _BY_TARGET, kept, dst, task.first_targets),
    }
    if plan.undirected or plan.reverse is not None:
        if plan.undirected:
            kept = kept[src[kept] != dst[kept]]  # a loop has no reverse copy
        starts = _order_by_part(folder / _BY_SOURCE, kept, src, task.first_sources)
        result["source_starts"] = starts
    return result


def _order_by_part(
    path: Path, kept: np.ndarray, ends: np.ndarray, first_ids: tuple[int, ...]
) -> list[int]:
    """Writes rows by the part of their end; returns where each part starts."""
    part = np.searchsorted(first_ids, ends[kept], side="right") - 1
    # Of parts without nodes the last of equal first ids is found, which is the one that has them.
    np.save(path, kept[np.argsort(part, kind="stable")].astype(np.int32))
    return [0, *np.cumsum(np.bincount(part, minlength=len(first_ids) - 1)).tolist()]


@dataclass(frozen=True)
class EdgePiece:
    """A piece of an edge table that has been read.

    Attributes:
        class_names: per string label, the names in the order of the codes that were written.
    """

    folder: Path
    target_starts: tuple[int, ...]
    source_starts: tuple[int, ...]
    class_names: Mapping[str, Sequence[str]]

    def forward(self, part: int) -> np.ndarray:
        """Rows whose target is in a part."""
        start, stop = self.target_starts[part : part + 2]
        return open_array(self.folder / _BY_TARGET, "r")[start:stop]

    def backward(self, part: int) -> np.ndarray:
        """Rows whose source is in a part."""
        start, stop = self.source_starts[part : part + 2]
        return open_array(self.folder / _BY_SOURCE, "r")[start:stop]


@dataclass(frozen=True)
class SortEdges:
    """The edges of one type, or of one set of label edges, into one part.

    Attributes:
        plan: of a reverse type, with `is_swapped`: the rows are those of another type.
        source_range: first dense id of the part among the sources, and the one after its last.
        first_target: first dense id of the part among the destinations.
        num_targets: nodes of the part among the destinations.
        num_sources: of the whole graph.
        class_names: of each label of strings, over all pieces.
    """

    plan: EdgePlan
    pieces: tuple[EdgePiece, ...]
    part: int
    source_range: tuple[int, int]
    first_target: int
    num_targets: int
    num_sources: int
    class_names: Mapping[str, Sequence[str]]


def sort_part_edges(task: SortEdges, folder: Path) -> dict[str, Any]:
    """Writes the CSC of a part: `indptr` of its nodes, `indices` of the whole graph."""
    plan = task.plan
    lengths = [_num_rows(task, piece) for piece in task.pieces]
    num_rows, work = sum(lengths), folder / "work"
    ranges = destination_ranges(task.num_targets)
    build = EdgeBuild(
        replace(plan, folder=ARRAYS, is_swapped=False),
        (0, num_rows),
        task.num_sources,
        task.num_targets,
        ranges,
        work / "rows",
        work / "buckets",
        folder / ARRAYS,
        has_copies=plan.undirected,
    )
    create_rows(build)
    counts = np.zeros(ranges.num_ranges, np.int64)
    out_src, out_dst = open_array(build.rows / SRC, "r+"), open_array(build.rows / DST, "r+")
    columns = {c.name: open_array(column_path(build.rows, c.name), "r+") for c in plan.columns}
    start = 0
    for piece, length in zip(task.pieces, lengths, strict=True):
        span = slice(start, start + length)
        rows, src, dst = _rows(task, piece)
        out_src[span], out_dst[span] = src, dst
        edge_kernels.count_ranges(out_src[span], out_dst[span], False, ranges.shift, counts)
        for name, values in columns.items():
            given = open_array(column_path(piece.folder, name), "r")[rows]
            if name in task.class_names:
                given = class_numbers(piece, name, task.class_names[name])[given]
            values[span] = given
        start += length
    (built,) = sort_edges([build], [[counts]], _one_by_one)
    shutil.rmtree(work)
    indices = open_array(folder / ARRAYS / INDICES, "r")
    low, high = task.source_range
    num_inside = int(((indices >= low) & (indices < high)).sum())
    return {"num_edges": built.num_edges, "num_cut": built.num_edges - num_inside}


def _num_rows(task: SortEdges, piece: EdgePiece) -> int:
    if task.plan.is_swapped:
        return len(piece.backward(task.part))
    copies = len(piece.backward(task.part)) if task.plan.undirected else 0
    return len(piece.forward(task.part)) + copies


def _rows(task: SortEdges, piece: EdgePiece) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows of a piece that are of the part, their sources, and their local destinations.

    A row of an undirected type is followed by its reverse copy, as `edge_kernels.scatter` writes
    them: equal edges stay in the order of the table.
    """
    src, dst = open_array(piece.folder / SRC, "r"), open_array(piece.folder / DST, "r")
    if task.plan.is_swapped:
        rows = piece.backward(task.part)
        return rows, dst[rows], src[rows] - task.first_target
    rows = piece.forward(task.part)
    if not task.plan.undirected:
        return rows, src[rows], dst[rows] - task.first_target
    back = piece.backward(task.part)
    order = np.argsort(np.concatenate([2 * rows.astype(np.int64), 2 * back.astype(np.int64) + 1]))
    sources = np.concatenate([src[rows], ~dst[back]])[order]
    targets = np.concatenate([dst[rows], src[back]])[order]
    return np.concatenate([rows, back])[order], sources, targets - task.first_target


def _one_by_one(fn: Callable[[Any], Any], items: Sequence[Any], label: str) -> list[Any]:
    return [fn(item) for item in items]
