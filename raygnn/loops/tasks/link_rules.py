"""Shared rules of tasks whose seeds are links or edges."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from raygnn.config import Config
from raygnn.config.data_section import HashSplit, TemporalSplit
from raygnn.config.section import Rule
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import REVERSE_PREFIX, EdgeType
from raygnn.errors import ConfigError
from raygnn.sampling.protocols import GraphStore, PickRequest

#: Sampling with which edges cannot be excluded from their own messages.
# fmt: off
SAMPLER_RULES = (
    Rule("sampling-links-sampler", "sampling.type",
         lambda config: config.sampling.is_full,
         "links are kept out of their own messages by a sampler only", "Remove it"),
    Rule("sampling-ppr-links", "sampling.ppr", lambda config: True,
         "walks go along the edges that are to be predicted", "Remove it"),
)
# fmt: on


def split_rule(config: Config) -> HashSplit | TemporalSplit | None:
    """`data.splits` for links and edges. Raises a ConfigError for a rule of nodes."""
    rule = config.data.splits
    if rule is not None and rule.type == "per_class":
        raise ConfigError(
            "data.splits.type='per_class' is invalid: links have no classes. Set hash or temporal, "
            "or declare a split column of the edges. [split-links-per-class]"
        )
    return rule


def forward_types(bundle: Bundle, available: Sequence[EdgeType]) -> list[EdgeType]:
    """The edge types without reverses of others."""
    forward: list[EdgeType] = []
    for edge_type in available:
        reverse = bundle.reverse_of(edge_type) if edge_type in bundle.edge_types else None
        is_named_so = reverse != edge_type and edge_type[1].startswith(REVERSE_PREFIX)
        is_reverse = reverse in available and is_named_so
        if reverse == edge_type or (reverse not in forward and not is_reverse):
            forward.append(edge_type)
    return forward


def with_reverses(bundle: Bundle, edge_types: Sequence[EdgeType]) -> list[EdgeType]:
    types: dict[EdgeType, None] = {}
    for edge_type in edge_types:
        if edge_type in bundle.edge_types:
            types |= dict.fromkeys([edge_type, bundle.reverse_of(edge_type) or edge_type])
    return list(types)


def reverse_types(bundle: Bundle) -> dict[EdgeType, EdgeType]:
    reverses = {edge_type: bundle.reverse_of(edge_type) for edge_type in bundle.edge_types}
    return {edge_type: other for edge_type, other in reverses.items() if other is not None}


#: Links that are looked up, of ends with not too many edges of a type. They are revealed if a path
#: connects this share of them, and not so many pairs of other links' ends.
_NUM_LOOKED_UP, _MOST_EDGES, _REVEALED, _BY_CHANCE = 1_000, 10_000, 0.9, 0.5

_Ends = tuple[str, np.ndarray]
#: Numbers of links, and nodes that one of their ends reaches.
_Reached = tuple[np.ndarray, np.ndarray]


def revealing_paths(
    graph: GraphStore, linked: Collection[EdgeType], anchors: _Ends, targets: _Ends
) -> list[tuple[EdgeType, ...]]:
    """Edge types in either direction, and paths of two over events, that connect most of some
    links, so messages reveal them.

    An event is a node of a third type with an edge to or from one anchor, such as a purchase.

    Args:
        graph: the messages with which the links are predicted.
        linked: edge types that may connect them, because their held-out edges carry no messages.
        anchors, targets: node type and int64 [num_links], dense ids.
    """
    chosen = np.random.default_rng(0).permutation(len(anchors[1]))[:_NUM_LOOKED_UP]
    both = [(node_type, nodes[chosen]) for node_type, nodes in (anchors, targets)]
    is_chosen = np.ones(len(chosen), bool)
    for edge_type in graph.edge_types:
        for node_type, nodes in both:
            if edge_type[2] == node_type:
                is_chosen &= graph.degrees(edge_type, nodes) <= _MOST_EDGES
    if not is_chosen.any():
        return []
    paths = _LinkPaths(graph, linked, *((name, nodes[is_chosen]) for name, nodes in both))
    return list(dict.fromkeys(paths.found()))


class _LinkPaths:
    def __init__(
        self, graph: GraphStore, linked: Collection[EdgeType], anchors: _Ends, targets: _Ends
    ) -> None:
        self._graph, self._num_links = graph, len(anchors[1])
        self._ends = (anchors, targets)
        self._types: dict[tuple[str, str], list[EdgeType]] = {}  # by neighbor and sampling node
        for edge_type in graph.edge_types:
            if edge_type not in linked:
                self._types.setdefault((edge_type[0], edge_type[2]), []).append(edge_type)

    def found(self) -> Iterator[tuple[EdgeType, ...]]:
        anchors, targets = self._ends
        for (near, nodes), (far, others) in ((anchors, targets), (targets, anchors)):
            for edge_type in self._types.get((far, near), []):
                if self._connects(self._reached(edge_type, nodes), others):
                    yield (edge_type,)
        for middle in self._graph.node_types:
            if middle not in (anchors[0], targets[0]):
                yield from islice(self._through(middle), 1)

    def _through(self, middle: str) -> Iterator[tuple[EdgeType, ...]]:
        (anchor, anchors), (target, targets) = self._ends
        to_anchors = self._types.get((middle, anchor), [])
        to_targets = self._types.get((middle, target), [])
        for last in to_anchors:
            events = self._events(self._reached(last, anchors), last)
            for first in self._types.get((target, middle), []):
                if self._connects(self._reached(first, *events[::-1]), targets):
                    yield first, last
            for other in to_targets:
                if self._meet(events, self._reached(other, targets)):
                    yield last, other
        for last in to_targets:
            rows = self._reached(last, targets)
            for first in self._types.get((anchor, middle), []):
                events = self._events(rows, first)
                if self._connects(self._reached(first, *events[::-1]), anchors):
                    yield first, last

    def _reached(self, edge_type: EdgeType, nodes: np.ndarray, rows: Any = None) -> _Reached:
        request = PickRequest(nodes, fanout=-1, key=0, hop=0)
        picks = self._graph.pick(edge_type, request)
        rows = np.arange(len(nodes)) if rows is None else rows
        return np.repeat(rows, np.diff(picks.offsets)), picks.neighbors.astype(np.int64)

    def _events(self, reached: _Reached, edge_type: EdgeType) -> _Reached:
        """Reached nodes that have one anchor along an edge type."""
        rows, nodes = reached
        is_sampling = edge_type[0] == self._ends[0][0]
        count = self._graph.degrees if is_sampling else self._graph.neighbor_degrees
        is_event = count(edge_type, nodes) == 1
        return rows[is_event], nodes[is_event]

    def _connects(self, reached: _Reached, wanted: np.ndarray) -> bool:
        rows, nodes = reached
        return self._reveal(rows[nodes == wanted[rows]], rows[nodes == np.roll(wanted, 1)[rows]])

    def _meet(self, reached: _Reached, others: _Reached) -> bool:
        size = 1 + max((int(nodes.max(initial=0)) for _, nodes in (reached, others)), default=0)
        codes, others_codes = (rows * size + nodes for rows, nodes in (reached, others))
        shifted = (others[0] + 1) % self._num_links * size + others[1]
        met, by_chance = (np.isin(codes, each) for each in (others_codes, shifted))
        return self._reveal(reached[0][met], reached[0][by_chance])

    def _reveal(self, rows: np.ndarray, by_chance: np.ndarray) -> bool:
        shares = (len(np.unique(each)) / self._num_links for each in (rows, by_chance))
        return next(shares) >= _REVEALED and next(shares) < _BY_CHANCE
