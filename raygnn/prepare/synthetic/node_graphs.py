"""Graphs for node classification and regression with a known best score, and R-MAT graphs."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pyarrow as pa
from numba import njit

from raygnn.data.hashing import GOLDEN_GAMMA, splitmix64
from raygnn.data.tables.clean_up import with_hash_split
from raygnn.data.tables.graph_tables import GraphTables, NodeRows, edge_rows, node_rows
from raygnn.errors import ConfigError
from raygnn.prepare.synthetic.draws import (
    checked,
    draw_integers,
    draw_normal,
    draw_permutation,
    draw_uniform,
    field,
    stream_key,
)


@checked
def planted_partition(
    num_nodes: Annotated[int, field("the number of nodes", low=2)] = 5000,
    num_classes: Annotated[int, field("the number of communities, the labels", low=2)] = 8,
    rare: Annotated[
        float | None,
        field("the share of nodes in the last community (default: as others)", low=0, high=0.5),
    ] = None,
    avg_degree: Annotated[float, field("the mean number of neighbors of a node", low=0)] = 12.0,
    homophily: Annotated[
        float, field("the share of edges that stay within a community", low=0, high=1)
    ] = 0.6,
    num_features: Annotated[int, field("the length of a feature row", low=1)] = 32,
    noise: Annotated[
        float, field("the norm of the features' noise, as a multiple of their signal's", low=0)
    ] = 3.0,
    seed: Annotated[int, field("the seed")] = 0,
) -> GraphTables:
    """Equal communities, undirected edges mostly within them, features around their centers.

    Each edge's first end is uniform; the other is, with probability `homophily`, uniform in the
    same community and otherwise uniform among the others. A feature row is its community's center,
    a random unit vector, plus Gaussian noise of expected norm `noise`. With `rare` the last
    community has that share of the nodes, and the others are equal. Loops and repeated edges
    are dropped, so that the mean degree comes out slightly lower in small dense graphs.
    """
    num_classes = min(num_classes, num_nodes)
    order = draw_permutation(seed, "labels", num_nodes)
    labels = order % num_classes
    if rare is not None:
        labels = np.where(order < rare * num_nodes, num_classes - 1, order % (num_classes - 1))
    source, target = _draw_edges(labels, num_classes, avg_degree, homophily, seed)
    features = class_features(labels, num_classes, num_features, noise, seed)
    nodes = node_rows(np.arange(num_nodes), {"x": features}, {"y": labels})
    nodes = with_hash_split(nodes, seed, 0.6, 0.2, 0.2)
    return GraphTables({"node": nodes}, {("node", "to", "node"): edge_rows(source, target)})


def class_features(
    labels: np.ndarray, num_classes: int, num_features: int, noise: float, seed: int
) -> np.ndarray:
    """float32 [n, num_features]: the unit center of each row's class plus noise of that norm."""
    centers = draw_normal(seed, "centers", (num_classes, num_features))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    features = draw_normal(seed, "features", (len(labels), num_features))
    features *= np.float32(noise / np.sqrt(num_features))
    features += centers[labels]
    return features


def _draw_edges(
    labels: np.ndarray, num_classes: int, avg_degree: float, homophily: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    num_nodes = len(labels)
    num_draws = round(num_nodes * avg_degree / 2)
    by_class = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels, minlength=num_classes)
    starts = np.cumsum(sizes) - sizes

    first = draw_integers(seed, "first ends", num_draws, num_nodes)
    own_class = labels[first]
    inside = draw_uniform(seed, "inside", num_draws) < homophily
    # positions in by_class: the own community's block, or all that follows it, wrapped around
    choices = np.where(inside, sizes[own_class], num_nodes - sizes[own_class])
    offset = draw_integers(seed, "second ends", num_draws, choices)
    offset[~inside] += sizes[own_class][~inside]
    second = by_class[(starts[own_class] + offset) % num_nodes]

    low, high = np.minimum(first, second), np.maximum(first, second)
    pairs = np.unique((low * num_nodes + high)[low != high])
    low, high = pairs // num_nodes, pairs % num_nodes
    both = np.sort(np.concatenate([pairs, high * num_nodes + low]))
    return both // num_nodes, both % num_nodes


_MEAN_PRICE = 250_000.0
_SIZE_M2 = (120.0, 40.0)  # mean and standard deviation
_PRICE_PER_M2 = 2000.0
_PRICE_PER_M2_AROUND = 3500.0  # per square meter of the neighbors' mean size


@checked
def houses(
    num_houses: Annotated[int, field("the number of houses", low=3)] = 3000,
    num_streets: Annotated[
        int, field("the number of streets; a house has two neighbors in each", low=1)
    ] = 3,
    noise: Annotated[float, field("the standard deviation of the prices' noise", low=0)] = 10_000.0,
    seed: Annotated[int, field("the seed")] = 0,
) -> GraphTables:
    """Node type house with size and year, edge type (house, near, house), regression target price.

    Prices lie around 250,000. They follow the house's own size and the mean size of its neighbors,
    plus noise; the year says nothing. With the defaults a linear fit of the own size reaches an R2
    of 0.65, one of both sizes 0.99.
    """
    size = _SIZE_M2[0] + _SIZE_M2[1] * draw_normal(seed, "sizes", (num_houses,)).astype(float)
    year = 1900 + draw_integers(seed, "years", num_houses, 120)
    source, target = _draw_streets(num_houses, num_streets, seed)
    size_around = np.bincount(target, size[source]) / (2 * num_streets)
    price = (
        _MEAN_PRICE
        + _PRICE_PER_M2 * (size - _SIZE_M2[0])
        + _PRICE_PER_M2_AROUND * (size_around - _SIZE_M2[0])
        + noise * draw_normal(seed, "noise", (num_houses,))
    )
    table = pa.table({"id": np.arange(num_houses), "size": size, "year": year, "price": price})
    nodes = NodeRows(table, "id", {"x": ["size", "year"]}, {"price": "price"})
    nodes = with_hash_split(nodes, seed, 0.6, 0.2, 0.2)
    return GraphTables({"house": nodes}, {("house", "near", "house"): edge_rows(source, target)})


def _draw_streets(num_houses: int, num_streets: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    walks = [draw_permutation(seed, f"street {i}", num_houses) for i in range(num_streets)]
    first = np.concatenate(walks)
    second = np.concatenate([np.roll(walk, -1) for walk in walks])
    return np.concatenate([first, second]), np.concatenate([second, first])


_LEVEL_BITS = 16  # shares are taken to the nearest 2^-16


def draw_rmat_edges(
    num_nodes: int, num_edges: int, a: float, b: float, c: float, seed: int, first_edge: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """int64 [num_edges] sources and targets, hubs first: edge i is a pure function of (seed, i).

    `first_edge`: start, to draw a large graph in pieces.
    """
    num_levels = max(1, int(num_nodes - 1).bit_length())
    unit = 1 << _LEVEL_BITS
    bounds = np.array(
        [round(a * unit), round((a + b) * unit), round((a + b + c) * unit)], np.uint64
    )
    key = np.uint64(stream_key(seed, "rmat edges"))
    return _draw_rmat_edges(num_nodes, first_edge, num_edges, num_levels, bounds, key)


@njit(nogil=True, cache=True)
def _draw_rmat_edges(num_nodes, first_edge, num_edges, num_levels, bounds, key):  # type: ignore[no-untyped-def]
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
    seed: Annotated[int, field("the seed")] = 0,
) -> GraphTables:
    """Directed edges with a power law of degrees, parallel ones included, without self-loops.

    Any number of nodes: draws outside it, and self-loops, are drawn again. Node ids are shuffled,
    so that an id says nothing of a degree. Labels are uniform and independent of the edges, and
    features show them as in planted_partition: there is something to learn, but not from neighbors.
    """
    if a + b + c > 1 - _LEAST_SHARE:
        raise ConfigError(
            f"data.synthetic.a={a!r} is invalid: a + b + c must leave {_LEAST_SHARE} or more, but "
            f"is {a + b + c:g}. Set them as a: 0.57, b: 0.19, c: 0.19. [synthetic-rmat-shares]"
        )
    order = draw_permutation(seed, "node order", num_nodes)
    source, target = draw_rmat_edges(num_nodes, num_edges, a, b, c, seed)
    labels = draw_integers(seed, "labels", num_nodes, max(1, num_classes))
    features = {}
    if num_features:
        features["x"] = class_features(labels, max(1, num_classes), num_features, noise, seed)
    nodes = node_rows(np.arange(num_nodes), features, {"y": labels} if num_classes else {})
    nodes = with_hash_split(nodes, seed, 0.6, 0.2, 0.2)
    edges = edge_rows(order[source], order[target])
    return GraphTables({"node": nodes}, {("node", "to", "node"): edges})
