"""Ids that distinguish the nodes of a batch by the seed, or its time, of their neighborhood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from raygnn.errors import DataError
from raygnn.sampling.protocols import GraphStore, Picks
from raygnn.sampling.subgraph import SampledSubgraph
from raygnn.sampling.temporal import Horizon, Temporal

_MAX_CODE = np.iinfo(np.int64).max


class DisjointIds:
    """Writes a node and a number, of a time or of a seed of the batch, as one integer.

    What distinguishes nodes by their ids then distinguishes these pairs. With `temporal`, seeds of
    one time share their neighborhoods; with `disjoint`, no two seeds do. Each pair is in a batch
    once.

    Args:
        seeds: by node type, dense ids.
        times: by node type, int64 or float64, the time of each seed, with `temporal` only.
    Raises:
        DataError: a seed has no time.
    """

    def __init__(
        self,
        graph: GraphStore,
        seeds: Mapping[str, np.ndarray],
        temporal: Temporal | None,
        times: Mapping[str, np.ndarray] | None,
        *,
        disjoint: bool,
    ) -> None:
        self._graph = graph
        self._temporal = temporal
        self._disjoint = disjoint
        lengths = [len(ids) for ids in seeds.values()]
        numbers = np.arange(sum(lengths))
        if temporal is not None:
            given = [_checked(node_type, ids, times) for node_type, ids in seeds.items()]
            self._times = np.concatenate(given) if given else np.empty(0, np.int64)
            if not disjoint:
                self._times, numbers = np.unique(self._times, return_inverse=True)
        self._numbers = dict(zip(seeds, np.split(numbers, np.cumsum(lengths)[:-1]), strict=True))
        most = max((graph.num_nodes(node_type) for node_type in graph.node_types), default=0)
        assert most * (int(numbers.max(initial=0)) + 1) <= _MAX_CODE

    def encoded(self, seeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The codes of the seeds."""
        return {t: self.code(t, ids, self._numbers[t]) for t, ids in seeds.items()}

    def split(self, node_type: str, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Dense ids and numbers of codes."""
        numbers, nodes = np.divmod(codes, max(self._graph.num_nodes(node_type), 1))
        return nodes, numbers

    def horizon(self, numbers: np.ndarray) -> Horizon | None:
        """Up to when nodes of these numbers may take edges; None where at all times."""
        return None if self._temporal is None else Horizon(self._temporal, self._times[numbers])

    def salts(self, numbers: np.ndarray) -> np.ndarray | None:
        """uint64, makes each id of a node draw for itself; with `temporal` only, its time does."""
        return numbers.astype(np.uint64) if self._disjoint else None

    def joined(self, node_type: str, picks: Picks, numbers: np.ndarray) -> Picks:
        """Picks with codes of the neighbors, each of the number of the node that took it."""
        taken = np.repeat(numbers, np.diff(picks.offsets))
        return picks._replace(neighbors=self.code(node_type, picks.neighbors, taken))

    def decoded(self, subgraph: SampledSubgraph) -> SampledSubgraph:
        """A sample of codes as one of nodes, their seeds and their times."""
        pairs = {t: self.split(t, codes) for t, codes in subgraph.node.items()}
        numbers = {t: found for t, (_, found) in pairs.items()}
        times = None
        if self._temporal is not None:
            times = {t: self._times[found] for t, found in numbers.items()}
        return replace(
            subgraph,
            node={node_type: nodes for node_type, (nodes, _) in pairs.items()},
            seed=numbers if self._disjoint else None,
            seed_time=times,
            temporal=self._temporal,
        )

    def code(self, node_type: str, nodes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """What stands for nodes in the neighborhoods of these numbers."""
        return nodes + numbers * self._graph.num_nodes(node_type)


def _checked(node_type: str, ids: np.ndarray, times: Mapping[str, np.ndarray] | None) -> np.ndarray:
    found = None if times is None else times.get(node_type)
    if found is None:
        raise DataError(
            f"seeds of node type {node_type!r} are invalid: sampling.temporal is set, and they "
            "have no times. Give them, or leave it out.",
            id="sampling-seed-times-missing",
        )
    if found.shape != ids.shape or found.dtype not in (np.int64, np.float64):
        raise DataError(
            f"times of node type {node_type!r} are invalid: they are {found.dtype} of shape "
            f"{list(found.shape)}. Give int64 or float64, one for each of {len(ids)} seeds.",
            id="sampling-seed-times-type",
        )
    if found.dtype == np.float64 and np.isnan(found).any():
        raise DataError(
            f"times of node type {node_type!r} are invalid: {int(np.isnan(found).sum())} are not "
            "numbers. Give every seed a time.",
            id="sampling-seed-times-nan",
        )
    return found
