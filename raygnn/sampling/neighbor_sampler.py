"""Multi-hop neighbor sampling over any graph store."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)

from raygnn.data.edge_types import EdgeType, Fanouts, resolve_fanouts
from raygnn.errors import ConfigError
from raygnn.sampling.disjoint_ids import DisjointIds
from raygnn.sampling.exclusion import Exclusion
from raygnn.sampling.growing_subgraph import GrowingSubgraph
from raygnn.sampling.protocols import GraphStore, PickRequest, Picks, ends
from raygnn.sampling.pyg_output import link_ends, link_output, link_types, node_output
from raygnn.sampling.rng import RNG_VERSION, BatchKey, chain_key, text_key
from raygnn.sampling.scratch import Pool
from raygnn.sampling.seeds import check_draws, check_seeds, exclusions
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
        seed: int = 0,
    ) -> None:
        check_draws(graph, replace, weight, temporal)
        self.graph = graph
        self.replace = replace
        self.weight = weight
        self.temporal = temporal
        self.disjoint = disjoint
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
            times: by node type, int64 or float64, the time of each seed, with `temporal` only.
            isolated: by node type, dense ids of seeds that take no edge, as if they had none.
        Raises:
            DataError: a seed or an end of an excluded pair is not a node of the graph, an excluded
                edge type is not one of its, or times are missing.
        """
        checked = {t: check_seeds(self.graph, t, ids) for t, ids in seeds.items()}
        excluded = exclusions(self.graph, exclude or {})
        ids = None
        if self.disjoint or self.temporal is not None:
            ids = DisjointIds(self.graph, checked, self.temporal, times, disjoint=self.disjoint)
        with self._workspaces.lend() as growing:
            growing.start(checked if ids is None else ids.encoded(checked))
            for hop in range(self.num_hops):
                for edge_type, fanouts in self.fanouts.items():
                    fanout, pairs = fanouts[hop], excluded.get(edge_type)
                    picks = self._pick(growing, edge_type, fanout, key, hop, pairs, ids)
                    if picks is None:
                        growing.add_no_edges(edge_type)
                        continue
                    if hop == 0 and isolated:
                        picks = self._without(picks, edge_type, growing, isolated, ids)
                    growing.add_edges(edge_type, picks)
                growing.end_hop()
            subgraph = growing.finish()
        return subgraph if ids is None else ids.decoded(subgraph)

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
        self,
        growing: GrowingSubgraph,
        edge_type: EdgeType,
        fanout: int,
        key: BatchKey,
        hop: int,
        exclude: Exclusion | None,
        ids: DisjointIds | None,
    ) -> Picks | None:
        """The edges that the frontier takes; None where there is nothing to take."""
        frontier = growing.frontier(edge_type)
        if len(frontier) == 0 or fanout == 0:
            return None
        neighbor_type, node_type = self._ends[edge_type]
        horizon = salts = None
        if ids is not None:
            frontier, numbers = ids.split(node_type, frontier)
            horizon, salts = ids.horizon(numbers), ids.salts(numbers)
        replace, weight = self.replace, self.weight
        request = PickRequest(frontier, fanout, replace, key, hop, exclude, weight, horizon, salts)
        picks = self.graph.pick(edge_type, request, growing.scratch)
        return picks if ids is None else ids.joined(neighbor_type, picks, numbers)

    def _without(
        self,
        picks: Picks,
        edge_type: EdgeType,
        growing: GrowingSubgraph,
        isolated: Mapping[str, np.ndarray],
        ids: DisjointIds | None,
    ) -> Picks:
        """The picks of the first hop without those of isolated seeds."""
        _, node_type = self._ends[edge_type]
        frontier = growing.frontier(edge_type)
        if ids is not None:
            frontier, _ = ids.split(node_type, frontier)
        takes = ~np.isin(frontier, isolated.get(node_type, ()))
        num_picks = np.diff(picks.offsets)
        kept = np.repeat(takes, num_picks)
        offsets = np.append(0, np.cumsum(np.where(takes, num_picks, 0)))
        return Picks(picks.neighbors[kept], picks.e_id[kept], offsets)
