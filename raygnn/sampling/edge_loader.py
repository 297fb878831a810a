"""Batches of seed edges and the sampled neighborhoods of their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.data.links.supervision import SeedEdges
from raygnn.errors import DataError
from raygnn.sampling.batch import EdgeBatch
from raygnn.sampling.batch_assembler import BatchAssembler
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import FeatureStore, GraphStore, SampleRequest
from raygnn.sampling.rng import BatchKey
from raygnn.sampling.sampled_sequence import SampledOptions, SampledSequence
from raygnn.sampling.seeds import check_seeds, edges_of_links


@dataclass(frozen=True, kw_only=True)
class EdgePlan:
    """Edges to divide into batches, and the columns of a batch.

    Attributes:
        edges: all edges of the type.
        seeds: int64 [num_seeds], positions of the seed edges.
        reverse_types: edge types of the graph and their reverses, in either order.
        inputs: feature columns of the edge type, which are concatenated.
        labels: by name, [num_edges, ...] of all edges.
        as_of: time of all seeds, with temporal sampling. Default: the edges' own times.
        num_known: number of sources and targets that training had, the first of their types.
        sees_pair: at their own times edges see all earlier edges, including parallel ones; else all
            edges up to their time, except those of their pair.
    """

    edges: SeedEdges
    seeds: np.ndarray
    reverse_types: Mapping[EdgeType, EdgeType] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    as_of: int | float | None = None
    num_known: tuple[int, int] = (0, 0)
    sees_pair: bool = True


class EdgeLoader(SampledSequence[EdgeBatch]):
    """Batches of edges of one type, each with one neighborhood for all ends.

    Message edges that repeat a batch's edges are excluded from the sample, as in `LinkLoader`: of
    the type and its reverse types, in both directions if both ends have one type, including
    parallel edges. With a disjoint sampler, each edge is excluded only from its own ends'
    neighborhoods, so that its encoding does not depend on other edges of the batch. With temporal
    sampling, each edge sees what is earlier than itself, including parallel edges with times.

    Args:
        columns: node columns to read, and their names in the batch.
        edge_columns: the same for edges.
        options: see `BatchSequence` and `SampledSequence`.
    Raises:
        DataError: the graph has no such node type or column, or temporal edges have no times.
    """

    def __init__(
        self,
        graph: GraphStore,
        features: FeatureStore,
        plan: EdgePlan,
        *,
        sampler: NeighborSampler,
        columns: Mapping[str, str],
        edge_columns: Mapping[str, str],
        **options: Unpack[SampledOptions],
    ) -> None:
        if sampler.temporal is not None and plan.as_of is None and plan.edges.times is None:
            raise DataError(
                "sampling.temporal is set, and the edges have no times. Declare the time of their "
                "edge type or label edges in graph.yaml, or leave it out. [links-no-times]"
            )
        super().__init__(len(plan.seeds), sampler, **options)
        self.plan = plan
        self._graph, self._features = graph, features
        self._assembler = BatchAssembler(
            graph, features, columns, edge_columns, src_degrees=self.src_degrees
        )

    def without_neighborhood(self, epoch: int, index: int) -> tuple[EdgeBatch, SampleRequest]:
        positions = np.asarray(self.plan.seeds[self.places(epoch, index)], np.int64)
        ends = np.stack(self.plan.edges.ends(positions))
        batch = EdgeBatch(
            index=index,
            input_id=torch.from_numpy(positions),
            nodes={},
            edges={},
            end_index=torch.from_numpy(ends),
            end_id=self.end_ids(positions),
            inputs=self.inputs(positions),
            labels={
                name: torch.from_numpy(values[positions])
                for name, values in self.plan.labels.items()
            },
        )
        return batch, self._request(positions, ends, self.key(epoch, index))

    def localized(self, batch: EdgeBatch, seed_index: Mapping[str, Tensor]) -> EdgeBatch:
        source_type, _, target_type = self.plan.edges.edge_type
        num_edges = len(batch.input_id)
        sources, targets = seed_index[source_type][:num_edges], seed_index[target_type][-num_edges:]
        return replace(batch, end_index=torch.stack([sources, targets]))

    def _request(self, positions: np.ndarray, ends: np.ndarray, key: BatchKey) -> SampleRequest:
        source_type, _, target_type = self.plan.edges.edge_type
        for node_type, ids in zip((source_type, target_type), ends, strict=True):
            check_seeds(self._graph, node_type, ids)
        times = self._times(positions)
        excluded = self._excluded(ends)
        if times is not None and self._sees_pair:
            excluded = {t: pairs for t, pairs in excluded.items() if not self._has_times(t)}
        exclude_for = None
        if self.sampler.disjoint:
            # The source of seed i is number i; the targets follow all sources.
            both = np.arange(2 * len(positions)).reshape(2, -1)
            exclude_for = {t: _repeated(both, pairs) for t, pairs in excluded.items()}
            excluded = {t: np.concatenate([pairs, pairs], axis=1) for t, pairs in excluded.items()}
        request = SampleRequest(
            self._by_type(*ends),
            key,
            exclude=excluded,
            exclude_for=exclude_for,
            times=None if times is None else self._by_type(times, times),
        )
        return self.with_own_draws(request)

    def end_ids(self, positions: np.ndarray) -> Tensor:
        """int64 [2, num_edges], dense ids of both ends; -1 for nodes that training did not have."""
        ids = np.stack(self.plan.edges.ends(positions))
        return torch.from_numpy(np.where(ids < np.array([self.plan.num_known]).T, ids, -1))

    def inputs(self, positions: np.ndarray) -> Tensor | None:
        edge_type, names = self.plan.edges.edge_type, self.plan.inputs
        if not names:
            return None
        rows = [self._features.gather(edge_type, name, positions) for name in names]
        flat = [part.reshape(len(positions), -1).astype(np.float32) for part in rows]
        return torch.from_numpy(np.concatenate(flat, axis=1))

    def _times(self, positions: np.ndarray) -> np.ndarray | None:
        """The latest time that each edge sees."""
        if self.sampler.temporal is None:
            return None
        if self.plan.as_of is not None:
            return np.full(len(positions), self.plan.as_of)
        edges = self.plan.edges
        assert edges.times is not None
        if self._sees_pair:
            return edges.times_before(positions)
        times = edges.times[positions]
        return times.astype(np.int64 if times.dtype.kind in "iu" else np.float64)

    @property
    def _sees_pair(self) -> bool:
        return self.plan.sees_pair and self.plan.as_of is None

    def _has_times(self, edge_type: EdgeType) -> bool:
        assert self.sampler.temporal is not None
        return self.sampler.temporal.column in self._features.columns(edge_type)

    def _by_type(self, of_sources: np.ndarray, of_targets: np.ndarray) -> dict[str, np.ndarray]:
        source_type, _, target_type = self.plan.edges.edge_type
        if source_type == target_type:
            return {source_type: np.concatenate([of_sources, of_targets])}
        return {source_type: of_sources, target_type: of_targets}

    def _excluded(self, pairs: np.ndarray) -> dict[EdgeType, np.ndarray]:
        edge_type = self.plan.edges.edge_type
        if edge_type not in self._graph.edge_types:
            return {}
        source_type, _, target_type = edge_type
        return edges_of_links(edge_type, self.plan.reverse_types, source_type, target_type, pairs)


def _repeated(numbers: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    num_ways = pairs.shape[1] // numbers.shape[1]
    return np.tile(numbers, (1, num_ways)).reshape(-1)
