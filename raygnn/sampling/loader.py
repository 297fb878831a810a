"""Batches of sampled neighborhoods, made ahead by threads."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial
from types import TracebackType
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch_geometric.sampler import BaseSampler

from raygnn.errors import ConfigError
from raygnn.sampling.batch import BatchAssembler
from raygnn.sampling.foreign_sampler import ForeignSampler
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.permutation import seed_order
from raygnn.sampling.prefetch import map_ahead
from raygnn.sampling.protocols import FeatureStore, GraphStore
from raygnn.sampling.rng import batch_key
from raygnn.sampling.seeds import check_seeds

#: `torch_geometric.data.Data` of a graph of one node and edge type, else `HeteroData`; what is in
#: it, `raygnn.sampling.batch.BatchAssembler` says.
Batch = Any


class NeighborLoader:
    """Cuts seeds into one global sequence of micro-batches, and makes this rank's share of it.

    Micro-batch i of an epoch is the same for any number of ranks and threads: its seeds are places
    i * batch_size onwards of the epoch's order, its draws follow from (seed, split, epoch, i). Rank
    r makes the micro-batches r, r + world_size, r + 2 * world_size...

    Args:
        seeds: int64 [num_seeds], dense ids, all of the split.
        node_type: of the seeds.
        sampler: raygnn's, or any sampler of PyG's that has `sample_from_nodes`.
        columns: which columns of the nodes a batch has, and under what names.
        edge_columns: the same of the edges.
        batch_size: seeds per micro-batch; the last one of an epoch may have fewer.
        split: a name; loaders of other names draw otherwise.
        shuffle: whether the order of seeds is another in each epoch; else it is as given.
        num_threads: that make batches; 0 makes each when it is asked for.
        prefetch_batches: made ahead, at least one for each thread.
        pin_memory: into page-locked memory, for asynchronous copies; nothing where CUDA is not.
    Raises:
        ConfigError: a number is out of range.
        DataError: the graph has no such node type, or a seed is not one of its nodes.
    """

    def __init__(
        self,
        graph: GraphStore,
        features: FeatureStore,
        seeds: np.ndarray,
        node_type: str,
        *,
        sampler: NeighborSampler | BaseSampler,
        columns: Mapping[str, str],
        edge_columns: Mapping[str, str] | None = None,
        batch_size: int,
        split: str,
        seed: int,
        shuffle: bool,
        rank: int = 0,
        world_size: int = 1,
        num_threads: int = 1,
        prefetch_batches: int = 4,
        pin_memory: bool = False,
    ) -> None:
        _check_numbers(batch_size, num_threads, prefetch_batches)
        _check_rank(rank, world_size)
        self.seeds = check_seeds(graph, node_type, seeds)
        self.node_type = node_type
        self.batch_size = batch_size
        self.split = split
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.num_threads = num_threads
        self.prefetch_batches = prefetch_batches
        self.pin_memory = pin_memory and torch.cuda.is_available()
        self._sampler = (
            sampler
            if isinstance(sampler, NeighborSampler)
            else ForeignSampler(sampler, graph.node_types, graph.edge_types)
        )
        self._assembler = BatchAssembler(graph, features, columns, edge_columns or {})
        self._running: WeakSet[Generator[Batch, None, None]] = WeakSet()

    @property
    def num_batches(self) -> int:
        """Micro-batches of an epoch over all ranks."""
        return -(-len(self.seeds) // self.batch_size)

    def iterate(
        self, epoch: int, start: int = 0, stop: int | None = None
    ) -> Generator[Batch, None, None]:
        """This rank's micro-batches with start <= index < stop, in order; each has its `index`.

        Leaving the loop, or closing what is returned, ends its threads.

        Args:
            stop: None is all of the epoch.
        Raises:
            Exception: what a sampler thread raised, with a note that names the batch.
        """
        stop = self.num_batches if stop is None else min(stop, self.num_batches)
        first = start + (self.rank - start) % self.world_size
        indices = range(first, stop, self.world_size)
        make = partial(self.make, epoch)
        batches = map_ahead(make, indices, self.num_threads, self.prefetch_batches)
        self._running.add(batches)
        return batches

    def make(self, epoch: int, index: int) -> Batch:
        """Makes one micro-batch: a pure function of the two numbers."""
        try:
            seeds = self.seeds_of(epoch, index)
            key = batch_key(self.seed, self.split, epoch, index)
            subgraph = self._sampler.sample({self.node_type: seeds}, key)
            batch = self._assembler.assemble(subgraph)
            self._assembler.add_seeds(batch, subgraph, self.node_type, seeds)
            batch.index = index
            return batch.pin_memory() if self.pin_memory else batch
        except Exception as error:
            error.add_note(f"while making batch {index} of split {self.split!r}, epoch {epoch}")
            raise

    def seeds_of(self, epoch: int, index: int) -> np.ndarray:
        """int64, the seeds of a micro-batch."""
        start = index * self.batch_size
        stop = min(start + self.batch_size, len(self.seeds))
        if not self.shuffle:
            return self.seeds[start:stop].copy()  # a batch is its owner's to write to
        return self.seeds[seed_order(len(self.seeds), self.seed, epoch, start, stop)]

    def close(self) -> None:
        """Ends all iterations and their threads."""
        for batches in list(self._running):
            batches.close()

    def __enter__(self) -> NeighborLoader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _check_numbers(batch_size: int, num_threads: int, prefetch_batches: int) -> None:
    numbers = {
        "batch_size": (batch_size, 1),
        "num_threads": (num_threads, 0),
        "prefetch_batches": (prefetch_batches, 1),
    }
    for name, (value, least) in numbers.items():
        if value < least:
            raise ConfigError(
                f"loader.{name}={value!r} is invalid: it must be at least {least}. Set it so."
            )


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"loader.rank={rank!r} is invalid: world_size is {world_size}, and ranks count from 0. "
            "Set both as the process group has them."
        )
