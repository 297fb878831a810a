"""The range pass of an ingest: plans int8 storage of dense features before rows are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar

import numpy as np
import pyarrow as pa

from raygnn.data.ingest.column_plan import DensePlan
from raygnn.data.ingest.decode import dense_rows
from raygnn.data.ingest.findings import FindingCollector
from raygnn.data.ingest.pieces import Piece, cut_table, read_blocks
from raygnn.data.ingest.scan import ScannedTable
from raygnn.data.ingest.schedule import Schedule
from raygnn.data.quantization import Quantization

_LABEL = "measuring ranges"


@dataclass(frozen=True)
class RangeTask:
    reads_only: ClassVar[bool] = True

    table: str
    piece: Piece
    types: Mapping[str, pa.DataType]
    plans: tuple[DensePlan, ...]


@dataclass(frozen=True)
class ValueRange:
    """Mergeable ranges of each element of some rows; [width] each.

    Attributes:
        is_whole: whether all values are whole numbers.
    """

    low: np.ndarray
    high: np.ndarray
    is_whole: np.ndarray

    @classmethod
    def of_rows(cls, rows: np.ndarray) -> ValueRange:
        """The range of floats [n, width]; an empty one without rows."""
        low = rows.min(axis=0, initial=np.inf).astype(np.float64)
        high = rows.max(axis=0, initial=-np.inf).astype(np.float64)
        return cls(low, high, (rows == np.rint(rows)).all(axis=0))

    def merged(self, other: ValueRange) -> ValueRange:
        return ValueRange(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.is_whole & other.is_whole,
        )

    def quantization(self) -> Quantization:
        """The steps that cover the range."""
        is_empty = self.low > self.high
        low, high = (np.where(is_empty, 0.0, end) for end in (self.low, self.high))
        return Quantization.of_range(low, high, self.is_whole)


def quantize_features(
    plans: Mapping[str, Sequence[DensePlan]],
    tables: Mapping[str, ScannedTable],
    schedule: Schedule,
) -> dict[str, tuple[DensePlan, ...]]:
    """Plans floating-point dense features as int8, by the range of their values.

    All rows with valid values count, also those dropped because of another column or as duplicates.
    Category codes stay float32. `plans`: by name of the table; the result has the same order.
    """
    chosen = {name: tuple(filter(_is_quantized, columns)) for name, columns in plans.items()}
    tasks = [
        RangeTask(name, piece, _types(tables[name], chosen[name]), chosen[name])
        for name in plans
        if chosen[name]
        for piece in cut_table(tables[name])
    ]
    none = np.zeros((0, 1), np.float32)
    limits = {
        (name, plan.name): ValueRange.of_rows(np.broadcast_to(none, (0, plan.width)))
        for name in plans
        for plan in chosen[name]
    }
    for task, ranges in zip(tasks, schedule(measure_ranges, tasks, _LABEL), strict=True):
        for plan, measured in zip(task.plans, ranges, strict=True):
            key = task.table, plan.name
            limits[key] = limits[key].merged(measured)
    return {
        name: tuple(
            replace(plan, dtype="int8", quantization=limits[name, plan.name].quantization())
            if plan in chosen[name]
            else plan
            for plan in columns
        )
        for name, columns in plans.items()
    }


def measure_ranges(task: RangeTask) -> list[ValueRange]:
    measured: list[list[ValueRange]] = [[] for _ in task.plans]
    findings = FindingCollector(task.table)  # reported when rows are converted
    for _, file, file_row, columns in read_blocks(task.piece, task.types):
        for plan, ranges in zip(task.plans, measured, strict=True):
            findings.start_block(file, file_row, len(next(iter(columns.values()))))
            rows = dense_rows(plan, columns, findings)
            rows = rows.reshape(len(rows), plan.width)
            if findings.bad.any():
                rows = rows[~findings.bad]
            ranges.append(ValueRange.of_rows(rows))
    return [reduce(ValueRange.merged, ranges) for ranges in measured]


def _is_quantized(plan: DensePlan) -> bool:
    if plan.role != "feature" or (plan.transforms is not None and plan.transforms.num_codes):
        return False
    return np.dtype(plan.dtype).kind == "f"


def _types(table: ScannedTable, plans: Sequence[DensePlan]) -> dict[str, pa.DataType]:
    columns = [source.column for plan in plans for source in plan.sources]
    return {column: table.types[column] for column in columns}
