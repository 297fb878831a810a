"""How the work of an ingest is run, and what each of its stages is handed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from raygnn.data.ingest.findings import Finding, describe
from raygnn.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Schedule(Protocol):
    """Runs a plain, picklable function over picklable items."""

    def __call__(
        self, fn: Callable[[Item], Result], items: Sequence[Item], label: str
    ) -> list[Result]:
        """Gives the results in the order of the items; raises what the function raised.

        Args:
            label: what the tasks do, for progress displays.
        """
        ...


def in_process(fn: Callable[[Item], Result], items: Sequence[Item], label: str) -> list[Result]:
    """Runs the tasks in threads of this process, as many as it may use CPUs."""
    num_threads = min(len(items), len(os.sched_getaffinity(0)))
    if num_threads <= 1:
        return [fn(item) for item in items]
    with ThreadPoolExecutor(num_threads, thread_name_prefix="ingest") as pool:
        futures = [pool.submit(fn, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@dataclass(frozen=True)
class BuildContext:
    """Where and how a bundle is built.

    Attributes:
        folder: the bundle's.
        drop: bad rows are left out instead of failing.
        schedule: runs the tasks, in this process or on a cluster.
        progress: receives a line for each step, and what was dropped.
    """

    folder: Path
    drop: bool
    schedule: Schedule
    progress: Callable[[str], None]

    @property
    def work(self) -> Path:
        """The folder of what only the ingest needs."""
        return self.folder / "work"

    def node_folder(self, node_type: str) -> Path:
        """The folder of a node type's arrays."""
        return self.folder / "nodes" / node_type

    def report(self, findings: Sequence[Finding]) -> None:
        """Raises what is wrong in the tables, or says it where bad rows are dropped.

        Raises:
            DataError: rows break rules; all of them are listed.
        """
        if findings and not self.drop:
            raise DataError(describe(findings))
        if findings:
            self.progress(
                f"ingest: data.on_error=drop leaves out what is wrong:\n{describe(findings)}"
            )
