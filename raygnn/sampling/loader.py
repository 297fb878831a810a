from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from raygnn.data.arrays import expect_random_reads
from raygnn.data.bundle import SeedRows
from raygnn.data.hashing import splitmix64_array
from raygnn.data.past_labels import PastLabels
from raygnn.errors import DataError
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.batch_assembler import BatchAssembler
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import FeatureStore, GraphStore, SampleRequest
from raygnn.sampling.rng import BatchKey, chain_key, text_key
from raygnn.sampling.sampled_sequence import SampledOptions, SampledSequence
from raygnn.sampling.seeds import check_seeds
from raygnn.sampling.temporal import as_seed_times

#: Rows of a training table that are shuffled as one. More may be more than the memory.
_MAX_SHUFFLED = 1 << 26


@dataclass(frozen=True)
class RowPlan:
    """Rows of a training table as seeds, and their columns in a batch.

    Attributes:
        rows: all rows of the table.
        labels: by name in the batch, [num_rows, ...].
        as_of: the latest time that any row may see; None for no limit.
        gaps: [num_gaps]; half of the rows, drawn anew for each batch, see the graph until one of
            these durations before their own time. Empty for none.
    """

    rows: SeedRows
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    as_of: int | float | None = None
    gaps: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def latest_times(self, positions: np.ndarray) -> np.ndarray:
        """int64 or float64 [len(positions)], the latest times that rows may see, without gaps."""
        assert self.rows.time is not None
        times = as_seed_times(self.rows.time[positions])
        if self.as_of is not None:
            times = np.minimum(times, self.as_of).astype(times.dtype)
        return times

    def times(self, positions: np.ndarray, key: BatchKey) -> np.ndarray:
        """int64 or float64 [len(positions)], the latest times that rows of a batch may see."""
        times = self.latest_times(positions)
        if len(self.gaps):
            draws = splitmix64_array(np.arange(len(times)), chain_key(key, text_key("gaps")))
            earlier = times - self.gaps[(draws >> 1) % len(self.gaps)]
            times = np.where(draws & 1, earlier.astype(times.dtype), times)
        return times


class NeighborLoader(SampledSequence[NodeBatch]):
    """Batches of seeds of one node type, each with its sampled neighborhood.

    Args:
        seeds: int64 [num_seeds], dense ids of the split, or positions in the rows of `plan`.
        node_type: type of the seeds.
        columns: node columns to read, and their names in the batch.
        edge_columns: the same for edges.
        as_of: time of all seeds, with temporal sampling. Default: the seeds' times in the sampler's
            column.
        plan: rows of a training table with times; None for nodes as seeds.
        past: see `BatchAssembler`.
        options: see `BatchSequence` and `SampledSequence`.
    Raises:
        DataError: the graph has no such node type or column, or a seed is not one of its nodes.
    """

    def __init__(
        self,
        graph: GraphStore,
        features: FeatureStore,
        seeds: np.ndarray,
        node_type: str,
        *,
        sampler: NeighborSampler,
        columns: Mapping[str, str],
        edge_columns: Mapping[str, str] | None = None,
        as_of: int | float | None = None,
        plan: RowPlan | None = None,
        past: tuple[str, PastLabels] | None = None,
        **options: Unpack[SampledOptions],
    ) -> None:
        self.seeds = seeds if plan is not None else check_seeds(graph, node_type, seeds)
        self.node_type = node_type
        self._plan = plan
        if plan is not None and len(seeds) > _MAX_SHUFFLED:
            self.shuffles_windows = True
            of_rows = [seeds, plan.rows.nodes, plan.rows.time, *plan.labels.values()]
            for array in of_rows:
                if array is not None:
                    expect_random_reads(array)
        super().__init__(len(self.seeds), sampler, **options)
        self._is_temporal = sampler.temporal is not None
        self._times: np.ndarray | None = None  # times of nodes as seeds
        if plan is None and as_of is not None:
            self._times = np.broadcast_to(np.asarray(as_of), len(self.seeds))
        elif plan is None:
            self._times = _times_of(features, node_type, self.seeds, sampler)
        self._assembler = BatchAssembler(
            graph, features, columns, edge_columns or {}, src_degrees=self.src_degrees, past=past
        )

    def without_neighborhood(self, epoch: int, index: int) -> tuple[NodeBatch, SampleRequest]:
        places, plan = self.places(epoch, index), self._plan
        seeds = nodes = self.seeds[places]
        key = self.key(epoch, index)
        times = None if self._times is None else self._times[places]
        if plan is not None:
            nodes = plan.rows.node_ids(seeds)
            times = plan.times(seeds, key) if self._is_temporal else None
        named = None if times is None else {self.node_type: times}
        request = SampleRequest({self.node_type: nodes}, key, times=named)
        batch = NodeBatch(
            index=index,
            key=key,
            input_id=torch.from_numpy(seeds),
            nodes={},
            edges={},
            node_type=self.node_type,
            seed_index=torch.from_numpy(nodes),
            labels=self._labels(seeds),
        )
        return batch, self.with_own_draws(request)

    def localized(self, batch: NodeBatch, seed_index: Mapping[str, Tensor]) -> NodeBatch:
        return replace(batch, seed_index=seed_index[self.node_type])

    def _labels(self, seeds: np.ndarray) -> dict[str, Tensor]:
        if self._plan is None:
            return self._assembler.labels(self.node_type, seeds)
        return {name: torch.from_numpy(values[seeds]) for name, values in self._plan.labels.items()}


def _times_of(
    features: FeatureStore, node_type: str, seeds: np.ndarray, sampler: NeighborSampler
) -> np.ndarray | None:
    if sampler.temporal is None:
        return None
    column = sampler.temporal.column
    if column not in features.columns(node_type):
        raise DataError(
            f"sampling.temporal.column={column!r} is invalid: {node_type!r} has no such column. "
            "Declare it as time, or leave sampling.temporal out. [sampling-time-column]"
        )
    return as_seed_times(features.gather(node_type, column, seeds).reshape(len(seeds)))
