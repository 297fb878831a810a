"""Converts Arrow columns to numbers, and notes every invalid row."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.arrays import index_dtype
from raygnn.data.ingest.column_plan import DensePlan, SourceColumn, SparsePlan
from raygnn.data.ingest.findings import REPAIR, FindingCollector
from raygnn.data.splits import SPLIT_CODES
from raygnn.data.time_units import TIME_UNIT
from raygnn.data.transforms.fitted import GAP, FittedColumn
from raygnn.data.transforms.values import is_text_type, parsed_times, read_numbers

GAPS = (
    "Set missing: median, zero or indicator beside the transform in graph.yaml, or "
    "data.on_error=drop to leave these rows out."
)
_DROP = re.compile(r", or set data\.on_error=drop to [^.]*")


def without_table_remedies(message: str) -> str:
    """Adapts a message to rows outside of tables, without remedies of an ingest."""
    return _DROP.sub("", message.replace(GAPS, "Give these rows values."))


def dense_rows(
    plan: DensePlan, columns: Mapping[str, pa.Array], findings: FindingCollector
) -> np.ndarray:
    """Rows of a dense feature, weight or time in the bundle's element type, [n, *plan.shape].

    Rows marked bad by findings have arbitrary values.
    """
    parts = []
    for source in plan.sources:
        if source.fitted is not None:
            parts.append(_transformed_rows(source.fitted, columns[source.column], findings))
            continue
        stored = column = columns[source.column]
        unreadable = np.zeros(len(stored), bool)
        if source.layout == "time" and is_text_type(stored.type):
            column, unreadable = parsed_times(stored, source.format)
            rule = "texts that are not dates or times"
            findings.add(source.column, rule, unreadable, stored, id="table-time-text")
        values, null = source_rows(source, column, findings)
        null &= ~unreadable
        findings.add(source.column, "null values", null, id="table-null-values")
        parts.append(values)
        if values.dtype == np.uint64 and plan.role == "time":
            rule, too_large = "times of 2^63 or more", values[:, 0] > np.iinfo(np.int64).max
            findings.add(source.column, rule, too_large, stored, id="table-time-range")
    dtype = np.dtype(plan.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        if len(parts) == 1:
            rows = parts[0].astype(dtype, copy=False)
        else:
            rows = np.concatenate([part.astype(dtype) for part in parts], axis=1)
    rows = rows.reshape(-1, *plan.shape)
    if dtype.kind not in "iub":
        infinite = not_finite(rows) & ~findings.bad
        rule = f"NaN, infinite or too large values (for {dtype.name})"
        findings.add(plan.sources[0].column, rule, infinite, rows, id="table-not-finite")
    if plan.role == "weight":
        column, negative = plan.sources[0].column, rows < 0
        findings.add(column, "negative weights", negative, rows, id="edges-negative-weights")
    return rows


def _transformed_rows(
    fitted: FittedColumn, column: pa.Array, findings: FindingCollector
) -> np.ndarray:
    applied = fitted.apply(column)
    for rule, mask in applied.broken.items():
        values = None if rule == GAP else column
        remedy = GAPS if rule == GAP else REPAIR
        findings.add(fitted.column, rule, mask, values, remedy, id="transform-values")
    return applied.rows


def not_finite(rows: np.ndarray) -> np.ndarray:
    # The sum of finite numbers may overflow, but a sum with a NaN or infinity is never finite: one
    # cheap pass clears almost every block.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(rows.sum(dtype=np.float32 if rows.dtype.itemsize < 8 else np.float64)):
            return np.zeros(len(rows), bool)
    mask: np.ndarray = np.any(~np.isfinite(rows).reshape(len(rows), -1), axis=1)
    return mask


def null_mask(column: pa.Array) -> np.ndarray:
    if column.null_count == 0:
        return np.zeros(len(column), bool)
    return column.is_null().to_numpy(zero_copy_only=False)


def source_rows(
    source: SourceColumn, column: pa.Array, findings: FindingCollector, keep_nulls: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Values [n, width] ([n] becomes [n, 1] too), and a mask of rows with nulls. Finds rows of
    another width.

    `keep_nulls`: nulls become NaN (float64) instead of 0.
    """
    num_rows = len(column)
    null = null_mask(column)
    wrong = np.zeros(num_rows, bool)
    if source.layout in {"scalar", "time"}:
        return _flat_values(column, source, keep_nulls).reshape(-1, 1), null
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if source.layout == "list":
        lengths = pc.fill_null(column.value_lengths(), source.width)
        wrong = lengths.to_numpy(zero_copy_only=False) != source.width
        rule = f"another width than {source.width}"
        findings.add(source.column, rule, wrong, column, id="table-width")
    good = ~(null | wrong)
    all_good = bool(good.all())
    good_rows = column if all_good else column.filter(pa.array(good))
    if source.layout == "binary":
        values = _binary_values(good_rows, source)
        element_null = np.zeros(len(good_rows), bool)
    else:
        flat = good_rows.flatten()
        values = _flat_values(flat, source, keep_nulls).reshape(-1, source.width)
        element_null = np.asarray(null_mask(flat).reshape(-1, source.width).any(axis=1))
    if all_good:
        return values, element_null
    if keep_nulls:
        rows = np.full((num_rows, source.width), np.nan)
    else:
        rows = np.zeros((num_rows, source.width), values.dtype)
    rows[good] = values
    null[good] = element_null
    return rows, null


def _flat_values(flat: pa.Array, source: SourceColumn, keep_nulls: bool) -> np.ndarray:
    if source.layout == "time":
        # Times have microseconds, so nanoseconds are cut off.
        is_fine = pa.types.is_timestamp(flat.type) and flat.type.unit == "ns"
        moments = pc.cast(flat, pa.timestamp(TIME_UNIT), safe=not is_fine)
        flat = pc.cast(moments, pa.int64())
    if flat.null_count:
        if keep_nulls:
            flat = pc.fill_null(pc.cast(flat, pa.float64()), np.nan)
        else:
            flat = pc.fill_null(flat, False if pa.types.is_boolean(flat.type) else 0)
    return flat.to_numpy(zero_copy_only=False)


def _binary_values(column: pa.Array, source: SourceColumn) -> np.ndarray:
    _, buffer = column.buffers()
    element = np.dtype(source.dtype).newbyteorder("<")
    if len(column) == 0:
        return np.zeros((0, source.width), element)
    flat = np.frombuffer(
        buffer, element, len(column) * source.width, column.offset * column.type.byte_width
    )
    return flat.reshape(-1, source.width)


def label_rows(
    plan: DensePlan, columns: Mapping[str, pa.Array], findings: FindingCollector
) -> np.ndarray:
    """Rows of a numeric label; unlabelled is -1, in regression NaN."""
    parts = []
    for source in plan.sources:
        if source.layout == "number":
            stored = columns[source.column]
            values, unreadable = read_numbers(stored, "number", None, source.format)
            rule = "texts that are not numbers"
            findings.add(source.column, rule, unreadable, stored, id="labels-not-numbers")
            parts.append(values[:, None])
            continue
        values, _ = source_rows(source, columns[source.column], findings, keep_nulls=True)
        parts.append(values.reshape(len(values), -1).astype(np.float64, copy=False))
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    if plan.label == "regression":
        return _regression_rows(plan, rows, findings)
    return _class_rows(plan, rows, findings)


def _regression_rows(plan: DensePlan, rows: np.ndarray, findings: FindingCollector) -> np.ndarray:
    with np.errstate(over="ignore"):
        stored = rows.astype(plan.dtype)
    rule = f"infinite or too large values (for {plan.dtype})"
    infinite = np.isinf(stored).any(axis=1)
    findings.add(plan.sources[0].column, rule, infinite, rows, id="labels-not-finite")
    return stored.reshape(-1, *plan.shape)


def _class_rows(plan: DensePlan, rows: np.ndarray, findings: FindingCollector) -> np.ndarray:
    column = plan.sources[0].column
    rows = np.where(np.isnan(rows), -1.0, rows)
    fraction = (rows != np.floor(rows)).any(axis=1) | np.isinf(rows).any(axis=1)
    rule, remedy = (
        "labels that are not whole numbers",
        "Write class numbers, or set kind: regression.",
    )
    findings.add(column, rule, fraction, rows, remedy, id="labels-not-whole")
    if plan.label == "multilabel":
        outside = ((rows < -1) | (rows > 1)).any(axis=1) & ~fraction
        findings.add(column, "labels other than 0 and 1", outside, rows, id="labels-not-binary")
        unlabelled = rows == -1
        partly = unlabelled.any(axis=1) & ~unlabelled.all(axis=1) & ~fraction & ~outside
        rule = "labels that are partly missing (null or -1)"
        findings.add(column, rule, partly, rows, id="labels-partly-missing")
    else:
        limit = np.inf if plan.num_classes is None else plan.num_classes
        outside = ((rows < -1) | (rows >= limit)).any(axis=1) & ~fraction
        top = "" if plan.num_classes is None else f" to {plan.num_classes - 1}"
        rule = f"labels out of range (classes are 0{top or ' and up'}, -1 is unlabelled)"
        findings.add(column, rule, outside, rows[:, 0], id="labels-out-of-range")
    rows[findings.bad] = -1
    return rows.astype(plan.dtype).reshape(-1, *plan.shape)


def class_name_rows(column: pa.Array, names: dict[str, int]) -> np.ndarray:
    """Codes of string labels, -1 for null. New names are added to `names` in order."""
    encoded = pc.dictionary_encode(pc.cast(column, pa.string()))
    codes = [names.setdefault(name, len(names)) for name in encoded.dictionary.to_pylist()]
    table = np.array([*codes, -1], np.int64)
    return table[pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)]


def split_rows(column: pa.Array, name: str, findings: FindingCollector) -> np.ndarray:
    """Split codes: 0 none, 1 train, 2 validation, 3 test."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.uint8)
    if pa.types.is_integer(column.type):
        values = pc.fill_null(pc.cast(column, pa.int64(), safe=False), 0)
        codes = values.to_numpy(zero_copy_only=False)
        unknown = (codes < 0) | (codes > 3)
    else:
        encoded = pc.dictionary_encode(pc.cast(column, pa.string()))
        known = [
            SPLIT_CODES.get(text.strip().lower(), -1) for text in encoded.dictionary.to_pylist()
        ]
        indices = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
        codes = np.array([*known, 0], np.int64)[indices]
        unknown = codes < 0
    rule = "unknown splits (known: train, val, test, null; or 1, 2, 3, 0)"
    findings.add(name, rule, unknown, column, id="split-values-unknown")
    return np.where(unknown, 0, codes).astype(np.uint8)


def sparse_rows(
    plan: SparsePlan, columns: Mapping[str, pa.Array], findings: FindingCollector
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Lengths int64 [n], indices, and values of a sparse feature; bad rows are empty."""
    column = columns[plan.indices]
    null = null_mask(column)
    findings.add(plan.indices, "null values", null, id="table-null-values")
    lengths = pc.fill_null(column.value_lengths(), 0).to_numpy(zero_copy_only=False)
    lengths = lengths.astype(np.int64)
    indices = pc.fill_null(pc.cast(column.flatten(), pa.int64()), -1).to_numpy(zero_copy_only=False)
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    outside = _rows_with((indices < 0) | (indices >= plan.dim), row_of, len(lengths))
    rule = f"indices outside 0 to {plan.dim - 1} (dim {plan.dim})"
    findings.add(plan.indices, rule, outside, column, id="table-sparse-index")
    bad = null | outside
    values = None
    if plan.values is not None:
        lists = columns[plan.values]
        given_lengths = pc.fill_null(lists.value_lengths(), 0).to_numpy(zero_copy_only=False)
        unequal = given_lengths != lengths
        rule = f"another number of values than of {plan.indices!r}"
        findings.add(plan.values, rule, unequal, lists, id="table-sparse-width")
        bad = bad | unequal
        flat = lists.filter(pa.array(~unequal)).flatten()
        with np.errstate(over="ignore"):
            kept = pc.fill_null(pc.cast(flat, pa.float64()), np.nan).to_numpy(zero_copy_only=False)
            values = np.zeros(len(indices), plan.dtype)
            values[~unequal[row_of]] = kept.astype(plan.dtype)
        infinite = _rows_with(~np.isfinite(values), row_of, len(lengths))
        rule = "null, NaN or infinite values"
        findings.add(plan.values, rule, infinite, lists, id="table-not-finite")
        bad = bad | infinite
    if bad.any():
        keep = ~bad[row_of]
        indices = indices[keep]
        values = None if values is None else values[keep]
        lengths = np.where(bad, 0, lengths)
    return lengths, indices.astype(index_dtype(plan.dim), copy=False), values


def _rows_with(element_mask: np.ndarray, row_of: np.ndarray, num_rows: int) -> np.ndarray:
    rows = np.zeros(num_rows, bool)
    rows[row_of[element_mask]] = True
    return rows
