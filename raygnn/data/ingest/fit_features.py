"""Passes over features before rows are written, which fit transforms.

Each pass reads only the columns that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from raygnn import console
from raygnn.data.hashing import splitmix64_array
from raygnn.data.id_map import hash_column
from raygnn.data.ingest.column_plan import DensePlan
from raygnn.data.ingest.decode import split_rows
from raygnn.data.ingest.findings import FindingCollector
from raygnn.data.ingest.pieces import Piece, PieceTask, cut_table, read_blocks, read_column
from raygnn.data.ingest.scan import ScannedTable
from raygnn.data.ingest.schedule import Schedule
from raygnn.data.manifest import DenseFeature, FeatureSpec
from raygnn.data.transforms.fit import Counts, TextCounts, count, describe, fit, needs_counts
from raygnn.data.transforms.fitted import FittedColumn, FittedFeature, Transforms
from raygnn.data.transforms.state import NoValues
from raygnn.data.transforms.values import (
    ColumnTransform,
    Kind,
    is_number_type,
    is_text_type,
    kind_of,
    looks_like_times,
)
from raygnn.errors import DataError

_ANY_KEY = np.uint64(np.iinfo(np.uint64).max)
# The results of all tasks of a round are in memory together. The first rounds are short: they
# bound the samples of all later ones, and find columns of ids.
_FIRST_ROUND, _LONGEST_ROUND = 4, 64
_MAX_SHOWN = 10  # columns in a line of the log
_PROBED_ROWS = 1024
_TRAIN = 1


@dataclass(frozen=True)
class RowChoice:
    """Chooses the rows of a table that transforms are fitted on.

    Attributes:
        columns: read by `mask`, which returns bool [num_rows] of a block.
    """

    columns: tuple[str, ...]
    mask: Callable[[Mapping[str, pa.Array]], np.ndarray]


@dataclass(frozen=True)
class FeatureTable:
    """A table with features.

    Attributes:
        id: id column; None for edges.
        split: column that marks training rows, or for edges the others.
        choice: rows to fit on, instead of those of `split`.
    """

    scanned: ScannedTable
    features: Mapping[str, FeatureSpec]
    id: str | None
    split: str | None
    choice: RowChoice | None = None

    @property
    def type_name(self) -> str:
        return self.scanned.name.partition(".")[2]


@dataclass(frozen=True)
class _Column:
    table: FeatureTable
    feature: str
    position: int
    spec: ColumnTransform
    kind: Kind

    @property
    def place(self) -> str:
        return f"{self.table.scanned.name}.features.{self.feature}"


@dataclass(frozen=True)
class CountTask(PieceTask):
    """Counts the training rows of one piece of a table.

    Attributes:
        columns: numbers of the columns to count, among all fitted ones.
        bounds: of their samples so far.
    """

    piece: Piece
    table: FeatureTable
    columns: tuple[int, ...]
    specs: tuple[tuple[ColumnTransform, Kind], ...]
    bounds: tuple[np.uint64, ...] = ()


def fit_features(
    tables: Sequence[FeatureTable],
    saved: Transforms,
    schedule: Schedule,
    progress: Callable[[str], None],
) -> dict[str, ScannedTable]:
    """Fits the transforms of all tables, or takes those of training. Returns the tables by name.

    Raises a DataError with all problems if transforms do not fit their columns.
    """
    problems: list[str] = []
    fitted: dict[tuple[str, str], list[FittedColumn | None]] = {}
    columns: list[_Column] = []
    for table in tables:
        for name, spec in table.features.items():
            trained = saved.get(table.type_name, {}).get(name)
            if not isinstance(spec, DenseFeature) or not (trained or any(spec.transforms)):
                continue
            key = (table.scanned.name, name)
            try:
                if trained is None:
                    fitted[key] = [None] * len(spec.columns)
                    columns += _fitted_columns(table, name, spec)
                else:
                    fitted[key] = _saved_columns(table, name, spec, trained)
            except DataError as error:
                problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    counts = _count_all(columns, schedule, progress)
    alike: dict[tuple[str, str], list[str]] = {}
    empty: list[str] = []
    for i, column in enumerate(columns):
        try:
            is_of_nodes = column.table.id is not None
            counted = counts.get(i)
            made = fit(column.spec, column.kind, counted, column.place, embeds=is_of_nodes)
        except DataError as error:
            problems.append(str(error))
            continue
        fitted[column.table.scanned.name, column.feature][column.position] = made
        if isinstance(made.state, NoValues):
            empty.append(f"{made.column} of {column.place}")
        else:
            alike.setdefault((column.place, describe(made, counted)), []).append(made.column)
    unchanged = []
    for (place, description), names in alike.items():
        shown = f"{place}: {_shown(names)}"
        if description == "unchanged":
            unchanged.append(shown)
        else:
            progress(f"ingest: {shown}: {description}")
    if unchanged:
        progress(f"ingest: numbers left unchanged: {'; '.join(unchanged)}")
    if empty:
        console.warn(f"models read 0 for columns without values in training rows: {_shown(empty)}")
    if problems:
        raise DataError("\n".join(problems))
    return {
        table.scanned.name: replace(
            table.scanned,
            fitted={
                name: tuple(fitted[table.scanned.name, name])
                for name in table.features
                if (table.scanned.name, name) in fitted
            },
        )
        for table in tables
    }


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_SHOWN:,} more" if names[_MAX_SHOWN:] else ""
    return f"{', '.join(names[:_MAX_SHOWN])}{more}"


def count_rows(task: CountTask) -> list[Counts]:
    table, piece = task.table, task.piece
    names = [spec.column for spec, _ in task.specs]
    read = () if table.choice is None else table.choice.columns
    wanted = dict.fromkeys([*names, *(name for name in (table.id, table.split, *read) if name)])
    types = {name: table.scanned.types[name] for name in wanted}
    counted: list[Any] = []
    for offset, _, _, block in read_blocks(piece, types):
        keys = _keys(table, block, piece.row_start + offset)
        chosen = _training_rows(table, block)
        if chosen is not None:
            keys = keys[chosen]
        new = [
            count(
                spec,
                kind,
                block[spec.column] if chosen is None else block[spec.column].filter(chosen),
                keys,
                bound,
            )
            for (spec, kind), bound in zip(task.specs, task.bounds, strict=True)
        ]
        counted = [a.merged(b) for a, b in zip(counted, new, strict=True)] if counted else new
    return counted


def _keys(table: FeatureTable, block: Mapping[str, pa.Array], first_row: int) -> np.ndarray:
    """uint64 hash of each row's id, or of its number without one."""
    ids = None if table.id is None else block[table.id]
    if ids is not None and (pa.types.is_integer(ids.type) or is_text_type(ids.type)):
        return hash_column(ids)
    num_rows = len(next(iter(block.values())))
    return splitmix64_array(np.arange(first_row, first_row + num_rows))


def _training_rows(table: FeatureTable, block: Mapping[str, pa.Array]) -> np.ndarray | None:
    if table.choice is not None:
        return table.choice.mask(block)
    if table.split is None:
        return None
    # Unknown names are reported when the rows are read.
    unread = FindingCollector(table.scanned.name)
    unread.start_block("", 0, len(block[table.split]))
    codes = split_rows(block[table.split], table.split, unread)
    return codes == _TRAIN if table.id is not None else codes <= _TRAIN


def _count_all(
    columns: Sequence[_Column], schedule: Schedule, progress: Callable[[str], None]
) -> dict[int, Counts]:
    wanted = [i for i, column in enumerate(columns) if needs_counts(column.spec)]
    tasks = list(_tasks(columns, wanted))
    if tasks:
        progress(f"ingest: fitting transforms of {console.count(len(wanted), 'column')}")
    totals: dict[int, Any] = {}
    start, size = 0, _FIRST_ROUND
    while start < len(tasks):
        now = [_bounded(task, totals) for task in tasks[start : start + size]]
        for task, counts in zip(now, schedule(count_rows, now, "fitting transforms"), strict=True):
            for i, new in zip(task.columns, counts, strict=True):
                totals[i] = totals[i].merged(new) if i in totals else new
        _check_distinct(columns, totals)
        start, size = start + size, min(2 * size, _LONGEST_ROUND)
    _check_training_rows(columns, wanted, totals)
    return totals


def _tasks(columns: Sequence[_Column], wanted: Sequence[int]) -> Iterator[CountTask]:
    by_table: dict[str, list[int]] = {}
    for i in wanted:
        by_table.setdefault(columns[i].table.scanned.name, []).append(i)
    for numbers in by_table.values():
        table = columns[numbers[0]].table
        specs = tuple((columns[i].spec, columns[i].kind) for i in numbers)
        for piece in cut_table(table.scanned):
            yield CountTask(piece, table, tuple(numbers), specs)


def _bounded(task: CountTask, counts: Mapping[int, Counts]) -> CountTask:
    bounds = [counts[i].bound if i in counts else _ANY_KEY for i in task.columns]
    return replace(task, bounds=tuple(bounds))


def _check_distinct(columns: Sequence[_Column], totals: Mapping[int, Counts]) -> None:
    """Ends the pass early if a vocabulary is already too large, because `fit` raises."""
    for i, counts in totals.items():
        if isinstance(counts, TextCounts) and counts.is_cut:
            fit(columns[i].spec, columns[i].kind, counts, columns[i].place)


def _check_training_rows(
    columns: Sequence[_Column], wanted: Sequence[int], totals: Mapping[int, Counts]
) -> None:
    for i in wanted:
        table, counts = columns[i].table, totals.get(i)
        if table.split is not None and (counts is None or counts.num_rows == 0):
            raise DataError(
                f"{table.scanned.name}.split={table.split!r} is invalid: transforms are fitted to "
                "training rows, and it has none. Name some. [transform-no-training-rows]"
            )


def _fitted_columns(table: FeatureTable, feature: str, spec: DenseFeature) -> list[_Column]:
    """The fitted columns of a feature. Raises a DataError with all columns of a wrong type."""
    fitted, problems = [], []
    for position, transform in enumerate(spec.transforms):
        if transform is None:
            continue
        try:
            kind = _kind(table, transform, f"{table.scanned.name}.features.{feature}")
        except DataError as error:
            problems.append(str(error))
            continue
        if kind is not None:
            fitted.append(_Column(table, feature, position, transform, kind))
    if problems:
        raise DataError("\n".join(problems))
    return fitted


def _kind(table: FeatureTable, spec: ColumnTransform, place: str) -> Kind | None:
    """The kind of a transform. None if `auto` keeps the column unchanged."""
    if spec.transform == "category" and table.id is None:
        raise DataError(
            f"{place}: column {spec.column!r} is invalid: transform: category is for nodes only. "
            "Set one_hot, with max_categories. [transform-category-nodes]"
        )
    type_ = table.scanned.types[spec.column]
    if pa.types.is_null(type_):
        return "text"
    if spec.transform == "auto" and spec.format is None:
        return _kind_of_auto(table.scanned, spec.column, type_)
    kind = kind_of(spec.transform, type_, split=spec.separator is not None, written=spec.format)
    if kind is None or (kind == "time" and is_number_type(type_) and spec.unit is None):
        name = f"transform: {spec.transform}" if spec.transform else "a column of numbers"
        name = name if spec.format is None else f"format: {spec.format}"
        other = "Set another transform, or auto" if spec.format is None else "Leave format out"
        raise DataError(
            f"{place}: column {spec.column!r} is invalid: it is {type_}, which does not fit "
            f"{name}. It takes {_TAKES[spec.format or kind or spec.transform]}. {other}. "
            "[transform-type]"
        )
    return kind


_TAKES: dict[str | None, str] = {
    **dict.fromkeys([None, "standard", "log1p", "rank_gauss"], "numbers, one a row"),
    "time": "timestamps, dates, texts as 2024-05-21 or 21.05.2024, or numbers with unit: s, ms, us "
    "or ns",
    "one_hot": "texts, numbers or booleans, one a row",
    "category": "texts, numbers or booleans, one a row",
    "multi_hot": "lists of texts or integers, or texts with a separator",
    "tfidf": "texts",
    **dict.fromkeys(["day_first", "month_first"], "texts as 05/06/2024"),
    "decimal_point": "numbers, and texts as EUR 1,234.50",
    "decimal_comma": "integers, and texts as 1.234,50 EUR",
}


def _kind_of_auto(table: ScannedTable, column: str, type_: pa.DataType) -> Kind | None:
    if pa.types.is_list(type_) and pa.types.is_string(type_.value_type):
        return "list"
    if pa.types.is_string(type_):
        return "time" if _holds_times(table, column) else "text"
    return kind_of("time", type_) if pa.types.is_temporal(type_) else kind_of(None, type_)


def _holds_times(table: ScannedTable, column: str) -> bool:
    parts, num_rows = [], 0
    for values in read_column(table, column):
        parts.append(values.slice(0, _PROBED_ROWS - num_rows))
        num_rows += len(parts[-1])
        if num_rows == _PROBED_ROWS:
            break
    return bool(parts) and looks_like_times(pa.concat_arrays(parts))


def _saved_columns(
    table: FeatureTable, feature: str, spec: DenseFeature, saved: FittedFeature
) -> list[FittedColumn | None]:
    """The transforms of training. Raises a DataError if the columns or their types differ."""
    place = f"{table.scanned.name}.features.{feature}"
    if saved.columns != spec.column_names:
        raise DataError(
            f"{place} is invalid: its columns are {list(spec.column_names)}, and the model was "
            f"trained with {list(saved.columns)}. Name these, in this order. [transform-columns]"
        )
    columns = [part if isinstance(part, FittedColumn) else None for part in saved.parts]
    for part in columns:
        if part is not None:
            part.check_type(table.scanned.types[part.column], place)
    return columns


def _types(table: ScannedTable, plans: Sequence[DensePlan]) -> dict[str, pa.DataType]:
    columns = [source.column for plan in plans for source in plan.sources]
    return {column: table.types[column] for column in columns}
