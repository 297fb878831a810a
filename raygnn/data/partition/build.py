"""From graph tables to a partitioned graph, without a process that holds the whole graph."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from raygnn.data.bundle_record import (
    FORMAT_VERSION as BUNDLE_VERSION,
)
from raygnn.data.bundle_record import (
    BundleRecord,
    ColumnInfo,
    ColumnStatistics,
    NodeRecord,
    column_path,
)
from raygnn.data.cache import cache_folder
from raygnn.data.conditional_write import locked
from raygnn.data.filesystem import exists, is_remote, join, redact
from raygnn.data.id_map import IdIndex
from raygnn.data.ingest.build_edges import BuiltEdges, edge_infos
from raygnn.data.ingest.build_nodes import class_names, describe_column, describe_sparse
from raygnn.data.ingest.edge_plan import EdgePlan, plan_reverse
from raygnn.data.ingest.feature_statistics import (
    MeasureTask,
    Moments,
    cut_column,
    first_row,
    is_measured,
    measure_rows,
)
from raygnn.data.ingest.findings import merge
from raygnn.data.ingest.node_tasks import NodePlan, NodeResult
from raygnn.data.ingest.pieces import cut_table
from raygnn.data.ingest.plan_bundle import (
    GraphPlan,
    IngestOptions,
    check_unchanged,
    list_tables,
    num_bytes,
    plan_graph,
    records_of_edges,
)
from raygnn.data.ingest.scan import fingerprint
from raygnn.data.ingest.schedule import BuildContext, Schedule, in_process
from raygnn.data.manifest import Manifest, manifest_folder
from raygnn.data.partition import edge_steps, node_steps
from raygnn.data.partition.edge_steps import ARRAYS, EdgePiece, ReadEdges, SortEdges
from raygnn.data.partition.ids import Bucket, BucketedIds
from raygnn.data.partition.ldg import AssignParts, assign_parts
from raygnn.data.partition.metis import check_metis
from raygnn.data.partition.node_steps import Method, PlacedPiece, ReadPiece, findings_of
from raygnn.data.partition.record import (
    RECORD_NAME,
    EdgeCounts,
    PartitionRecord,
    check_parts,
    part_folder,
    save_part,
)
from raygnn.data.partition.steps import BUILDING, Done, Steps, building
from raygnn.data.partition.transfer import absolute_folder, send_parts
from raygnn.errors import DataError

_WORK = "work"
_Read = dict[str, list[tuple[ReadPiece, NodeResult]]]


@dataclass(frozen=True)
class Partitioning:
    """How a graph is partitioned.

    Attributes:
        num_parts: of each node type; a part may have no nodes of a small type.
        method: `hash` gives a node the part of the hash of its original id, `range` cuts each node
            table into runs of rows, `ldg` and `metis` put nodes where their neighbors are.
    """

    num_parts: int
    method: Method = "hash"


def partition(
    manifest_uri: str | os.PathLike[str],
    out: str | os.PathLike[str],
    partitioning: Partitioning,
    options: IngestOptions | None = None,
    schedule: Callable[[Path], Schedule] = lambda _: in_process,
    progress: Callable[[str], None] = lambda _: None,
    *,
    min_scheduled_bytes: int = 0,
) -> PartitionRecord:
    """Writes the parts of a graph, each node with the edges into it, and partition.json last.

    Steps leave their results in `out/work`. An interrupted partition of the same tables resumes
    with the tasks that are not whole. A finished one is checked and left as it is.

    Args:
        manifest_uri: the graph's folder or its graph.yaml; a local path or any fsspec URI.
        out: a local path or any fsspec URI. Parts for a bucket are made in the cache folder, and
            sent when all are whole.
        schedule: runs the tasks, given the folder in which they write.
        progress: receives a line for each step, and what was dropped.
        min_scheduled_bytes: tables of fewer bytes than that are read in this process.
    Raises:
        DataError: the manifest or the tables break a rule, or `out` cannot be written into.
    """
    options = options or IngestOptions()
    _check(partitioning)
    place = absolute_folder(out)
    manifest = Manifest.load(manifest_uri, options.allow_outside)
    roots = (manifest_folder(manifest_uri), *options.allow_outside)
    files = list_tables(manifest, roots)
    tables = fingerprint(manifest, options.of_the_content(), files, BUNDLE_VERSION)
    name = _fingerprint(tables, partitioning)
    folder = cache_folder(None, "partitions") / name if is_remote(place) else Path(place)
    run = in_process if num_bytes(files) < min_scheduled_bytes else schedule(folder)
    with locked(str(folder / ".lock"), progress):
        if exists(join(place, RECORD_NAME)):
            return _finished(place, name, progress)
        if (folder / RECORD_NAME).exists():
            record = PartitionRecord.load(folder)  # of parts that are to be sent yet
        else:
            work = folder / _WORK / name
            steps = Steps(work / "steps", run, progress)
            context = BuildContext(work, options.on_error == "drop", run, progress)
            plan = plan_graph(manifest, files, options, run, progress)
            record = _Build(plan, partitioning, steps, context, name).run(folder)
            check_unchanged(files, list_tables(manifest, roots))
            record.save(folder)
            for left in (folder / _WORK, *folder.glob(f"{BUILDING}*")):
                shutil.rmtree(left)
        if is_remote(place):
            send_parts(folder, place, record, progress)
            shutil.rmtree(folder)
    progress(f"partition: wrote {partitioning.num_parts} parts to {redact(place)}")
    return record


def _check(partitioning: Partitioning) -> None:
    if partitioning.num_parts < 1:
        raise DataError(
            f"parts={partitioning.num_parts} is invalid: a graph has at least one part. Set 1 or "
            "more.",
            id="partition-parts",
        )
    if partitioning.method == "metis":
        check_metis()


def _fingerprint(tables: str, partitioning: Partitioning) -> str:
    text = json.dumps([tables, partitioning.num_parts, partitioning.method])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _finished(place: str, name: str, progress: Callable[[str], None]) -> PartitionRecord:
    if PartitionRecord.load(place).fingerprint != name:
        raise DataError(
            f"out={redact(place)!r} is invalid: it holds another partitioned graph. Set another "
            "folder, or remove this one.",
            id="partition-out-taken",
        )
    record = check_parts(place)
    progress(f"partition: {redact(place)} is complete already")
    return record


@dataclass(frozen=True)
class _Nodes:
    """A node type whose dense ids are known.

    Attributes:
        first_ids: first dense id of each part, and the number of nodes.
        dense: folders of the dense ids by row, of each piece.
    """

    plan: NodePlan
    pieces: tuple[PlacedPiece, ...]
    ids: BucketedIds
    first_ids: tuple[int, ...]
    dense: tuple[Path, ...]


@dataclass(frozen=True)
class _Assigned:
    """Parts that nodes have been given one by one.

    Attributes:
        parts: folder of `assign_parts`.
        dense: by node type, folders of the dense ids that it knows nodes by, of each piece.
    """

    parts: Path
    dense: Mapping[str, tuple[Path, ...]]

    def of_piece(self, name: str, number: int) -> tuple[Path, Path]:
        """See `PlaceNodes.assigned`."""
        return self.parts, self.dense[name][number]


@dataclass(frozen=True)
class _Sorted:
    """The edges of a type, or a set of label edges, by part."""

    plan: EdgePlan
    parts: Sequence[Done]
    class_names: Mapping[str, tuple[str, ...]]

    @property
    def counts(self) -> EdgeCounts:
        return EdgeCounts(
            tuple(part.result["num_edges"] for part in self.parts),
            tuple(part.result["num_cut"] for part in self.parts),
        )


@dataclass(frozen=True)
class _Build:
    """One run of all steps.

    Attributes:
        stage: folder of the steps that number nodes and read edges, where these are done twice.
    """

    plan: GraphPlan
    how: Partitioning
    steps: Steps
    context: BuildContext
    fingerprint: str
    stage: str = ""

    def run(self, folder: Path) -> PartitionRecord:
        read = self._read_nodes()
        by_neighbors = self.how.method in ("ldg", "metis")
        nodes = self._number(read, self._assigned(read) if by_neighbors else None)
        gathered = {name: self._gather(name, found) for name, found in nodes.items()}
        reads = [self._read_edges(plan, nodes) for plan in self._tables_of_edges]
        self._report_edges(reads)
        edges = [
            self._sort(plan, pieces, nodes)
            for plan, pieces in zip(self._tables_of_edges, reads, strict=True)
        ]
        edges += [
            self._sort(plan_reverse(plan), pieces, nodes)
            for plan, pieces in zip(self._tables_of_edges, reads, strict=True)
            if plan.reverse is not None
        ]
        record = self._record(nodes, gathered, edges)
        for part in range(self.how.num_parts):
            self._place_part(folder, part, gathered, edges)
        return record

    @property
    def _tables_of_edges(self) -> list[EdgePlan]:
        return [*self.plan.edges, *self.plan.label_edges]

    @property
    def _parts(self) -> range:
        return range(self.how.num_parts)

    def _read_nodes(self) -> _Read:
        pieces = {name: cut_table(table) for name, table in self.plan.node_tables.items()}
        num_rows = sum(table.num_rows for table in self.plan.node_tables.values())
        self.context.progress(f"partition: reading {num_rows:,} nodes of {len(pieces)} type(s)")
        found, findings = {}, []
        for name, plan in self.plan.nodes.items():
            tasks = [node_steps.ReadNodes(p, plan, self.how.num_parts) for p in pieces[name]]
            done = self.steps.run(f"read/{name}", node_steps.read_nodes, tasks, f"reading {name}")
            findings += findings_of([one.result for one in done])
            found[name] = [
                (
                    ReadPiece(piece, one.folder, tuple(one.result["bucket_starts"])),
                    NodeResult((), {k: tuple(v) for k, v in one.result["class_names"].items()}),
                )
                for piece, one in zip(pieces[name], done, strict=True)
            ]
        buckets = {name: self._index(name, found[name]) for name in found}
        for done in buckets.values():
            findings += findings_of([one.result for one in done])
        self.context.report(merge(findings))
        return found

    def _index(self, name: str, read: Sequence[tuple[ReadPiece, NodeResult]]) -> list[Done]:
        plan, pieces = self.plan.nodes[name], tuple(piece for piece, _ in read)
        tasks = [node_steps.IndexBucket(plan, pieces, b, self.context.drop) for b in self._parts]
        return self.steps.run(f"ids/{name}", node_steps.index_bucket, tasks, f"ids of {name}")

    def _assigned(self, read: _Read) -> _Assigned:
        """The parts of all nodes by their neighbors, from the edges of nodes numbered by row."""
        by_row = replace(self, how=replace(self.how, method="range"), stage="rows/")
        nodes = by_row._number(read)
        edges = tuple(
            (plan.edge_type[0], plan.edge_type[2], tuple(one.folder for one in done))
            for plan in self.plan.edges
            for done in [by_row._read_edges(plan, nodes)]
        )
        num_nodes = {name: found.first_ids[-1] for name, found in nodes.items()}
        method = self.how.method
        task = AssignParts(num_nodes, edges, self.how.num_parts, by_metis=method == "metis")
        (done,) = self.steps.run(method, assign_parts, [task], "parts by neighbors")
        return _Assigned(done.folder, {name: found.dense for name, found in nodes.items()})

    def _number(self, read: _Read, assigned: _Assigned | None = None) -> dict[str, _Nodes]:
        placed = {name: self._place(name, found, assigned) for name, found in read.items()}
        num_nodes = sum(piece.part_starts[-1] for found in placed.values() for piece in found)
        if num_nodes < self.how.num_parts:
            raise DataError(
                f"parts={self.how.num_parts} is invalid: the graph has {num_nodes:,} nodes. Set "
                "fewer parts.",
                id="partition-too-many-parts",
            )
        return {name: self._join(name, found) for name, found in placed.items()}

    def _place(
        self,
        name: str,
        read: Sequence[tuple[ReadPiece, NodeResult]],
        assigned: _Assigned | None,
    ) -> list[PlacedPiece]:
        num_rows = self.plan.node_tables[name].num_rows
        indexed = self._index(name, read) if self.context.drop else []
        buckets = tuple(one.folder for one in indexed)
        given = (self.how.method, self.how.num_parts, num_rows, buckets, name)
        tasks = [
            node_steps.PlaceNodes(
                piece, *given, None if assigned is None else assigned.of_piece(name, number)
            )
            for number, (piece, _) in enumerate(read)
        ]
        done = self.steps.run(
            f"{self.stage}place/{name}", node_steps.place_nodes, tasks, f"parts of {name}"
        )
        num_dropped = sum(one.result["num_dropped"] for one in done)
        if num_dropped == num_rows:
            raise DataError(
                f"{self.plan.nodes[name].table}: data.on_error=drop left none of its "
                f"{num_rows:,} rows.",
                id="nodes-all-dropped",
            )
        if num_dropped and not self.stage:
            self.context.progress(f"partition: dropped {num_dropped:,} nodes of type {name!r}")
        return [
            PlacedPiece(piece, one.folder, tuple(one.result["part_starts"]), result)
            for (piece, result), one in zip(read, done, strict=True)
        ]

    def _join(self, name: str, placed: Sequence[PlacedPiece]) -> _Nodes:
        counts = np.array([np.diff(piece.part_starts) for piece in placed])
        first_ids = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
        first_of_piece = first_ids[:-1] + np.cumsum(counts, axis=0) - counts
        numbering = [
            node_steps.NumberNodes(piece, tuple(first))
            for piece, first in zip(placed, first_of_piece.tolist(), strict=True)
        ]
        numbered = self.steps.run(
            f"{self.stage}number/{name}", node_steps.number_nodes, numbering, f"dense ids of {name}"
        )
        pieces = tuple(piece.read for piece in placed)
        dense = tuple(one.folder for one in numbered)
        joins = [node_steps.JoinBucket(pieces, dense, bucket) for bucket in self._parts]
        joined = self.steps.run(
            f"{self.stage}join/{name}",
            node_steps.join_bucket,
            joins,
            f"dense ids of {name} by hash",
        )
        indexed = self._index(name, [(piece.read, piece.result) for piece in placed])
        buckets = tuple(
            Bucket(ids.folder, IdIndex(**ids.result["index"]), one.folder)
            for ids, one in zip(indexed, joined, strict=True)
        )
        plan = self.plan.nodes[name]
        first = tuple(first_ids.tolist())
        return _Nodes(plan, tuple(placed), BucketedIds(buckets), first, dense)

    def _names(self, nodes: _Nodes) -> dict[str, tuple[str, ...]]:
        results = [piece.result for piece in nodes.pieces]
        labels = [plan.name for plan in nodes.plan.dense if plan.label == "class_name"]
        return {label: class_names(results, label) for label in labels}

    def _gather(self, name: str, nodes: _Nodes) -> list[Done]:
        names = self._names(nodes)
        tasks = [
            node_steps.GatherNodes(nodes.plan, nodes.pieces, part, names) for part in self._parts
        ]
        return self.steps.run(
            f"nodes/{name}", node_steps.gather_nodes, tasks, f"gathering {name} by part"
        )

    def _read_edges(self, plan: EdgePlan, nodes: Mapping[str, _Nodes]) -> list[Done]:
        source, _, target = plan.edge_type
        tasks = [
            ReadEdges(
                piece,
                plan,
                nodes[source].ids,
                nodes[target].ids,
                nodes[source].first_ids,
                nodes[target].first_ids,
            )
            for piece in cut_table(self.plan.tables[plan.table])
        ]
        return self.steps.run(
            f"{self.stage}read/{plan.folder}", edge_steps.read_edges, tasks, f"reading {plan.name}"
        )

    def _report_edges(self, reads: Sequence[Sequence[Done]]) -> None:
        self.context.report(
            merge(finding for done in reads for finding in findings_of([d.result for d in done]))
        )
        for plan, done in zip(self._tables_of_edges, reads, strict=True):
            num_rows = self.plan.tables[plan.table].num_rows
            num_dropped = sum(one.result["num_dropped"] for one in done)
            if num_dropped and num_dropped == num_rows:
                raise DataError(
                    f"{plan.table}: data.on_error=drop left none of its {num_rows:,} rows.",
                    id="edges-all-dropped",
                )
            if num_dropped:
                self.context.progress(
                    f"partition: dropped {num_dropped:,} edges of type {plan.name}"
                )

    def _sort(self, plan: EdgePlan, read: Sequence[Done], nodes: Mapping[str, _Nodes]) -> _Sorted:
        source, _, target = plan.edge_type
        pieces = tuple(
            EdgePiece(
                one.folder,
                tuple(one.result["target_starts"]),
                tuple(one.result.get("source_starts", ())),
                one.result["class_names"],
            )
            for one in read
        )
        labels = [column.name for column in plan.columns if column.label == "class_name"]
        names = {label: class_names(pieces, label) for label in labels}
        sources, targets = nodes[source].first_ids, nodes[target].first_ids
        tasks = [
            SortEdges(
                plan,
                pieces,
                part,
                (sources[part], sources[part + 1]),
                targets[part],
                targets[part + 1] - targets[part],
                sources[-1],
                names,
            )
            for part in self._parts
        ]
        name = f"sort/{plan.folder}"
        done = self.steps.run(name, edge_steps.sort_part_edges, tasks, f"sorting {plan.name}")
        return _Sorted(plan, done, names)

    def _record(
        self,
        nodes: Mapping[str, _Nodes],
        gathered: Mapping[str, Sequence[Done]],
        edges: Sequence[_Sorted],
    ) -> PartitionRecord:
        node_records = {}
        for name, found in nodes.items():
            columns = self._measured(
                f"nodes/{name}", self._node_columns(found, gathered[name]), gathered[name]
            )
            kind = IdIndex("strings" if found.plan.id_kind == "string" else "hashed", 0, 0)
            has_split = found.plan.split is not None
            node_records[name] = NodeRecord(found.first_ids[-1], kind, columns, has_split)
        by_folder = {one.plan.folder: one.counts for one in edges}
        built = []
        for one in edges:
            arrays = [Done(part.folder / ARRAYS, part.result) for part in one.parts]
            num_edges, folders = sum(one.counts.counts), [part.folder for part in arrays]
            infos = edge_infos(one.plan, num_edges, one.class_names, folders)
            columns = self._measured(one.plan.folder, infos, arrays)
            built.append(BuiltEdges(one.plan, num_edges, columns))
        label_folders = [plan.folder for plan in self.plan.label_edges]
        edge_records, label_records = records_of_edges(self.plan.manifest, built)
        return PartitionRecord(
            self.how.method,
            self.how.num_parts,
            {name: tuple(np.diff(found.first_ids).tolist()) for name, found in nodes.items()},
            tuple(one.counts for one in edges if one.plan.folder not in label_folders),
            tuple(by_folder[folder] for folder in label_folders),
            BundleRecord(self.fingerprint, node_records, edge_records, label_records),
        )

    def _node_columns(self, nodes: _Nodes, gathered: Sequence[Done]) -> tuple[ColumnInfo, ...]:
        names, plan = self._names(nodes), nodes.plan
        dense = (
            describe_column(
                plan.table,
                column,
                nodes.first_ids[-1],
                max(part.result["greatest"].get(column.name, -1) for part in gathered),
                names.get(column.name, ()),
            )
            for column in plan.dense
        )
        return (*dense, *map(describe_sparse, plan.sparse))

    def _measured(
        self, name: str, columns: Sequence[ColumnInfo], parts: Sequence[Done]
    ) -> tuple[ColumnInfo, ...]:
        """The columns with statistics over all parts."""
        return tuple(
            replace(column, statistics=self._statistics(name, column, parts))
            if is_measured(column)
            else column
            for column in columns
        )

    def _statistics(
        self, name: str, column: ColumnInfo, parts: Sequence[Done]
    ) -> ColumnStatistics | None:
        paths = [column_path(part.folder, column.name) for part in parts]
        cut = [task for path in paths for task in cut_column(path, column.quantization)]
        if not cut:
            return None
        first = first_row(cut[0])
        tasks = [replace(task, origin=first) for task in cut]
        done = self.steps.run(
            f"measure/{name}/{column.name}", _measure, tasks, f"measuring {column.name}"
        )
        return reduce(Moments.merged, (_moments(one.result) for one in done)).statistics()

    def _place_part(
        self,
        folder: Path,
        part: int,
        gathered: Mapping[str, Sequence[Done]],
        edges: Sequence[_Sorted],
    ) -> None:
        """Links the files of a part into its folder, which appears when it is complete."""
        shutil.rmtree(part_folder(folder, part), ignore_errors=True)  # of an earlier attempt
        with building(part_folder(folder, part)) as target:
            for name, done in gathered.items():
                _link(done[part].folder, target / "nodes" / name)
            for one in edges:
                _link(one.parts[part].folder / ARRAYS, target / one.plan.folder)
            save_part(target, self.fingerprint, part)


def _link(source: Path, target: Path) -> None:
    """Links the arrays of a task into a part: no byte is copied."""
    for path in sorted(source.rglob("*.npy")):
        link = target / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, link)


def _measure(task: MeasureTask, _: Path) -> dict[str, Any]:
    moments = vars(measure_rows(task))
    return {"count": moments.pop("count"), "rows": {k: v.tolist() for k, v in moments.items()}}


def _moments(result: Mapping[str, Any]) -> Moments:
    return Moments(count=result["count"], **{k: np.array(v) for k, v in result["rows"].items()})
