"""Effects of LightGBM's columns on the predictions of many rows, and cohorts by their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raygnn.data.history_spec import HistoryColumn

#: Rows that effects are averaged over.
MAX_ROWS = 1_000
_DAY_US = 86_400 * 1e6
_NUM_COLUMNS, _NUM_COHORTS, _NUM_RANGES = 20, 5, 5


def describe_effects(
    described: Sequence[tuple[str, HistoryColumn]],
    effects: np.ndarray,
    in_units: np.ndarray,
    labels: np.ndarray | None = None,
    predictions: np.ndarray | None = None,
    *,
    is_date: bool = False,
) -> dict[str, Any]:
    """Tables and columns by their mean effect, and cohorts of the first columns.

    Args:
        described: node type and description of each column.
        effects: float64 [num_rows, num_columns], what each column adds to each prediction.
        in_units: float64 [num_rows, num_columns], values; NaN if unknown.
        labels, predictions: [num_rows], whose means cohorts show; None for more than two classes.
        is_date: ages are microseconds, shown as days.
    Returns:
        A JSON value: `rows`, their number; `tables` and `columns` with `effect`, the mean size of
        the effect, and `share` of the sum of all; `cohorts`, by range of a column's values, each
        with as many rows.
    """
    sizes = np.abs(effects).mean(axis=0)
    total = float(sizes.sum()) or 1.0
    by_table: dict[tuple[str, str], float] = {}
    for (node_type, column), size in zip(described, sizes, strict=True):
        key = (column.table, column.of or node_type)
        by_table[key] = by_table.get(key, 0.0) + float(size)
    order = [i for i in np.argsort(-sizes, kind="stable").tolist() if sizes[i] > 0]
    cohorts = []
    if labels is not None and predictions is not None:
        for i in order[:_NUM_COHORTS]:
            unit_us = _DAY_US if is_date and described[i][1].is_age else None
            ranges = _ranges(described[i][1], in_units[:, i], labels, predictions, unit_us)
            if len(ranges) > 1:
                cohorts.append({"column": described[i][1].name, "ranges": ranges})
    return {
        "rows": len(effects),
        "tables": [
            {"table": table, "of": of, "effect": size, "share": size / total}
            for (table, of), size in sorted(by_table.items(), key=lambda item: -item[1])
        ],
        "columns": [
            {
                "column": described[i][1].name,
                "table": described[i][1].table,
                "of": described[i][1].of or described[i][0],
                "effect": float(sizes[i]),
                "share": float(sizes[i]) / total,
            }
            for i in order[:_NUM_COLUMNS]
        ],
        "cohorts": cohorts,
    }


def _ranges(
    column: HistoryColumn,
    values: np.ndarray,
    labels: np.ndarray,
    predictions: np.ndarray,
    unit_us: float | None,
) -> list[dict[str, Any]]:
    """Rows without a value, then by category or by fifths of the values."""
    known = ~np.isnan(values)
    groups: list[tuple[str, np.ndarray]] = [("unknown", ~known)]
    if column.is_category:
        codes, counts = np.unique(values[known].astype(np.int64), return_counts=True)
        for code in codes[np.argsort(-counts, kind="stable")][:_NUM_RANGES].tolist():
            name = column.names[code] if 0 <= code < len(column.names) else str(code)
            groups.append((name, values == code))
    elif known.any():
        ends = np.unique(np.quantile(values[known], np.arange(1, _NUM_RANGES) / _NUM_RANGES))
        bins = np.searchsorted(ends, values, "left")  # a range contains its upper end
        for each in range(len(ends) + 1):
            rows = known & (bins == each)
            if rows.any():
                both = values[rows].min() / (unit_us or 1), values[rows].max() / (unit_us or 1)
                shown = " to ".join(f"{end:.4g}" for end in dict.fromkeys(both))
                groups.append((shown if unit_us is None else f"{shown} days", rows))
    return [
        {
            "range": name,
            "rows": int(rows.sum()),
            "label": float(labels[rows].mean()),
            "prediction": float(predictions[rows].mean()),
        }
        for name, rows in groups
        if rows.any()
    ]
