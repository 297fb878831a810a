"""Micro-batches of an epoch as one global sequence, and this rank's share of it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NotRequired, Self, TypedDict, TypeVar
from weakref import WeakSet

import numpy as np
import torch

from raygnn.sampling.batch import Batch
from raygnn.sampling.blocks import with_counts
from raygnn.sampling.prefetch import DeviceCopies, map_ahead
from raygnn.sampling.rng import BatchKey, batch_key, seed_order, windowed_order
from raygnn.sampling.tensor_record import TensorRecord

#: Type of the batches of a sequence.
BatchT = TypeVar("BatchT", bound=Batch)


class SequenceOptions(TypedDict):
    """The keyword arguments of `BatchSequence`, for the signatures of its subclasses."""

    batch_size: int
    split: str
    seed: int
    shuffle: bool
    rank: NotRequired[int]
    world_size: NotRequired[int]
    num_threads: NotRequired[int | None]
    prefetch_batches: NotRequired[int | None]
    device: NotRequired[torch.device | None]


class BatchSequence(ABC, Generic[BatchT]):
    """Divides examples into one global sequence of micro-batches, and makes this rank's share.

    Micro-batch i of an epoch is the same for any number of ranks and threads: its examples start at
    position i * batch_size of the epoch's order, and its draws follow from (seed, split, epoch, i).
    Rank r makes the micro-batches r, r + world_size, r + 2 * world_size... A subclass implements
    `build`.

    Args:
        num_examples: number of seeds, or of anchors of links.
        batch_size: examples per micro-batch; the last one of an epoch may have fewer.
        split: a name; loaders with other names have other draws.
        shuffle: draws a new order of examples in each epoch.
        num_threads: threads that make batches during training; 0 makes each on demand. Default with
            a CUDA device: three quarters of this worker's share of the cores. Default on a CPU:
            one, unless training keeps all cores busy; then torch's number of threads make
            `prefetch_batches` while training waits, and training alternates with them.
        prefetch_batches: batches made ahead, at least one per thread. Default: one, or two if
            threads alternate with training, plus one in all for a CUDA device.
        device: destination of batches. Copies to a CUDA device overlap with its computation. None,
            or a CPU, is host memory.
    """

    #: Shuffles in windows, because the examples may not fit in memory.
    shuffles_windows = False

    def __init__(
        self,
        num_examples: int,
        *,
        batch_size: int,
        split: str,
        seed: int,
        shuffle: bool,
        rank: int = 0,
        world_size: int = 1,
        num_threads: int | None = None,
        prefetch_batches: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        assert batch_size > 0
        assert 0 <= rank < world_size
        self.num_examples = num_examples
        self.batch_size = batch_size
        self.split = split
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.num_threads = num_threads
        self.prefetch_batches = prefetch_batches
        #: Adds the task's data to each batch, in the sampler threads.
        self.prepare: Callable[[BatchT], BatchT] | None = None
        self._device = device
        self._copies = (
            DeviceCopies(device) if device is not None and device.type == "cuda" else None
        )
        self._running: WeakSet[Generator[BatchT, None, None]] = WeakSet()

    @abstractmethod
    def build(self, epoch: int, index: int) -> BatchT:
        """The micro-batch of the examples at `places(epoch, index)`, with draws of `key`."""

    @property
    def num_batches(self) -> int:
        return -(-self.num_examples // self.batch_size)

    def cut_into(self, num_batches: int, least: int) -> None:
        """Makes micro-batches smaller, for this many per epoch. Call before iterating.

        `least`: minimum of examples per micro-batch, which may reduce their number.
        """
        even = -(-self.num_examples // num_batches)
        self.batch_size = min(self.batch_size, max(even, least))

    def iterate(
        self, epoch: int, start: int = 0, stop: int | None = None
    ) -> Generator[BatchT, None, None]:
        """This rank's micro-batches with start <= index < stop, in order; None is the end of the
        epoch.

        Closing the generator ends its threads. Exceptions of sampler threads are raised with a note
        that names the batch.
        """
        stop = self.num_batches if stop is None else min(stop, self.num_batches)
        first = start + (self.rank - start) % self.world_size
        batches = self._batches(epoch, range(first, stop, self.world_size))
        self._running.add(batches)
        return batches

    def _batches(self, epoch: int, indices: range) -> Generator[BatchT, None, None]:
        # A single batch overlaps with nothing, so a thread would only cost time.
        num_threads, in_turns = self._threads() if len(indices) > 1 else (0, False)
        default_ahead = num_threads * (2 if in_turns else 1) + (self._copies is not None)
        num_ahead = self.prefetch_batches or default_ahead
        make = partial(self._make_on_device, epoch)
        batches = map_ahead(make, indices, num_threads, num_ahead, in_turns=in_turns)
        if self._copies is not None:
            batches = _each(self._copies.finish, batches)
        return batches

    def sample_on_device(self) -> str | None:
        """Lets the device sample, if it can; else returns the reason. Call before iterating."""
        return "batches of several tasks or of the whole graph"

    def _threads(self) -> tuple[int, bool]:
        """Number of sampler threads, and whether they alternate with training."""
        if self.num_threads is not None:
            return self.num_threads, False
        num_workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        num_busy, num_cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
        if self._copies is not None:
            # The rest is for the thread that launches kernels, and for the system.
            return max(1, 3 * num_cores // (4 * num_workers)), False
        # One thread of training shares a core with a sampler thread at no loss. Several wait for
        # the one that has to share.
        in_turns = num_busy > 1 and num_busy * num_workers >= num_cores
        return (num_busy, True) if in_turns else (1, False)

    def make(self, epoch: int, index: int) -> BatchT:
        """Makes one micro-batch: a pure function of the two numbers."""
        try:
            batch = self.build(epoch, index)
            return batch if self.prepare is None else self.prepare(batch)
        except Exception as error:
            error.add_note(f"while making batch {index} of split {self.split!r}, epoch {epoch + 1}")
            raise

    def _make_on_device(self, epoch: int, index: int) -> Any:
        batch = self.make(epoch, index)
        return batch if self._copies is None else self._copies.begin(self.ready_for_device(batch))

    def ready_for_device(self, batch: BatchT) -> BatchT:
        return with_counts(batch)

    def key(self, epoch: int, index: int) -> BatchKey:
        return batch_key(self.seed, self.split, epoch, index)

    def places(self, epoch: int, index: int) -> np.ndarray:
        """int64, positions of a micro-batch's examples among all."""
        start = index * self.batch_size
        stop = min(start + self.batch_size, self.num_examples)
        if not self.shuffle:
            return np.arange(start, stop)
        order = windowed_order if self.shuffles_windows else seed_order
        return order(self.num_examples, self.seed, epoch, start, stop)

    def close(self) -> None:
        for batches in list(self._running):
            batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _each(
    change: Callable[[Any], BatchT], items: Generator[Any, None, None]
) -> Generator[BatchT, None, None]:
    with closing(items):
        yield from map(change, items)


@dataclass(frozen=True)
class JointBatch(TensorRecord):
    """A micro-batch of each sequence.

    Attributes:
        index: number in the epoch, over all ranks.
        epochs: by name, the epoch within each sequence.
        batches: by name.
    """

    index: int
    epochs: dict[str, int]
    batches: dict[str, Batch]

    @property
    def num_edges(self) -> int:
        return sum(batch.num_edges for batch in self.batches.values())


class JointBatches(BatchSequence[Any]):
    """Draws a micro-batch of each of several sequences together.

    An epoch is one pass over the longest sequence. Others continue across epochs, and start their
    own next epoch when they end: micro-batch n since the start of training is micro-batch n of each
    sequence.

    Args:
        sequences: by name; at least one.
        num_threads, prefetch_batches, device: as in `BatchSequence`.
    """

    def __init__(
        self,
        sequences: Mapping[str, BatchSequence[Any]],
        *,
        num_threads: int | None = None,
        prefetch_batches: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.sequences = dict(sequences)
        self._num_batches = max(each.num_batches for each in self.sequences.values())
        # Examples per epoch; sequences that restart count their average.
        num_examples = sum(
            self._num_batches * each.num_examples // each.num_batches
            for each in self.sequences.values()
        )
        first = next(iter(self.sequences.values()))
        super().__init__(
            num_examples,
            batch_size=sum(each.batch_size for each in self.sequences.values()),
            split=first.split,
            seed=first.seed,
            shuffle=first.shuffle,
            rank=first.rank,
            world_size=first.world_size,
            num_threads=num_threads,
            prefetch_batches=prefetch_batches,
            device=device,
        )

    @property
    def num_batches(self) -> int:
        return self._num_batches

    def build(self, epoch: int, index: int) -> JointBatch:
        epochs, batches = {}, {}
        for name, each in self.sequences.items():
            number = epoch * self._num_batches + index
            epochs[name], own_index = divmod(number, each.num_batches)
            batches[name] = each.make(epochs[name], own_index)
        return JointBatch(index, epochs, batches)

    def ready_for_device(self, batch: JointBatch) -> JointBatch:
        each = {n: self.sequences[n].ready_for_device(b) for n, b in batch.batches.items()}
        return replace(batch, batches=each)
