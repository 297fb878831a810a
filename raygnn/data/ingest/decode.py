"""Dense columns: from Arrow to rows of numbers, noting every row that is not what it should be."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.ingest.column_plan import DensePlan
from raygnn.data.ingest.findings import FindingCollector
from raygnn.data.ingest.source_column import SourceColumn

REPAIR = "Repair the rows, or set data.on_error=drop to leave them out."


def dense_rows(
    plan: DensePlan, columns: Mapping[str, pa.Array], findings: FindingCollector
) -> np.ndarray:
    """Rows of a dense feature, weight or time in the bundle's element type.

    Returns:
        [n, *plan.shape]; rows that findings mark bad hold anything.
    """
    parts = []
    for source in plan.sources:
        values, null, wrong_width = source_rows(source, columns[source.column])
        column = columns[source.column]
        findings.add(source.column, "null values", REPAIR, null)
        findings.add(
            source.column, f"another width than {source.width}", REPAIR, wrong_width, column
        )
        parts.append(values)
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
        findings.add(plan.sources[0].column, rule, REPAIR, infinite, rows)
    if plan.role == "weight":
        findings.add(plan.sources[0].column, "negative weights", REPAIR, rows < 0, rows)
    return rows


def not_finite(rows: np.ndarray) -> np.ndarray:
    """Which rows hold a NaN or an infinity."""
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
    source: SourceColumn, column: pa.Array, keep_nulls: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values [n, width] ([n] becomes [n, 1] too), and masks of rows with nulls or a wrong width.

    Args:
        keep_nulls: nulls become NaN, of float64, instead of 0.
    """
    num_rows = len(column)
    null = null_mask(column)
    wrong = np.zeros(num_rows, bool)
    if source.layout in {"scalar", "time"}:
        return _flat_values(column, source, keep_nulls).reshape(-1, 1), null, wrong
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if source.layout == "list":
        lengths = pc.fill_null(column.value_lengths(), source.width)
        wrong = lengths.to_numpy(zero_copy_only=False) != source.width
    good = ~(null | wrong)
    all_good = bool(good.all())
    kept = column if all_good else column.filter(pa.array(good))
    if source.layout == "binary":
        values = _binary_values(kept, source)
        element_null = np.zeros(len(kept), bool)
    else:
        flat = kept.flatten()
        values = _flat_values(flat, source, keep_nulls).reshape(-1, source.width)
        element_null = np.asarray(null_mask(flat).reshape(-1, source.width).any(axis=1))
    if all_good:
        return values, element_null, wrong
    if keep_nulls:
        rows = np.full((num_rows, source.width), np.nan)
    else:
        rows = np.zeros((num_rows, source.width), values.dtype)
    rows[good] = values
    null[good] = element_null
    return rows, null, wrong


def _flat_values(flat: pa.Array, source: SourceColumn, keep_nulls: bool) -> np.ndarray:
    if source.layout == "time":
        flat = pc.cast(pc.cast(flat, _time_storage(flat.type)), pa.int64())
    if flat.null_count:
        if keep_nulls:
            flat = pc.fill_null(pc.cast(flat, pa.float64()), np.nan)
        else:
            flat = pc.fill_null(flat, False if pa.types.is_boolean(flat.type) else 0)
    return flat.to_numpy(zero_copy_only=False)


def _time_storage(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()


def _binary_values(column: pa.Array, source: SourceColumn) -> np.ndarray:
    _, buffer = column.buffers()
    element = np.dtype(source.dtype).newbyteorder("<")
    if len(column) == 0:
        return np.zeros((0, source.width), element)
    flat = np.frombuffer(
        buffer, element, len(column) * source.width, column.offset * column.type.byte_width
    )
    return flat.reshape(-1, source.width)
