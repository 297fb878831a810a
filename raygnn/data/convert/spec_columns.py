"""Columns of a tables spec in the types of graph tables: ids, numbers, times, labels, features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.convert.spec_files import SourceTable, empty_rows
from raygnn.data.tables.spec import Column, ColumnRange
from raygnn.errors import DataError


def ids(table: SourceTable, spec: Column, role: str) -> pa.Array:
    """Original ids: int64 where all are whole numbers, else texts; the offset is added.

    Raises:
        DataError: some are missing, of another type, or no numbers to add an offset to.
    """
    column = table.column(spec, role)
    empty = empty_rows(column)
    if len(empty):
        rule = f"{len(empty):,} ids are missing"
        raise table.error(role, rule, empty, "Fill them in, or take these rows out")
    if pa.types.is_integer(column.type):
        numbers: pa.Array | None = pc.cast(column, pa.int64())
    elif _is_text(column):
        column = pc.cast(column, pa.large_string())
        numbers = whole_numbers(column)
    else:
        raise DataError(
            f"{table.where}: {table.place}.{role}={spec.column!r} is invalid: the column is "
            f"{column.type}. Ids are whole numbers or texts; name a column of these."
        )
    if spec.offset:
        if numbers is None:
            bad = [i for i, text in enumerate(column.to_pylist()) if not _is_whole(text)]
            rule = f"offset {spec.offset} cannot be added to {column[bad[0]].as_py()!r}"
            raise table.error(role, rule, bad, "Take offset out, or repair the ids")
        numbers = pc.add(numbers, pa.scalar(spec.offset, pa.int64()))
    return column if numbers is None else numbers


def whole_numbers(texts: pa.Array) -> pa.Array | None:
    """Texts as int64, where each is written as a whole number is: 007 and 7 stay different ids."""
    try:
        numbers = pc.cast(texts, pa.int64())
    except pa.ArrowInvalid:
        return None
    return numbers if pc.cast(numbers, texts.type).equals(texts) else None


def numbers(table: SourceTable, spec: Column, role: str) -> np.ndarray:
    """A column of numbers as float64, offset added.

    Raises:
        DataError: some are missing, or no numbers.
    """
    column = table.column(spec, role)
    empty = empty_rows(column)
    if len(empty):
        raise table.error(role, f"{len(empty):,} values are missing", empty, "Fill them in")
    try:
        values = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _no_number(table, column, role) from error
    return np.asarray(values + spec.offset if spec.offset else values)


def times(table: SourceTable, spec: Column, role: str) -> pa.Array:
    """A column of times: whole numbers, numbers, or timestamps as ISO 8601 writes them.

    Raises:
        DataError: some are missing, or of none of these forms.
    """
    column = table.column(spec, role)
    empty = empty_rows(column)
    if len(empty):
        raise table.error(role, f"{len(empty):,} times are missing", empty, "Fill them in")
    if not _is_text(column):
        return column
    for kind in (pa.int64(), pa.float64(), pa.timestamp("us")):
        try:
            return pc.cast(column, kind)
        except pa.ArrowInvalid:
            continue
    rule = f"{column[0].as_py()!r} and others are no times of one form"
    remedy = "Write numbers, or timestamps as 2024-01-31T12:00:00"
    raise table.error(role, rule, [0], remedy)


def labels(table: SourceTable, spec: Column, role: str) -> pa.Array:
    """Labels: whole numbers where all are, else numbers, else texts; empty is unlabelled."""
    column = table.column(spec, role)
    if not _is_text(column):
        return column
    texts = pc.cast(column, pa.large_string())
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
    for kind in (pa.int64(), pa.float64()):
        try:
            return pc.cast(texts, kind)
        except pa.ArrowInvalid:
            continue
    return texts


def feature_rows(
    table: SourceTable, specs: Sequence[Column | ColumnRange], role: str
) -> np.ndarray:
    """float32 [num_rows, width]: numbers, and lists of numbers of one width, concatenated.

    Raises:
        DataError: a value is missing or no number, or a list has another width.
    """
    parts: list[np.ndarray] = []
    for spec in specs:
        if isinstance(spec, ColumnRange):
            if spec.last < spec.first:
                raise DataError(
                    f"{table.place}.{role} is invalid: columns {spec.first} to {spec.last} are "
                    "none. Set first to the lower of the two."
                )
            for position in range(spec.first, spec.last + 1):
                parts.append(numbers(table, Column(column=position), role).reshape(-1, 1))
            continue
        column = table.column(spec, role)
        parts.append(
            _list_rows(table, column, role)
            if pa.types.is_nested(column.type)
            else numbers(table, spec, role).reshape(-1, 1)
        )
    return np.concatenate(parts, axis=1).astype(np.float32)


def _list_rows(table: SourceTable, column: pa.Array, role: str) -> np.ndarray:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    are_lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_list(column.type) for is_list in are_lists):
        rule = f"the column is {column.type}, which holds no numbers"
        raise table.error(role, rule, [0], "Name a column of numbers, or of lists of them")
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != max(int(lengths[0]), 1))
    if len(wrong):
        rule = f"lists have not one width ({int(lengths[0])} in the first row)"
        raise table.error(role, rule, wrong, "Write rows of one width")
    flat = column.flatten()
    if flat.null_count or not (pa.types.is_floating(flat.type) or pa.types.is_integer(flat.type)):
        raise table.error(role, "lists hold no numbers, or nulls", [0], "Write numbers")
    return flat.to_numpy(zero_copy_only=False).reshape(len(column), -1)


def _is_text(column: pa.Array) -> bool:
    return pa.types.is_string(column.type) or pa.types.is_large_string(column.type)


def _is_whole(text: str) -> bool:
    return text.lstrip("-").isdigit() and str(int(text)) == text


def _no_number(table: SourceTable, column: pa.Array, role: str) -> DataError:
    bad = []
    for i, value in enumerate(column.to_pylist()):
        try:
            float(value)
        except (TypeError, ValueError):
            bad.append(i)
    rows = bad or [0]
    rule = f"{column[rows[0]].as_py()!r} is no number"
    return table.error(role, rule, rows, "Name a column of numbers, or repair the rows")
