"""Functions over items as tasks of Ray Data, which limits, spills and repeats them."""

from __future__ import annotations

import math
import pickle
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
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
    import ray.data

    this_node, cpus = lent_cpus()
    on_this_node = {"label_selector": {"ray.io/node-id": this_node}}
    num_blocks = min(len(items), _BLOCKS_OF_A_CPU * math.ceil(sum(cpus.values())))
    chunks = [chunk.tolist() for chunk in np.array_split(list(items), num_blocks)]
    sent: dict[Rows, Any] = {}
    with quiet_ray_data():
        tasks = ray.data.from_arrow(
            [_table(chunk, [(items[i], ()) for i in chunk]) for chunk in chunks]
        )
        if isinstance(fn, OnAnyNode) and not here:
            readers = Counter(rows for item in items.values() for rows in item.inputs)
            sent = {rows: ray.put(rows.read()) for rows, number in readers.items() if number > 1}
            if len(sent) < len(readers):
                # Inputs of a single task are read as soon as Ray Data has room for them.
                tasks = tasks.map_batches(
                    _read_inputs, fn_args=(set(sent),), num_cpus=0, **on_this_node, **_BATCHES
                )
        with warnings.catch_warnings():  # Ray Data has no other way to limit retries
            warnings.simplefilter("ignore", ray.util.annotations.RayDeprecationWarning)
            tasks = tasks.map_batches(
                _run_items,
                fn_args=(fn, None if here else sent),
                num_cpus=1,
                max_retries=_MAX_RETRIES,
                **(on_this_node if here else {}),
                **_BATCHES,
            )
        write = RowWriter()
        for block in tasks.iter_batches(batch_size=None, batch_format="pyarrow"):
            for number, value in _values(block):
                if isinstance(value, Outcome):
                    yield number, value
                else:
                    write(*value)


_BATCHES: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}


def _table(numbers: Sequence[int], values: Sequence[Any]) -> pa.Table:
    """Arrays are columns beside the pickled values, which spares copies of a single one."""
    pickled: list[bytes] = []
    arrays: list[pickle.PickleBuffer] = []
    ends = [0]
    for value in values:
        pickled.append(pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append))
        ends.append(len(arrays))
    raw = [array.raw() for array in arrays]
    starts = np.cumsum([0, *map(len, raw)])
    data = pa.py_buffer(raw[0] if len(raw) == 1 else b"".join(raw))
    binary = pa.Array.from_buffers(pa.large_binary(), len(raw), [None, pa.py_buffer(starts), data])
    columns = {
        "number": numbers,
        "value": pa.array(pickled, pa.large_binary()),
        "arrays": pa.LargeListArray.from_arrays(ends, binary),
    }
    return pa.table(columns)


def _values(table: pa.Table) -> Iterator[tuple[int, Any]]:
    for number, value, arrays in zip(*table.columns, strict=True):
        buffers = [array.as_buffer() for array in arrays.values]
        aligned = [b if b.address % _ALIGNMENT == 0 else b.to_pybytes() for b in buffers]
        yield number.as_py(), pickle.loads(value.as_buffer(), buffers=aligned)


_ALIGNMENT = 16  # bytes; as NumPy's own arrays


def _read_inputs(tasks: pa.Table, sent: set[Rows]) -> Iterator[pa.Table]:
    for number, (item, _) in _values(tasks):
        own = [rows.read() for rows in item.inputs if rows not in sent]
        yield _table([number], [(item, own)])


def _run_items(
    tasks: pa.Table, fn: Callable[[Any], Any], sent: Mapping[Rows, Any] | None
) -> Iterator[pa.Table]:
    import ray

    for number, (item, own) in _values(tasks):
        if sent is None or not isinstance(fn, OnAnyNode):
            yield _table([number], [_outcome(fn, item)])
            continue
        left = iter(own)
        arrays = [ray.get(sent[rows]) if rows in sent else next(left) for rows in item.inputs]
        for array in own:
            array.flags.writeable = False  # as those of the object store
        outcome = _outcome(partial(_compute, fn, arrays), item)
        if outcome.error is None:
            result, written = outcome.result
            for rows in written:
                yield _table([number], [rows])
            outcome = Outcome(result)
        yield _table([number], [outcome])


def _compute(
    fn: OnAnyNode[Any, Any], arrays: Sequence[np.ndarray], item: Any
) -> tuple[Any, list[Any]]:
    """The result, and all rows to write: a task that runs again has to repeat what it yielded."""
    written: list[tuple[Path, int | None, np.ndarray]] = []
    result = fn.compute(item, arrays, lambda *rows: written.append(rows))
    return result, written


def _outcome(fn: Callable[[Any], Any], item: Any) -> Outcome:
    """Errors are results, because Ray Data does not report their causes."""
    try:
        return Outcome(retried(fn)(item))
    except RaygnnError as raised:
        return Outcome(error=raised)
    except Exception as raised:  # noqa: BLE001 (the caller raises it again)
        last = ", ".join(map(str.strip, traceback.format_exception_only(raised)))
        is_known = is_storage_error(raised)
        return Outcome(error=last if is_known else f"{last}\n{traceback.format_exc()}")
