"""Nodes of a batch told apart by the time of the seed whose neighborhood they are in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from raygnn.errors import DataError
from raygnn.sampling.protocols import GraphStore, Picks
from raygnn.sampling.subgraph import SampledSubgraph
from raygnn.sampling.temporal import Horizon, Temporal

_MAX_CODE = np.iinfo(np.int64).max


class Clock:
    """Writes a node and a moment, the number of a time among those of the batch, as one integer.

    So what tells nodes apart by their ids tells pairs of node and time apart. Two seeds of one time
    share their neighborhoods: each pair is in a batch once.

    Args:
        seeds: by node type, dense ids.
        times: by node type, int64 or float64, the time of each seed.
    Raises:
        DataError: a seed has no time.
    """

    def __init__(
        self,
        graph: GraphStore,
        temporal: Temporal,
        seeds: Mapping[str, np.ndarray],
        times: Mapping[str, np.ndarray] | None,
    ) -> None:
        self._graph = graph
        self._temporal = temporal
        given = [_checked(node_type, ids, times) for node_type, ids in seeds.items()]
        together = np.concatenate(given) if given else np.empty(0, np.int64)
        self._times, moments = np.unique(together, return_inverse=True)
        bounds = np.cumsum([len(ids) for ids in seeds.values()])[:-1]
        self._moments = dict(zip(seeds, np.split(moments, bounds), strict=True))
        most = max((graph.num_nodes(node_type) for node_type in graph.node_types), default=0)
        assert most * max(len(self._times), 1) <= _MAX_CODE

    def encoded(self, seeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The codes of the seeds."""
        return {t: self._code(t, ids, self._moments[t]) for t, ids in seeds.items()}

    def split(self, node_type: str, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Dense ids and moments of codes."""
        moments, nodes = np.divmod(codes, max(self._graph.num_nodes(node_type), 1))
        return nodes, moments

    def horizon(self, moments: np.ndarray) -> Horizon:
        """Up to when nodes of these moments may take edges."""
        return Horizon(self._temporal, self._times[moments])

    def joined(self, node_type: str, picks: Picks, moments: np.ndarray) -> Picks:
        """Picks with codes of the neighbors, each of the moment of the node that took it."""
        taken = np.repeat(moments, np.diff(picks.offsets))
        return picks._replace(neighbors=self._code(node_type, picks.neighbors, taken))

    def decoded(self, subgraph: SampledSubgraph) -> SampledSubgraph:
        """A sample of codes as one of nodes and their times."""
        pairs = {t: self.split(t, codes) for t, codes in subgraph.node.items()}
        return replace(
            subgraph,
            node={node_type: nodes for node_type, (nodes, _) in pairs.items()},
            seed_time={t: self._times[moments] for t, (_, moments) in pairs.items()},
            temporal=self._temporal,
        )

    def _code(self, node_type: str, nodes: np.ndarray, moments: np.ndarray) -> np.ndarray:
        return nodes + moments * self._graph.num_nodes(node_type)


def _checked(node_type: str, ids: np.ndarray, times: Mapping[str, np.ndarray] | None) -> np.ndarray:
    found = None if times is None else times.get(node_type)
    if found is None:
        raise DataError(
            f"seeds of node type {node_type!r} are invalid: sampling.temporal is set, and they "
            "have no times. Give them, or leave it out."
        )
    if found.shape != ids.shape or found.dtype not in (np.int64, np.float64):
        raise DataError(
            f"times of node type {node_type!r} are invalid: they are {found.dtype} of shape "
            f"{list(found.shape)}. Give int64 or float64, one for each of {len(ids)} seeds."
        )
    if found.dtype == np.float64 and np.isnan(found).any():
        raise DataError(
            f"times of node type {node_type!r} are invalid: {int(np.isnan(found).sum())} are not "
            "numbers. Give every seed a time."
        )
    return found
