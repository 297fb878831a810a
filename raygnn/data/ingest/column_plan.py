"""The schema of columns: their storage in a table and their conversion for the bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from raygnn.console import say
from raygnn.data.ingest.pieces import read_column
from raygnn.data.ingest.scan import ScannedTable
from raygnn.data.manifest import DenseFeature, FeatureSpec, Label, SparseFeature, TimeColumn
from raygnn.data.time_units import TIME_UNIT
from raygnn.data.transforms.fitted import FittedColumn, FittedFeature, PlainColumn
from raygnn.data.transforms.values import Format, NumberFormat, is_text_type, kind_of
from raygnn.errors import DataError

Layout = Literal["scalar", "list", "fixed_list", "binary", "string", "time", "number", "any"]

# Rows read to infer the width of a list column whose type does not fix it.
_PROBE_ROWS = 1024


@dataclass(frozen=True)
class SourceColumn:
    """One column of a table.

    Attributes:
        layout: Arrow's storage; tensors are lists of fixed size. `any` with a transform.
        dtype: element type in the table, or from a transform.
        shape: shape of a row; () for a scalar.
        format: format of dates of a time column, or of numbers of a label.
    """

    column: str
    layout: Layout
    dtype: str
    shape: tuple[int, ...]
    fitted: FittedColumn | None = None
    format: Format | None = None

    @property
    def width(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


def inspect(
    table: ScannedTable,
    column: str,
    place: str,
    binary_dtype: str | None,
    width: int | None = None,
) -> SourceColumn:
    """Finds element type and row shape of a numeric column.

    Args:
        place: the manifest entry, for messages.
        binary_dtype: element type of fixed-size binary columns. Default: float32.
        width: of lists whose type does not fix it. Default: that of most rows.
    Raises:
        DataError: the column has no numbers, or rows without a width.
    """
    kind = table.types[column]
    if pa.types.is_fixed_size_binary(kind):
        return _inspect_binary(column, kind, place, binary_dtype or "float32")
    if isinstance(kind, pa.FixedShapeTensorType):
        if kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation):
            raise DataError(
                f"{place} is invalid: column {column!r} is a tensor with permuted dimensions "
                f"{kind.permutation}. Write it in row-major order. [table-tensor-order]"
            )
        element = _element(kind.value_type, column, kind, place)
        return SourceColumn(column, "fixed_list", element, tuple(kind.shape))
    if pa.types.is_fixed_size_list(kind):
        element = _element(kind.value_type, column, kind, place)
        return SourceColumn(column, "fixed_list", element, (kind.list_size,))
    if pa.types.is_list(kind):
        element = _element(kind.value_type, column, kind, place)
        width = _probe_width(table, column, place) if width is None else width
        return SourceColumn(column, "list", element, (width,))
    return SourceColumn(column, "scalar", _element(kind, column, kind, place), ())


def _inspect_binary(column: str, kind: pa.DataType, place: str, element_name: str) -> SourceColumn:
    element = np.dtype(element_name)
    if kind.byte_width == 0 or kind.byte_width % element.itemsize:
        raise DataError(
            f"{place} is invalid: {kind.byte_width} bytes per row of {column!r} are not a number "
            f"of {element.name}. Set dtype, as {{columns: x, dtype: float16}}. [table-binary-width]"
        )
    return SourceColumn(column, "binary", element.name, (kind.byte_width // element.itemsize,))


def _element(kind: pa.DataType, column: str, column_type: pa.DataType, place: str) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype()).name
    if pa.types.is_null(kind):
        raise DataError(
            f"{place} is invalid: column {column!r} contains only nulls. Write its values, or take "
            "it out of graph.yaml. [table-column-null]"
        )
    is_feature = ".features." in place
    remedy = f"Write {{column: {column}, transform: auto}} for it, or use" if is_feature else "Use"
    raise DataError(
        f"{place} is invalid: column {column!r} is {column_type}, not numbers. {remedy} numbers or "
        "booleans, lists or tensors of them, or fixed-size binary. [table-column-type]"
    )


def _probe_width(table: ScannedTable, column: str, place: str) -> int:
    for values in read_column(table, column):
        lengths = values.slice(0, _PROBE_ROWS).value_lengths().drop_null()
        if len(lengths):
            width = Counter(lengths.to_pylist()).most_common(1)[0][0]
            if width:
                return width
    raise DataError(
        f"{place} is invalid: column {column!r} contains only empty lists. Write its values, or "
        "take it out of graph.yaml. [table-column-null]"
    )


Role = Literal["feature", "label", "weight", "time", "split", "row"]
LabelKind = Literal["class", "class_name", "multilabel", "regression"]


@dataclass(frozen=True)
class DensePlan:
    """A column with rows of one width.

    Attributes:
        sources: table columns that are concatenated into a row; none for row numbers.
        shape: shape of a row; () for a scalar.
        unit: unit of times that are dates; None for numbers.
    """

    name: str
    role: Role
    sources: tuple[SourceColumn, ...]
    dtype: str
    shape: tuple[int, ...]
    label: LabelKind | None = None
    num_classes: int | None = None
    unit: str | None = None
    transforms: FittedFeature | None = None

    @property
    def width(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class SparsePlan:
    """A sparse feature, stored as CSR rows."""

    name: str
    indices: str
    values: str | None
    dim: int
    dtype: str


def plan_feature(
    table: ScannedTable, name: str, spec: FeatureSpec, feature_dtype: str | None
) -> DensePlan | SparsePlan:
    """Plans a feature. Raises a DataError if a column has a type that features cannot have.

    `feature_dtype`: storage type of floating-point features. Default: the table's, with float64
    reduced to float32, in which models compute.
    """
    if isinstance(spec, SparseFeature):
        return plan_sparse(table, name, spec, feature_dtype)
    place = f"{table.name}.features.{name}"
    if any(table.fitted.get(name, ())):
        return _plan_transformed(table, name, spec, feature_dtype)
    sources = _sources(table, spec.column_names, place, spec.dtype)
    element = np.result_type(*(np.dtype(source.dtype) for source in sources))
    shape: tuple[int, ...] = (sum(source.width for source in sources),)
    if len(sources) == 1:
        shape = sources[0].shape
    return DensePlan(name, "feature", sources, _stored(element, feature_dtype), shape)


def _plan_transformed(
    table: ScannedTable, name: str, spec: DenseFeature, feature_dtype: str | None
) -> DensePlan:
    fitted = table.fitted[name]
    plain = [c for c, fit in zip(spec.column_names, fitted, strict=True) if fit is None]
    place = f"{table.name}.features.{name}"
    inspected = iter(_sources(table, plain, place, spec.dtype))
    sources: list[SourceColumn] = []
    parts: list[PlainColumn | FittedColumn] = []
    for fit in fitted:
        if fit is None:
            source = next(inspected)
            parts.append(PlainColumn(source.column, source.width))
        else:
            source = SourceColumn(fit.column, "any", "float32", (fit.width,), fit)
            parts.append(fit)
        sources.append(source)
    transforms = FittedFeature(tuple(parts))
    # float16 counts the categories of a column to 2,048 only.
    dtype = "float32" if transforms.num_codes else _stored(np.dtype(np.float32), feature_dtype)
    shape = (sum(source.width for source in sources),)
    return DensePlan(name, "feature", tuple(sources), dtype, shape, transforms=transforms)


def plan_label(table: ScannedTable, name: str, spec: Label) -> DensePlan:
    """Plans a label. Raises a DataError if its columns cannot be a label of its kind."""
    place = f"{table.name}.labels.{name}"
    if spec.format is not None:
        return _plan_written_label(table, name, spec, spec.format)
    if len(spec.columns) == 1 and pa.types.is_string(table.types[spec.columns[0]]):
        if spec.kind not in {None, "class"}:
            raise DataError(
                f"{place}.kind={spec.kind!r} is invalid: column {spec.columns[0]!r} holds strings. "
                "Set kind: class, write numbers, or say with format how they are written: "
                "decimal_point (1,234.50) or decimal_comma (1.234,50). [labels-kind-strings]"
            )
        source = SourceColumn(spec.columns[0], "string", "int64", ())
        return DensePlan(name, "label", (source,), "int64", (), "class_name", spec.num_classes)
    sources = _sources(table, spec.columns, place, None)
    is_float = any(np.dtype(source.dtype).kind == "f" for source in sources)
    is_scalar = len(sources) == 1 and sources[0].shape == ()
    kind = spec.kind or ("regression" if is_float else "class" if is_scalar else "multilabel")
    if spec.kind is None and is_float and is_scalar and _are_two_classes(table, spec.columns[0]):
        kind = "class"
        say(f"ingest: {place}: only 0 and 1, so two classes (kind: regression predicts numbers)")
    if kind == "class" and not is_scalar:
        raise DataError(
            f"{place}.kind='class' is invalid: the columns {list(spec.columns)} give "
            f"{sum(s.width for s in sources)} per row. Set kind: multilabel. [labels-kind-columns]"
        )
    dtype = {"class": "int64", "multilabel": "int8", "regression": "float32"}[kind]
    shape = () if is_scalar and kind != "multilabel" else (sum(s.width for s in sources),)
    return DensePlan(name, "label", sources, dtype, shape, kind, spec.num_classes)


def _are_two_classes(table: ScannedTable, column: str) -> bool:
    """Whether a column of floats has only 0, 1 and gaps. Reads up to the first other value."""
    found: set[float] = set()
    for block in read_column(table, column):
        values = block.to_numpy(zero_copy_only=False)
        found.update(np.unique(values[~np.isnan(values)]).tolist())
        if not found <= {0, 1}:
            return False
    return found == {0, 1}


def _plan_written_label(
    table: ScannedTable, name: str, spec: Label, written: NumberFormat
) -> DensePlan:
    for column in spec.columns:
        if kind_of(None, table.types[column], written=written) is None:
            raise DataError(
                f"{table.name}.labels.{name}.format={written!r} is invalid: column {column!r} is "
                f"{table.types[column]}, not texts. Leave format out. [labels-format]"
            )
    sources = tuple(
        SourceColumn(column, "number", "float64", (), format=written) for column in spec.columns
    )
    shape = () if len(sources) == 1 else (len(sources),)
    return DensePlan(name, "label", sources, "float32", shape, "regression")


def plan_time(table: ScannedTable, time: TimeColumn) -> DensePlan:
    """Plans the time column: dates become microseconds, integers stay, floats are float64.

    So dates, timestamps of any precision and texts (UTC without a zone) are comparable. Raises a
    DataError if the column has neither numbers nor times.
    """
    column = time.column
    kind = table.types[column]
    # Texts come from CSV files. Decoding detects texts that are no times.
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or is_text_type(kind):
        source = SourceColumn(column, "time", "int64", (), format=time.format)
        return DensePlan("time", "time", (source,), "int64", (), unit=TIME_UNIT)
    source = inspect(table, column, f"{table.name}.time", None)
    element = np.dtype(source.dtype)
    if source.shape != () or element.kind not in "iuf":
        raise DataError(
            f"{table.name}.time={column!r} is invalid: the column is {kind}. Name a column of "
            "timestamps, dates, integers, floats, or texts as 2024-05-21. [table-time-type]"
        )
    dtype = "float64" if element.kind == "f" else "int64"
    return DensePlan("time", "time", (source,), dtype, ())


def plan_weight(table: ScannedTable, column: str) -> DensePlan:
    """Plans a weight column as float32. Raises a DataError unless it has numbers."""
    source = inspect(table, column, f"{table.name}.weight", None)
    if source.shape != () or np.dtype(source.dtype).kind not in "iuf":
        raise DataError(
            f"{table.name}.weight={column!r} is invalid: the column is {table.types[column]}. Name "
            "a column with one number per row. [table-weight-type]"
        )
    return DensePlan("weight", "weight", (source,), "float32", ())


def check_split(table: ScannedTable, column: str) -> None:
    kind = table.types[column]
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise DataError(
            f"{table.name}.split={column!r} is invalid: the column is {kind}. Write one column "
            "with 'train', 'val', 'test' or null, or with 1, 2, 3 or 0. [table-split-type]"
        )


def plan_split(table: ScannedTable, column: str) -> DensePlan:
    """Plans the split column of edges. Raises a DataError unless it has names or codes."""
    check_split(table, column)
    source = SourceColumn(column, "string", "uint8", ())
    return DensePlan("split", "split", (source,), "uint8", ())


def _sources(
    table: ScannedTable, columns: Sequence[str], place: str, binary_dtype: str | None
) -> tuple[SourceColumn, ...]:
    sources = tuple(inspect(table, column, place, binary_dtype) for column in columns)
    if binary_dtype is not None and not any(source.layout == "binary" for source in sources):
        raise DataError(
            f"{place}.dtype={binary_dtype!r} is invalid: {list(columns)} have types of their own, "
            "not fixed-size binary. Leave it out, or set data.feature_dtype. [table-dtype]"
        )
    return sources


def _stored(element: np.dtype, feature_dtype: str | None) -> str:
    if element.kind != "f":
        return element.name
    if feature_dtype is not None:
        return feature_dtype
    return "float32" if element == np.float64 else element.name


def _is_list(kind: pa.DataType, *element_tests: Callable[[pa.DataType], bool]) -> bool:
    return pa.types.is_list(kind) and any(test(kind.value_type) for test in element_tests)


def plan_sparse(
    table: ScannedTable, name: str, spec: SparseFeature, feature_dtype: str | None
) -> SparsePlan:
    place = f"{table.name}.features.{name}"
    indices = table.types[spec.indices]
    if not _is_list(indices, pa.types.is_integer, pa.types.is_null):
        raise DataError(
            f"{place}.indices={spec.indices!r} is invalid: the column is {indices}. Name a "
            "list<int> column. [table-sparse-type]"
        )
    dtype = "float32"
    if spec.values is not None:
        values = table.types[spec.values]
        if not _is_list(values, pa.types.is_integer, pa.types.is_floating, pa.types.is_null):
            raise DataError(
                f"{place}.values={spec.values!r} is invalid: the column is {values}. Name a "
                "list<float> column, or leave it out when all values are 1. [table-sparse-type]"
            )
        dtype = feature_dtype or "float32"
    return SparsePlan(name, spec.indices, spec.values, spec.dim, dtype)
