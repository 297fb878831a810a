"""Records of finished columns: classes of labels, and statistics of dense features.

Means and standard deviations come from exact sums, so they have the same bits for any order of the
rows, and for any number of shards, parts and threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from raygnn.data.arrays import Rows, open_array
from raygnn.data.bundle_record import ColumnInfo, ColumnStatistics, column_path
from raygnn.data.ingest.column_plan import DensePlan, SparsePlan
from raygnn.data.ingest.read_rows import ReadResult
from raygnn.data.ingest.schedule import Schedule
from raygnn.data.moments import Moments, measure, merge_elements
from raygnn.errors import DataError

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
            f"{table}.labels.{plan.name}.num_classes={plan.num_classes} is invalid: the column "
            f"holds {num_found} classes. Set {num_found}, or leave it out. [labels-num-classes]"
        )
    if plan.num_classes is None and num_found > max(num_rows, _ALWAYS_CLASSES):
        raise DataError(
            f"{table}.labels.{plan.name} is invalid: its greatest class is {num_found - 1:,}, of "
            f"{num_rows:,} rows. Number or name them without gaps. [labels-class-gaps]"
        )
    return max(num_found, plan.num_classes or 0)


@dataclass(frozen=True)
class MeasureTask:
    """Some rows of a column.

    Attributes:
        chosen: bool [num_rows]; null measures all rows.
    """

    rows: Rows
    chosen: np.ndarray | None = None


def _statistics(elements: Sequence[Moments]) -> ColumnStatistics | None:
    if not elements:
        return None
    mean, std = zip(*(each.mean_and_std() for each in elements), strict=True)
    others = ((e.low, e.high, e.num_zeros, e.num_ones) for e in elements)
    return ColumnStatistics(elements[0].count, mean, std, *zip(*others, strict=True))


#: For each type: its columns, and its folder in each part of the graph.
ColumnsByType = Mapping[str, tuple[Sequence[ColumnInfo], Sequence[Path]]]


def measure_features(
    columns: ColumnsByType,
    schedule: Schedule,
    *,
    with_times: bool = False,
    chosen: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> dict[str, tuple[ColumnInfo, ...]]:
    """Adds the statistics of dense features, and of times if requested.

    Args:
        columns: by name of the type.
        chosen: for some types bool [num_rows] of each folder, the rows to measure; others stay.
    """
    tasks = [
        (name, info.name, task)
        for name, (infos, folders) in columns.items()
        for info in infos
        if not info.sparse and (info.role == "feature" or (with_times and info.role == "time"))
        for task in _cut_column(
            [column_path(folder, info.name) for folder in folders],
            None if chosen is None else chosen[name],
        )
    ]
    measured: dict[tuple[str, str], Sequence[Moments]] = {}
    if tasks:
        results = schedule(measure_rows, [task for *_, task in tasks], "measuring features")
        for (name, column, _), moments in zip(tasks, results, strict=True):
            measured[name, column] = merge_elements(measured.get((name, column), ()), moments)

    def describe(name: str, info: ColumnInfo) -> ColumnInfo:
        found = _statistics(measured.get((name, info.name), ()))
        return replace(info, statistics=found or info.statistics)

    return {
        name: tuple(describe(name, info) for info in infos) for name, (infos, _) in columns.items()
    }


def measure_chosen_rows(rows: np.ndarray, chosen: np.ndarray) -> ColumnStatistics | None:
    """Statistics of the chosen rows of a stored column. None if no row is chosen."""
    return _statistics(measure(rows, chosen))


def measure_rows(task: MeasureTask) -> Sequence[Moments]:
    return measure(task.rows.read(), task.chosen)


def _cut_column(
    paths: Sequence[Path], chosen: Sequence[np.ndarray] | None
) -> Iterator[MeasureTask]:
    for number, path in enumerate(paths):
        rows = open_array(path, "r")
        width = int(np.prod(rows.shape[1:], dtype=np.int64))
        step = max(1, _TASK_ELEMENTS // max(width, 1))
        for i in range(0, len(rows) if width else 0, step):
            some = Rows(path, i, min(i + step, len(rows)))
            mask = None if chosen is None else chosen[number][some.start : some.stop]
            yield MeasureTask(some, mask)
