"""Micro-batches with sampled neighborhoods, which threads of the host or the device sample."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NotRequired, Protocol, Unpack

import numpy as np
import torch
from torch import Tensor

from raygnn.device_memory import unused_bytes
from raygnn.sampling.batch_assembler import BatchAssembler
from raygnn.sampling.batch_sequence import BatchSequence, BatchT, SequenceOptions
from raygnn.sampling.device_batches import DeviceBatches, HostPart, build_device_sampler
from raygnn.sampling.device_padding import DevicePastLabels
from raygnn.sampling.device_sampler import graph_bytes, why_not
from raygnn.sampling.device_times import why_not_in_time
from raygnn.sampling.growing_subgraph import share_leaves
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.padding import Padding
from raygnn.sampling.prefetch import copied_batch
from raygnn.sampling.protocols import SampledSubgraph, SampleRequest
from raygnn.sampling.rng import fixed_key, seed_salts

#: Threads that read from a store of objects: each waits for its answers most of the time.
_NUM_REMOTE_READERS = 4


class SamplesOfSplit(Protocol):
    """Stored neighborhoods of a split: `StoredSplit`, whose module imports this one."""

    is_remote: bool

    def position(self, epoch: int, index: int) -> tuple[int, int]: ...

    def read(
        self, epoch: int, index: int, request: SampleRequest, sampler: NeighborSampler
    ) -> SampledSubgraph: ...


class SampledOptions(SequenceOptions):
    """The keyword arguments of `SampledSequence`, for the signatures of its subclasses."""

    samples: NotRequired[SamplesOfSplit | None]
    src_degrees: NotRequired[bool]
    shared_leaves: NotRequired[frozenset[str]]
    pads: NotRequired[bool]


class SampledSequence(BatchSequence[BatchT]):
    """Micro-batches with the neighborhood of their `request`.

    A subclass sets `_assembler` and implements `without_neighborhood` and `localized`.

    Args:
        samples: stored neighborhoods, read instead of sampling. Epochs beyond the stored ones
            repeat their micro-batches, with the same neighbors and negatives, in another order.
        shared_leaves: node types whose nodes appear once in the last hop, because the model reads
            the same of them for all seeds.
        pads: give batches few shapes, see `Padding`.
    """

    _assembler: BatchAssembler
    _has_edges = True

    def __init__(
        self,
        num_examples: int,
        sampler: NeighborSampler,
        *,
        samples: SamplesOfSplit | None = None,
        src_degrees: bool = False,
        shared_leaves: frozenset[str] = frozenset(),
        pads: bool = False,
        **options: Unpack[SequenceOptions],
    ) -> None:
        super().__init__(num_examples, **options)
        self.sampler = sampler
        self.src_degrees = src_degrees
        self._samples, self._shared_leaves, self._pads = samples, shared_leaves, pads
        self._device_batches: DeviceBatches[BatchT] | None = None

    @abstractmethod
    def without_neighborhood(self, epoch: int, index: int) -> tuple[BatchT, SampleRequest]:
        """A batch without its graph, whose local ids are dense ids; the request of the graph."""

    @abstractmethod
    def localized(self, batch: BatchT, seed_index: Mapping[str, Tensor]) -> BatchT:
        """The batch with local ids. `seed_index`: those of the seeds of its request."""

    def part_for_device(self, epoch: int, index: int) -> tuple[BatchT, SampleRequest]:
        """`without_neighborhood`, but for what `localized` computes on the device."""
        return self.without_neighborhood(epoch, index)

    def request(self, epoch: int, index: int) -> SampleRequest:
        return self.without_neighborhood(epoch, index)[1]

    def build(self, epoch: int, index: int) -> BatchT:
        batch, request = self.without_neighborhood(epoch, index)
        subgraph = self.sampled(epoch, index, request)
        seed_index = {t: torch.from_numpy(local) for t, local in subgraph.seed_index.items()}
        return replace(
            self.localized(batch, seed_index),
            nodes=self._assembler.nodes(subgraph),
            edges=self._assembler.edges(subgraph) if self._has_edges else {},
            num_added_edges=subgraph.num_added_edges,
        )

    def sample_on_device(self) -> str | None:
        sampler, device = self.sampler, self._device
        if not self._pads or device is None:
            return "steps that are not recorded"
        columns = ", ".join(self._assembler.columns_of_host())
        settings = {
            "stored samples": self._samples is not None,
            "batches that the task changes": self.prepare is not None,
            "fewer examples than loader.batch_size": self.num_examples < self.batch_size,
            f"columns that the device does not hold ({columns})": bool(columns),
            "out-degrees as of times": self.src_degrees and sampler.temporal is not None,
        }
        reason = next((name for name, prevents in settings.items() if prevents), None)
        reason = reason or why_not(sampler)
        if reason is None and device.type == "cuda":
            past = self._assembler.past
            num_bytes = graph_bytes(sampler) + (DevicePastLabels.num_bytes(past[1]) if past else 0)
            if 3 * num_bytes > unused_bytes(device):
                reason = f"a graph of {num_bytes / 2**30:.1f} GiB, over a third of the free memory"
        reason = reason or why_not_in_time(sampler, self.request(0, 0).exclude or ())
        if reason is None:
            self._device_batches = self._batches_of(sampler, device)
        return reason

    def _batches(self, epoch: int, indices: range) -> Generator[BatchT, None, None]:
        if self._device_batches is None or not self._device_batches.is_trusted:
            return super()._batches(epoch, indices)
        num_whole = len(range(indices.start, self.num_examples // self.batch_size, indices.step))
        of_device = self._device_batches.iterate(epoch, indices[:num_whole])
        return _joined(of_device, super()._batches(epoch, indices[num_whole:]))

    def _batches_of(self, sampler: NeighborSampler, device: torch.device) -> DeviceBatches[BatchT]:
        graph, degrees = sampler.graph, {}
        on_device, padding_class = build_device_sampler(
            sampler, self._padding.sizes[-1], self.request(0, 0), device, self._shared_leaves
        )
        for edge_type in graph.edge_types if self.src_degrees else ():
            of_all = graph.neighbor_degrees(edge_type, np.arange(graph.num_nodes(edge_type[0])))
            degrees[edge_type] = torch.from_numpy(of_all).float().to(device)

        def host_part(epoch: int, index: int) -> HostPart[BatchT]:
            batch, request = self.part_for_device(epoch, index)
            return HostPart(batch=batch, sample=on_device.inputs(request))

        def make(epoch: int, index: int) -> BatchT:
            batch = self.ready_for_device(self.make(epoch, index))
            return copied_batch(batch, device)[0]

        functions, num_threads = (host_part, self.localized, make), self._threads()[0]
        past, arguments = self._assembler.past, (on_device, padding_class, self._padding, functions)
        on_device_past = None if past is None else (past[0], DevicePastLabels(past[1], device))
        return DeviceBatches(*arguments, degrees, on_device_past, num_threads)

    def make(self, epoch: int, index: int) -> BatchT:
        """Repeated epochs have stored micro-batches under their own numbers."""
        if self._samples is None:
            return super().make(epoch, index)
        stored = self._samples.position(epoch, index)
        batch = super().make(*stored)
        if stored == (epoch, index):
            return batch
        return replace(batch, index=index, key=self.key(epoch, index))

    @property
    def sample_settings(self) -> dict[str, Any]:
        """Settings that determine stored neighborhoods, by config key if there is one."""
        of_sampler = dict(self.sampler.settings)
        return {
            "graph": of_sampler.pop("graph"),
            "seed": self.seed,
            "batch_size": self.batch_size,
            **{f"sampling.{name}": value for name, value in of_sampler.items()},
        }

    def sampled(self, epoch: int, index: int, request: SampleRequest) -> SampledSubgraph:
        subgraph = self._sampled(epoch, index, request)
        return self._padding(subgraph) if self._pads else subgraph

    @cached_property
    def _padding(self) -> Padding:
        return Padding(self._sampled(0, 0, self.request(0, 0)), self.sampler.graph)

    def with_own_draws(self, request: SampleRequest) -> SampleRequest:
        """Outside training, the draws of a disjoint sampler depend on each seed and its time only,
        so that every evaluation and every prediction samples the same, in any batch.
        """
        if self.shuffle or not self.sampler.disjoint:
            return request
        times = request.times or {}
        salts = {name: seed_salts(ids, times.get(name)) for name, ids in request.seeds.items()}
        return replace(request, key=fixed_key(self.seed), salts=salts)

    def _sampled(self, epoch: int, index: int, request: SampleRequest) -> SampledSubgraph:
        if self._samples is None:
            subgraph = self.sampler.sample(**request.arguments)
        else:
            subgraph = self._samples.read(epoch, index, request, self.sampler)
        if subgraph.seed is None and subgraph.seed_time is None:
            return subgraph
        return share_leaves(subgraph, self._shared_leaves)

    def _threads(self) -> tuple[int, bool]:
        if self._samples is not None and self._samples.is_remote and self.num_threads is None:
            return _NUM_REMOTE_READERS, False
        return super()._threads()


def _joined(*parts: Generator[BatchT, None, None]) -> Generator[BatchT, None, None]:
    for batches in parts:
        yield from batches
