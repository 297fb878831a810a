"""The features of a tables spec: numbers, sparse lists, columns that `graph.yaml` transforms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.convert.spec_tables import (
    SourceTable,
    numbers,
    typed_values,
)
from raygnn.data.tables.columns import FeatureColumns, Features, SparseRows, dense_columns
from raygnn.data.tables.spec import Column, ColumnRange, SparseColumns
from raygnn.data.transforms.spec import TransformedColumn
from raygnn.data.transforms.values import is_text_type
from raygnn.errors import DataError

#: Of missing numbers in a feature.
_REMEDY = "Fill them in, or set missing: median"

_Columns = Sequence[Column | ColumnRange | TransformedColumn]


def read_feature(
    name: str, spec: _Columns | SparseColumns, tables: Sequence[SourceTable], notes: list[str]
) -> Features | FeatureColumns:
    """A feature of all rows of a table.

    Args:
        tables: the table's files.
        notes: receives what was changed.
    Returns:
        float32 rows; or, where a column has a transform, the columns as they are, for ingest.
    Raises:
        DataError: a value is missing where no transform takes it, or is not of its column's kind.
    """
    role = f"features.{name}"
    if isinstance(spec, SparseColumns):
        return _sparse_rows(spec, tables, role, notes)
    plain = [column for column in spec if not isinstance(column, TransformedColumn)]
    if len(plain) == len(spec):
        return np.concatenate([_dense_rows(table, plain, role) for table in tables])
    return _raw_columns(name, spec, tables, role)


def _raw_columns(
    name: str, spec: _Columns, tables: Sequence[SourceTable], role: str
) -> FeatureColumns:
    columns: dict[str, pa.Array] = {}
    entries: list[str | dict[str, object]] = []
    for column in spec:
        if isinstance(column, TransformedColumn):
            stored = f"{name}:{column.column}"
            plain = Column(column=column.column)
            values = typed_values(tables, plain, role)
            is_text = is_text_type(values.type)
            columns[stored] = pc.cast(values, pa.string()) if is_text else values
            entries.append(column.model_dump(exclude_none=True) | {"column": stored})
            continue
        stored = f"{name}:{'.'.join(str(value) for value in column.model_dump().values())}"
        rows = np.concatenate([_dense_rows(table, [column], role) for table in tables])
        columns |= dense_columns(stored, rows[:, 0] if rows.shape[1] == 1 else rows).columns
        entries.append(stored)
    return FeatureColumns(columns, entries)


def _dense_rows(table: SourceTable, specs: Sequence[Column | ColumnRange], role: str) -> np.ndarray:
    """float32 [num_rows, width]: numbers, and lists of numbers of one width, concatenated."""
    parts: list[np.ndarray] = []
    for spec in specs:
        if isinstance(spec, ColumnRange):
            if spec.last < spec.first:
                raise DataError(
                    f"{table.place}.{role} is invalid: columns {spec.first} to {spec.last} are "
                    "none. Set first to the lower of the two.",
                    id="spec-column-range",
                )
            for position in range(spec.first, spec.last + 1):
                parts.append(numbers(table, Column(column=position), role, _REMEDY).reshape(-1, 1))
            continue
        column = table.column(spec, role)
        parts.append(
            _list_rows(table, column, role)
            if pa.types.is_nested(column.type)
            else numbers(table, spec, role, _REMEDY).reshape(-1, 1)
        )
    return np.concatenate(parts, axis=1).astype(np.float32)


def _sparse_rows(
    spec: SparseColumns, tables: Sequence[SourceTable], role: str, notes: list[str]
) -> SparseRows:
    indices, lengths = _entries(spec.indices, tables, f"{role}.indices")
    values = None
    if spec.values is not None:
        values, value_lengths = _entries(spec.values, tables, f"{role}.values")
        wrong = np.flatnonzero(lengths != value_lengths)
        if len(wrong):
            raise DataError(
                f"{tables[0].place}.{role} is invalid: row {int(wrong[0])} has "
                f"{int(lengths[wrong[0]])} indices and {int(value_lengths[wrong[0]])} values. "
                "Write as many values as indices.",
                id="spec-sparse-lengths",
            )
        values = values.astype(np.float32)
    dim = spec.dim or int(indices.max(initial=0)) + 1
    if indices.dtype.kind != "i" or not ((indices >= 0) & (indices < dim)).all():
        raise DataError(
            f"{tables[0].place}.{role}.indices is invalid: it has others than whole numbers from 0 "
            f"to {dim - 1}. Correct them, or dim.",
            id="spec-sparse-indices",
        )
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = SparseRows(indptr, indices, values, dim).canonical()
    num_repeats = len(indices) - len(rows.indices)
    if num_repeats:
        notes.append(f"{tables[0].where}: {num_repeats:,} repeated feature indices dropped")
    return rows if values is not None else SparseRows(rows.indptr, rows.indices, None, dim)


def _entries(
    spec: Column, tables: Sequence[SourceTable], role: str
) -> tuple[np.ndarray, np.ndarray]:
    columns = [table.column(spec, role) for table in tables]
    for table, column in zip(tables, columns, strict=True):
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            rule = f"the column is {column.type}"
            raise table.error(role, rule, [0], "Name a column of lists", id="spec-not-lists")
    items = np.concatenate([column.flatten().to_numpy(zero_copy_only=False) for column in columns])
    lengths = [pc.fill_null(pc.list_value_length(column), 0).to_numpy() for column in columns]
    return items, np.concatenate(lengths)


def _list_rows(table: SourceTable, column: pa.Array, role: str) -> np.ndarray:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    are_lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_list(column.type) for is_list in are_lists):
        rule = f"the column is {column.type}, which holds no numbers"
        raise table.error(
            role, rule, [0], "Name a column of numbers, or of lists of them", id="spec-not-numbers"
        )
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != max(int(lengths[0]), 1))
    if len(wrong):
        rule = f"lists have not one width ({int(lengths[0])} in the first row)"
        raise table.error(role, rule, wrong, "Write rows of one width", id="spec-list-width")
    flat = column.flatten()
    if flat.null_count or not (pa.types.is_floating(flat.type) or pa.types.is_integer(flat.type)):
        raise table.error(
            role, "lists hold no numbers, or nulls", [0], "Write numbers", id="spec-not-numbers"
        )
    return flat.to_numpy(zero_copy_only=False).reshape(len(column), -1)
