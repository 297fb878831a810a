"""Links that a recommender knows: edges between both ends, or rows that refer to both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Literal

import numpy as np
from scipy import sparse

from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType
from raygnn.data.time_units import Time
from raygnn.sampling.protocols import GraphStore

_Side = Literal["left", "right"]
_Edges = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # both ends, and when they are known


@dataclass(frozen=True)
class LinkHistory:
    """Links from anchors to targets, and the times from which they are known.

    Attributes:
        num_nodes: of anchors and of targets.
        anchors, targets: int64 [num_links], dense ids.
        times: [num_links], or None if links have no times.
        window: maximum age of links that count; None counts all.
        now: moment at which links have an age. Default: of the last link.
        num_later: float64 [num_links], later links of the same anchor, if their order may count.
    """

    num_nodes: tuple[int, int]
    anchors: np.ndarray
    targets: np.ndarray
    times: np.ndarray | None
    window: Time | None = None
    now: Time | None = None
    num_later: np.ndarray | None = None

    @classmethod
    def of_bundle(
        cls, bundle: Bundle, ends: tuple[str, str], column: str, window: Time | None = None
    ) -> LinkHistory | None:
        """Reads the message edges with times between two node types, in either direction, and the
        nodes of a third type, such as purchases, that have edges to one anchor and to targets.
        Pairs repeat.

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

    @classmethod
    def of_edges(cls, graph: GraphStore, bundle: Bundle, edge_type: EdgeType) -> LinkHistory:
        """Reads the edges of a type between two node types. A pair counts once, the last time."""
        edges, times, num_later = graph.adjacency(edge_type), None, None
        neighbors = np.asarray(edges.indices[:])
        nodes = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
        is_by_anchor = edge_type[2] == edge_type[0]
        anchors, targets = (nodes, neighbors) if is_by_anchor else (neighbors, nodes)
        if "time" in bundle.columns(edge_type):
            times = np.asarray(bundle.column(edge_type, "time"))
            times = times if edges.e_id is None else times[np.asarray(edges.e_id[:])]
            num_later = count_later(anchors, times)
        keys = (targets, anchors) if num_later is None else (num_later, targets, anchors)
        order = np.lexsort(keys)
        anchors, targets = anchors[order], targets[order]
        is_first = np.diff(anchors, prepend=-1).astype(bool) | np.diff(targets, prepend=-1).astype(
            bool
        )
        chosen = order[is_first]
        return cls(
            (graph.num_nodes(edge_type[0]), graph.num_nodes(edge_type[2])),
            anchors[is_first].astype(np.int64),
            targets[is_first].astype(np.int64),
            None if times is None else times[chosen],
            num_later=None if num_later is None else num_later[chosen],
        )

    def as_of(self, time: Time) -> LinkHistory:
        """The links that are known at a time, which they are seen from."""
        assert self.times is not None
        first = -np.inf if self.window is None else time - self.window
        is_known = (first <= self.times) & (self.times <= time)
        anchors, targets, times = (
            part[is_known] for part in (self.anchors, self.targets, self.times)
        )
        return replace(self, anchors=anchors, targets=targets, times=times, now=time)

    def known_to(
        self, anchors: np.ndarray, times: np.ndarray, half_life: float = 0.0
    ) -> sparse.csr_matrix:
        """Rows of `matrix` of (anchor, time) as of their times, float32 [num_rows, num_targets]."""
        starts, stops = self._range_of(anchors, times)
        bounds = np.append(0, np.cumsum(stops - starts))
        chosen = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], stops - starts)
        _, _, known, targets = self._by_anchor
        weights = np.ones(len(chosen), np.float32)
        if half_life:
            ages = np.repeat(times, stops - starts) - known[chosen]
            weights = (0.5 ** (ages / half_life)).astype(np.float32)
        shape = len(anchors), self.num_nodes[1]
        links = sparse.csr_matrix((weights, targets[chosen], bounds), shape)
        links.sum_duplicates()
        return links

    def num_known_to(self, anchors: np.ndarray, times: np.ndarray) -> np.ndarray:
        """int64 [num_rows], number of links that rows of (anchor, time) know."""
        starts, stops = self._range_of(anchors, times)
        return stops - starts

    @property
    def reversed(self) -> LinkHistory:
        """The links from targets to anchors."""
        num_anchors, num_targets = self.num_nodes
        num_nodes = num_targets, num_anchors
        return replace(self, num_nodes=num_nodes, anchors=self.targets, targets=self.anchors)

    def _range_of(self, anchors: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Range of the links of rows of (anchor, time) in `_by_anchor`."""
        moments, keys, *_ = self._by_anchor
        first = np.zeros(len(anchors), np.int64)
        if self.window is not None:
            first = np.searchsorted(moments, times - self.window)
        last = np.searchsorted(moments, times, side="right")
        starts, stops = (
            np.searchsorted(keys, anchors * (len(moments) + 1) + number) for number in (first, last)
        )
        return starts, stops

    @cached_property
    def _by_anchor(self) -> tuple[np.ndarray, ...]:
        """Distinct times; of all links by anchor and time, a key of both, time and target."""
        assert self.times is not None
        moments, number = np.unique(self.times, return_inverse=True)
        keys = self.anchors * (len(moments) + 1) + number
        order = np.argsort(keys)
        return moments, keys[order], self.times[order], self.targets[order]

    def popularity_at(self, times: np.ndarray, half_life: float = 0.0) -> np.ndarray:
        """float64 [num_times, num_targets], `popularity` as of ascending times."""
        known, targets = self._by_time
        num_targets, num_cells = self.num_nodes[1], len(times) * self.num_nodes[1]
        # Relative to the last time: ages at the other ones differ by the same for all targets.
        ages = times[-1] - np.minimum(known, times[-1])
        weights = 0.5 ** (ages / half_life) if half_life else np.ones(len(ages))

        def until(ends: np.ndarray, side: _Side, other: _Side) -> np.ndarray:
            """Numbers of links, and sums of their weights, until the end of each row."""
            first, last = np.searchsorted(known, ends[[0, -1]], side)
            cells = targets[:last].copy()
            cells[first:] += num_targets * np.searchsorted(ends, known[first:last], other)
            found = [np.bincount(cells, each, num_cells) for each in (None, weights[:last])]
            return np.stack(found).reshape(2, -1, num_targets).cumsum(axis=1)

        counts, sums = until(times, "right", "left")
        if self.window is not None:
            old_counts, old_sums = until(times - self.window, "left", "right")
            sums = np.where(counts > old_counts, sums - old_sums, 0)
        most = sums.max(axis=1, initial=0, keepdims=True)
        return sums / np.maximum(most, np.finfo(float).tiny)

    @cached_property
    def _by_time(self) -> tuple[np.ndarray, np.ndarray]:
        """Times and targets of all links, in the order of times."""
        assert self.times is not None
        order = np.argsort(self.times)
        return self.times[order], self.targets[order]

    @property
    def span(self) -> float:
        """Time from the first link until now; 0 if links have no times."""
        if self.times is None or not len(self.times):
            return 0.0
        return float(self._now - self.times.min())

    @property
    def _now(self) -> Time:
        assert self.times is not None
        return self.times.max() if self.now is None else self.now

    def weights(self, half_life: float = 0.0) -> np.ndarray:
        """float64 [num_links]: 1, or 2^(-age / half_life) if it is not 0."""
        if not half_life or self.times is None or not len(self.times):
            return np.ones(len(self.anchors))
        return 0.5 ** ((self._now - self.times) / half_life)

    def matrix(self, half_life: float = 0.0) -> sparse.csr_matrix:
        """[num_anchors, num_targets], sums of the links' weights."""
        ends = self.anchors, self.targets
        return sparse.csr_matrix((self.weights(half_life), ends), self.num_nodes)

    def popularity(self, half_life: float = 0.0) -> np.ndarray:
        """float64 [num_targets], sums of the links' weights; the largest is 1."""
        counts = np.bincount(self.targets, self.weights(half_life), self.num_nodes[1])
        return counts / max(counts.max(initial=0), 1e-12)


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
