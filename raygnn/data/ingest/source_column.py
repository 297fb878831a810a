"""How one column of a table holds its numbers: scalars, lists, tensors or bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from raygnn.data.ingest.pieces import cut_table, read_blocks
from raygnn.data.ingest.scan import ScannedTable
from raygnn.errors import DataError

Layout = Literal["scalar", "list", "fixed_list", "binary", "string", "time"]

# Rows that vote on the width of a list column whose type does not fix it.
_PROBE_ROWS = 1024


@dataclass(frozen=True)
class SourceColumn:
    """One column of a table.

    Attributes:
        layout: how Arrow holds it; tensors are lists of fixed size underneath.
        dtype: element type in the table.
        shape: shape of a row; () for a scalar.
    """

    column: str
    layout: Layout
    dtype: str
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Elements of a row."""
        return int(np.prod(self.shape, dtype=np.int64))


def inspect(table: ScannedTable, column: str, place: str, binary_dtype: str | None) -> SourceColumn:
    """Finds element type and row shape of a numeric column.

    Args:
        place: what messages call the manifest entry.
        binary_dtype: element type of fixed-size binary columns; null means float32.
    Raises:
        DataError: the column holds no numbers, or rows of no width.
    """
    kind = table.types[column]
    if pa.types.is_fixed_size_binary(kind):
        return _inspect_binary(column, kind, place, binary_dtype or "float32")
    if isinstance(kind, pa.FixedShapeTensorType):
        if kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation):
            raise DataError(
                f"{place} is invalid: column {column!r} is a tensor with permuted dimensions "
                f"{kind.permutation}. Write it in row-major order."
            )
        element = _element(kind.value_type, column, kind, place)
        return SourceColumn(column, "fixed_list", element, tuple(kind.shape))
    if pa.types.is_fixed_size_list(kind):
        element = _element(kind.value_type, column, kind, place)
        return SourceColumn(column, "fixed_list", element, (kind.list_size,))
    if pa.types.is_list(kind):
        element = _element(kind.value_type, column, kind, place)
        return SourceColumn(column, "list", element, (_probe_width(table, column, place),))
    return SourceColumn(column, "scalar", _element(kind, column, kind, place), ())


def _inspect_binary(column: str, kind: pa.DataType, place: str, element_name: str) -> SourceColumn:
    element = np.dtype(element_name)
    if kind.byte_width == 0 or kind.byte_width % element.itemsize:
        raise DataError(
            f"{place} is invalid: column {column!r} has {kind.byte_width} bytes a row, which is "
            f"no whole number of {element.name}. Set dtype beside columns, as in "
            "{columns: x, dtype: float16}."
        )
    return SourceColumn(column, "binary", element.name, (kind.byte_width // element.itemsize,))


def _element(kind: pa.DataType, column: str, column_type: pa.DataType, place: str) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype()).name
    if pa.types.is_null(kind):
        raise DataError(
            f"{place} is invalid: column {column!r} holds nothing but nulls. "
            "Write its values, or take it out of graph.yaml."
        )
    raise DataError(
        f"{place} is invalid: column {column!r} is {column_type}, which holds no numbers that "
        "raygnn reads. Use integers, floats or booleans, lists of them (list, FixedSizeList, "
        "FixedShapeTensor), or fixed-size binary."
    )


def _probe_width(table: ScannedTable, column: str, place: str) -> int:
    """The most common width among the first rows; rows of another width are reported later."""
    for piece in cut_table(table):
        for _, columns in read_blocks(piece, {column: table.types[column]}):
            lengths = columns[column].slice(0, _PROBE_ROWS).value_lengths().drop_null()
            if len(lengths):
                width = Counter(lengths.to_pylist()).most_common(1)[0][0]
                if width:
                    return width
    raise DataError(
        f"{place} is invalid: column {column!r} holds no list with elements. "
        "Write its values, or take it out of graph.yaml."
    )
