"""Checks of a bundle's arrays before kernels follow their pointers."""

from __future__ import annotations

import numpy as np

from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import DataError


def check_arrays(bundle: Bundle) -> None:
    """Checks that every array has its length, and that no pointer leads out of another array.

    Kernels check neither, so one changed byte could crash the process. Pointers are read once,
    which leaves them in the page cache; values of features and labels are not read. Raises a
    DataError if an array is damaged.
    """
    try:
        for node_type in bundle.node_types:
            _check_nodes(bundle, node_type)
        for edge_type in bundle.edge_types:
            _check_edges(bundle, edge_type)
        for labels in bundle.label_edges:
            anchor_type, _, target_type = labels.edge_type
            _check_rows(labels.indptr, bundle.num_nodes(anchor_type), len(labels.targets))
            _check_below(labels.targets, bundle.num_nodes(target_type))
        for name, rows in bundle.training_tables.items():
            assert rows.nodes is not None
            _check_below(rows.nodes, bundle.num_nodes(rows.node_type))
            lengths = {len(rows.nodes), *(len(bundle.row_column(rows, c)) for c in rows.columns)}
            _demand(lengths == {rows.num_rows}, f"training table {name}")
    except (ValueError, OSError) as error:  # by NumPy of a damaged head, by `_demand` of the rest
        raise DataError(
            f"bundle {bundle.path} is damaged: {error}. Remove the folder; the next run builds it "
            "again.",
            id="bundle-damaged",
        ) from error


def check_part_arrays(bundle: Bundle, edge_type: EdgeType, num_targets: int) -> None:
    """Like `check_arrays`, for a part's edges of one type into `num_targets` nodes.

    Raises:
        ValueError, OSError: an array is damaged.
    """
    csc = bundle.csc(edge_type)
    _check_rows(csc.indptr, num_targets, len(csc.indices))
    _check_below(csc.indices, bundle.num_nodes(edge_type[0]))
    _check_columns(bundle, edge_type, len(csc.indices))


def _check_nodes(bundle: Bundle, node_type: str) -> None:
    num_nodes = bundle.num_nodes(node_type)
    _check_columns(bundle, node_type, num_nodes)
    split = bundle.declared_split(node_type)
    _demand(split is None or len(split) == num_nodes, f"the split of {node_type}")
    ids = bundle.ids(node_type)
    ids.validate(full=True)
    _demand(len(ids) == num_nodes, f"the ids of {node_type}")
    slots = bundle.id_map(node_type).slots
    if slots is not None and slots.size:
        is_right = slots.min() >= -1 and slots.max() < num_nodes
        _demand(bool(is_right), f"the look-up of the ids of {node_type}")


def _check_edges(bundle: Bundle, edge_type: EdgeType) -> None:
    csc = bundle.csc(edge_type)
    _demand(len(csc.indices) == bundle.num_edges(edge_type), edge_type_name(edge_type))
    _check_rows(csc.indptr, bundle.num_nodes(edge_type[2]), len(csc.indices))
    _check_below(csc.indices, bundle.num_nodes(edge_type[0]))
    _check_columns(bundle, edge_type, len(csc.indices))


def _check_columns(bundle: Bundle, type_: str | EdgeType, length: int) -> None:
    for name in bundle.columns(type_):
        column = bundle.column(type_, name)
        if isinstance(column, SparseColumn):
            _check_rows(column.indptr, length, len(column.indices))
            _check_below(column.indices, column.dim)
        else:
            _demand(len(column) == length, f"column {name}")


def _check_rows(indptr: np.ndarray, num_rows: int, num_entries: int) -> None:
    is_whole = len(indptr) == num_rows + 1 and indptr[0] == 0 and indptr[-1] == num_entries
    _demand(is_whole and bool((indptr[1:] >= indptr[:-1]).all()), "the ends of rows")


def _check_below(indices: np.ndarray, limit: int) -> None:
    if indices.size:
        unsigned = indices.view(f"u{indices.itemsize}")  # negative indices become large
        _demand(int(unsigned.max()) < limit, f"an index of at least {limit:,}")


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} cannot be what was written")
