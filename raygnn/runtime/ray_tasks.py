"""Functions over items as plain tasks of Ray, and as tasks of Ray Data for small results."""

from __future__ import annotations

import math
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raygnn.data.arrays import Rows
from raygnn.data.ingest.schedule import OnAnyNode, RowWriter
from raygnn.data.storage_retry import is_storage_error, retried
from raygnn.errors import RaygnnError
from raygnn.runtime.connection import quiet_ray_data

_BLOCKS_OF_A_CPU = 64  # a task of Ray Data runs several items if there are more
_TASKS_OF_A_CPU = 2  # rows of all tasks together would be the whole table
_MAX_RETRIES = 3  # Ray Data's default would repeat a task that kills its process forever


class Outcome(NamedTuple):
    """The result of an item, or its error; as text if not raygnn's, which may not be pickled."""

    result: Any = None
    error: RaygnnError | str | None = None


def lent_cpus() -> tuple[str, dict[str, float]]:
    """The id of this node, and the CPUs that each living node lends Ray, by its id."""
    import ray

    cpus = {n["NodeID"]: n["Resources"].get("CPU", 0) for n in ray.nodes() if n["Alive"]}
    return ray.get_runtime_context().get_node_id(), cpus


def run_tasks(
    fn: Callable[[Any], Any], items: Mapping[int, Any], *, here: bool = False
) -> Iterator[tuple[int, Outcome]]:
    """Runs a function over numbered items on all nodes, and yields their outcomes in no order.

    A CPU runs one item at a time. Tasks of a lost node run again. If the function is `OnAnyNode`,
    tasks receive their inputs, and this process writes the rows that they return.

    `here`: runs on this node alone, where functions find inputs and write rows themselves.
    """
    import ray

    this_node, cpus = lent_cpus()
    if here:
        where: dict[str, Any] = {"label_selector": {"ray.io/node-id": this_node}}
    else:
        where = {"scheduling_strategy": "SPREAD"}
    sends = isinstance(fn, OnAnyNode) and not here
    run = ray.remote(num_cpus=1, num_returns=2, max_retries=_MAX_RETRIES, **where)(_run_item)
    waiting, write = iter(items.items()), RowWriter()
    sent: dict[Rows, Any] = {}
    # With its inputs, because Ray cannot put them again for a task that it repeats.
    running: dict[Any, tuple[int, Any, list[Any]]] = {}
    num_at_a_time = _TASKS_OF_A_CPU * math.ceil(sum(cpus.values()))
    try:
        while True:
            for number, item in islice(waiting, num_at_a_time - len(running)):
                # Tasks of one table look up ids in the same arrays.
                inputs = item.inputs if sends else ()
                sent = {rows: sent.get(rows) or ray.put(rows.read()) for rows in inputs}
                arrays = [sent[rows] for rows in inputs]
                outcome, written = run.remote(fn, item, sends, *arrays)
                running[outcome] = number, written, arrays
            if not running:
                return
            (done,), _ = ray.wait(list(running))
            number, written, _ = running[done]
            for rows in ray.get(written):
                write(*rows)
            yield number, ray.get(done)
            del running[done]
    finally:
        for outcome in running:
            ray.cancel(outcome)


def _run_item(
    fn: Callable[[Any], Any], item: Any, sends: bool, *arrays: np.ndarray
) -> tuple[Outcome, list[tuple[Path, int | None, np.ndarray]]]:
    written: list[tuple[Path, int | None, np.ndarray]] = []

    def compute(item: Any) -> Any:
        assert isinstance(fn, OnAnyNode)
        written.clear()  # rows of a failed attempt
        return fn.compute(item, arrays, lambda *rows: written.append(rows))

    return _outcome(compute if sends else fn, item), written


def run_in_ray_data(
    fn: Callable[[Any], Any], items: Mapping[int, Any]
) -> Iterator[tuple[int, Outcome]]:
    """Runs a function with small results over numbered items, as tasks of Ray Data on all nodes."""
    import ray
    import ray.data

    batches: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
    num_blocks = _BLOCKS_OF_A_CPU * math.ceil(sum(lent_cpus()[1].values()))
    chunks = np.array_split(list(items), min(len(items), num_blocks))
    with quiet_ray_data():
        tasks = ray.data.from_arrow([_table((i, items[i]) for i in c.tolist()) for c in chunks])
        with warnings.catch_warnings():  # Ray Data has no other way to limit retries
            warnings.simplefilter("ignore", ray.util.annotations.RayDeprecationWarning)
            tasks = tasks.map_batches(
                _run_items, fn_args=(fn,), num_cpus=1, max_retries=_MAX_RETRIES, **batches
            )
        for block in tasks.iter_batches(**batches):
            yield from _pairs(block)


def _run_items(tasks: pa.Table, fn: Callable[[Any], Any]) -> Iterator[pa.Table]:
    for number, item in _pairs(tasks):
        yield _table([(number, _outcome(fn, item))])


def _table(pairs: Iterable[tuple[int, Any]]) -> pa.Table:
    return pa.table({"pickled": pa.array(map(pickle.dumps, pairs), pa.large_binary())})


def _pairs(table: pa.Table) -> Iterator[tuple[int, Any]]:
    return (pickle.loads(pair.as_buffer()) for pair in table["pickled"])


def _outcome(fn: Callable[[Any], Any], item: Any) -> Outcome:
    """Errors are results, because Ray Data loses their causes, and not all can be pickled."""
    try:
        return Outcome(retried(fn)(item))
    except RaygnnError as raised:
        return Outcome(error=raised)
    except Exception as raised:  # noqa: BLE001 (the caller raises it again)
        last = ", ".join(map(str.strip, traceback.format_exception_only(raised)))
        is_known = is_storage_error(raised)
        return Outcome(error=last if is_known else f"{last}\n{traceback.format_exc()}")
