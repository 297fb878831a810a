"""Graph tables to a partitioned graph, without a process that has the whole graph."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from raygnn.console import count
from raygnn.data.bundle_record import NodeRecord, TrainingTableRecord, node_folder
from raygnn.data.cache import BUILDING, building, cache_folder
from raygnn.data.checksums import type_adapter
from raygnn.data.file_lock import locked
from raygnn.data.filesystem import absolute, exists, is_remote, join, redact
from raygnn.data.fit_rows import fit_transforms, has_transforms
from raygnn.data.id_map import IdIndex
from raygnn.data.ingest.describe import class_tables, describe_columns
from raygnn.data.ingest.edges import (
    BuiltEdges,
    describe_training_table,
    measured_record,
    report_rows,
)
from raygnn.data.ingest.findings import Finding, merge
from raygnn.data.ingest.nodes import all_kept
from raygnn.data.ingest.pieces import Piece, cut_table
from raygnn.data.ingest.plan_bundle import GraphPlan, GraphSource, IngestOptions, plan_graph
from raygnn.data.ingest.read_rows import Bucket, BucketedIds, ReadResult
from raygnn.data.ingest.schedule import BuildContext, Schedule, in_process
from raygnn.data.ingest.table_plan import EdgePlan, TrainingPlan, plan_reverse
from raygnn.data.partition import steps
from raygnn.data.partition.by_neighbors import assign_parts, parts_path
from raygnn.data.partition.fit import RowsToFit, measure_rows_to_fit, steps_with_transforms
from raygnn.data.partition.part import Outline, Pairs
from raygnn.data.partition.record import (
    RECORD_NAME,
    PartEdges,
    PartitionRecord,
    check_parts,
    part_folder,
    save_part,
)
from raygnn.data.partition.steps import (
    ARRAYS,
    BY_BUCKET,
    BY_PART,
    BY_SOURCE,
    BY_TARGET,
    DENSE,
    KEPT,
    Done,
    GroupedRows,
    Method,
    Steps,
)
from raygnn.data.partition.transfer import send_parts
from raygnn.errors import DataError

_WORK = "work"


@dataclass(frozen=True)
class Partitioning:
    """Options of partitioning.

    Attributes:
        num_parts: for each node type; a part may have no nodes of a small type.
        method: `hash` assigns nodes by the hash of their original id, `range` divides each node
            table into ranges of rows, `ldg` assigns nodes to the parts of their neighbors.
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
    rows_to_fit: RowsToFit | None = None,
) -> PartitionRecord:
    """Writes the parts of a graph, each node with the edges into it, and partition.json last.

    Steps store their results in `out/work`. An interrupted partition of the same tables resumes
    with incomplete tasks. A finished one is checked and not changed.

    Args:
        out: a local path or any fsspec URI. Parts for a bucket are made in the cache folder, and
            sent when all are complete.
        schedule: runs the tasks, given the folder that they write.
        min_scheduled_bytes: smaller tables are read in this process.
        rows_to_fit: rows that transforms and standardization are fitted on. Default: those of
            training tables.
    Raises:
        DataError: the manifest or the tables break a rule, or `out` is not writable.
    """
    options = options or IngestOptions()
    rows_to_fit = rows_to_fit or RowsToFit()
    _check(partitioning)
    place = absolute(out)
    source = GraphSource.open(manifest_uri, options)
    content = [source.fingerprint(options), partitioning.num_parts, partitioning.method]
    content.append(rows_to_fit.key)
    name = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
    folder = cache_folder(None, "partitions") / name if is_remote(place) else Path(place)
    run = in_process if source.num_bytes < min_scheduled_bytes else schedule(folder)
    with locked(str(folder / ".lock"), progress):
        if exists(join(place, RECORD_NAME)):
            return _finished(place, name, progress)
        if (folder / RECORD_NAME).exists():
            record = PartitionRecord.load(folder)  # the parts are not uploaded yet
        else:
            work = folder / _WORK / name
            steps = Steps(work / "steps", run, progress)
            context = BuildContext("partition", options.on_error == "drop", run, progress)
            plan = plan_graph(source, options, run, progress)
            record = _Build(plan, partitioning, steps, context).run(folder, name)

            def open_outline(pairs: Pairs | None = None) -> Outline:
                return Outline.build(folder, work, pairs, progress, record)

            rows = rows_to_fit.find(record.whole, open_outline)
            if not rows.are_all and has_transforms(open_outline()):
                progress(f"partition: fitting transforms on {rows}, and reading their tables again")
                fitted = fit_transforms(manifest_uri, options, open_outline(), rows, progress)
                plan = plan_graph(source, replace(options, transforms=fitted), run, progress)
                steps = replace(steps, again=steps_with_transforms(record.whole))
                record = _Build(plan, partitioning, steps, context).run(folder, name)
            record = measure_rows_to_fit(record, folder, open_outline, rows, run)
            source.check_unchanged()
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
            f"parts={partitioning.num_parts} is invalid: below 1. Set 1 or more. [partition-parts]"
        )


def _finished(place: str, name: str, progress: Callable[[str], None]) -> PartitionRecord:
    if PartitionRecord.load(place).fingerprint != name:
        raise DataError(
            f"out={redact(place)!r} is invalid: it is another partitioned graph. Set another "
            "folder. [partition-out-taken]"
        )
    record = check_parts(place)
    progress(f"partition: {redact(place)} is already complete")
    return record


@dataclass(frozen=True)
class _Read:
    """A node type, or a table of edges, whose pieces have been read.

    `pieces`: each piece, and its rows: nodes by bucket, edges by the target's part.
    """

    pieces: Sequence[tuple[Piece, GroupedRows]]
    results: Sequence[ReadResult]
    done: Sequence[Done]


@dataclass(frozen=True)
class _Nodes:
    """A node type with known dense ids.

    Attributes:
        by_part: rows of each piece.
        first_ids: first dense id of each part, and the number of nodes.
        dense: folders of the dense ids by row, of each piece.
    """

    by_part: Sequence[GroupedRows]
    ids: BucketedIds
    first_ids: tuple[int, ...]
    dense: Sequence[Path]


@dataclass(frozen=True)
class _Build:
    """All steps. `stage`: folder of steps that number nodes and read edges, if these run twice."""

    plan: GraphPlan
    how: Partitioning
    steps: Steps
    context: BuildContext
    stage: str = ""

    def run(self, folder: Path, fingerprint: str) -> PartitionRecord:
        read = self._read_nodes()
        nodes = self._number(read, self._assigned(read) if self.how.method == "ldg" else None)
        gathered = {name: self._gather(name, read[name], nodes[name]) for name in nodes}
        tables = [*self.plan.edges, *self.plan.label_edges]
        edges = [(plan, self._read_edges(plan, nodes)) for plan in tables]
        num_rows = [self.plan.tables[plan.table].num_rows for plan in tables]
        report_rows(tables, num_rows, [found.results for _, found in edges], self.context)
        edges += [(plan_reverse(plan), found) for plan, found in edges if plan.reverse is not None]
        done = [self._sort(plan, found, nodes) for plan, found in edges]
        rows = [self._training_rows(plan, nodes) for plan in self.plan.training_tables]
        record = self._record(fingerprint, read, nodes, gathered, edges, done, rows)
        for part in self._parts:
            shutil.rmtree(part_folder(folder, part), ignore_errors=True)  # by an earlier attempt
            with building(part_folder(folder, part)) as target:
                for name, found in gathered.items():
                    _link(found[part].folder, node_folder(target, name))
                for (plan, _), found in zip(edges, done, strict=True):
                    _link(found[part].folder / ARRAYS, target / plan.folder)
                for _, found in rows:
                    _link(found[part].folder, target)
                save_part(target, fingerprint, part)
        return record

    @property
    def _parts(self) -> range:
        return range(self.how.num_parts)

    def _read_nodes(self) -> dict[str, _Read]:
        pieces = {name: cut_table(table) for name, table in self.plan.node_tables.items()}
        num_rows = sum(table.num_rows for table in self.plan.node_tables.values())
        self.context.say(f"reading {num_rows:,} nodes of {count(len(pieces), 'type')}")
        read, findings = {}, []
        for name, plan in self.plan.nodes.items():
            fn = partial(steps.read_nodes, plan=plan, num_buckets=self.how.num_parts)
            done = self.steps.run(f"read/{name}", fn, pieces[name], f"reading {name}")
            read[name] = _Read(
                [
                    (piece, GroupedRows(one.folder, one.folder / BY_BUCKET, one.result["starts"]))
                    for piece, one in zip(pieces[name], done, strict=True)
                ],
                _results(done),
                done,
            )
            findings += [finding for result in read[name].results for finding in result.findings]
        for name in read:
            for bucket in self._index(name, read[name]):
                findings += type_adapter(list[Finding]).validate_python(bucket.result["findings"])
        self.context.report(merge(findings))
        return read

    def _index(self, name: str, read: _Read) -> list[Done]:
        fn = partial(
            steps.index_bucket,
            plan=self.plan.nodes[name],
            pieces=read.pieces,
            drop=self.context.drop,
        )
        return self.steps.run(f"ids/{name}", fn, self._parts, f"ids of {name}")

    def _assigned(self, read: Mapping[str, _Read]) -> tuple[Path, Mapping[str, _Nodes]]:
        by_row = replace(self, how=replace(self.how, method="range"), stage="rows/")
        nodes = by_row._number(read, None)
        edges = [
            (plan.edge_type[0], plan.edge_type[2], [done.folder for done in found.done])
            for plan in self.plan.edges
            for found in [by_row._read_edges(plan, nodes)]
        ]
        num_nodes = {name: n.first_ids[-1] for name, n in nodes.items()}
        fn = partial(assign_parts, edges=edges, num_parts=self.how.num_parts)
        (done,) = self.steps.run("ldg", fn, [num_nodes], "parts by neighbors")
        return done.folder, nodes

    def _number(
        self, read: Mapping[str, _Read], assigned: tuple[Path, Mapping[str, _Nodes]] | None
    ) -> dict[str, _Nodes]:
        """Assigns parts and dense ids. `assigned`: None if parts follow from ids or rows."""
        placed = {name: self._place(name, found, assigned) for name, found in read.items()}
        num_nodes = sum(piece.starts[-1] for found in placed.values() for piece in found)
        if num_nodes < self.how.num_parts:
            raise DataError(
                f"parts={self.how.num_parts} is invalid: the graph has {num_nodes:,} nodes. Set "
                "fewer parts. [partition-too-many-parts]"
            )
        return {name: self._join(name, read[name], found) for name, found in placed.items()}

    def _place(
        self, name: str, read: _Read, assigned: tuple[Path, Mapping[str, _Nodes]] | None
    ) -> list[GroupedRows]:
        num_rows = self.plan.node_tables[name].num_rows
        indexed = self._index(name, read) if self.context.drop else []
        fn = partial(
            steps.place_nodes,
            method=self.how.method,
            num_parts=self.how.num_parts,
            num_rows=num_rows,
            buckets=[one.folder for one in indexed],
            parts=None if assigned is None else parts_path(assigned[0], name),
        )
        dense = (
            [by.folder for _, by in read.pieces] if assigned is None else assigned[1][name].dense
        )
        items = [(*piece, folder) for piece, folder in zip(read.pieces, dense, strict=True)]
        done = self.steps.run(f"{self.stage}place/{name}", fn, items, f"parts of {name}")
        num_dropped = sum(one.result["num_dropped"] for one in done)
        is_whole = all_kept(self.plan.nodes[name], num_rows - num_dropped, num_rows)
        if not is_whole and not self.stage:
            self.context.say(f"dropped {num_dropped:,} nodes of type {name!r}")
        return [
            GroupedRows(by.folder, one.folder / BY_PART, one.result["starts"])
            for (_, by), one in zip(read.pieces, done, strict=True)
        ]

    def _join(self, name: str, read: _Read, by_part: Sequence[GroupedRows]) -> _Nodes:
        counts = np.array([np.diff(piece.starts) for piece in by_part])
        first_ids = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
        first_of_piece = first_ids[:-1] + np.cumsum(counts, axis=0) - counts
        items = [
            (piece, by, first)
            for (piece, _), by, first in zip(
                read.pieces, by_part, first_of_piece.tolist(), strict=True
            )
        ]
        step = f"{self.stage}number/{name}"
        numbered = self.steps.run(step, steps.number_nodes, items, f"dense ids of {name}")
        dense = [one.folder for one in numbered]
        pieces = [(by, folder) for (_, by), folder in zip(read.pieces, dense, strict=True)]
        fn, step = partial(steps.join_bucket, pieces=pieces), f"{self.stage}join/{name}"
        joined = self.steps.run(step, fn, self._parts, f"dense ids of {name} by hash")
        buckets = tuple(
            Bucket(ids.folder, IdIndex(**ids.result["index"]), one.folder / DENSE)
            for ids, one in zip(self._index(name, read), joined, strict=True)
        )
        return _Nodes(by_part, BucketedIds(buckets), tuple(first_ids.tolist()), dense)

    def _gather(self, name: str, read: _Read, nodes: _Nodes) -> list[Done]:
        plan = self.plan.nodes[name]
        classes = class_tables(read.results, plan.columns)
        fn = partial(steps.gather_part, plan=plan, pieces=nodes.by_part, classes=classes)
        return self.steps.run(f"nodes/{name}", fn, self._parts, f"gathering {name} by part")

    def _ends(
        self, plan: EdgePlan, nodes: Mapping[str, _Nodes]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return nodes[plan.edge_type[0]].first_ids, nodes[plan.edge_type[2]].first_ids

    def _read_edges(self, plan: EdgePlan, nodes: Mapping[str, _Nodes]) -> _Read:
        fn = partial(
            steps.read_edges,
            plan=plan,
            ids=(nodes[plan.edge_type[0]].ids, nodes[plan.edge_type[2]].ids),
            first_ids=self._ends(plan, nodes),
        )
        pieces = cut_table(self.plan.tables[plan.table])
        step = f"{self.stage}read/{plan.folder}"
        done = self.steps.run(step, fn, pieces, f"reading {plan.name}")
        by_target = [
            GroupedRows(one.folder, one.folder / BY_TARGET, one.result["target_starts"])
            for one in done
        ]
        results = _results(done)
        return _Read(list(zip(pieces, by_target, strict=True)), results, done)

    def _sort(self, plan: EdgePlan, read: _Read, nodes: Mapping[str, _Nodes]) -> list[Done]:
        pieces = [by for _, by in read.pieces]
        if plan.is_swapped:
            pieces = [
                GroupedRows(one.folder, one.folder / BY_SOURCE, one.result["source_starts"])
                for one in read.done
            ]
        fn = partial(
            steps.sort_part_edges,
            plan=plan,
            pieces=pieces,
            classes=class_tables(read.results, plan.columns),
            first_ids=self._ends(plan, nodes),
        )
        return self.steps.run(f"sort/{plan.folder}", fn, self._parts, f"sorting {plan.name}")

    def _training_rows(
        self, plan: TrainingPlan, nodes: Mapping[str, _Nodes]
    ) -> tuple[TrainingTableRecord, list[Done]]:
        entities = nodes[plan.node_type]
        fn = partial(
            steps.read_training_rows, plan=plan, ids=entities.ids, num_nodes=entities.first_ids[-1]
        )
        table = self.plan.tables[plan.table]
        read = self.steps.run(f"read/{plan.folder}", fn, cut_table(table), f"reading {plan.name}")
        results = _results(read)
        (num_kept,) = report_rows([plan], [table.num_rows], [results], self.context)
        cut = partial(
            steps.cut_training_rows,
            plan=plan,
            pieces=[
                GroupedRows(one.folder, one.folder / KEPT, (0, one.result["num_kept"]))
                for one in read
            ],
            classes=class_tables(results, plan.columns),
            num_parts=self.how.num_parts,
        )
        done = self.steps.run(f"cut/{plan.folder}", cut, self._parts, f"parts of {plan.name}")
        record = describe_training_table(plan, num_kept, results, [one.folder for one in done])
        return record, done

    def _record(
        self,
        fingerprint: str,
        read: Mapping[str, _Read],
        nodes: Mapping[str, _Nodes],
        gathered: Mapping[str, Sequence[Done]],
        edges: Sequence[tuple[EdgePlan, _Read]],
        done: Sequence[Sequence[Done]],
        rows: Sequence[tuple[TrainingTableRecord, Sequence[Done]]],
    ) -> PartitionRecord:
        folders = {name: [one.folder for one in parts] for name, parts in gathered.items()}
        node_records = {}
        for name, nodes_plan in self.plan.nodes.items():
            num_nodes = nodes[name].first_ids[-1]
            node_records[name] = NodeRecord(
                num_nodes,
                IdIndex("strings" if nodes_plan.id_kind == "string" else "hashed", 0, 0),
                describe_columns(
                    nodes_plan.table,
                    [*nodes_plan.columns, *nodes_plan.sparse],
                    num_nodes,
                    read[name].results,
                    folders[name],
                ),
                nodes_plan.split is not None,
            )
        counts: dict[str, PartEdges] = {}
        built = []
        for (plan, found), parts in zip(edges, done, strict=True):
            folders[plan.folder] = stored = [part.folder / ARRAYS for part in parts]
            counts[plan.folder] = PartEdges(
                tuple(part.result["num_edges"] for part in parts),
                tuple(part.result["num_cut"] for part in parts),
            )
            num_edges = sum(counts[plan.folder].counts)
            infos = describe_columns(plan.table, plan.columns, num_edges, found.results, stored)
            built.append(BuiltEdges(plan, num_edges, infos))
        labels = [counts.pop(plan.folder) for plan in self.plan.label_edges]
        return PartitionRecord(
            self.how.method,
            self.how.num_parts,
            {name: tuple(np.diff(found.first_ids).tolist()) for name, found in nodes.items()},
            tuple(counts.values()),
            tuple(labels),
            measured_record(
                fingerprint,
                self.plan.manifest,
                node_records,
                built,
                tuple(record for record, _ in rows),
                folders,
                self.context.schedule,
                is_of_parts=True,
            ),
        )


def _results(done: Sequence[Done]) -> list[ReadResult]:
    return [type_adapter(ReadResult).validate_python(one.result) for one in done]


def _link(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*.npy")):
        link = target / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, link)
