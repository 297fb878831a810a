"""The steps of a partition: rows of nodes and edges move to their part.

Each task runs once, and an interrupted partition resumes with the rest. A task reads files of
earlier tasks, fills a folder, and returns JSON values.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from raygnn.data.arrays import Rows, Source, gather_rows, index_dtype, open_array
from raygnn.data.bundle_record import INDICES, NODES
from raygnn.data.cache import building
from raygnn.data.edge_kernels import DROPPED
from raygnn.data.filesystem import write_text
from raygnn.data.id_map import gather_ids, stored_ids
from raygnn.data.ingest import read_rows
from raygnn.data.ingest.edges import gather_training_rows
from raygnn.data.ingest.nodes import find_repeated, gather_nodes
from raygnn.data.ingest.pieces import Piece
from raygnn.data.ingest.schedule import OnAnyNode, Schedule
from raygnn.data.ingest.sort_edges import EdgeSort, ReadEdges, move_to_buckets, order_buckets
from raygnn.data.ingest.table_plan import DST, SRC, EdgePlan, NodePlan, TrainingPlan

Item = TypeVar("Item")
#: A task fills a folder and returns what can be written as JSON.
TaskFunction = Callable[[Item, Path], dict[str, Any]]

_RESULT = "result.json"
_SEEN_AFTER_S = 120.0  # twice the time for which NFS keeps that a name is missing


@dataclass(frozen=True)
class StepTask:
    fn: TaskFunction[Any]
    item: Any
    folder: Path

    @property
    def files(self) -> tuple[str, ...]:
        return (str(self.folder),)


@dataclass(frozen=True)
class Done:
    """A finished task, with its JSON `result`."""

    folder: Path
    result: dict[str, Any]


@dataclass(frozen=True)
class Steps:
    """Runs the steps of a partition in a work folder, on nodes that see it.

    Attributes:
        again: names of steps that run once more, with other transforms.
    """

    work: Path
    schedule: Schedule
    progress: Callable[[str], None]
    again: frozenset[str] = frozenset()

    def run(
        self, name: str, fn: TaskFunction[Item], items: Sequence[Item], what: str
    ) -> list[Done]:
        """Runs the unfinished tasks of a step, and returns all in the order of the items.

        `name`: folder of the step, in the work folder.
        """
        step = self.work / "again" / name if name in self.again else self.work / name
        folders = [step / f"{number:06d}" for number in range(len(items))]
        tasks = [
            StepTask(fn, item, folder)
            for item, folder in zip(items, folders, strict=True)
            if not (folder / _RESULT).exists()
        ]
        if tasks and len(tasks) < len(items):
            num_done = len(items) - len(tasks)
            self.progress(
                f"partition: {what}: {num_done:,} of {len(items):,} tasks are already complete"
            )
        self.schedule(run_task, tasks, what)
        for task in tasks:
            _wait_for(task.folder / _RESULT)
        return [Done(folder, json.loads((folder / _RESULT).read_bytes())) for folder in folders]


def _wait_for(path: Path) -> None:
    """Waits until this node sees another node's file on a network file system.

    Such systems cache for some time that a file did not exist.
    """
    until = time.monotonic() + _SEEN_AFTER_S
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.2)


def run_task(task: StepTask) -> None:
    """Runs a task; its folder appears when it is complete and on the disk."""
    with building(task.folder) as folder:
        result = task.fn(task.item, folder)
        write_text(folder / _RESULT, json.dumps(result))


Method = Literal["hash", "range", "ldg"]

#: In a folder of a task that sorts edges: the arrays that go into the part.
ARRAYS = "arrays"
#: Dense ids of rows.
DENSE = "dense.npy"
#: Numbers of rows, as `GroupedRows` reads them.
BY_BUCKET, BY_PART = "by_bucket.npy", "by_part.npy"
BY_TARGET, BY_SOURCE = "by_target.npy", "by_source.npy"
KEPT = "kept.npy"
_REPEATED = "repeated.npy"


@dataclass(frozen=True)
class GroupedRows:
    """The rows of a piece, grouped by bucket of their id or by part.

    Attributes:
        folder: arrays of the rows.
        numbers: file with the numbers of the rows by group, ascending in each group.
        starts: position of each group in that file, and the number of positions.
    """

    folder: Path
    numbers: Path
    starts: tuple[int, ...]

    def rows(self, group: int) -> Rows:
        return Rows(self.numbers, self.starts[group], self.starts[group + 1])


def _group(path: Path, rows: np.ndarray, groups: np.ndarray, num_groups: int) -> list[int]:
    np.save(path, rows[np.lexsort((rows, groups))].astype(np.int32))
    return [0, *np.cumsum(np.bincount(groups, minlength=num_groups)).tolist()]


def read_nodes(piece: Piece, folder: Path, *, plan: NodePlan, num_buckets: int) -> dict[str, Any]:
    """Reads and checks a piece; groups its rows by bucket of their id."""
    read_rows.create_node_arrays(plan, folder, piece.num_rows)
    result = OnAnyNode(read_rows.convert_nodes)(read_rows.NodeTask(piece, plan, folder, 0, folder))
    buckets = read_rows.bucket_of(stored_ids(folder, plan.id_kind), num_buckets)
    starts = _group(folder / BY_BUCKET, np.arange(len(buckets)), buckets, num_buckets)
    return {**asdict(result), "starts": starts}


def index_bucket(
    bucket: int,
    folder: Path,
    *,
    plan: NodePlan,
    pieces: Sequence[tuple[Piece, GroupedRows]],
    drop: bool,
) -> dict[str, Any]:
    """Gathers the ids of a bucket in table order, and finds repeated ones.

    `pieces`: with their rows by bucket. `drop`: ids in bad rows do not count as earlier ones.
    """
    gather_ids([(by.folder, by.rows(bucket)) for _, by in pieces], plan.id_kind, folder)
    rows = [by.rows(bucket).read() for _, by in pieces]
    bad = np.concatenate(
        [
            open_array(by.folder / read_rows.BAD, "r")[r]
            for (_, by), r in zip(pieces, rows, strict=True)
        ]
    )
    skip = bad > 0 if drop else bad == read_rows.NO_ID
    numbered = [(piece, r) for (piece, _), r in zip(pieces, rows, strict=True)]
    index, repeated, findings = find_repeated(plan, folder, skip, numbered)
    in_table = [r + piece.row_start for (piece, _), r in zip(pieces, repeated, strict=True)]
    np.save(folder / _REPEATED, np.concatenate(in_table))
    return {"findings": [asdict(finding) for finding in findings], "index": asdict(index)}


def place_nodes(
    item: tuple[Piece, GroupedRows, Path | None],
    folder: Path,
    *,
    method: Method,
    num_parts: int,
    num_rows: int,
    buckets: Sequence[Path],
    parts: Path | None,
) -> dict[str, Any]:
    """Chooses the part of each kept row, and groups the rows by part.

    Args:
        item: a piece, its rows by bucket, and the folder of the dense ids that `parts` refers to.
        num_rows: of the whole table.
        buckets: folders of `index_bucket`, if bad rows are dropped.
        parts: file with the part of each node by dense id, for methods by neighbors.
    """
    piece, by_bucket, dense = item
    is_good = open_array(by_bucket.folder / read_rows.BAD, "r") == 0
    for bucket in buckets:
        twice = open_array(bucket / _REPEATED, "r") - piece.row_start
        is_good[twice[(twice >= 0) & (twice < piece.num_rows)]] = False
    part = np.empty(len(is_good), np.int64)
    if parts is not None and dense is not None:
        part[is_good] = open_array(parts, "r")[open_array(dense / DENSE, "r")[is_good]]
    elif method == "hash":
        for number in range(num_parts):
            part[by_bucket.rows(number).read()] = number
    else:
        part = np.arange(piece.row_start, piece.row_stop) * num_parts // num_rows
    chosen = np.flatnonzero(is_good)
    starts = _group(folder / BY_PART, chosen, part[chosen], num_parts)
    return {"starts": starts, "num_dropped": len(is_good) - len(chosen)}


def number_nodes(item: tuple[Piece, GroupedRows, Sequence[int]], folder: Path) -> dict[str, Any]:
    """Writes the dense id of each row of a piece, -1 if dropped. `item`: a piece, its rows by part,
    and the dense id of its first row in each part.
    """
    piece, by_part, first_ids = item
    dense = np.full(piece.num_rows, -1, np.int64)
    for part, first in enumerate(first_ids):
        rows = by_part.rows(part).read()
        dense[rows] = np.arange(first, first + len(rows))
    np.save(folder / DENSE, dense)
    return {}


def join_bucket(
    bucket: int, folder: Path, *, pieces: Sequence[tuple[GroupedRows, Path]]
) -> dict[str, Any]:
    """Gathers dense ids of a bucket, in the order of its ids, from rows and folders of pieces."""
    gather_rows([(dense, by.rows(bucket)) for by, dense in pieces], DENSE, folder)
    return {}


def gather_part(
    part: int,
    folder: Path,
    *,
    plan: NodePlan,
    pieces: Sequence[GroupedRows],
    classes: Sequence[Mapping[str, np.ndarray]],
) -> dict[str, Any]:
    """Writes ids, columns and split of a part's nodes, by dense id. `pieces`: rows by part."""
    gather_nodes(plan, [(by.folder, by.rows(part)) for by in pieces], folder, classes)
    return {}


def read_edges(
    piece: Piece,
    folder: Path,
    *,
    plan: EdgePlan,
    ids: tuple[read_rows.BucketedIds, read_rows.BucketedIds],
    first_ids: tuple[Sequence[int], Sequence[int]],
) -> dict[str, Any]:
    """Reads and checks a piece; groups its rows by part.

    `first_ids`: first dense id of each part, and the number of nodes, of sources and targets.
    """
    dtype = index_dtype(first_ids[0][-1], first_ids[1][-1])
    read_rows.create_row_arrays(plan, folder, piece.num_rows, dtype)
    result = asdict(
        OnAnyNode(read_rows.convert_rows)(read_rows.RowTask(piece, plan, ids, dtype, folder))
    )
    src, dst = (open_array(folder / name, "r") for name in (SRC, DST))
    rows, num_parts = np.flatnonzero(src != DROPPED), len(first_ids[0]) - 1
    # If parts have no nodes, the last of equal first ids belongs to the part that has them.
    source_part, target_part = (
        np.searchsorted(first, ends[rows], side="right") - 1
        for first, ends in zip(first_ids, (src, dst), strict=True)
    )
    if plan.reverse is not None:
        result["source_starts"] = _group(folder / BY_SOURCE, rows, source_part, num_parts)
    if plan.undirected:  # a part has the reverse copies of edges that start in it
        crosses = source_part != target_part
        rows = np.concatenate([rows, rows[crosses]])
        target_part = np.concatenate([target_part, source_part[crosses]])
    result["target_starts"] = _group(folder / BY_TARGET, rows, target_part, num_parts)
    return result


def read_training_rows(
    piece: Piece, folder: Path, *, plan: TrainingPlan, ids: read_rows.BucketedIds, num_nodes: int
) -> dict[str, Any]:
    dtype = index_dtype(num_nodes)
    read_rows.create_row_arrays(plan, folder, piece.num_rows, dtype)
    result = OnAnyNode(read_rows.convert_rows)(
        read_rows.RowTask(piece, plan, (ids,), dtype, folder)
    )
    positions = np.flatnonzero(open_array(folder / NODES, "r") != DROPPED)
    np.save(folder / KEPT, positions.astype(np.int32))
    return {**asdict(result), "num_kept": len(positions)}


def cut_training_rows(
    part: int,
    folder: Path,
    *,
    plan: TrainingPlan,
    pieces: Sequence[GroupedRows],
    classes: Sequence[Mapping[str, np.ndarray]],
    num_parts: int,
) -> dict[str, Any]:
    """Writes the rows of a part: a range of the table's kept rows, the only group of `pieces`."""
    num_rows, start = sum(piece.starts[1] for piece in pieces), 0
    first, last = (number * num_rows // num_parts for number in (part, part + 1))
    sources: list[Source] = []
    for piece in pieces:
        run = (min(max(end - start, 0), piece.starts[1]) for end in (first, last))
        sources.append((piece.folder, Rows(piece.numbers, *run)))
        start += piece.starts[1]
    gather_training_rows(plan, sources, folder / plan.folder, classes)
    return {}


def sort_part_edges(
    part: int,
    folder: Path,
    *,
    plan: EdgePlan,
    pieces: Sequence[GroupedRows],
    classes: Sequence[Mapping[str, np.ndarray]],
    first_ids: tuple[Sequence[int], Sequence[int]],
) -> dict[str, Any]:
    """Writes the CSC of a part: `indptr` of its nodes, `indices` of the whole graph.

    `first_ids`: see `read_edges`; of sources and targets of `plan`, which may be a reverse type.
    """
    sources, targets = first_ids
    num_targets = targets[part + 1] - targets[part]
    work, arrays = folder / "work", folder / ARRAYS
    sort = EdgeSort(plan, sources[-1], targets[part], num_targets, work, arrays)
    rows = [
        ReadEdges(by.folder, given, by.rows(part))
        for by, given in zip(pieces, classes, strict=True)
    ]
    buckets = move_to_buckets([sort], [rows], _one_by_one)
    (num_edges,) = order_buckets([sort], buckets, _one_by_one)
    indices = open_array(arrays / INDICES, "r")
    num_inside = int(((indices >= sources[part]) & (indices < sources[part + 1])).sum())
    return {"num_edges": num_edges, "num_cut": num_edges - num_inside}


def _one_by_one(fn: Callable[[Any], Any], items: Sequence[Any], label: str) -> list[Any]:
    return [fn(item) for item in items]
