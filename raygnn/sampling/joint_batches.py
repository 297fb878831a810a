"""Micro-batches of several sequences together, for tasks that share an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from raygnn.sampling.batch import Batch
from raygnn.sampling.batch_sequence import BatchSequence
from raygnn.sampling.tensor_record import TensorRecord


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
        # Of an epoch; of a sequence that begins anew meanwhile, as many as on average.
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
