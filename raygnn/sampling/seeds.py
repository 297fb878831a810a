"""Seeds of a batch: checks of seeds and draws, links of the seeds, pairs to exclude."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.time_units import check_time_units
from raygnn.errors import DataError
from raygnn.sampling import pick as kernels
from raygnn.sampling.exclusion import Exclusion
from raygnn.sampling.protocols import GraphStore
from raygnn.sampling.rng import RNG_VERSION, chain_key, text_key
from raygnn.sampling.temporal import LAST, Temporal

if TYPE_CHECKING:
    from raygnn.data.links.supervision import SupervisionEdges


def check_seeds(graph: GraphStore, node_type: str, seeds: np.ndarray) -> np.ndarray:
    """Seeds, integers [num_seeds] that may repeat, as a contiguous int64 array.

    Raises a DataError if the graph has no such node type, or a seed is not one of its nodes.
    """
    return _check_ids(graph, node_type, seeds, f"seeds of node type {node_type!r} are invalid")


def exclusions(
    graph: GraphStore,
    pairs: Mapping[EdgeType, np.ndarray],
    numbers: Mapping[EdgeType, np.ndarray],
    code: Callable[[str, np.ndarray, np.ndarray], np.ndarray] | None,
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
        if code is not None:
            target = code(edge_type[2], target, numbers[edge_type])
        by_type[edge_type] = Exclusion.of(target, source)
    return by_type


def check_draws(
    graph: GraphStore, weight: str | None, temporal: Temporal | None, *, labor: bool
) -> None:
    """Raises a DataError if no type of the graph has the weight or time column."""
    takes_last = temporal is not None and temporal.strategy == LAST
    assert not takes_last or not (weight or labor), "taking the last draws nothing"
    assert not (labor and weight)
    edge_columns = {edge_type_name(t): sorted(graph.columns(t)) for t in graph.edge_types}
    if weight is not None and not any(weight in columns for columns in edge_columns.values()):
        raise DataError(
            f"sampling.weight={weight!r} is invalid: no edge type has such a column; there are "
            f"{edge_columns}. Set one of these. [sampling-weight-column]"
        )
    columns = edge_columns | {t: sorted(graph.columns(t)) for t in graph.node_types}
    if temporal is not None and not any(temporal.column in have for have in columns.values()):
        raise DataError(
            f"sampling.temporal.column={temporal.column!r} is invalid: no type has such a column; "
            f"there are {columns}. Declare times in graph.yaml. [sampling-time-column]"
        )
    if temporal is not None:
        check_time_units(graph, temporal.column)


def _check_ids(graph: GraphStore, node_type: str, seeds: np.ndarray, where: str) -> np.ndarray:
    if node_type not in graph.node_types:
        raise DataError(
            f"{where}: the graph has {list(graph.node_types)}. Use one. [graph-node-type-unknown]"
        )
    if seeds.ndim != 1 or (seeds.dtype.kind not in "iu" and seeds.size):
        raise DataError(
            f"{where}: they are {seeds.dtype} of shape {list(seeds.shape)}. Give a list of dense "
            "ids; for a mask, np.flatnonzero(mask). [sampling-seeds-type]"
        )
    ids = np.ascontiguousarray(seeds, np.int64)
    num_nodes = graph.num_nodes(node_type)
    outside = ids[(ids < 0) | (ids >= num_nodes)]
    if len(outside):
        raise DataError(
            f"{where}: {len(outside)} of {len(ids)} are outside of [0, {num_nodes}), such as "
            f"{outside[:5].tolist()}. Give dense ids. [sampling-seeds-range]"
        )
    return ids


#: Unit of `batch_size` and of the order of an epoch.
SeedKind = Literal["links", "anchors"]


class RowDraws:
    """Draws up to `limit` links per anchor without replacement in each epoch; None takes all."""

    def __init__(self, indptr: np.ndarray, limit: int | None, *key: int) -> None:
        self._indptr = indptr
        self._fanout = kernels.ALL if limit is None else limit
        self._key = (RNG_VERSION, *key)

    def draw(self, rows: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The links of some anchors; each anchor's are a pure function of the epoch.

        Args:
            rows: int64 [num_rows], positions of anchors in the supervision edges.
        Returns:
            int64 positions of links, anchor by anchor, and int64 [num_rows + 1], start of each
            anchor's.
        """
        starts, degrees = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        offsets = np.empty(len(rows) + 1, np.int64)
        kernels.find_rows(self._indptr, rows, starts, degrees)
        kernels.count_taken(degrees, self._fanout, offsets)
        links = np.empty(offsets[-1], np.int64)
        table = np.zeros(kernels.membership_table(self._fanout), np.int64)
        draws = (self._fanout, np.uint64(chain_key(*self._key, epoch)))
        kernels.pick_positions(
            (rows, kernels.NO_SALTS, starts, degrees, offsets), draws, table, links
        )
        return links, offsets


class LinkSeeds:
    """The seeds of an epoch: links, or anchors with at most `limit` of their links.

    An epoch's links of an anchor are drawn anew, but their number is constant, so the seeds of all
    epochs can be numbered.
    """

    def __init__(
        self, edges: SupervisionEdges, kind: SeedKind, limit: int | None, seed: int, split: str
    ) -> None:
        self._is_anchor = kind == "anchors"
        self._draws = RowDraws(edges.indptr, limit, seed, text_key(split), text_key("labels"))
        self._ptr = edges.indptr
        if limit is not None:
            num_links = np.minimum(np.diff(edges.indptr), limit)
            self._ptr = np.concatenate([[0], np.cumsum(num_links)])
        self._has_limit = limit is not None
        self.num_seeds = edges.num_anchors if self._is_anchor else int(self._ptr[-1])

    def links(self, places: np.ndarray, epoch: int) -> np.ndarray:
        """int64, positions of the links of the seeds at `places`."""
        if self._is_anchor:
            return self._draws.draw(places, epoch)[0]
        if not self._has_limit:
            return places
        rows = np.searchsorted(self._ptr, places, side="right") - 1
        distinct, which = np.unique(rows, return_inverse=True)
        links, offsets = self._draws.draw(distinct, epoch)
        return links[offsets[which] + places - self._ptr[rows]]


def edges_of_links(
    edge_type: EdgeType,
    reverse_types: Mapping[EdgeType, EdgeType],
    anchor_type: str,
    target_type: str,
    pairs: np.ndarray,
) -> dict[EdgeType, np.ndarray]:
    """Message edges that repeat links, as (source, destination) pairs by edge type.

    These are edges of the type and of its reverse types, and of both directions between nodes of
    one type, because both mean that the two are linked.

    Args:
        reverse_types: edge types and their reverses; one direction of each is enough.
        pairs: int64 [2, num_links], (anchor, target) dense ids.
    """
    repeated = [edge_type]
    repeated += (b for a, b in reverse_types.items() if a == edge_type)
    repeated += (a for a, b in reverse_types.items() if b == edge_type)
    edges = {}
    for source, relation, target in dict.fromkeys(repeated):  # not of a set: its order is random
        ways = []
        if (source, target) == (anchor_type, target_type):
            ways.append(pairs)
        if (source, target) == (target_type, anchor_type):
            ways.append(pairs[::-1])
        if ways:
            edges[source, relation, target] = np.concatenate(ways, axis=1)
    return edges
