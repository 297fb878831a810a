"""Weighted choice among the edges of a node in constant time, after one pass over all edges."""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import DataError

#: Stands for the other edge where all of a node's are of weight 0.
NO_EDGE = -(1 << 31)

_HALF = np.int64(1) << np.int64(32)


def edge_weights(column: object, edge_type: EdgeType, name: str) -> np.ndarray:
    """Checks a weight column, [num_edges].

    Raises:
        DataError: it is not a column of single numbers, or one is negative or not finite.
    """
    where = f"column {name!r} of {edge_type_name(edge_type)} cannot weight edges"
    if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "iuf":
        raise DataError(
            f"{where}: it does not have one number per edge. Name one that has in sampling.weight.",
            id="sampling-weight-width",
        )
    if column.dtype.kind == "f":
        bad = np.flatnonzero(~((column >= 0) & np.isfinite(column)))
    else:
        bad = np.flatnonzero(column < 0)
    if len(bad):
        raise DataError(
            f"{where}: {len(bad)} of {len(column)} values are negative or not finite, such as "
            f"{column[bad[:5]].tolist()} at edges {bad[:5].tolist()}. Give numbers of at least 0.",
            id="sampling-weight-values",
        )
    return column.astype(np.float32) if column.dtype == np.float16 else column


def fill_alias(
    indptr: np.ndarray, e_id: np.ndarray | None, weights: np.ndarray, table: np.ndarray
) -> None:
    """Fills an alias table for each node's edges.

    Args:
        indptr: int64 [num_nodes + 1], start of each node's edges.
        e_id: position of each edge's weight; None for the same order.
        weights: [num_edges], checked.
        table: int64 [num_edges]. High half: distance to the alias edge, or `NO_EDGE`. Low half: how
            often, of 2^32 times, the edge itself is kept.

    Source: Vose, A Linear Algorithm for Generating Random Numbers with a Given Distribution, 1991.
    """
    longest = int(np.diff(indptr).max(initial=0))
    order = np.empty(0, np.int32) if e_id is None else e_id
    _build(
        indptr, order, weights, table, np.empty(longest, np.float64), np.empty(longest, np.int64)
    )


@njit(nogil=True, cache=True)
def _build(indptr, e_id, weights, table, share, stack):  # type: ignore[no-untyped-def]
    is_ordered = len(e_id) == 0
    for node in range(len(indptr) - 1):
        start, degree = indptr[node], indptr[node + 1] - indptr[node]
        total = 0.0
        for i in range(degree):
            edge = start + i if is_ordered else e_id[start + i]
            share[i] = weights[edge]
            total += share[i]
        if total == 0.0:
            table[start : start + degree] = NO_EDGE * _HALF
            continue
        # Edges below the mean grow from the left of the stack, the others from its right.
        num_small, first_large = 0, degree
        heaviest = 0
        for i in range(degree):
            if share[i] > share[heaviest]:
                heaviest = i
        for i in range(degree):
            share[i] *= degree / total
            if share[i] < 1.0:
                stack[num_small] = i
                num_small += 1
            else:
                first_large -= 1
                stack[first_large] = i
        while num_small > 0 and first_large < degree:
            num_small -= 1
            small, large = stack[num_small], stack[first_large]
            kept = min(np.int64(share[small] * _HALF), _HALF - 1)
            table[start + small] = (large - small) * _HALF + kept
            share[large] -= 1.0 - share[small]
            if share[large] < 1.0:
                first_large += 1
                stack[num_small] = large
                num_small += 1
        # Left over are shares of 1, but for rounding: an edge of weight 0 gives its own away.
        for j in range(num_small):
            edge = stack[j]
            own = start + edge if is_ordered else e_id[start + edge]
            other = edge if weights[own] > 0 else heaviest
            table[start + edge] = (other - edge) * _HALF
        for j in range(first_large, degree):
            table[start + stack[j]] = 0
