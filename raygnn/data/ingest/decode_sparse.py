"""Sparse features: from lists of positions and values to CSR rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.ingest.column_plan import SparsePlan
from raygnn.data.ingest.decode import REPAIR, null_mask
from raygnn.data.ingest.findings import FindingCollector


def sparse_rows(
    plan: SparsePlan, columns: Mapping[str, pa.Array], findings: FindingCollector
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Rows of a sparse feature.

    Returns:
        Lengths int64 [n], indices int32 or int64, and values; bad rows are left empty.
    """
    column = columns[plan.indices]
    null = null_mask(column)
    findings.add(plan.indices, "null values", REPAIR, null)
    lengths = pc.fill_null(column.value_lengths(), 0).to_numpy(zero_copy_only=False)
    lengths = lengths.astype(np.int64)
    indices = pc.fill_null(pc.cast(column.flatten(), pa.int64()), -1).to_numpy(zero_copy_only=False)
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    outside = _rows_with((indices < 0) | (indices >= plan.dim), row_of, len(lengths))
    rule = f"indices outside 0 to {plan.dim - 1} (dim {plan.dim})"
    findings.add(plan.indices, rule, REPAIR, outside, column)
    bad = null | outside
    values = None
    if plan.values is not None:
        given = columns[plan.values]
        given_lengths = pc.fill_null(given.value_lengths(), 0).to_numpy(zero_copy_only=False)
        unequal = given_lengths != lengths
        rule = f"another number of values than of {plan.indices!r}"
        findings.add(plan.values, rule, REPAIR, unequal, given)
        bad = bad | unequal
        flat = given.filter(pa.array(~unequal)).flatten()
        with np.errstate(over="ignore"):
            kept = pc.fill_null(pc.cast(flat, pa.float64()), np.nan).to_numpy(zero_copy_only=False)
            values = np.zeros(len(indices), plan.dtype)
            values[~unequal[row_of]] = kept.astype(plan.dtype)
        infinite = _rows_with(~np.isfinite(values), row_of, len(lengths))
        findings.add(plan.values, "null, NaN or infinite values", REPAIR, infinite, given)
        bad = bad | infinite
    if bad.any():
        keep = ~bad[row_of]
        indices = indices[keep]
        values = None if values is None else values[keep]
        lengths = np.where(bad, 0, lengths)
    return lengths, indices.astype(sparse_index_dtype(plan.dim), copy=False), values


def sparse_index_dtype(dim: int) -> np.dtype:
    """The narrower of int32 and int64 that holds the positions of a sparse row."""
    return np.dtype(np.int32 if dim <= np.iinfo(np.int32).max else np.int64)


def _rows_with(element_mask: np.ndarray, row_of: np.ndarray, num_rows: int) -> np.ndarray:
    rows = np.zeros(num_rows, bool)
    rows[row_of[element_mask]] = True
    return rows
