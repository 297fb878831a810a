"""Ingest and partitioning on a cluster: Ray tasks on one node, or on all nodes."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from raygnn.console import Pace, say
from raygnn.data.arrays import Rows
from raygnn.data.bundle import Bundle
from raygnn.data.filesystem import absolute, is_remote, is_storage_error, retried
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.ingest.schedule import ArrayTask, OnAnyNode, RowWriter, Schedule, in_process
from raygnn.data.manifest import manifest_folder
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.fit import RowsToFit
from raygnn.data.partition.record import PartitionRecord
from raygnn.errors import RaygnnError, RunError
from raygnn.runtime.connection import connect

# One process converts this much in less time than Ray's workers need to start.
MIN_SCHEDULED_BYTES = 256 << 20

Item = TypeVar("Item")
Result = TypeVar("Result")


def ingest_on_cluster(
    uri: str,
    options: IngestOptions,
    cache_dir: str | None,
    progress: Callable[[str], None] = say,
) -> Bundle:
    """Ingests in Ray tasks on this node, or on another node if this one lends no CPUs.

    All nodes read and decode the tables of a bucket, look up ids and sort; the ingesting node
    writes. A head is often started without CPUs to keep it free. Tables of a bucket are then
    ingested in threads by the node that lends most, and the bundle is sent here. Tables on a local
    disk, and those smaller than `MIN_SCHEDULED_BYTES`, are ingested by this process, in threads.
    Raises a DataError if the tables break a rule, a RunError if the node that ingests fails.
    """
    here, cpus = lent_cpus()
    schedule = _for_many_nodes(uri) or on_this_node
    elsewhere: Callable[[], Callable[[Path], None]] | None = None
    if cpus.get(here, 0) < 1:
        schedule = in_process
        most = max(cpus, key=lambda node_id: cpus[node_id])
        if cpus[most] >= 1 and is_remote(uri):
            elsewhere = partial(_build_on, most, uri, options, cache_dir)
    return ingest(
        uri,
        options,
        cache_dir,
        schedule=schedule,
        progress=progress,
        min_scheduled_bytes=MIN_SCHEDULED_BYTES,
        elsewhere=elsewhere,
    )


def lent_cpus() -> tuple[str, dict[str, float]]:
    """The id of this node, and the CPUs that each living node lends Ray, by its id."""
    import ray

    cpus = {n["NodeID"]: n["Resources"].get("CPU", 0) for n in ray.nodes() if n["Alive"]}
    return ray.get_runtime_context().get_node_id(), cpus


def _build_on(
    node_id: str, uri: str, options: IngestOptions, cache_dir: str | None
) -> Callable[[Path], None]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from raygnn.runtime.node_bundle import BundlePlace, fetch_bundle

    say("ingest: on a worker node, because this node gives Ray no CPUs")
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    # Tasks on this node need its CPUs; threads of this process need one.
    num_cpus = 0 if _for_many_nodes(uri) else 1
    build = ray.remote(num_cpus=num_cpus, scheduling_strategy=there)(_build_here)
    with _named_failures(f"on node {node_id}"):
        built = ray.get(build.remote(uri, options, cache_dir))
    if isinstance(built, RaygnnError):
        raise built

    def copy(folder: Path) -> None:
        with _named_failures(f"on node {node_id}"):
            fetch_bundle(BundlePlace(built, node_id, cache_dir), folder)

    return copy


@contextmanager
def _named_failures(where: str) -> Iterator[None]:
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        raise RunError(f"ingest failed {where}: {error}", id="data-ingest-failed") from error


def _build_here(uri: str, options: IngestOptions, cache_dir: str | None) -> str | RaygnnError:
    try:
        schedule = _for_many_nodes(uri) or in_process
        return str(ingest(uri, options, cache_dir, schedule, progress=say).path)
    except RaygnnError as raised:
        return raised


def _for_many_nodes(uri: str) -> Schedule | None:
    lending = [number for number in lent_cpus()[1].values() if number >= 1]
    return by_all_nodes if is_remote(uri) and len(lending) > 1 else None


def on_this_node(fn: Callable[[Item], Result], items: Sequence[Item], label: str) -> list[Result]:
    """Runs a plain function over items, a Ray task for each, and returns the results in order.

    The tasks write to memory-mapped files, so they run on the caller's node, which has the cache
    folder. Raises the function's RaygnnError for the first failed item, or a RunError with the
    cause of another failure and its traceback.
    """
    here, _ = lent_cpus()
    return _run_all({"num_cpus": 1, "label_selector": {"ray.io/node-id": here}}, fn, items, label)


def by_all_nodes(fn: Callable[[Item], Result], items: Sequence[Item], label: str) -> list[Result]:
    """Like `on_this_node`, but any node reads tables, looks up ids and sorts.

    `OnAnyNode` tasks get their inputs from the object store and return rows there for this process
    to write. Tasks that write nothing (`reads_only`) run on any node too.
    """
    if items and getattr(items[0], "reads_only", False):
        return run_anywhere(fn, items, label)
    if isinstance(fn, OnAnyNode):
        needed, store = _most_input_bytes(items), _smallest_store_bytes()
        if needed <= _SHARE_OF_STORE * store:
            return _send_and_write(fn, items, label)
        say(
            f"ingest: {label} on this node alone: tasks need {needed / 1e9:,.1f} GB, and some node "
            f"has an object store of {store / 1e9:,.1f} GB (ray start --object-store-memory)"
        )
    return on_this_node(fn, items, label)


# Share of a node's object store for the tasks' inputs. The rest is for their outputs.
_SHARE_OF_STORE = 0.5


def _most_input_bytes(items: Sequence[Any]) -> int:
    inputs = {tuple(item.inputs) for item in items}
    return max((sum(rows.read().nbytes for rows in given) for given in inputs), default=0)


def _smallest_store_bytes() -> float:
    import ray

    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return min(r["object_store_memory"] for r in resources if r.get("CPU", 0) >= 1)


def _send_and_write(fn: OnAnyNode[Any, Result], items: Sequence[Any], label: str) -> list[Result]:
    import ray

    compute = ray.remote(**_ANYWHERE, num_returns=2)(_compute)
    sent: dict[Rows, Any] = {}
    write = RowWriter()

    def begin(item: ArrayTask) -> tuple[Any, ...]:
        # Usually, ids are looked up in the same tables as for the previous item.
        put = {rows: sent.get(rows) or ray.put(rows.read()) for rows in item.inputs}
        sent.clear()
        sent.update(put)
        arrays = [put[rows] for rows in item.inputs]
        # With its arrays, since Ray reruns tasks of a lost node, and cannot put them again.
        return (arrays, *compute.remote(fn, item, *arrays))

    def end(task: tuple[Any, ...]) -> _Outcome:
        _, outcome, written = task
        for rows in ray.get(written):
            write(*rows)
        result: _Outcome = ray.get(outcome)
        return result

    return _some_at_a_time(begin, end, items, label)


#: Arguments of `Write` for one output of a task.
_Written = list[tuple[Path, int | None, np.ndarray]]


def _compute(fn: OnAnyNode[Any, Any], item: Any, *arrays: np.ndarray) -> tuple[_Outcome, _Written]:
    written: _Written = []

    def write(path: Path, start: int | None, values: np.ndarray) -> None:
        written.append((path, start, np.ascontiguousarray(values)))

    return _run(lambda task: fn.compute(task, arrays, write), item), written


def run_anywhere(fn: Callable[[Item], Result], items: Sequence[Item], label: str) -> list[Result]:
    """Like `on_this_node`, on all nodes, which must see what it reads and writes."""
    return _run_all(_ANYWHERE, fn, items, label)


def _run_all(
    options: dict[str, Any], fn: Callable[[Item], Result], items: Sequence[Item], label: str
) -> list[Result]:
    import ray

    run = ray.remote(**options)(_run)

    def begin(item: Any) -> tuple[Any]:
        return (run.remote(fn, item),)

    return _some_at_a_time(begin, lambda task: ray.get(task[0]), items, label)


_ANYWHERE: dict[str, Any] = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}


def _some_at_a_time(
    begin: Callable[[Any], tuple[Any, ...]],
    end: Callable[[tuple[Any, ...]], _Outcome],
    items: Sequence[Any],
    label: str,
) -> list[Any]:
    """The results of tasks, of which only some run at a time: rows of all pieces would be the whole
    table. `begin` starts the task of an item and returns references, the last of which is its
    result; `end` receives those of a finished task.
    """
    import ray

    at_a_time = 2 * max(1, int(sum(lent_cpus()[1].values())))
    running: dict[Any, tuple[int, tuple[Any, ...]]] = {}
    outcomes: dict[int, _Outcome] = {}

    def end_one() -> None:
        (done,), _ = ray.wait(list(running))
        number, task = running.pop(done)
        outcomes[number] = end(task)
        pace.reached(len(outcomes))

    pace = Pace(label, len(items), "tasks")
    with _named_failures(f"while {label}"):
        for number, item in enumerate(items):
            if len(running) >= at_a_time:
                end_one()
            task = begin(item)
            running[task[-1]] = number, task
        while running:
            end_one()
    return _results([outcomes[number] for number in range(len(items))], label)


@dataclass(frozen=True)
class _Outcome:
    result: Any = None
    error: RaygnnError | str | None = None


def _run(fn: Callable[[Any], Any], item: Any) -> _Outcome:
    try:
        return _Outcome(retried(fn)(item))
    except RaygnnError as raised:
        return _Outcome(error=raised)
    except Exception as raised:  # noqa: BLE001 (the caller raises it again)
        # As text, because not every exception survives pickling.
        last = ", ".join(map(str.strip, traceback.format_exception_only(raised)))
        is_known = is_storage_error(raised)
        return _Outcome(error=last if is_known else f"{last}\n{traceback.format_exc()}")


def _results(outcomes: Sequence[_Outcome], label: str) -> list[Any]:
    for outcome in outcomes:
        if isinstance(outcome.error, RaygnnError):
            raise outcome.error
        if outcome.error is not None:
            raise RunError(f"ingest failed while {label}: {outcome.error}", id="data-ingest-failed")
    return [outcome.result for outcome in outcomes]


_PROBE_S = 60.0  # time for a node to check a folder; the first task starts a process


def partition_tables(
    source: str,
    out: str,
    partitioning: Partitioning,
    options: IngestOptions,
    rows_to_fit: RowsToFit | None = None,
) -> PartitionRecord:
    """Partitions graph tables; see `raygnn.data.partition.build.partition`. Raises a ResourceError
    if Ray is needed and cannot be started.
    """
    from raygnn.runtime.sources import with_snapshots

    given = source
    source = with_snapshots(given, None, allow_outside=options.allow_outside)
    if source != given:  # tables that are files remain in their folder
        roots = (*options.allow_outside, manifest_folder(given))
        options = replace(options, allow_outside=roots)

    def schedule(folder: Path) -> Schedule:
        tables = [uri for uri in (source, *options.allow_outside) if not is_remote(uri)]
        return _partition_schedule([str(folder), *map(absolute, tables)])

    return partition(
        source,
        out,
        partitioning,
        options,
        schedule,
        say,
        min_scheduled_bytes=MIN_SCHEDULED_BYTES,
        rows_to_fit=rows_to_fit,
    )


def _partition_schedule(folders: Sequence[str]) -> Schedule:
    """Ray's tasks on all nodes if these see the absolute folders, else on this node.

    In threads of this process if it lends Ray no CPU. The first folder is the one to write.
    """
    connect()
    here, cpus = lent_cpus()
    lending = [node for node, number in cpus.items() if number >= 1]
    if set(lending) - {here}:
        blind = _blind_nodes(lending, folders)
        if not blind:
            say(f"partition: on {len(lending)} nodes")
            return run_anywhere
        say(
            f"partition: on this node, as {len(blind)} of {len(lending)} nodes do not see "
            f"{' or '.join(folders)}. To compute on all, use a file system that all share"
        )
    return on_this_node if here in lending else in_process


def _blind_nodes(nodes: Sequence[str], folders: Sequence[str]) -> list[str]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    Path(folders[0]).mkdir(parents=True, exist_ok=True)
    # A folder of this name may be there on any node, a file of this name is not.
    with tempfile.NamedTemporaryFile(dir=folders[0], prefix=".seen-") as probe:
        paths = [probe.name, *folders]
        checks = {
            ray.remote(_see)
            .options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            )
            .remote(paths): node
            for node in nodes
        }
        answered, silent = ray.wait(list(checks), num_returns=len(checks), timeout=_PROBE_S)
        blind = [checks[reply] for reply in silent]
        for reply in answered:
            try:
                if not ray.get(reply):
                    blind.append(checks[reply])
            except ray.exceptions.RayError:  # its node has gone
                blind.append(checks[reply])
    return blind


def _see(paths: Sequence[str]) -> bool:
    return all(Path(path).exists() for path in paths)
