"""Micro-batches with one neighborhood each: sampled on demand, or stored."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, NotRequired, Protocol, Unpack

from raygnn.sampling.batch_sequence import BatchSequence, BatchT, SequenceOptions
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import SampledSubgraph, SampleRequest
from raygnn.sampling.pyg import ForeignSampler

#: Threads that read from a store of objects: each waits for its answers most of the time.
_NUM_REMOTE_READERS = 4


class SamplesOfSplit(Protocol):
    """Stored neighborhoods of the micro-batches of a split."""

    is_remote: bool

    def position(self, epoch: int, index: int) -> tuple[int, int]:
        """Maps a training epoch and micro-batch to the stored ones."""

    def read(
        self, epoch: int, index: int, request: SampleRequest, sampler: NeighborSampler
    ) -> SampledSubgraph:
        """The neighborhood of a stored micro-batch.

        Raises:
            DataError: the neighborhood answers another request, or its file is missing or damaged.
        """


class SampledOptions(SequenceOptions):
    """The keyword arguments of `SampledSequence`, for the signatures of its subclasses."""

    samples: NotRequired[SamplesOfSplit | None]
    src_degrees: NotRequired[bool]


class SampledSequence(BatchSequence[BatchT]):
    """Micro-batches with the neighborhood of their `request`.

    Args:
        samples: stored neighborhoods, read instead of sampling. Epochs beyond the stored ones
            repeat their micro-batches, with the same neighbors and negatives, in another order.
    """

    def __init__(
        self,
        num_examples: int,
        sampler: NeighborSampler | ForeignSampler,
        *,
        samples: SamplesOfSplit | None = None,
        src_degrees: bool = False,
        **options: Unpack[SequenceOptions],
    ) -> None:
        super().__init__(num_examples, **options)
        self.sampler = sampler
        self.src_degrees = src_degrees
        self._samples = samples

    @abstractmethod
    def request(self, epoch: int, index: int) -> SampleRequest: ...

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
        assert isinstance(self.sampler, NeighborSampler)
        of_sampler = dict(self.sampler.settings)
        return {
            "graph": of_sampler.pop("graph"),
            "seed": self.seed,
            "batch_size": self.batch_size,
            **{f"sampling.{name}": value for name, value in of_sampler.items()},
        }

    def sampled(self, epoch: int, index: int, request: SampleRequest) -> SampledSubgraph:
        if self._samples is None:
            return self.sampler.sample(**request.arguments)
        assert isinstance(self.sampler, NeighborSampler)
        return self._samples.read(epoch, index, request, self.sampler)

    def _threads(self) -> tuple[int, bool]:
        if self._samples is not None and self._samples.is_remote and self.num_threads is None:
            return _NUM_REMOTE_READERS, False
        return super()._threads()
