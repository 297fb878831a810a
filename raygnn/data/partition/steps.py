"""Steps of a partition: each task runs once, and an interrupted partition resumes with the rest."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from raygnn.console import Pace
from raygnn.data.arrays import sync_entry, sync_folder
from raygnn.data.filesystem import write_text
from raygnn.data.ingest.schedule import Schedule

Item = TypeVar("Item")
#: A task fills a folder and returns what can be written as JSON.
TaskFunction = Callable[[Item, Path], dict[str, Any]]

BUILDING = ".building-"  # how folders begin that are not complete
_RESULT = "result.json"
_ROUNDS = 20  # rounds of a step, which reports progress between them
_SEEN_AFTER_S = 120.0  # twice the time for which NFS keeps that a name is missing


@dataclass(frozen=True)
class StepTask:
    """One task of a step: `fn(item, folder)`."""

    fn: TaskFunction[Any]
    item: Any
    folder: Path


@dataclass(frozen=True)
class Done:
    """A finished task, with its JSON `result`."""

    folder: Path
    result: dict[str, Any]


@dataclass(frozen=True)
class Steps:
    """Runs the steps of a partition in a work folder.

    Attributes:
        schedule: runs the tasks, in this process or on nodes that see the work folder.
        progress: receives lines, with an estimate of the remaining time of a long step.
    """

    work: Path
    schedule: Schedule
    progress: Callable[[str], None]

    def run(
        self, name: str, fn: TaskFunction[Item], items: Sequence[Item], what: str
    ) -> list[Done]:
        """Runs the unfinished tasks of a step, and returns all in the order of the items.

        Args:
            name: folder of the step, in the work folder.
            what: description of the tasks, for progress.
        """
        folders = [self.work / name / f"{number:06d}" for number in range(len(items))]
        tasks = [
            StepTask(fn, item, folder)
            for item, folder in zip(items, folders, strict=True)
            if not (folder / _RESULT).exists()
        ]
        if tasks and len(tasks) < len(items):
            num_done = len(items) - len(tasks)
            self.progress(
                f"partition: {what}: {num_done:,} of {len(items):,} tasks are already complete"
            )
        self._run(tasks, what)
        for task in tasks:
            _wait_for(task.folder / _RESULT)
        return [Done(folder, json.loads((folder / _RESULT).read_bytes())) for folder in folders]

    def _run(self, tasks: Sequence[StepTask], what: str) -> None:
        size = max(len(os.sched_getaffinity(0)), -(-len(tasks) // _ROUNDS))
        pace = Pace(f"partition: {what}", len(tasks), "tasks", self.progress)
        for start in range(0, len(tasks), size):
            self.schedule(run_task, tasks[start : start + size], what)
            pace.reached(start + size)


def _wait_for(path: Path) -> None:
    """Waits until this node sees another node's file on a network file system.

    Such systems cache for some time that a file did not exist.
    """
    until = time.monotonic() + _SEEN_AFTER_S
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.2)


def run_task(task: StepTask) -> None:
    """Runs a task; its folder appears when it is complete and on the disk."""
    with building(task.folder) as folder:
        result = task.fn(task.item, folder)
        write_text(folder / _RESULT, json.dumps(result))


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Yields a folder to fill. It gets its name when it is complete and on the disk.

    If the node of a task dies, the task runs again on another. A node that only seemed dead may
    still run it, so each attempt fills its own folder, and the first one stays.
    """
    beside = folder.with_name(f"{BUILDING}{folder.name}-{uuid.uuid4().hex[:8]}")
    beside.mkdir(parents=True)
    try:
        yield beside
        sync_folder(beside)
        try:
            beside.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    sync_entry(folder.parent)
