"""Finds feature columns that may be known too late, or that follow time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from raygnn.data.arrays import thinned
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType, type_name
from raygnn.data.raw_columns import RawColumn, raw_columns_of
from raygnn.data.time_units import TIME, TIME_UNIT, is_clock, time_unit

_MAX_ROWS = 1 << 15  # that columns are compared on
_LATER = 0.05  # share of rows with an earlier time than a date
_BY_CHANCE = 1e-6  # of entities with a value to be all of one class


def columns_known_later(
    bundle: Bundle,
    node_type: str,
    feature: str,
    nodes: np.ndarray,
    times: np.ndarray | None,
    classes: np.ndarray | None,
) -> Iterator[str]:
    """Evidence against columns of the training rows' entities: `column 'closed_on' of 'accounts' is
    later than the time of 31% of the training rows`.

    Args:
        nodes: int64 [num_rows].
        times: [num_rows], or null.
        classes: int64 [num_rows], the labels, unless they are numbers.
    """
    nodes, of = thinned(nodes, _MAX_ROWS), f"of {node_type!r}"
    times = None if times is None else thinned(times, _MAX_ROWS)
    dated = times if time_unit(bundle, TIME) == TIME_UNIT else None
    entities, rows_of = np.unique(nodes, return_inverse=True)
    classes = None if classes is None else thinned(classes, _MAX_ROWS)
    for column in _columns(bundle, node_type, feature, nodes):
        known = ~np.isnan(column.values)
        if column.kind == "date" and dated is not None and known.any():
            later = float(np.mean(column.values[known] > dated[known]))
            if later > _LATER:
                yield (
                    f"column {column.name!r} {of} is later than the time of {later:.0%} of the "
                    "training rows with a value"
                )
                continue
        if classes is None:
            continue
        for what, rows in (("filled", known), ("empty", ~known)):
            found = np.unique(classes[rows])
            if len(found) != 1:
                continue
            has_other = np.bincount(rows_of, classes != found[0], len(entities)) > 0
            if (1 - has_other.mean()) ** len(np.unique(nodes[rows])) < _BY_CHANCE:
                yield f"column {column.name!r} {of} is {what} only in training rows of one class"


def columns_that_follow_time(bundle: Bundle, feature: str, until: float | None) -> Iterator[str]:
    """Names of columns that grow with the time of their row, such as a week, with the table.

    Args:
        until: the end of training; later nodes are not compared.
    """
    for node_type in bundle.node_types:
        if TIME not in bundle.columns(node_type):
            continue
        times = np.asarray(bundle.column(node_type, TIME))
        rows = np.arange(len(times)) if until is None else np.flatnonzero(times <= until)
        rows = thinned(rows, _MAX_ROWS)
        for column in _columns(bundle, node_type, feature, rows):
            known = ~np.isnan(column.values)
            is_number = column.kind in ("number", "vector")
            if is_number and is_clock(column.values[known], times[rows[known]]):
                yield f"{column.name!r} of {type_name(node_type)!r}"


def _columns(
    bundle: Bundle, type_: str | EdgeType, feature: str, rows: np.ndarray
) -> list[RawColumn]:
    info = bundle.columns(type_).get(feature)
    if info is None or info.sparse or not len(rows):
        return []
    stored = bundle.values(type_, feature)
    assert isinstance(stored, np.ndarray)
    return raw_columns_of(info, stored[rows])
