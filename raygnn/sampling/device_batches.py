"""Training batches that a device samples, with the bits of those that sampler threads make."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from raygnn.console import warn
from raygnn.data.edge_types import EdgeType
from raygnn.sampling.batch import Batch, DeviceCopy
from raygnn.sampling.batch_sequence import BatchT
from raygnn.sampling.device_inputs import SampleInputs
from raygnn.sampling.device_padding import DevicePadding, DevicePastLabels
from raygnn.sampling.device_sampler import DeviceSampler
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.padding import Counts, Padding
from raygnn.sampling.prefetch import copied_together, map_ahead
from raygnn.sampling.protocols import SampleRequest
from raygnn.sampling.tensor_record import TensorRecord, moved


@dataclass(frozen=True, kw_only=True)
class HostPart(TensorRecord, Generic[BatchT]):
    """The part of a batch that the host computes.

    Attributes:
        batch: without its neighborhood and local ids.
        sample: what the neighborhood depends on; None if only the host can sample it.
    """

    batch: BatchT
    sample: SampleInputs | None


class DeviceBatches(Generic[BatchT]):
    """Padded batches of a loader, sampled on the device one batch ahead.

    On one stream, a batch is padded, then the next batch is sampled, then the step of the batch
    runs. So the wait in which the engine reads the totals of a step also completes the counts of
    the next batch. The host makes the first batch of each size, which gives others their layout,
    and batches that fit no size. The first of each size is compared with that of the device.
    Threads compute the host's part of the next batches.

    Attributes:
        is_trusted: no batch has differed. If one does, the host makes all later ones.

    Args:
        sampler, padding_class: see `build_device_sampler`.
        padding: of the loader.
        functions: the host's part of a batch, by epoch and index; this with local ids, from those
            of the seeds; a complete batch of the host, copied to the device, by epoch and index.
        src_degrees, past: see `DevicePadding`.
        num_threads: for the host's parts.
    """

    def __init__(
        self,
        sampler: DeviceSampler,
        padding_class: type[DevicePadding],
        padding: Padding,
        functions: tuple[
            Callable[[int, int], HostPart[BatchT]],
            Callable[[BatchT, Mapping[str, Tensor]], BatchT],
            Callable[[int, int], BatchT],
        ],
        src_degrees: Mapping[EdgeType, Tensor],
        past: tuple[str, DevicePastLabels] | None,
        num_threads: int,
    ) -> None:
        self._sampler, self._padding_class = sampler, padding_class
        self._num_threads = num_threads
        self._padding, self._of_padding = padding, (src_degrees, past)
        self._make_part, self._localized, self._make = functions
        self._templates: dict[int, Template[BatchT]] = {}
        is_cuda, size = sampler.device.type == "cuda", len(sampler.counts)
        self._counts = torch.empty(size + 1, dtype=torch.int64, pin_memory=is_cuda)
        self._num_differing = torch.zeros(1, dtype=torch.int64, device=sampler.device)
        self.is_trusted = True
        self._counted = torch.cuda.Event() if is_cuda else None
        #: The host's part of the last batch, on the device, and its memory there.
        self._part: tuple[HostPart[BatchT], Tensor] | None = None
        self._sample: Repeated

    def iterate(self, epoch: int, indices: Sequence[int]) -> Generator[BatchT, None, None]:
        """The batches with these indices, in order. Each has as many seeds as the sampler."""
        make, num_threads = partial(self._make_part, epoch), self._num_threads
        with closing(map_ahead(make, indices, num_threads, num_threads + 1)) as parts:
            part = self._start(parts)
            for index in indices:
                assert part is not None
                counts = None if part.sample is None else self._read_counts()
                size = None if counts is None else self._padding.number_of(counts)
                if counts is not None and size in self._templates:
                    batch = self._templates[size].batch(counts)
                    batch = replace(batch, index=index, key=part.batch.key)
                else:
                    batch = self._make(epoch, index)
                    if size is not None:
                        self._templates[size] = self._template(batch, self._padding.sizes[size])
                part = self._start(parts)
                yield batch

    def _start(self, parts: Iterator[HostPart[BatchT]]) -> HostPart[BatchT] | None:
        """Starts to sample the next batch. Returns the host's part of it."""
        made = next(parts, None)
        if made is None or made.sample is None:
            return made
        part, memory = copied_together(made, self._sampler.device)
        if self._part is None:
            self._part = part, memory
            assert part.sample is not None
            sample = partial(self._sampler.sample, part.sample)
            self._sample = Repeated(sample, self._sampler.device)
        else:
            self._part[1].copy_(memory)
        self._sample()
        self._counts[:-1].copy_(self._sampler.counts, non_blocking=True)
        self._counts[-1:].copy_(self._num_differing, non_blocking=True)
        if self._counted is not None:
            self._counted.record()
        return made

    def _read_counts(self) -> Counts | None:
        if self._counted is not None:
            self._counted.synchronize()
        *counts, num_differing = self._counts.tolist()
        if num_differing and self.is_trusted:
            self.is_trusted = False
            warn(
                "a batch sampled on the GPU differs from that of the host, so the host samples "
                "from now on. Please report this with the kind of the GPU."
            )
        return self._sampler.counts_of(np.array(counts)) if self.is_trusted else None

    def _template(self, batch: BatchT, size: Counts) -> Template[BatchT]:
        assert self._part is not None
        assert batch.copy is not None
        padding = self._padding_class(self._sampler, size, *self._of_padding)
        localized = partial(self._localized, self._part[0].batch, self._sampler.seed_index)
        template = Template(batch, padding, localized, self._sampler.device)
        self._num_differing += template.num_differing(batch.copy.memory)
        return template


class Template(Generic[BatchT]):
    """A batch of one size in memory that its padding overwrites.

    Args:
        host_part: the part of a batch that the host computes, with local ids.
    """

    def __init__(
        self,
        batch: BatchT,
        padding: DevicePadding,
        host_part: Callable[[], BatchT],
        device: torch.device,
    ) -> None:
        assert batch.copy is not None
        self._layout, self._memory = batch.copy.layout, batch.copy.memory.clone()
        self._batch = batch.apply(partial(moved, memory=self._memory))
        self._num_edges = sum(edges.edge_index.shape[1] for edges in batch.edges.values())

        def fill() -> None:
            padding.fill(self._batch)
            to, values = _tensors_of_host(self._batch), _tensors_of_host(host_part())
            for tensor, value in zip(to, values, strict=True):
                tensor.copy_(value)

        self._fill = Repeated(fill, device)

    def num_differing(self, memory: Tensor) -> Tensor:
        """Number of bytes in which the batch of the last sample differs from that of the host."""
        self._fill()
        return (self._memory != memory).sum()

    def batch(self, counts: Counts) -> BatchT:
        """The batch of the last sample, in memory of its own."""
        self._fill()
        memory = self._memory.clone()
        num_sampled = sum(sum(hops) for (kind, _), hops in counts.items() if kind != "nodes")
        return replace(
            self._batch.apply(partial(moved, memory=memory)),
            num_added_edges=self._num_edges - num_sampled,
            copy=DeviceCopy(memory, self._layout),
        )


def _tensors_of_host(batch: Batch) -> list[Tensor]:
    """All tensors of a batch but those of its neighborhood."""
    found: list[Tensor] = []

    def add(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    replace(batch, nodes={}, edges={}).apply(add)
    return found


def has_triton(device: torch.device) -> bool:
    """Whether kernels of Triton can run on a device. Triton comes with torch for CUDA."""
    is_cuda = device.type == "cuda" and torch.version.cuda is not None
    return is_cuda and importlib.util.find_spec("triton") is not None


def build_device_sampler(
    sampler: NeighborSampler,
    capacities: Counts,
    reference: SampleRequest,
    device: torch.device,
    shared_leaves: frozenset[str],
) -> tuple[DeviceSampler, type[DevicePadding]]:
    """A `DeviceSampler` with these arguments, and the class that pads its samples.

    Both are kernels of Triton, if these compile, else operators of torch.
    """
    arguments = sampler, capacities, reference, device, shared_leaves
    if has_triton(device):
        try:
            kernels = importlib.import_module("raygnn.sampling.device_kernels")
            compiled: DeviceSampler = kernels.TritonSampler(*arguments)
            inputs = compiled.inputs(reference)
            assert inputs is not None  # twice as many excluded edges would fit
            compiled.sample(copied_together(inputs, device)[0])
            return compiled, kernels.TritonPadding
        except Exception as error:  # noqa: BLE001 - compilers raise many kinds, which is printed
            warn(f"the sampler runs in operators of torch, because Triton failed: {error}")
    return DeviceSampler(*arguments), DevicePadding


class Repeated:
    """Repeats the kernels of a function, which CUDA records as a graph at the second call.

    If that fails, the function is called each time. It has to use the same memory at each call, and
    may not read from the device.
    """

    def __init__(self, compute: Callable[[], None], device: torch.device) -> None:
        self._compute = compute
        has_graphs = device.type == "cuda" and torch.version.cuda is not None
        self._stream = torch.cuda.Stream(device) if has_graphs else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_warm = False

    def __call__(self) -> None:
        if self._stream is None:
            self._compute()
        elif not self._is_warm:
            current, self._is_warm = torch.cuda.current_stream(), True
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                self._compute()
            current.wait_stream(self._stream)
        elif self._graph is not None:
            self._graph.replay()
        else:
            try:
                self._graph = self._recorded(self._stream)
            except RuntimeError as error:
                warn(f"sampling on the GPU repeats without a CUDA graph, which failed: {error}")
                self._stream = None
            self()

    def _recorded(self, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Sampler threads of an evaluation may allocate meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._compute()
        return graph
