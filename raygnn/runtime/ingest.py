"""Ingest on a cluster: Ray Data runs the tasks, on the node that holds the cache folder."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from raygnn.data.ingest.schedule import Schedule, in_process
from raygnn.errors import RaygnnError, RunError

Item = TypeVar("Item")
Result = TypeVar("Result")


def schedule_here() -> Schedule:
    """Ray Data where the driver's node lends Ray CPUs; else threads of the driver.

    A head is often started without CPUs, so that no task runs there: one would wait for ever.
    """
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    num_cpus = sum(n["Resources"].get("CPU", 0) for n in ray.nodes() if n["NodeID"] == node_id)
    return ray_data_schedule if num_cpus >= 1 else in_process


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
    with _quiet():
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
    return RunError(f"ingest failed while {label}: {error}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Ray Data's bars and plans out of the log; the ingest says itself what it does."""
    import ray.data

    context = ray.data.DataContext.get_current()
    settings = ("enable_progress_bars", "print_on_execution_start")
    before = {name: getattr(context, name) for name in settings}
    for name in settings:
        setattr(context, name, False)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
