"""Ingest on a cluster: Ray Data runs the tasks, on the node that holds the cache folder."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from raygnn.console import say
from raygnn.data.bundle import Bundle
from raygnn.data.filesystem import is_remote
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.ingest.schedule import Schedule, in_process
from raygnn.errors import RaygnnError, RunError

Item = TypeVar("Item")
Result = TypeVar("Result")


def ingest_on_cluster(
    uri: str, options: IngestOptions, cache_dir: str | None, min_scheduled_bytes: int
) -> Bundle:
    """Ingests where Ray lends CPUs: in tasks on this node, or on another if this one lends none.

    A head is often started without CPUs, so that no work burdens it. Tables of a bucket are then
    ingested by the node that lends most, in threads, and the bundle is sent here. Tables on a disk
    are there where this process is, which then ingests them itself, in threads.

    Args:
        cache_dir: `data.cache_dir`, of every node.
        min_scheduled_bytes: smaller tables are ingested by this process.
    Raises:
        DataError: the tables break a rule.
        RunError: the node that ingests fails.
    """
    here, cpus = lent_cpus()
    schedule: Schedule = ray_data_schedule
    elsewhere: Callable[[Path], None] | None = None
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
        progress=say,
        min_scheduled_bytes=min_scheduled_bytes,
        elsewhere=elsewhere,
    )


def lent_cpus() -> tuple[str, dict[str, float]]:
    """The id of this node, and the CPUs that each living node lends Ray, by its id."""
    import ray

    cpus = {n["NodeID"]: n["Resources"].get("CPU", 0) for n in ray.nodes() if n["Alive"]}
    return ray.get_runtime_context().get_node_id(), cpus


def _build_on(
    node_id: str, uri: str, options: IngestOptions, cache_dir: str | None, folder: Path
) -> None:
    """Lets another node ingest tables into its cache, and copies the bundle into a folder."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from raygnn.runtime.node_bundle import BundlePlace, fetch_bundle

    say("ingest: by a worker node, as this one lends Ray no CPUs")
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    build = ray.remote(num_cpus=1, scheduling_strategy=there)(_build_here)
    try:
        built = ray.get(build.remote(uri, options, cache_dir))
        if isinstance(built, RaygnnError):
            raise built
        fetch_bundle(BundlePlace(built, node_id, cache_dir), folder)
    except ray.exceptions.RayError as error:
        raise RunError(
            f"ingest failed on node {node_id}: {error}", id="data-ingest-failed"
        ) from error


def _build_here(uri: str, options: IngestOptions, cache_dir: str | None) -> str | RaygnnError:
    """The path of the bundle on this node; an error travels as data."""
    try:
        return str(ingest(uri, options, cache_dir, progress=say).path)
    except RaygnnError as raised:
        return raised


def ray_data_schedule(
    fn: Callable[[Item], Result], items: Sequence[Item], label: str
) -> list[Result]:
    """Runs a plain function over items through Ray Data, one task per item.

    The tasks write to memory-mapped files, so they are pinned to the node of the caller, which is
    the one that holds the cache folder.

    Returns:
        The results, in the order of the items.
    Raises:
        RaygnnError: what the function raised for the first of the items that failed.
        RunError: the function failed otherwise; the message has the cause and its traceback.
    """
    import ray
    import ray.data  # takes seconds, and small tables never come here

    if not items:
        return []
    rows = [
        {"position": position, "item": pickle.dumps(item)} for position, item in enumerate(items)
    ]
    node_id = ray.get_runtime_context().get_node_id()
    with quiet_ray_data():
        done = (
            ray.data.from_items(rows, override_num_blocks=len(rows))
            .map(
                _run_item,
                fn_kwargs={"fn": fn},
                num_cpus=1,
                # As NodeAffinitySchedulingStrategy, which Ray Data takes no more from 2.64 on.
                label_selector={"ray.io/node-id": node_id},
            )
            .take_all()
        )
    done.sort(key=lambda row: row["position"])
    for row in done:
        if row["error"] is not None:
            raise _failure(pickle.loads(row["error"]), label)
    return [pickle.loads(row["result"]) for row in done]


def _run_item(row: dict[str, Any], fn: Callable[[Any], Any]) -> dict[str, Any]:
    """Runs one item; an error travels as data.

    Ray Data wraps what is raised and loses its cause on the way, and logs two screens about it.
    """
    result, error = None, None
    try:
        result = pickle.dumps(fn(pickle.loads(row["item"])))
    except RaygnnError as raised:
        error = pickle.dumps(raised)
    except Exception as raised:  # noqa: BLE001 (the caller raises it again)
        # As text: not every exception survives pickling.
        last = traceback.format_exception_only(raised)[-1].strip()
        error = pickle.dumps(f"{last}\n{traceback.format_exc()}")
    return {"position": row["position"], "result": result, "error": error}


def _failure(error: RaygnnError | str, label: str) -> RaygnnError:
    if isinstance(error, RaygnnError):
        return error
    return RunError(f"ingest failed while {label}: {error}", id="data-ingest-failed")


@contextmanager
def quiet_ray_data() -> Iterator[None]:
    """Keeps Ray Data's bars and plans out of the log; raygnn says itself what it does."""
    import ray.data

    context, log = ray.data.DataContext.get_current(), logging.getLogger("ray.data")
    settings = ("enable_progress_bars", "print_on_execution_start")
    before, level = {name: getattr(context, name) for name in settings}, log.level
    for name in settings:
        setattr(context, name, False)
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        for name, value in before.items():
            setattr(context, name, value)
