"""Ingest and partitioning on a cluster, in tasks of Ray Data on one node or on all nodes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from raygnn.console import Pace, say
from raygnn.data.bundle import Bundle
from raygnn.data.filesystem import absolute, is_remote
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.ingest.schedule import OnAnyNode, Schedule, in_process
from raygnn.data.manifest import manifest_folder
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.fit import RowsToFit
from raygnn.data.partition.record import PartitionRecord
from raygnn.errors import RaygnnError, RunError
from raygnn.runtime.connection import connect
from raygnn.runtime.ray_tasks import Outcome, lent_cpus, run_in_ray_data, run_in_tasks

# One process converts this much in less time than Ray's workers need to start.
MIN_SCHEDULED_BYTES = 256 << 20

Item = TypeVar("Item")
Result = TypeVar("Result")


def ingest_on_cluster(
    uri: str, options: IngestOptions, cache_dir: str | None, progress: Callable[[str], None] = say
) -> Bundle:
    """Ingests in tasks of Ray Data.

    All nodes read and decode tables of a bucket, look up ids and sort; the ingesting node writes,
    and reads tables of its own disk. A head is often started without CPUs to keep it free. Tables
    of a bucket are then ingested by the node that lends most, and the bundle is sent here. Tables
    smaller than `MIN_SCHEDULED_BYTES` are ingested by this process, in threads. Raises a DataError
    if the tables break a rule, a RunError if the node that ingests fails.
    """
    here, cpus = lent_cpus()
    most = max(cpus, key=lambda node_id: cpus[node_id])
    elsewhere: Callable[[], Callable[[Path], None]] | None = None
    if cpus.get(here, 0) < 1 <= cpus[most] and is_remote(uri):
        elsewhere = partial(_build_on, most, uri, options, cache_dir)
    return ingest(
        uri,
        options,
        cache_dir,
        schedule=on_ray,
        progress=progress,
        min_scheduled_bytes=MIN_SCHEDULED_BYTES,
        elsewhere=elsewhere,
    )


def _build_on(
    node_id: str, uri: str, options: IngestOptions, cache_dir: str | None
) -> Callable[[Path], None]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from raygnn.runtime.node_bundle import BundlePlace, fetch_bundle

    say("ingest: on a worker node, because this node gives Ray no CPUs")
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    # Without a CPU, as tasks of the ingest need them.
    build = ray.remote(num_cpus=0, scheduling_strategy=there)(_build_here)
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
        return str(ingest(uri, options, cache_dir, on_ray, progress=say).path)
    except RaygnnError as raised:
        return raised


def on_ray(
    fn: Callable[[Item], Result], items: Sequence[Item], label: str, *, is_shared: bool = False
) -> list[Result]:
    """Runs a plain function over items, and returns the results in order.

    Ray Data runs tasks with tables of a bucket on all nodes, those with other tables on this node.
    The rest only reads and writes the folder of the ingest: in plain tasks of all nodes if these
    are sent their inputs, else in threads of this process. Raises the function's RaygnnError for
    the first failed item, or a RunError with the cause of another failure and its traceback.

    `is_shared`: all nodes see all files, and run all tasks.
    """
    this_node, cpus = lent_cpus()
    lending = {node for node, number in cpus.items() if number >= 1}
    files = {number: getattr(item, "files", None) for number, item in enumerate(items)}
    on_all = [
        number
        for number, uris in files.items()
        if is_shared or (uris is not None and all(map(is_remote, uris)) and lending - {this_node})
    ]
    if on_all and isinstance(fn, OnAnyNode) and not _fit_object_stores(items, label):
        on_all = []
    here = [n for n in {*files} - {*on_all} if files[n] and this_node in lending]
    in_threads = sorted({*files} - {*on_all} - {*here})
    found: dict[int, Outcome] = {}
    pace = Pace(label, len(items), "tasks")
    with _named_failures(f"while {label}"):
        for numbers in (on_all, here):
            if not numbers:
                continue
            tasks = {number: items[number] for number in numbers}
            reads_tables = any(files[number] for number in numbers)
            if isinstance(fn, OnAnyNode) and not reads_tables:
                ended = run_in_tasks(fn, tasks)
            else:
                ended = run_in_ray_data(fn, tasks, here=numbers is here)
            for number, outcome in ended:
                found[number] = outcome
                pace.reached(len(found))
    done = in_process(fn, [items[number] for number in in_threads], label)
    found |= {number: Outcome(result) for number, result in zip(in_threads, done, strict=True)}
    outcomes = [found[number] for number in range(len(items))]
    for outcome in outcomes:
        if isinstance(outcome.error, RaygnnError):
            raise outcome.error
        if outcome.error is not None:
            raise RunError(f"ingest failed while {label}: {outcome.error}", id="data-ingest-failed")
    return [outcome.result for outcome in outcomes]


# Share of a node's object store for the tasks' inputs. The rest is for their outputs.
_SHARE_OF_STORE = 0.5


def _fit_object_stores(items: Sequence[Any], label: str) -> bool:
    inputs = {tuple(item.inputs) for item in items}
    needed = max((sum(rows.read().nbytes for rows in given) for given in inputs), default=0)
    store = _smallest_store_bytes()
    if needed <= _SHARE_OF_STORE * store:
        return True
    say(
        f"ingest: {label} on this node alone: tasks need {needed / 1e9:,.1f} GB, and some node "
        f"has an object store of {store / 1e9:,.1f} GB (ray start --object-store-memory)"
    )
    return False


def _smallest_store_bytes() -> float:
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return min(n["object_store_memory"] for n in nodes if n.get("CPU", 0) >= 1)


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
    """Tasks on all nodes if these see the absolute folders, else on this node.

    The first folder is the one to write.
    """
    connect()
    here, cpus = lent_cpus()
    lending = [node for node, number in cpus.items() if number >= 1]
    if set(lending) - {here}:
        blind = _blind_nodes(lending, folders)
        if not blind:
            say(f"partition: on {len(lending)} nodes")
            return partial(on_ray, is_shared=True)
        say(
            f"partition: on this node, as {len(blind)} of {len(lending)} nodes do not see "
            f"{' or '.join(folders)}. To compute on all, use a file system that all share"
        )
    return on_ray


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
