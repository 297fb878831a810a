from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from raygnn.data.arrays import expect_random_reads
from raygnn.data.bundle import SeedRows
from raygnn.data.hashing import splitmix64_array
from raygnn.data.past_labels import PastLabels
from raygnn.device_memory import unused_bytes
from raygnn.errors import DataError
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.batch_assembler import BatchAssembler
from raygnn.sampling.batch_sequence import SampledOptions, SampledSequence
from raygnn.sampling.device_batches import DeviceBatches, HostInputs, build_device_sampler
from raygnn.sampling.device_sampler import graph_bytes, why_not
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.prefetch import copied_batch
from raygnn.sampling.protocols import FeatureStore, GraphStore, SampleRequest
from raygnn.sampling.rng import BatchKey, chain_key, text_key
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
        self._graph = graph
        self._device_batches: DeviceBatches | None = None
        self._assembler = BatchAssembler(
            graph, features, columns, edge_columns or {}, src_degrees=self.src_degrees, past=past
        )

    def sample_on_device(self) -> str | None:
        sampler, device = self.sampler, self._device
        if not self._pads or device is None:
            return "steps that are not recorded"
        columns = ", ".join(self._assembler.columns_of_host())
        settings = {
            "several workers": self.world_size > 1,
            "stored samples": self._samples is not None,
            "batches that the task changes": self.prepare is not None,
            "fewer examples than loader.batch_size": self.num_examples < self.batch_size,
            f"columns that the device does not hold ({columns})": bool(columns),
        }
        reason = next((name for name, prevents in settings.items() if prevents), None)
        reason = reason or why_not(sampler)
        if reason is None and device.type == "cuda":
            num_bytes = graph_bytes(sampler)
            if 3 * num_bytes > unused_bytes(device):
                reason = f"a graph of {num_bytes / 2**30:.1f} GiB, over a third of the free memory"
        if reason is None:
            self._device_batches = self._batches_of(sampler, device)
        return reason

    def _batches(self, epoch: int, indices: range) -> Generator[NodeBatch, None, None]:
        if self._device_batches is None or not self._device_batches.is_trusted:
            return super()._batches(epoch, indices)
        num_whole = max(self.num_examples // self.batch_size - indices.start, 0)
        of_device = self._device_batches.iterate(epoch, indices[:num_whole])
        return _joined(of_device, super()._batches(epoch, indices[num_whole:]))

    def _batches_of(self, sampler: NeighborSampler, device: torch.device) -> DeviceBatches:
        graph, capacities = self._graph, self._padding.sizes[-1]
        on_device, padding_class = build_device_sampler(
            sampler, capacities, self.node_type, self.batch_size, device
        )
        degrees = {}
        for edge_type in graph.edge_types if self.src_degrees else ():
            of_all = graph.neighbor_degrees(edge_type, np.arange(graph.num_nodes(edge_type[0])))
            degrees[edge_type] = torch.from_numpy(of_all).float().to(device)

        def inputs(epoch: int, index: int) -> HostInputs:
            seeds, request = self._request(epoch, index)
            return HostInputs(
                key=request.key,
                input_id=torch.from_numpy(seeds),
                labels=self._labels(seeds),
                seeds=torch.from_numpy(request.seeds[self.node_type]),
                draw_keys=on_device.keys(request.key),
            )

        def make(epoch: int, index: int) -> NodeBatch:
            batch = self.ready_for_device(self.make(epoch, index))
            return copied_batch(batch, device)[0]

        return DeviceBatches(on_device, padding_class, self._padding, inputs, make, degrees)

    def build(self, epoch: int, index: int) -> NodeBatch:
        seeds, request = self._request(epoch, index)
        subgraph = self.sampled(epoch, index, request)
        return NodeBatch(
            index=index,
            key=self.key(epoch, index),
            input_id=torch.from_numpy(seeds),
            nodes=self._assembler.nodes(subgraph),
            edges=self._assembler.edges(subgraph),
            node_type=self.node_type,
            seed_index=torch.from_numpy(subgraph.seed_index[self.node_type]),
            labels=self._labels(seeds),
            num_added_edges=subgraph.num_added_edges,
        )

    def request(self, epoch: int, index: int) -> SampleRequest:
        return self._request(epoch, index)[1]

    def _request(self, epoch: int, index: int) -> tuple[np.ndarray, SampleRequest]:
        places, plan = self.places(epoch, index), self._plan
        seeds = nodes = self.seeds[places]
        key = self.key(epoch, index)
        times = None if self._times is None else self._times[places]
        if plan is not None:
            nodes = plan.rows.node_ids(seeds)
            times = plan.times(seeds, key) if self._is_temporal else None
        named = None if times is None else {self.node_type: times}
        request = SampleRequest({self.node_type: nodes}, key, times=named)
        return seeds, self.with_own_draws(request)

    def _labels(self, seeds: np.ndarray) -> dict[str, Tensor]:
        if self._plan is None:
            return self._assembler.labels(self.node_type, seeds)
        return {name: torch.from_numpy(values[seeds]) for name, values in self._plan.labels.items()}


def _joined(*parts: Generator[NodeBatch, None, None]) -> Generator[NodeBatch, None, None]:
    for batches in parts:
        with closing(batches):
            yield from batches


def _times_of(
    features: FeatureStore, node_type: str, seeds: np.ndarray, sampler: NeighborSampler
) -> np.ndarray | None:
    if sampler.temporal is None:
        return None
    column = sampler.temporal.column
    if column not in features.columns(node_type):
        raise DataError(
            f"sampling.temporal.column={column!r} is invalid: node type {node_type!r}, which is "
            "sampled for, has no such column, so its nodes have no time. Declare it as time in "
            "graph.yaml, or leave sampling.temporal out. [sampling-time-column]"
        )
    return as_seed_times(features.gather(node_type, column, seeds).reshape(len(seeds)))
