"""Labels and splits: from Arrow to class numbers, targets and split codes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.ingest.column_plan import DensePlan
from raygnn.data.ingest.decode import REPAIR, source_rows
from raygnn.data.ingest.findings import FindingCollector

_SPLIT_CODES = {"train": 1, "val": 2, "valid": 2, "validation": 2, "test": 3, "": 0, "none": 0}


def label_rows(
    plan: DensePlan, columns: Mapping[str, pa.Array], findings: FindingCollector
) -> np.ndarray:
    """Rows of a numeric label; unlabelled is -1, for regression NaN."""
    parts, missing = [], np.zeros(len(next(iter(columns.values()))), bool)
    for source in plan.sources:
        values, null, wrong_width = source_rows(source, columns[source.column], keep_nulls=True)
        findings.add(
            source.column,
            f"another width than {source.width}",
            REPAIR,
            wrong_width,
            columns[source.column],
        )
        missing |= null
        parts.append(values.reshape(len(null), -1).astype(np.float64, copy=False))
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    if plan.label == "regression":
        return _regression_rows(plan, rows, findings)
    return _class_rows(plan, rows, missing, findings)


def _regression_rows(plan: DensePlan, rows: np.ndarray, findings: FindingCollector) -> np.ndarray:
    with np.errstate(over="ignore"):
        stored = rows.astype(plan.dtype)
    rule = f"infinite or too large values (for {plan.dtype})"
    infinite = np.isinf(stored).any(axis=1)
    findings.add(plan.sources[0].column, rule, REPAIR, infinite, rows)
    return stored.reshape(-1, *plan.shape)


def _class_rows(
    plan: DensePlan, rows: np.ndarray, missing: np.ndarray, findings: FindingCollector
) -> np.ndarray:
    column = plan.sources[0].column
    rows = np.where(np.isnan(rows), -1.0, rows)
    fraction = (rows != np.floor(rows)).any(axis=1) | np.isinf(rows).any(axis=1)
    rule = "labels that are not whole numbers"
    findings.add(column, rule, "Write class numbers, or set kind: regression.", fraction, rows)
    if plan.label == "multilabel":
        outside = ((rows < -1) | (rows > 1)).any(axis=1) & ~fraction
        findings.add(column, "labels other than 0 and 1", REPAIR, outside, rows)
        unlabelled = rows == -1
        partly = unlabelled.any(axis=1) & ~unlabelled.all(axis=1) & ~fraction & ~outside
        rule = "labels that are partly missing (null or -1)"
        findings.add(column, rule, REPAIR, partly, rows)
    else:
        limit = np.inf if plan.num_classes is None else plan.num_classes
        outside = ((rows < -1) | (rows >= limit)).any(axis=1) & ~fraction
        top = "" if plan.num_classes is None else f" to {plan.num_classes - 1}"
        rule = f"labels out of range (classes are 0{top or ' and up'}, -1 is unlabelled)"
        findings.add(column, rule, REPAIR, outside, rows[:, 0])
    rows[findings.bad] = -1
    return rows.astype(plan.dtype).reshape(-1, *plan.shape)


def class_name_rows(column: pa.Array, names: dict[str, int]) -> np.ndarray:
    """Codes of string labels, in the order in which `names` met them; null is -1.

    Args:
        names: name -> code; new names are added.
    """
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
            _SPLIT_CODES.get(text.strip().lower(), -1) for text in encoded.dictionary.to_pylist()
        ]
        indices = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
        codes = np.array([*known, 0], np.int64)[indices]
        unknown = codes < 0
    rule = "unknown splits (known: train, val, test, null; or 1, 2, 3, 0)"
    findings.add(name, rule, REPAIR, unknown, column)
    return np.where(unknown, 0, codes).astype(np.uint8)
