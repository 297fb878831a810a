"""Rows that metrics are of, so that runs can be compared on the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

_MAX_ROWS = 1 << 24


def digest_of(rows: Mapping[str, pa.Array | np.ndarray], labels: np.ndarray | None) -> str | None:
    """A digest of rows in any order; None for very many.

    Args:
        rows: original ids and times by column.
        labels: [num_rows] or [num_rows, num_labels].
    """
    columns: dict[str, Any] = {}
    for name, values in rows.items():
        array = values if isinstance(values, pa.Array) else pa.array(np.asarray(values))
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
        columns[name] = array.cast(pa.large_string()) if is_text else array
    if labels is not None:
        wide = labels.reshape(len(labels), -1).astype(np.float64)
        columns |= {f"label {i}": pa.array(wide[:, i]) for i in range(wide.shape[1])}
    table = pa.table(columns)
    if table.num_rows > _MAX_ROWS:
        return None
    table = table.sort_by([(name, "ascending") for name in columns]).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return hashlib.sha256(sink.getvalue()).hexdigest()
