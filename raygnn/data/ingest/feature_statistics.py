"""Mean and spread of each dense feature: exact, in one pass over the finished columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np

from raygnn.data.arrays import open_array
from raygnn.data.bundle_record import ColumnInfo, ColumnStatistics, column_path
from raygnn.data.ingest.schedule import Schedule
from raygnn.data.quantization import Quantization

_BLOCK_ELEMENTS = 1 << 17  # 1 MiB of float64: what is worked on stays within a core's cache
_TASK_ELEMENTS = 1 << 25


@dataclass(frozen=True)
class MeasureTask:
    """Some rows of a column.

    Attributes:
        origin: see `Moments`; null takes the first row in the file.
        quantization: of rows that are codes; measured is what they stand for.
    """

    path: Path
    start: int
    stop: int
    origin: np.ndarray | None = None
    quantization: Quantization | None = None


@dataclass(frozen=True)
class Moments:
    """What can be merged of each element of some rows; [width] each.

    Attributes:
        deviation: sum of the squared differences from the mean.
        origin: the column's first row. Means are differences from it, so that nothing cancels far
            from zero, and of equal values nothing but 0 is left.
    """

    origin: np.ndarray
    count: int
    mean: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_zeros: np.ndarray
    num_ones: np.ndarray

    def merged(self, other: Moments) -> Moments:
        """Of both sets of rows.

        Source: Chan, Golub, LeVeque, Updating formulae and a pairwise algorithm for computing
            sample variances, 1979.
        """
        count = self.count + other.count
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / count)
        between = np.square(delta) * (self.count / count * other.count)
        return Moments(
            self.origin,
            count,
            mean,
            self.deviation + other.deviation + between,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.num_zeros + other.num_zeros,
            self.num_ones + other.num_ones,
        )

    def statistics(self) -> ColumnStatistics:
        """What the bundle records."""
        mean, std = self.origin + self.mean, np.sqrt(self.deviation / self.count)
        rows = (mean, std, self.low, self.high, self.num_zeros, self.num_ones)
        return ColumnStatistics(self.count, *(tuple(row.tolist()) for row in rows))


def measure_features(
    columns: Mapping[Path, Sequence[ColumnInfo]], schedule: Schedule
) -> dict[Path, tuple[ColumnInfo, ...]]:
    """Adds the statistics of dense features.

    Rows are cut into blocks by their number alone, and merged in their order: the statistics are
    the same bits for any number of shards and threads.

    Args:
        columns: of each node or edge type, by its folder.
    Returns:
        The same columns with statistics.
    """
    tasks = [
        task
        for folder, infos in columns.items()
        for info in infos
        if is_measured(info)
        for task in cut_column(column_path(folder, info.name), info.quantization)
    ]
    measured: dict[Path, list[Moments]] = {}
    if tasks:
        results = schedule(measure_rows, tasks, "measuring features")
        for task, moments in zip(tasks, results, strict=True):
            measured.setdefault(task.path, []).append(moments)
    found = {path: reduce(Moments.merged, parts).statistics() for path, parts in measured.items()}
    return {
        folder: tuple(
            replace(info, statistics=found.get(column_path(folder, info.name)))
            if is_measured(info)
            else info
            for info in infos
        )
        for folder, infos in columns.items()
    }


def measure_rows(task: MeasureTask) -> Moments:
    """The moments of some rows of a column, block by block."""
    rows = open_array(task.path)
    rows = rows.reshape(len(rows), -1)
    step = _block_rows(rows.shape[1])
    origin = first_row(task) if task.origin is None else task.origin
    blocks = (rows[i : min(i + step, task.stop)] for i in range(task.start, task.stop, step))
    moments = (_moments(block, origin, task.quantization) for block in blocks)
    return reduce(Moments.merged, moments)


def first_row(task: MeasureTask) -> np.ndarray:
    """float64 [width], the first row in the file of a task."""
    return _as_values(open_array(task.path, "r")[:1].reshape(1, -1), task.quantization)[0]


def is_measured(info: ColumnInfo) -> bool:
    """Whether a column has statistics, once it has rows."""
    return info.role == "feature" and not info.sparse


def cut_column(path: Path, quantization: Quantization | None = None) -> list[MeasureTask]:
    """The tasks that measure a column, in the order of its rows."""
    rows = open_array(path)
    width = int(np.prod(rows.shape[1:], dtype=np.int64))
    step = _block_rows(width) * (_TASK_ELEMENTS // _BLOCK_ELEMENTS)
    if width == 0:
        return []
    return [
        MeasureTask(path, i, min(i + step, len(rows)), quantization=quantization)
        for i in range(0, len(rows), step)
    ]


def _block_rows(width: int) -> int:
    return max(1, _BLOCK_ELEMENTS // width)


def _as_values(rows: np.ndarray, quantization: Quantization | None) -> np.ndarray:
    """float64, a copy."""
    return rows.astype(np.float64) if quantization is None else quantization.values(rows)


def _moments(
    block: np.ndarray, origin: np.ndarray, quantization: Quantization | None = None
) -> Moments:
    values = _as_values(block, quantization)
    low, high = values.min(axis=0), values.max(axis=0)
    num_zeros, num_ones = (values == 0).sum(axis=0), (values == 1).sum(axis=0)
    values -= origin
    mean = values.mean(axis=0)
    values -= mean
    deviation = np.square(values).sum(axis=0)
    return Moments(origin, len(values), mean, deviation, low, high, num_zeros, num_ones)
