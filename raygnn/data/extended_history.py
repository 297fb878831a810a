"""History columns of a graph with added rows, from the edges of the requested nodes alone."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raygnn.data import edge_kernels
from raygnn.data.arrays import ragged_positions
from raygnn.data.bundle import Bundle, Csc
from raygnn.data.edge_types import EdgeType
from raygnn.data.events import Reference
from raygnn.data.extended_bundle import ExtendedBundle
from raygnn.data.history import History
from raygnn.data.time_units import TIME


class ExtendedHistory(History):
    """The history columns of a graph and its additions, equal to those of the complete tables.

    A call joins the edges of its nodes, and of the other ends of their latest events, so its time
    depends on their numbers and not on the graph.

    Args:
        known: the history columns of the graph.
    """

    def __init__(self, known: History, bundle: ExtendedBundle) -> None:
        vars(self).update(vars(known))
        self._known, self._bundle = known, bundle
        self._ends = [ExtendedHistory(history, bundle) for history in known._others]

    def columns(self, nodes: np.ndarray, times: np.ndarray | None) -> np.ndarray:
        joined = _JoinedRows(self._bundle, self._known, nodes)
        others = [_OfEnds(each, joined.nodes[each.spec.node_type]) for each in self._ends]
        ids = joined.nodes[self.spec.node_type]
        return self._known.on(joined, others, ids).columns(np.searchsorted(ids, nodes), times)


class _OfEnds(History):
    """Columns of nodes that are named by their position in `nodes`."""

    def __init__(self, history: ExtendedHistory, nodes: np.ndarray) -> None:
        vars(self).update(vars(history))
        self._history, self._nodes = history, nodes

    def columns(self, nodes: np.ndarray, times: np.ndarray | None) -> np.ndarray:
        return self._history.columns(self._nodes[nodes], times)


class _Edges(NamedTuple):
    """Edges of one type by dense ids of the extended graph; `ids` as `e_id`."""

    sources: np.ndarray
    targets: np.ndarray
    ids: np.ndarray


class _JoinedRows(Bundle):
    """The rows that the history columns of some nodes are computed from, numbered anew.

    Attributes:
        nodes: int64 by node type, ascending dense ids in the extended graph.
    """

    def __init__(self, bundle: ExtendedBundle, history: History, nodes: np.ndarray) -> None:
        super().__init__(bundle.path, bundle._record)
        self.is_larger_than_memory = False
        self._extended = bundle
        spec, seeds = history.spec, np.unique(nodes)
        events: dict[EdgeType, list[_Edges]] = defaultdict(list)
        references: dict[EdgeType, list[_Edges]] = defaultdict(list)

        def refer(edge_type: EdgeType, sources: np.ndarray) -> None:
            known = history.reference(edge_type)
            references[edge_type].append(self._references(edge_type, known, sources))

        for i, each in enumerate(spec.events):
            sources = seeds
            for edge_type in reversed(each.path):
                edges = self._events_of(edge_type, sources)
                events[edge_type].append(edges)
                sources = np.unique(edges.sources)
            holders = [attribute.holder for attribute in each.attributes if attribute.holder]
            ends = [other.edge_type for other in spec.others if other.events == i]
            for edge_type in dict.fromkeys([*(to for (to,) in holders), *filter(None, ends)]):
                refer(edge_type, sources)
        for other in spec.others:
            if other.events is None:
                assert other.edge_type is not None
                refer(other.edge_type, seeds)
        self._joined = {
            edge_type: self._in_order(edge_type, _joined(events[edge_type], references[edge_type]))
            for edge_type in {**events, **references}
        }
        found: dict[str, list[np.ndarray]] = {name: [] for name in bundle.node_types}
        found[spec.node_type].append(seeds)
        for (source, _, target), edges in self._joined.items():
            found[source].append(edges.sources)
            found[target].append(edges.targets)
        none = np.empty(0, np.int64)
        self.nodes = {name: np.unique(np.concatenate([none, *ids])) for name, ids in found.items()}

    def num_nodes(self, node_type: str) -> int:
        return len(self.nodes[node_type])

    def take_ids(self, node_type: str, dense: np.ndarray) -> pa.Array:
        return self._extended.take_ids(node_type, self.nodes[node_type][dense])

    def csc(self, edge_type: EdgeType) -> Csc:
        sources, targets, _ = self._edges_of(edge_type)
        rows = np.searchsorted(self.nodes[edge_type[2]], targets)
        counts = np.bincount(rows, minlength=self.num_nodes(edge_type[2]))
        indices = np.searchsorted(self.nodes[edge_type[0]], sources)
        return Csc(np.append(0, np.cumsum(counts)), indices)

    def column(self, type_: str | EdgeType, name: str) -> np.ndarray:
        ids = self.nodes[type_] if isinstance(type_, str) else self._edges_of(type_).ids
        return self._extended.rows(type_, name, ids)

    def _edges_of(self, edge_type: EdgeType) -> _Edges:
        none = np.empty(0, np.int64)
        return self._joined.get(edge_type, _Edges(none, none, none))

    def _events_of(self, edge_type: EdgeType, nodes: np.ndarray) -> _Edges:
        """All edges into some nodes, distinct and ascending."""
        graph, csc = self._extended.graph, self._extended.graph.csc(edge_type)
        known = nodes[: np.searchsorted(nodes, graph.num_nodes(edge_type[2]))]
        rows, ids = ragged_positions(csc.indptr, known)
        added = self._added(edge_type, "in", nodes)
        return _concatenated([_Edges(csc.indices[ids], known[rows], ids), added])

    def _references(
        self, edge_type: EdgeType, known: Reference | None, nodes: np.ndarray
    ) -> _Edges:
        """The edges that lead from nodes to the one node that each refers to.

        `known`: those of the graph; None if a node refers to several.
        """
        none = np.empty(0, np.int64)
        if known is None:
            return _Edges(none, none, none)
        sources = nodes[: np.searchsorted(nodes, len(known.targets))]
        sources = sources[known.targets[sources] >= 0]
        first = _Edges(sources, known.targets[sources], known.edges[sources])
        return _concatenated([first, self._added(edge_type, "out", nodes)])

    def _added(self, edge_type: EdgeType, direction: str, nodes: np.ndarray) -> _Edges:
        edges = self._extended.addition.edges[edge_type]
        _, ids = self._extended.added_edges(edge_type, direction, nodes)
        first = self._extended.num_known(edge_type)
        return _Edges(edges.sources[ids], edges.targets[ids], first + ids)

    def _in_order(self, edge_type: EdgeType, edges: _Edges) -> _Edges:
        """The edges in the order of an ingest: by target, time, source and row."""
        keys = [edges.sources]
        if TIME in self.columns(edge_type):
            keys.append(edge_kernels.time_keys(self._extended.rows(edge_type, TIME, edges.ids)))
        order = np.lexsort((*keys, edges.targets))
        return _Edges(*(column[order] for column in edges))


def _joined(events: list[_Edges], references: list[_Edges]) -> _Edges:
    """Each edge once, by `e_id`. References of sources without events in `events`."""
    every = _concatenated(events)
    _, first = np.unique(every.ids, return_index=True)
    every = _Edges(*(column[first] for column in every))
    others = _concatenated(references)
    is_other = ~np.isin(others.sources, every.sources)
    others = _Edges(*(column[is_other] for column in others))
    _, first = np.unique(np.stack([others.sources, others.targets]), axis=1, return_index=True)
    return _concatenated([every, _Edges(*(column[first] for column in others))])


def _concatenated(edges: list[_Edges]) -> _Edges:
    none = np.empty(0, np.int64)
    columns = zip(*edges, strict=True) if edges else [()] * 3
    return _Edges(*(np.concatenate([none, *column]) for column in columns))
