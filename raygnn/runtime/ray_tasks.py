"""Functions over items as tasks of Ray Data, or as plain tasks of Ray."""

from __future__ import annotations

import math
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def run_in_ray_data(
    fn: Callable[[Any], Any], items: Mapping[int, Any], *, here: bool = False
) -> Iterator[tuple[int, Outcome]]:
    """Runs a function over numbered items in tasks of Ray Data on all nodes, and yields their
    outcomes in no order.

    A CPU runs one item at a time. Tasks of a lost node run again. If the function is `OnAnyNode`,
    tasks receive their inputs, and this process writes the rows that they return.

    `here`: runs on this node alone, where functions find inputs and write rows themselves.
    """
    import ray
    import ray.data

    this_node, cpus = lent_cpus()
    where: dict[str, Any] = {"label_selector": {"ray.io/node-id": this_node}} if here else {}
    num_blocks = min(len(items), _BLOCKS_OF_A_CPU * math.ceil(sum(cpus.values())))
    chunks = np.array_split(list(items), num_blocks)
    sent: dict[Rows, Any] | None = None
    if isinstance(fn, OnAnyNode) and not here:
        # Tasks of one table look up ids in the same arrays.
        inputs = {rows for item in items.values() for rows in item.inputs}
        sent = {rows: ray.put(rows.read()) for rows in inputs}
    write = RowWriter()
    with quiet_ray_data():
        tasks = ray.data.from_arrow([_table([(i, items[i]) for i in c.tolist()]) for c in chunks])
        with warnings.catch_warnings():  # Ray Data has no other way to limit retries
            warnings.simplefilter("ignore", ray.util.annotations.RayDeprecationWarning)
            tasks = tasks.map_batches(
                _run_items,
                fn_args=(fn, sent),
                num_cpus=1,
                max_retries=_MAX_RETRIES,
                **where,
                **_BATCHES,
            )
        for block in tasks.iter_batches(**_BATCHES):
            for number, value in _pairs(block):
                if isinstance(value, Outcome):
                    yield number, value
                else:
                    write(*value)


def run_in_tasks(
    fn: OnAnyNode[Any, Any], items: Mapping[int, Any]
) -> Iterator[tuple[int, Outcome]]:
    """`run_in_ray_data` in plain tasks of Ray, for items with large inputs of their own.

    Ray Data would copy these into blocks, in a process that reads them.
    """
    import ray

    run = ray.remote(
        num_cpus=1, num_returns=2, max_retries=_MAX_RETRIES, scheduling_strategy="SPREAD"
    )(_run_item)
    waiting, write = iter(items.items()), RowWriter()
    # With its inputs, because Ray cannot put them again for a task that it repeats.
    running: dict[Any, tuple[int, Any, list[Any]]] = {}
    num_at_a_time = _TASKS_OF_A_CPU * math.ceil(sum(lent_cpus()[1].values()))
    try:
        while True:
            for number, item in islice(waiting, num_at_a_time - len(running)):
                inputs = [ray.put(rows.read()) for rows in item.inputs]
                outcome, written = run.remote(fn, item, True, *inputs)
                running[outcome] = number, written, inputs
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


_BATCHES: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}


def _run_items(
    tasks: pa.Table, fn: Callable[[Any], Any], sent: Mapping[Rows, Any] | None
) -> Iterator[pa.Table]:
    import ray

    for number, item in _pairs(tasks):
        inputs = [] if sent is None else [ray.get(sent[rows]) for rows in item.inputs]
        outcome, written = _run_item(fn, item, sent is not None, *inputs)
        for rows in written:
            yield _table([(number, rows)])
        yield _table([(number, outcome)])


def _run_item(
    fn: Callable[[Any], Any], item: Any, sends: bool, *arrays: np.ndarray
) -> tuple[Outcome, list[tuple[Path, int | None, np.ndarray]]]:
    """The outcome, and all rows to write: a task that runs again has to repeat what it yielded."""
    written: list[tuple[Path, int | None, np.ndarray]] = []

    def compute(item: Any) -> Any:
        assert isinstance(fn, OnAnyNode)
        written.clear()  # rows of a failed attempt
        return fn.compute(item, arrays, lambda *rows: written.append(rows))

    return _outcome(compute if sends else fn, item), written


def _table(pairs: Sequence[tuple[int, Any]]) -> pa.Table:
    """Arrays are columns beside the pickled values, which spares copies of a single one."""
    pickled: list[bytes] = []
    arrays: list[pickle.PickleBuffer] = []
    ends = [0]
    for pair in pairs:
        pickled.append(pickle.dumps(pair, pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append))
        ends.append(len(arrays))
    raw = [array.raw() for array in arrays]
    starts = np.cumsum([0, *map(len, raw)])
    data = pa.py_buffer(raw[0] if len(raw) == 1 else b"".join(raw))
    binary = pa.Array.from_buffers(pa.large_binary(), len(raw), [None, pa.py_buffer(starts), data])
    columns = {
        "pickled": pa.array(pickled, pa.large_binary()),
        "arrays": pa.LargeListArray.from_arrays(ends, binary),
    }
    return pa.table(columns)


def _pairs(table: pa.Table) -> Iterator[tuple[int, Any]]:
    for pair, arrays in zip(*table.columns, strict=True):
        buffers = [array.as_buffer() for array in arrays.values]
        aligned = [b if b.address % _ALIGNMENT == 0 else b.to_pybytes() for b in buffers]
        yield pickle.loads(pair.as_buffer(), buffers=aligned)


_ALIGNMENT = 16  # bytes; as NumPy's own arrays


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
