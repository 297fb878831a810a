"""R-MAT graphs: skewed degrees at any size, for benchmarks and for tests of hubs.

Source: Chakrabarti et al., R-MAT: A Recursive Model for Graph Mining, SDM 2004.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numba import njit

from raygnn.data.convert.split_option import SPLIT_HELP, declare_split
from raygnn.data.hashing import GOLDEN_GAMMA, splitmix64
from raygnn.data.synthetic.arguments import checked, field
from raygnn.data.synthetic.draws import draw_integers, draw_permutation, stream_key
from raygnn.data.synthetic.node_graphs import class_features
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows
from raygnn.errors import ConfigError

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


_LEAST_SHARE = (
    0.01  # a quadrant without edges could leave none to draw: all loops, or none in range
)


@checked
def rmat(
    num_nodes: Annotated[int, field("the number of nodes", low=2, high=2**31)] = 16384,
    num_edges: Annotated[int, field("the number of directed edges", low=0)] = 262144,
    a: Annotated[float, field("the share of the quadrant low to low", low=_LEAST_SHARE)] = 0.57,
    b: Annotated[float, field("the share of the quadrant low to high", low=_LEAST_SHARE)] = 0.19,
    c: Annotated[float, field("the share of the quadrant high to low", low=_LEAST_SHARE)] = 0.19,
    num_features: Annotated[
        int, field("the length of a feature row; 0 leaves features out", low=0)
    ] = 32,
    num_classes: Annotated[int, field("the number of labels; 0 leaves labels out", low=0)] = 8,
    noise: Annotated[
        float, field("the norm of the features' noise, as a multiple of their signal's", low=0)
    ] = 3.0,
    split: Annotated[str, field(SPLIT_HELP)] = "hash:0.6,0.2,0.2",
    split_seed: Annotated[int | None, field("the seed of the split (default: seed)")] = None,
    seed: Annotated[int, field("the seed")] = 0,
) -> GraphTables:
    """Directed edges with a power law of degrees, parallel ones included, without self-loops.

    Any number of nodes: draws outside it, and self-loops, are drawn again. Node ids are shuffled,
    so that an id says nothing of a degree. Labels are uniform and independent of the edges, and
    features show them as in planted_partition: there is something to learn, but not from neighbors.
    """
    if a + b + c > 1 - _LEAST_SHARE:
        raise ConfigError(
            f"data.synthetic.a={a!r} is invalid: a + b + c must leave {_LEAST_SHARE} or more to "
            f"the fourth quadrant, but is {a + b + c:g}. "
            "Set shares such as a: 0.57, b: 0.19, c: 0.19.",
            id="synthetic-rmat-shares",
        )
    order = draw_permutation(seed, "node order", num_nodes)
    source, target = draw_rmat_edges(num_nodes, num_edges, a, b, c, seed)
    labels = draw_integers(seed, "labels", num_nodes, max(1, num_classes))
    features = {}
    if num_features:
        features["x"] = class_features(labels, max(1, num_classes), num_features, noise, seed)
    nodes = node_rows(np.arange(num_nodes), features, {"y": labels} if num_classes else {})
    split_labels = labels if num_classes else None
    nodes = declare_split(nodes, split, seed if split_seed is None else split_seed, split_labels)
    edges = edge_rows(order[source], order[target])
    return GraphTables({"node": nodes}, {("node", "to", "node"): edges})
