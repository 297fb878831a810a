"""Links with times from anchors to targets: edges between both, or rows that refer to both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
from scipy import sparse

from raygnn.data.bundle import Bundle
from raygnn.data.time_units import Time

_Edges = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # both ends, and when they are known


@dataclass(frozen=True)
class DatedLinks:
    """Links that are known from a time on. Pairs repeat.

    Attributes:
        num_nodes: of anchors and of targets.
        anchors, targets: int64 [num_links], dense ids.
        window: maximum age of links that count; None counts all.
    """

    num_nodes: tuple[int, int]
    anchors: np.ndarray
    targets: np.ndarray
    times: np.ndarray
    window: Time | None = None

    @classmethod
    def of(
        cls, bundle: Bundle, ends: tuple[str, str], column: str, window: Time | None = None
    ) -> DatedLinks | None:
        """Reads the message edges with times between two node types, in either direction, and the
        nodes of a third type, such as purchases, that have edges to one anchor and to targets.

        `column`: time column of nodes and edges. Returns None if there are none.
        """
        links = [*_pairs(bundle, ends, column), *_pairs_through_nodes(bundle, ends, column)]
        dated = [
            (anchors, targets, times) for anchors, targets, times in links if times is not None
        ]
        if not dated:
            return None
        anchors, targets, times = (np.concatenate(part) for part in zip(*dated, strict=True))
        num_nodes = bundle.num_nodes(ends[0]), bundle.num_nodes(ends[1])
        return cls(num_nodes, anchors.astype(np.int64), targets.astype(np.int64), times, window)

    def span(self, time: Time) -> float:
        """Time from the first link that counts at `time` until `time`."""
        return float(time - self.times[self._is_known(time)].min(initial=time))

    def as_of(self, time: Time, half_life: float = 0.0) -> sparse.csr_matrix:
        """[num_anchors, num_targets], links known at a time: their number, or the sum of
        2^(-age / half_life) if it is not 0.
        """
        is_known = self._is_known(time)
        weights = np.ones(int(is_known.sum()))
        if half_life:
            weights = 0.5 ** ((time - self.times[is_known]) / half_life)
        ends = self.anchors[is_known], self.targets[is_known]
        return sparse.csr_matrix((weights, ends), self.num_nodes)

    def _is_known(self, time: Time) -> np.ndarray:
        first = -np.inf if self.window is None else time - self.window
        return (first <= self.times) & (self.times <= time)


def count_later(anchors: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Number of links of the same anchor that are later than each link, float64 [num_links]."""
    order = np.lexsort((times, anchors))
    anchors, times = anchors[order], times[order]
    starts_moment = np.ones(len(order), bool)
    starts_moment[1:] = (anchors[1:] != anchors[:-1]) | (times[1:] != times[:-1])
    ends = np.append(np.flatnonzero(starts_moment)[1:], len(order))
    num_later = np.empty(len(order))
    num_later[order] = (
        np.searchsorted(anchors, anchors, side="right") - ends[np.cumsum(starts_moment) - 1]
    )
    return num_later


def _pairs(bundle: Bundle, ends: tuple[str, str], column: str) -> Iterator[_Edges]:
    """Edges of each type between two node types. An edge type and its reverse count once."""
    seen = set()
    for edge_type in bundle.edge_types:
        source, _, target = edge_type
        if {source, target} != set(ends) or bundle.reverse_of(edge_type) in seen:
            continue
        seen.add(edge_type)
        csc = bundle.csc(edge_type)
        targets = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
        sources = np.asarray(csc.indices[:])
        times = _latest(
            _times(bundle, edge_type, column),
            _times(bundle, source, column, sources),
            _times(bundle, target, column, targets),
        )
        yield (sources, targets, times) if source == ends[0] else (targets, sources, times)


def _pairs_through_nodes(bundle: Bundle, ends: tuple[str, str], column: str) -> Iterator[_Edges]:
    anchor, target = ends
    for middle in bundle.node_types if anchor != target else ():
        to_targets = [] if middle in ends else list(_pairs(bundle, (middle, target), column))
        if not to_targets:
            continue
        for nodes, anchors, times in _pairs(bundle, (middle, anchor), column):
            edge_of = np.full(bundle.num_nodes(middle), -1)
            edge_of[nodes] = np.arange(len(nodes))
            if np.count_nonzero(edge_of >= 0) < len(nodes):
                continue  # a node with several anchors, such as a category, is not an event
            for others, targets, other_times in to_targets:
                edges = edge_of[others]
                has = edges >= 0
                of_anchor = None if times is None else times[edges[has]]
                of_target = None if other_times is None else other_times[has]
                yield anchors[edges[has]], targets[has], _latest(of_anchor, of_target)


def _times(
    bundle: Bundle, type_: str | tuple[str, str, str], column: str, rows: np.ndarray | None = None
) -> np.ndarray | None:
    if column not in bundle.columns(type_):
        return None
    times = np.asarray(bundle.column(type_, column))
    return times if rows is None else times[rows]


def _latest(*times: np.ndarray | None) -> np.ndarray | None:
    present = [values for values in times if values is not None]
    return reduce(np.maximum, present) if present else None
