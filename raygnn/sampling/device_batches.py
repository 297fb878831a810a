"""Training batches that a device samples, with the bits of those that sampler threads make."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from raygnn.console import warn
from raygnn.data.edge_types import EdgeType
from raygnn.device_memory import copied
from raygnn.sampling.batch import DeviceCopy, NodeBatch
from raygnn.sampling.device_padding import DevicePadding
from raygnn.sampling.device_sampler import DeviceSampler
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.padding import Counts, Padding
from raygnn.sampling.prefetch import copied_together
from raygnn.sampling.tensor_record import TensorRecord, moved


@dataclass(frozen=True, kw_only=True)
class HostInputs(TensorRecord):
    """The part of a batch that the host computes.

    Attributes:
        key: of the batch.
        input_id, labels: see `NodeBatch`.
        seeds: int64 [num_seeds], dense ids.
        draw_keys: see `DeviceSampler.keys`.
    """

    key: int
    input_id: Tensor
    labels: dict[str, Tensor]
    seeds: Tensor
    draw_keys: Tensor


class DeviceBatches:
    """Padded batches of a loader, sampled on the device one batch ahead.

    On one stream, a batch is padded, then the next batch is sampled, then the step of the batch
    runs. So the wait in which the engine reads the totals of a step also completes the counts of
    the next batch. The host makes the first batch of each size, which gives others their layout,
    and batches that fit no size. The first of each size is compared with that of the device.

    Attributes:
        is_trusted: no batch has differed. If one does, the host makes all later ones.

    Args:
        sampler, padding_class: see `build_device_sampler`.
        padding: of the loader.
        inputs: the host's part of a batch, by epoch and index.
        make: a complete batch of the host, copied to the device, by epoch and index.
        src_degrees: see `DevicePadding`.
    """

    def __init__(
        self,
        sampler: DeviceSampler,
        padding_class: type[DevicePadding],
        padding: Padding,
        inputs: Callable[[int, int], HostInputs],
        make: Callable[[int, int], NodeBatch],
        src_degrees: Mapping[EdgeType, Tensor],
    ) -> None:
        self._sampler, self._padding_class = sampler, padding_class
        self._padding, self._make_inputs = padding, inputs
        self._make, self._src_degrees = make, src_degrees
        self._templates: dict[int, Template] = {}
        is_cuda, size = sampler.device.type == "cuda", len(sampler.counts)
        self._counts = torch.empty(size + 1, dtype=torch.int64, pin_memory=is_cuda)
        self._num_differing = torch.zeros(1, dtype=torch.int64, device=sampler.device)
        self.is_trusted = True
        self._counted = torch.cuda.Event() if is_cuda else None
        self._inputs: tuple[HostInputs, Tensor] | None = None
        self._sample: Repeated

    def iterate(self, epoch: int, indices: Sequence[int]) -> Generator[NodeBatch, None, None]:
        """The batches with these indices, in order. Each has as many seeds as the sampler."""
        key = self._start(epoch, indices[0]) if indices else 0
        for number, index in enumerate(indices):
            counts = self._read_counts()
            size = None if counts is None else self._padding.number_of(counts)
            if counts is not None and size in self._templates:
                batch = replace(self._templates[size].batch(counts), index=index, key=key)
            else:
                batch = self._make(epoch, index)
                if size is not None:
                    self._templates[size] = self._template(batch, self._padding.sizes[size])
            if number + 1 < len(indices):
                key = self._start(epoch, indices[number + 1])
            yield batch

    def _start(self, epoch: int, index: int) -> int:
        """Starts to sample a batch. Returns its key."""
        made = self._make_inputs(epoch, index)
        inputs, memory = copied_together(made, self._sampler.device)
        if self._inputs is None:
            self._inputs = inputs, memory
            sample = partial(self._sampler.sample, inputs.seeds, inputs.draw_keys)
            self._sample = Repeated(sample, self._sampler.device)
        else:
            self._inputs[1].copy_(memory)
        self._sample()
        self._counts[:-1].copy_(self._sampler.counts, non_blocking=True)
        self._counts[-1:].copy_(self._num_differing, non_blocking=True)
        if self._counted is not None:
            self._counted.record()
        return made.key

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

    def _template(self, batch: NodeBatch, size: Counts) -> Template:
        assert self._inputs is not None
        assert batch.copy is not None
        padding = self._padding_class(self._sampler, size, self._src_degrees)
        template = Template(batch, padding, self._inputs[0], self._sampler.device)
        self._num_differing += template.num_differing(batch.copy.memory)
        return template


class Template:
    """A batch of one size in memory that its padding overwrites."""

    def __init__(
        self, batch: NodeBatch, padding: DevicePadding, inputs: HostInputs, device: torch.device
    ) -> None:
        assert batch.copy is not None
        self._layout, self._memory = batch.copy.layout, batch.copy.memory.clone()
        self._batch = batch.apply(partial(moved, memory=self._memory))
        self._num_edges = sum(edges.edge_index.shape[1] for edges in batch.edges.values())

        def fill() -> None:
            padding.fill(self._batch)
            self._batch.input_id.copy_(inputs.input_id)
            for name, labels in self._batch.labels.items():
                labels.copy_(inputs.labels[name])

        self._fill = Repeated(fill, device)

    def num_differing(self, memory: Tensor) -> Tensor:
        """Number of bytes in which the batch of the last sample differs from that of the host."""
        self._fill()
        return (self._memory != memory).sum()

    def batch(self, counts: Counts) -> NodeBatch:
        """The batch of the last sample, in memory of its own."""
        self._fill()
        memory = self._memory.clone()
        num_sampled = sum(sum(hops) for (kind, _), hops in counts.items() if kind != "nodes")
        return replace(
            self._batch.apply(partial(moved, memory=memory)),
            num_added_edges=self._num_edges - num_sampled,
            copy=DeviceCopy(memory, self._layout),
        )


def has_triton(device: torch.device) -> bool:
    """Whether kernels of Triton can run on a device. Triton comes with torch for CUDA."""
    is_cuda = device.type == "cuda" and torch.version.cuda is not None
    return is_cuda and importlib.util.find_spec("triton") is not None


def build_device_sampler(
    sampler: NeighborSampler,
    capacities: Counts,
    node_type: str,
    num_seeds: int,
    device: torch.device,
) -> tuple[DeviceSampler, type[DevicePadding]]:
    """A `DeviceSampler` with these arguments, and the class that pads its samples.

    Both are kernels of Triton, if these compile, else operators of torch.
    """
    arguments = sampler, capacities, node_type, num_seeds, device
    if has_triton(device):
        try:
            kernels = importlib.import_module("raygnn.sampling.device_kernels")
            compiled: DeviceSampler = kernels.TritonSampler(*arguments)
            seeds = torch.zeros_like(compiled.seed_index)
            compiled.sample(seeds, copied(compiled.keys(0), device))
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
