"""Records of finished columns: classes of labels, and statistics of dense features.

Mean and spread are exact, in one pass over each column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np

from raygnn.data.arrays import Rows, open_array
from raygnn.data.bundle_record import ColumnInfo, ColumnStatistics, Quantization, column_path
from raygnn.data.ingest.column_plan import DensePlan, SparsePlan
from raygnn.data.ingest.read_rows import ReadResult
from raygnn.data.ingest.schedule import Schedule
from raygnn.errors import DataError

_BLOCK_ELEMENTS = 1 << 17  # 1 MiB of float64: what is worked on stays within a core's cache
_TASK_ELEMENTS = 1 << 25
_CHUNK_ROWS = 1 << 20
# Class numbers up to here may have gaps, however few rows there are.
_ALWAYS_CLASSES = 1000


def class_names(results: Sequence[ReadResult], label: str) -> tuple[str, ...]:
    return tuple(sorted({name for result in results for name in result.class_names.get(label, ())}))


def class_tables(
    results: Sequence[ReadResult], plans: Sequence[DensePlan]
) -> list[dict[str, np.ndarray]]:
    """For each piece and string label, int64: the class of each code; the last, of -1, is -1."""
    labels = [plan.name for plan in plans if plan.label == "class_name"]
    classes = {
        label: {name: i for i, name in enumerate(class_names(results, label))} for label in labels
    }
    return [
        {
            label: np.array(
                [*(classes[label][name] for name in result.class_names.get(label, ())), -1],
                np.int64,
            )
            for label in labels
        }
        for result in results
    ]


def describe_columns(
    table: str,
    plans: Sequence[DensePlan | SparsePlan],
    num_rows: int,
    results: Sequence[ReadResult],
    folders: Sequence[Path],
) -> tuple[ColumnInfo, ...]:
    """The records of the columns of a type.

    Args:
        num_rows: of all parts.
        results: of all pieces.
        folders: of the type in each part.
    Raises:
        DataError: there are more classes than in the manifest, or they have gaps.
    """
    infos = []
    for plan in plans:
        if isinstance(plan, SparsePlan):
            infos.append(ColumnInfo(plan.name, "feature", plan.dtype, (plan.dim,), sparse=True))
            continue
        names, num_found = None, 0
        if plan.label == "class_name":
            names = class_names(results, plan.name)
            num_found = len(names)
        elif plan.label == "class":
            arrays = (open_array(column_path(folder, plan.name), "r") for folder in folders)
            num_found = 1 + max(map(_greatest_class, arrays), default=-1)
        info = ColumnInfo(
            plan.name,
            plan.role,
            plan.dtype,
            plan.shape,
            num_classes=_num_classes(table, plan, num_rows, num_found),
            class_names=names,
            unit=plan.unit,
            transforms=plan.transforms,
            quantization=plan.quantization,
        )
        infos.append(info)
    return tuple(infos)


def _greatest_class(column: np.ndarray) -> int:
    starts = range(0, len(column), _CHUNK_ROWS)
    return max((int(column[start : start + _CHUNK_ROWS].max()) for start in starts), default=-1)


def _num_classes(table: str, plan: DensePlan, num_rows: int, num_found: int) -> int | None:
    if plan.label == "multilabel":
        return plan.width
    if plan.label not in {"class", "class_name"}:
        return None
    if plan.num_classes is not None and num_found > plan.num_classes:
        raise DataError(
            f"{table}.labels.{plan.name}.num_classes={plan.num_classes} is "
            f"invalid: the column holds {num_found} classes. Set {num_found}, or leave it out.",
            id="labels-num-classes",
        )
    if plan.num_classes is None and num_found > max(num_rows, _ALWAYS_CLASSES):
        raise DataError(
            f"{table}.labels.{plan.name} is invalid: classes are numbered from 0, and its "
            f"greatest is {num_found - 1:,}, of {num_rows:,} rows. Number the classes without "
            "gaps, write them as strings, or set num_classes.",
            id="labels-class-gaps",
        )
    return max(num_found, plan.num_classes or 0)


@dataclass(frozen=True)
class MeasureTask:
    """Some rows of a column, which are codes if quantized. `origin`: see `Moments`."""

    rows: Rows
    origin: np.ndarray
    quantization: Quantization | None = None


@dataclass(frozen=True)
class Moments:
    """Mergeable statistics of each element of some rows; [width] each.

    Attributes:
        deviation: sum of the squared differences from the mean.
        origin: the column's first row. Means are relative to it, so that nothing cancels far from
            zero, and equal values leave exactly 0.
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
        """Merges the statistics of two sets of rows.

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
        mean, std = self.origin + self.mean, np.sqrt(self.deviation / self.count)
        rows = (mean, std, self.low, self.high, self.num_zeros, self.num_ones)
        return ColumnStatistics(self.count, *(tuple(row.tolist()) for row in rows))


#: For each type: its columns, and its folder in each part of the graph.
Columns = Mapping[str, tuple[Sequence[ColumnInfo], Sequence[Path]]]


def measure_features(
    columns: Columns, schedule: Schedule, *, with_times: bool = False
) -> dict[str, tuple[ColumnInfo, ...]]:
    """Adds the statistics of dense features, and of times if requested.

    Rows are divided into blocks by their number in the part and merged in order, so the statistics
    have the same bits for any number of shards and threads. `columns` are by name of the type.
    """
    tasks = [
        (name, info.name, task)
        for name, (infos, folders) in columns.items()
        for info in infos
        if not info.sparse and (info.role == "feature" or (with_times and info.role == "time"))
        for task in _cut_column(
            [column_path(folder, info.name) for folder in folders], info.quantization
        )
    ]
    measured: dict[tuple[str, str], list[Moments]] = {}
    if tasks:
        results = schedule(measure_rows, [task for *_, task in tasks], "measuring features")
        for (name, column, _), moments in zip(tasks, results, strict=True):
            measured.setdefault((name, column), []).append(moments)
    merged = {key: reduce(Moments.merged, parts).statistics() for key, parts in measured.items()}
    return {
        name: tuple(replace(info, statistics=merged.get((name, info.name))) for info in infos)
        for name, (infos, _) in columns.items()
    }


def measure_chosen_rows(
    rows: np.ndarray, chosen: np.ndarray, quantization: Quantization | None
) -> ColumnStatistics:
    """Statistics of the chosen rows of a stored column, whatever the others contain."""
    rows = rows.reshape(len(rows), -1)
    first = int(chosen.argmax())
    origin, step = _as_values(rows[first : first + 1], quantization)[0], _block_rows(rows.shape[1])
    parts = []
    for start in range(first, len(rows), step):
        block = rows[start : start + step][chosen[start : start + step]]
        if len(block):
            parts.append(_moments(block, origin, quantization))
    return reduce(Moments.merged, parts).statistics()


def measure_rows(task: MeasureTask) -> Moments:
    rows = task.rows.read()
    rows = rows.reshape(len(rows), -1)
    step = _block_rows(rows.shape[1])
    blocks = (rows[i : i + step] for i in range(0, len(rows), step))
    moments = (_moments(block, task.origin, task.quantization) for block in blocks)
    return reduce(Moments.merged, moments)


def _cut_column(paths: Sequence[Path], quantization: Quantization | None) -> list[MeasureTask]:
    tasks: list[MeasureTask] = []
    origin: np.ndarray | None = None
    for path in paths:
        rows = open_array(path, "r")
        width = int(np.prod(rows.shape[1:], dtype=np.int64))
        if width == 0 or len(rows) == 0:
            continue
        if origin is None:
            origin = _as_values(rows[:1].reshape(1, -1), quantization)[0]
        step = _block_rows(width) * (_TASK_ELEMENTS // _BLOCK_ELEMENTS)
        tasks += [
            MeasureTask(Rows(path, i, min(i + step, len(rows))), origin, quantization)
            for i in range(0, len(rows), step)
        ]
    return tasks


def _block_rows(width: int) -> int:
    return max(1, _BLOCK_ELEMENTS // width)


def _as_values(rows: np.ndarray, quantization: Quantization | None) -> np.ndarray:
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
