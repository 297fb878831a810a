"""Schedules: how the tasks of a stage run, in threads here or on other nodes."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np

from raygnn.console import Pace
from raygnn.data.arrays import Rows, open_array
from raygnn.data.ingest.findings import Finding, describe
from raygnn.data.storage_retry import retried
from raygnn.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Schedule(Protocol):
    """Runs a plain, picklable function over picklable items.

    Items with an attribute `files` may run in other processes: the URIs of the files that they
    open, besides the ingest's folder if the function is not `OnAnyNode`.
    """

    def __call__(
        self, fn: Callable[[Item], Result], items: Sequence[Item], label: str
    ) -> list[Result]:
        """Returns the results in the order of the items. Errors of the function pass through.

        `label`: description of the tasks, for progress displays.
        """
        ...


def in_process(fn: Callable[[Item], Result], items: Sequence[Item], label: str) -> list[Result]:
    """Runs the tasks in threads of this process, as many as it may use CPUs."""
    return in_threads(fn, items, label, len(os.sched_getaffinity(0)))


def in_threads(
    fn: Callable[[Item], Result], items: Sequence[Item], label: str, num_threads: int
) -> list[Result]:
    """Runs repeatable tasks, again if storage fails, and prints the progress of long ones."""
    repeated, pace, numbers = retried(fn), Pace(label, len(items), "tasks"), itertools.count(1)

    ended = threading.Event()

    def run(item: Item) -> Result:
        if ended.is_set():
            raise CancelledError
        try:
            result = repeated(item)
        except BaseException:
            ended.set()  # before this thread takes another item
            raise
        pace.reached(next(numbers))
        return result

    if min(len(items), num_threads) <= 1:
        return list(map(run, items))
    with ThreadPoolExecutor(num_threads, thread_name_prefix="ingest") as pool:
        futures = [pool.submit(run, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            ended.set()
            raise


class Write(Protocol):
    """Writes rows of an array in the ingest's folder."""

    def __call__(self, path: Path, start: int | None, values: np.ndarray) -> None:
        """Writes final values from row `start` on; None if they are a new array."""


class RowWriter:
    """Writes rows immediately. Arrays stay mapped, because most are written several times."""

    def __init__(self) -> None:
        self._mapped: dict[Path, np.ndarray] = {}

    def __call__(self, path: Path, start: int | None, values: np.ndarray) -> None:
        if start is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, values)
            return
        if path not in self._mapped:
            self._mapped[path] = open_array(path, "r+")
        self._mapped[path][start : start + len(values)] = values


class ArrayTask(Protocol):
    """A task that names the arrays that it reads from the ingest's folder."""

    @property
    def inputs(self) -> Sequence[Rows]: ...


Task = TypeVar("Task", bound=ArrayTask)


@dataclass(frozen=True)
class OnAnyNode(Generic[Task, Result]):
    """The function of tasks that can run on nodes without the ingest's folder.

    Called with a task, it reads and writes the folder itself. A schedule may instead send the
    inputs to another node, and write the rows that `compute` passes to `Write`.
    """

    compute: Callable[[Task, Sequence[np.ndarray], Write], Result]

    def __call__(self, task: Task) -> Result:
        return self.compute(task, [rows.read() for rows in task.inputs], RowWriter())


@dataclass(frozen=True)
class BuildContext:
    """The way a graph is built.

    Attributes:
        command: first word of progress lines.
        drop: drops bad rows instead of failing.
    """

    command: Literal["ingest", "partition"]
    drop: bool
    schedule: Schedule
    progress: Callable[[str], None]

    def say(self, text: str) -> None:
        self.progress(f"{self.command}: {text}")

    def run(
        self, fn: OnAnyNode[Task, Result], groups: Sequence[Sequence[Task]], label: str
    ) -> list[list[Result]]:
        done = iter(self.schedule(fn, [task for group in groups for task in group], label))
        return [[next(done) for _ in group] for group in groups]

    def report(self, findings: Sequence[Finding]) -> None:
        """Reports findings if bad rows are dropped, else raises a DataError with all of them."""
        if findings and not self.drop:
            raise DataError(describe(findings))
        if findings:
            self.progress(
                "ingest: data.on_error=drop left out invalid rows:\n"
                f"{describe(findings, are_dropped=True)}"
            )
