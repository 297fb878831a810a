"""Tasks that any node can run: they are handed rows of the ingest's arrays, and hand rows back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from raygnn.data.arrays import open_array


@dataclass(frozen=True)
class Rows:
    """Some rows of an array in the folder of the ingest.

    Attributes:
        stop: the row after the last; null for all.
    """

    path: Path
    start: int = 0
    stop: int | None = None

    def read(self) -> np.ndarray:
        """Maps them, read-only as arrays of Ray's object store are: kernels compile once."""
        return open_array(self.path, "r")[self.start : self.stop]


class Write(Protocol):
    """Takes rows of an array in the folder of the ingest."""

    def __call__(self, path: Path, start: int | None, values: np.ndarray) -> None:
        """The task changes the values no more.

        Args:
            start: first of the rows; null where the values are a whole array, which is created.
        """


class RowWriter:
    """Writes rows at once, as `Write`; arrays stay mapped, as most are written again and again."""

    def __init__(self) -> None:
        self._mapped: dict[Path, np.ndarray] = {}

    def __call__(self, path: Path, start: int | None, values: np.ndarray) -> None:
        """Writes them."""
        if start is None:
            np.save(path, values)
            return
        if path not in self._mapped:
            self._mapped[path] = open_array(path, "r+")
        self._mapped[path][start : start + len(values)] = values


class ArrayTask(Protocol):
    """A task that says what it reads of the folder of the ingest."""

    @property
    def inputs(self) -> Sequence[Rows]:
        """The arrays that the task's function is called with."""


Task = TypeVar("Task", bound=ArrayTask)
Result = TypeVar("Result")


@dataclass(frozen=True)
class OnAnyNode(Generic[Task, Result]):
    """The function of tasks that need no folder of the ingest where they run.

    Called with a task, it reads and writes the folder itself. A schedule may instead send the
    inputs to another node, and write what comes back.

    Attributes:
        compute: gives the result of a task from its inputs; hands rows to write.
    """

    compute: Callable[[Task, Sequence[np.ndarray], Write], Result]

    def __call__(self, task: Task) -> Result:
        """Runs a task where the folder is."""
        return self.compute(task, [rows.read() for rows in task.inputs], RowWriter())
