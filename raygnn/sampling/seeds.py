"""Checks of sampler arguments: seeds, excluded pairs, draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.time_units import check_time_units
from raygnn.errors import DataError
from raygnn.sampling.exclusion import Exclusion
from raygnn.sampling.protocols import GraphStore, ends
from raygnn.sampling.temporal import LAST, Temporal


def check_seeds(graph: GraphStore, node_type: str, seeds: np.ndarray) -> np.ndarray:
    """Seeds, integers [num_seeds] that may repeat, as a contiguous int64 array.

    Raises a DataError if the graph has no such node type, or a seed is not one of its nodes.
    """
    return _check_ids(graph, node_type, seeds, f"seeds of node type {node_type!r} are invalid")


def exclusions(
    graph: GraphStore,
    pairs: Mapping[EdgeType, np.ndarray],
    numbers: Mapping[EdgeType, np.ndarray] = MappingProxyType({}),
    code: Callable[[str, np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> dict[EdgeType, Exclusion]:
    """Excluded pairs by the node that would sample the edge.

    Args:
        pairs: by edge type, integers [2, num_pairs], (source, destination) dense ids.
        numbers: by edge type, int64 [num_pairs], number of the neighborhood that excludes each
            pair.
        code: with numbers, codes of nodes in neighborhoods; see `DisjointIds`.
    Raises:
        DataError: an end is not a node of the graph.
    """
    by_type = {}
    for edge_type, both in pairs.items():
        where = f"excluded pairs of {edge_type_name(edge_type)} are invalid"
        assert edge_type in graph.edge_types
        source = _check_ids(graph, edge_type[0], both[0], where)
        target = _check_ids(graph, edge_type[2], both[1], where)
        destination, neighbor = (target, source) if graph.direction == "in" else (source, target)
        if code is not None:
            destination_type = ends(edge_type, graph.direction)[1]
            destination = code(destination_type, destination, numbers[edge_type])
        by_type[edge_type] = Exclusion.of(destination, neighbor)
    return by_type


def check_draws(
    graph: GraphStore,
    replace: bool,
    weight: str | None,
    temporal: Temporal | None,
    *,
    labor: bool,
) -> None:
    """Raises a DataError if no type of the graph has the weight or time column."""
    takes_last = temporal is not None and temporal.strategy == LAST
    assert not takes_last or not (weight or replace or labor), "taking the last draws nothing"
    assert not (labor and replace)
    edge_columns = {edge_type_name(t): sorted(graph.columns(t)) for t in graph.edge_types}
    if weight is not None and not any(weight in columns for columns in edge_columns.values()):
        raise DataError(
            f"sampling.weight={weight!r} is invalid: no edge type has such a column; there are "
            f"{edge_columns}. Set one of these.",
            id="sampling-weight-column",
        )
    columns = edge_columns | {t: sorted(graph.columns(t)) for t in graph.node_types}
    if temporal is not None and not any(temporal.column in have for have in columns.values()):
        raise DataError(
            f"sampling.temporal.column={temporal.column!r} is invalid: no edge or node type has "
            f"such a column; there are {columns}. Declare times in graph.yaml.",
            id="sampling-time-column",
        )
    if temporal is not None:
        check_time_units(graph, temporal.column)


def _check_ids(graph: GraphStore, node_type: str, seeds: np.ndarray, where: str) -> np.ndarray:
    if node_type not in graph.node_types:
        raise DataError(
            f"{where}: the graph has {list(graph.node_types)}. Use one of these.",
            id="graph-node-type-unknown",
        )
    if seeds.ndim != 1 or (seeds.dtype.kind not in "iu" and seeds.size):
        raise DataError(
            f"{where}: they are {seeds.dtype} of shape {list(seeds.shape)}. Give a list of dense "
            "ids; for a mask, np.flatnonzero(mask).",
            id="sampling-seeds-type",
        )
    ids = np.ascontiguousarray(seeds, np.int64)
    num_nodes = graph.num_nodes(node_type)
    outside = ids[(ids < 0) | (ids >= num_nodes)]
    if len(outside):
        raise DataError(
            f"{where}: {len(outside)} of {len(ids)} are outside of [0, {num_nodes}), such as "
            f"{outside[:5].tolist()}. Give dense ids.",
            id="sampling-seeds-range",
        )
    return ids
