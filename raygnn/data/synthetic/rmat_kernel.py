"""The R-MAT draws, compiled: 16 random bits a level, four levels a hash."""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.data.hashing import GOLDEN_GAMMA, splitmix64
from raygnn.data.synthetic.draws import stream_key

_LEVEL_BITS = 16  # shares are taken to the nearest 2^-16


def draw_rmat_edges(
    num_nodes: int, num_edges: int, a: float, b: float, c: float, seed: int, first_edge: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """int64 [num_edges] sources and targets, hubs first: edge i is a pure function of (seed, i).

    Args:
        first_edge: where to begin, so that a large graph can be drawn piece by piece.
    """
    num_levels = max(1, int(num_nodes - 1).bit_length())
    unit = 1 << _LEVEL_BITS
    bounds = np.array(
        [round(a * unit), round((a + b) * unit), round((a + b + c) * unit)], np.uint64
    )
    key = np.uint64(stream_key(seed, "rmat edges"))
    return _draw_edges(num_nodes, first_edge, num_edges, num_levels, bounds, key)


@njit(nogil=True, cache=True)
def _draw_edges(num_nodes, first_edge, num_edges, num_levels, bounds, key):  # type: ignore[no-untyped-def]
    source = np.empty(num_edges, np.int64)
    target = np.empty(num_edges, np.int64)
    low, middle, high = bounds[0], bounds[1], bounds[2]
    level_mask = np.uint64(0xFFFF)
    for edge in range(num_edges):
        edge_key = splitmix64(key ^ np.uint64(first_edge + edge))
        draw = np.uint64(0)
        row = column = 0
        while row == column or row >= num_nodes or column >= num_nodes:
            row = column = 0
            bits = np.uint64(0)
            for level in range(num_levels):
                if level & 3 == 0:
                    bits = splitmix64(edge_key + draw * GOLDEN_GAMMA)
                    draw += np.uint64(1)
                quadrant = bits & level_mask
                bits >>= np.uint64(16)
                # sums of comparisons instead of branches: the quadrants are not predictable
                is_high_row = int(quadrant >= middle)
                is_high_column = int(quadrant >= low) - is_high_row + int(quadrant >= high)
                row = row * 2 + is_high_row
                column = column * 2 + is_high_column
        source[edge] = row
        target[edge] = column
    return source, target
