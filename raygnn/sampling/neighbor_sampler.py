"""Multi-hop neighbor sampling over any graph store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import numpy as np

from raygnn.data.edge_types import EdgeType, Fanouts, edge_type_name, resolve_fanouts
from raygnn.sampling.growing_subgraph import DisjointIds, GrowingSubgraph
from raygnn.sampling.protocols import GraphStore, PickRequest, Picks, SampledSubgraph
from raygnn.sampling.rng import BatchKey
from raygnn.sampling.scratch import Pool, Scratch
from raygnn.sampling.seeds import check_draws, check_seeds, exclusions
from raygnn.sampling.stores import LocalGraphStore, restricted
from raygnn.sampling.temporal import Temporal


class NeighborSampler:
    """Samples the neighbors of each node, hop by hop. Thread-safe.

    Args:
        graph: store to sample from.
        fanouts: neighbors per node and hop: one list for all edge types, or one per edge type (a
            triple or `src__rel__dst`), all of one length. fanouts[0] is the hop next to the seeds;
            -1 takes all neighbors, 0 none.
        weight: edge column. Edges are drawn in proportion to it, and never if it is 0. Edge types
            without the column draw uniformly; None draws uniformly everywhere.
        temporal: neighbors are never later than the seed, see `Temporal`. A node appears once for
            each seed time.
        disjoint: each seed has its own neighborhood, with its own draws. A node appears once for
            each seed. Not for links.
        labor: the nodes of a hop share one random number per neighbor, so the sample contains
            fewer nodes. The edges of each node keep their distribution (LABOR, arXiv:2210.13339).
    Raises:
        ConfigError: the fanouts do not fit the graph, or options exclude each other.
        DataError: the graph has no edges, or no edge type has the weight or time column.
    Source: GraphSAGE, arXiv:1706.02216, Alg. 2.
    """

    def __init__(
        self,
        graph: GraphStore,
        fanouts: Fanouts,
        *,
        weight: str | None = None,
        temporal: Temporal | None = None,
        disjoint: bool = False,
        labor: bool = False,
    ) -> None:
        check_draws(graph, weight, temporal, labor=labor)
        self.graph = graph
        self.weight = weight
        self.temporal = temporal
        self.disjoint = disjoint
        self.labor = labor
        self.fanouts = resolve_fanouts(fanouts, graph.edge_types)
        self.num_hops = max(len(hops) for hops in self.fanouts.values())
        self._workspaces = Pool(partial(GrowingSubgraph, graph.node_types, list(self.fanouts)))

    def sample(
        self,
        seeds: Mapping[str, np.ndarray],
        key: BatchKey,
        *,
        exclude: Mapping[EdgeType, np.ndarray] | None = None,
        exclude_for: Mapping[EdgeType, np.ndarray] | None = None,
        times: Mapping[str, np.ndarray] | None = None,
        isolated: Mapping[str, np.ndarray] | None = None,
        salts: Mapping[str, np.ndarray] | None = None,
    ) -> SampledSubgraph:
        """Samples the neighborhood of seeds. A pure function of the arguments and the graph.

        Args:
            seeds: dense ids by node type. May repeat.
            key: batch key, see `raygnn.sampling.rng.batch_key`.
            exclude: by edge type, integer [2, num_pairs], (source, destination) dense ids whose
                edges to ignore. Sampling behaves as if the graph did not contain them.
            exclude_for: by edge type, int64 [num_pairs], with `disjoint` only: number of the seed,
                counted over all types, in whose neighborhood to ignore the pair. Default: in all.
            times: by node type, int64 or float64, the time of each seed, with `temporal` only.
            isolated: by node type, dense ids of seeds whose edges to ignore.
            salts: by node type, uint64, input of the draws for each seed, with `disjoint` only.
                Default: its number, so that no two seeds of a batch have the same draws.
        Raises:
            DataError: a seed or an excluded node is not in the graph, an excluded edge type is
                unknown, or times are missing.
        """
        seed_ids = {t: check_seeds(self.graph, t, ids) for t, ids in seeds.items()}
        ids = None
        if self.is_numbered:
            ids = DisjointIds(
                self.graph, seed_ids, self.temporal, times, disjoint=self.disjoint, salts=salts
            )
        code_of = None if ids is None or exclude_for is None else ids.code
        excluded = exclusions(self.graph, exclude or {}, exclude_for or {}, code_of)
        with self._workspaces.lend() as growing:
            growing.start(seed_ids if ids is None else ids.encoded(seed_ids))
            for hop in range(self.num_hops):
                for edge_type, fanouts in self.fanouts.items():
                    neighbor_type, _, node_type = edge_type
                    codes = growing.frontier(edge_type)
                    if len(codes) == 0 or fanouts[hop] == 0:
                        growing.add_no_edges(edge_type)
                        continue
                    nodes, horizon, node_salts = codes, None, None
                    if ids is not None:
                        nodes, numbers = ids.split(node_type, codes)
                        horizon, node_salts = ids.horizon(numbers), ids.salts(numbers)
                    request = PickRequest(
                        nodes=nodes,
                        fanout=fanouts[hop],
                        key=key,
                        hop=hop,
                        exclude=excluded.get(edge_type),
                        exclude_keys=None if code_of is None else codes,
                        weight=self.weight,
                        horizon=horizon,
                        salts=node_salts,
                        by_neighbor=self.labor,
                    )
                    without = isolated.get(node_type) if isolated and hop == 0 else None
                    picks = self._pick(edge_type, request, without, growing.scratch)
                    if ids is not None:
                        picks = ids.joined(neighbor_type, picks, numbers)
                    growing.add_edges(edge_type, picks)
                growing.end_hop()
            subgraph = growing.finish()
        return subgraph if ids is None else ids.decoded(subgraph)

    @property
    def is_numbered(self) -> bool:
        """Whether seeds have several neighborhoods; see `DisjointIds`."""
        return self.disjoint or self.temporal is not None

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine a sample, besides the arguments of `sample`, as JSON."""
        assert isinstance(self.graph, LocalGraphStore)
        return {
            "graph": self.graph.fingerprint,
            "fanouts": {edge_type_name(t): list(hops) for t, hops in self.fanouts.items()},
            "weight": self.weight,
            "temporal": None if self.temporal is None else asdict(self.temporal),
            "disjoint": self.disjoint,
            "type": "labor" if self.labor else None,
        }

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the settings."""
        return hashlib.sha256(json.dumps(self.settings).encode()).hexdigest()

    def _pick(
        self,
        edge_type: EdgeType,
        request: PickRequest,
        isolated: np.ndarray | None,
        scratch: Scratch,
    ) -> Picks:
        if isolated is None or not len(isolated):
            return self.graph.pick(edge_type, request, scratch)
        is_sampled = ~np.isin(request.nodes, isolated)
        request = restricted(request, np.flatnonzero(is_sampled))
        picks = self.graph.pick(edge_type, request, scratch)
        num_picks = np.zeros(len(is_sampled), np.int64)
        num_picks[is_sampled] = np.diff(picks.offsets)
        return picks._replace(offsets=np.append(0, np.cumsum(num_picks)))
