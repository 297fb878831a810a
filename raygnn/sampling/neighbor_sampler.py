"""Multi-hop neighbor sampling over any graph store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)

from raygnn.data.edge_types import EdgeType, Fanouts, edge_type_name, resolve_fanouts
from raygnn.errors import ConfigError
from raygnn.sampling.exclusion import Exclusion
from raygnn.sampling.growing_subgraph import DisjointIds, GrowingSubgraph
from raygnn.sampling.protocols import GraphStore, PickRequest, Picks, ends
from raygnn.sampling.pyg import link_ends, link_output, link_types, node_output
from raygnn.sampling.rng import RNG_VERSION, BatchKey, chain_key, text_key
from raygnn.sampling.scratch import Pool
from raygnn.sampling.seeds import check_draws, check_seeds, exclusions
from raygnn.sampling.stores import LocalGraphStore
from raygnn.sampling.subgraph import SampledSubgraph
from raygnn.sampling.temporal import Temporal

DISJOINT_LINKS = (
    "sampling.disjoint=True is invalid: in a batch of links each node is encoded once, for all "
    "links that it is an end of. Set it to false."
)


class NeighborSampler(BaseSampler):
    """Samples from the neighbors of each node, hop by hop; safe to share by threads.

    Also a PyG sampler, for `NodeLoader` and `LinkLoader` of `torch_geometric.loader`. PyG gives no
    key of a batch, so `sample_from_nodes` and `sample_from_edges` derive one from `seed` and the
    seeds in their order: the same seeds get the same neighborhood in whatever worker and epoch.
    Shuffled loaders get new ones each epoch.

    Args:
        graph: where neighbors come from; it also says in which direction messages go.
        fanouts: neighbors per node and hop, for all edge types, or by edge type (as a triple or as
            `src__rel__dst`), then for each of them, lists of one length. fanouts[0] is the hop next
            to the seeds; -1 takes all, 0 none.
        replace: draws with replacement; a node with neighbors then gives exactly `fanout` edges.
        weight: edge column: edges are drawn in proportion to it, without replacement one after
            another among those that are left, and never those of weight 0. Edge types without the
            column draw uniformly. None draws all uniformly.
        temporal: neighbors are never later than the seed whose neighborhood they are in, see
            `Temporal`. A node then is in the sample once for each time of a seed that it is near.
        disjoint: each seed has a neighborhood of its own, with draws of its own: a node is in the
            sample once for each seed that it is near. Of nodes, not of links.
        labor: all nodes of a hop draw by the same random numbers of their neighbors: each node's
            edges have the same law, and the sample has fewer nodes (LABOR, arXiv:2210.13339).
        seed: of `sample_from_nodes` and `sample_from_edges`.
    Raises:
        ConfigError: the fanouts do not fit the graph, or settings do not fit each other.
        DataError: the graph has no edges, or no type has the column of the weights or times.
    Source: GraphSAGE, arXiv:1706.02216, Alg. 2.
    """

    def __init__(
        self,
        graph: GraphStore,
        fanouts: Fanouts,
        *,
        replace: bool = False,
        weight: str | None = None,
        temporal: Temporal | None = None,
        disjoint: bool = False,
        labor: bool = False,
        seed: int = 0,
    ) -> None:
        check_draws(graph, replace, weight, temporal, labor=labor)
        self.graph = graph
        self.replace = replace
        self.weight = weight
        self.temporal = temporal
        self.disjoint = disjoint
        self.labor = labor
        self.seed = seed
        self.fanouts = resolve_fanouts(fanouts, graph.edge_types)
        self.num_hops = max(len(hops) for hops in self.fanouts.values())
        self._ends = {et: ends(et, graph.direction) for et in self.fanouts}
        self._workspaces = Pool(partial(GrowingSubgraph, graph.node_types, self._ends))

    def sample(
        self,
        seeds: Mapping[str, np.ndarray],
        key: BatchKey,
        *,
        exclude: Mapping[EdgeType, np.ndarray] | None = None,
        exclude_for: Mapping[EdgeType, np.ndarray] | None = None,
        times: Mapping[str, np.ndarray] | None = None,
        isolated: Mapping[str, np.ndarray] | None = None,
    ) -> SampledSubgraph:
        """Samples the neighborhood of seeds: a pure function of the arguments and the graph.

        Args:
            seeds: by node type, integer dense ids, may repeat.
            key: of the batch; see `raygnn.sampling.rng.batch_key`.
            exclude: by edge type, integer [2, num_pairs], (source, destination) dense ids, in any
                order. No edge between the two of a pair is taken, parallel ones included: the
                sample is that of the graph without them.
            exclude_for: by edge type, int64 [num_pairs], with `disjoint` only: each pair is left
                out of the neighborhood of the seed of this number, counted over the types in their
                order, and of no other; None leaves it out of all.
            times: by node type, int64 or float64, the time of each seed, with `temporal` only.
            isolated: by node type, dense ids of seeds that take no edge, as if they had none.
        Raises:
            DataError: a seed or an end of an excluded pair is not a node of the graph, an excluded
                edge type is not one of its, or times are missing.
        """
        checked = {t: check_seeds(self.graph, t, ids) for t, ids in seeds.items()}
        ids = None
        if self.disjoint or self.temporal is not None:
            ids = DisjointIds(self.graph, checked, self.temporal, times, disjoint=self.disjoint)
        code_of = None if ids is None or exclude_for is None else ids.code
        excluded = exclusions(self.graph, exclude or {}, exclude_for or {}, code_of)
        given = _Given(key, excluded, isolated or {}, ids, by_code=code_of is not None)
        with self._workspaces.lend() as growing:
            growing.start(checked if ids is None else ids.encoded(checked))
            for hop in range(self.num_hops):
                for edge_type in self.fanouts:
                    picks = self._pick(growing, edge_type, hop, given)
                    if picks is None:
                        growing.add_no_edges(edge_type)
                    else:
                        growing.add_edges(edge_type, picks)
                growing.end_hop()
            subgraph = growing.finish()
        return subgraph if ids is None else ids.decoded(subgraph)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that draws depend on besides the arguments of `sample`, as JSON."""
        assert isinstance(self.graph, LocalGraphStore)
        temporal = self.temporal
        return {
            "graph": self.graph.fingerprint,
            "fanouts": {edge_type_name(t): list(hops) for t, hops in self.fanouts.items()},
            "replace": self.replace,
            "weight": self.weight,
            "temporal": None if temporal is None else [temporal.column, temporal.strategy],
            "disjoint": self.disjoint,
            "type": "labor" if self.labor else None,
            "direction": self.graph.direction,
        }

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the settings."""
        return hashlib.sha256(json.dumps(self.settings).encode()).hexdigest()

    def sample_from_nodes(
        self, index: NodeSamplerInput, **kwargs: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Samples for PyG; see the class. Repeated seeds are refused, as PyG cannot express them.

        Raises:
            DataError: a seed is not a node of the graph, or is there twice.
        """
        seeds = index.node.numpy()
        is_one_type = len(self.graph.node_types) == 1
        node_type = self.graph.node_types[0] if is_one_type else index.input_type
        subgraph = self.sample({node_type: seeds}, self._key_of(seeds))
        return node_output(subgraph, node_type, index)

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Samples the neighborhood of links for PyG's `LinkLoader`; see the class.

        PyG draws the negatives. Edges that repeat the links carry messages, as with PyG's own
        samplers: raygnn's `LinkLoader` leaves them out.

        Raises:
            ConfigError: the sampler is disjoint.
            DataError: an end is not a node of the graph.
        """
        if self.disjoint:
            raise ConfigError(DISJOINT_LINKS, id="sampling-disjoint-links")
        ends, types = link_ends(self.graph, index, neg_sampling), link_types(self.graph, index)
        source, target = ends.source.numpy(), ends.target.numpy()
        both = np.concatenate([source, target])
        seeds = {types[0]: source, types[1]: target} if types[0] != types[1] else {types[0]: both}
        subgraph = self.sample(seeds, self._key_of(both))
        return link_output(subgraph, index, ends, types, neg_sampling)

    def _key_of(self, seeds: np.ndarray) -> BatchKey:
        return chain_key(RNG_VERSION, self.seed, text_key("PyG"), *seeds.tolist())

    def _pick(
        self, growing: GrowingSubgraph, edge_type: EdgeType, hop: int, given: _Given
    ) -> Picks | None:
        codes, fanout = growing.frontier(edge_type), self.fanouts[edge_type][hop]
        if len(codes) == 0 or fanout == 0:
            return None
        neighbor_type, node_type = self._ends[edge_type]
        ids, isolated = given.ids, given.isolated.get(node_type)
        takes = None
        if hop == 0 and isolated is not None and len(isolated):
            takes = ~np.isin(codes if ids is None else ids.split(node_type, codes)[0], isolated)
            codes = codes[takes]
        frontier, horizon, salts = codes, None, None
        if ids is not None:
            frontier, numbers = ids.split(node_type, codes)
            horizon, salts = ids.horizon(numbers), ids.salts(numbers)
        request = PickRequest(
            nodes=frontier,
            fanout=fanout,
            replace=self.replace,
            key=given.key,
            hop=hop,
            exclude=given.excluded.get(edge_type),
            exclude_keys=codes if given.by_code else None,
            weight=self.weight,
            horizon=horizon,
            salts=salts,
            by_neighbor=self.labor,
        )
        picks = self.graph.pick(edge_type, request, growing.scratch)
        if ids is not None:
            picks = ids.joined(neighbor_type, picks, numbers)
        if takes is None:
            return picks
        num_picks = np.zeros(len(takes), np.int64)
        num_picks[takes] = np.diff(picks.offsets)
        return picks._replace(offsets=np.append(0, np.cumsum(num_picks)))


class _Given(NamedTuple):
    """Settings of one sample besides its seeds.

    Attributes:
        key: of the batch.
        excluded: by edge type, edges that are not there.
        isolated: by node type, dense ids of seeds that take no edge.
        ids: what tells nodes of several neighborhoods apart; None where seeds share nodes.
        by_code: edges are left out of the neighborhoods of single seeds.
    """

    key: BatchKey
    excluded: dict[EdgeType, Exclusion]
    isolated: Mapping[str, np.ndarray]
    ids: DisjointIds | None
    by_code: bool = False
