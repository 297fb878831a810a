"""Batches of sampled neighborhoods, made ahead by threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch_geometric.data import Data

from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.permutation import seed_order
from raygnn.sampling.rng import batch_key
from raygnn.sampling.stores import FeatureStore, GraphStore


class NeighborLoader:
    """Cuts seeds into one global sequence of micro-batches; this rank makes its share."""

    def __init__(
        self,
        graph: GraphStore,
        features: FeatureStore,
        seeds: np.ndarray,
        node_type: str,
        *,
        sampler: NeighborSampler,
        columns: Mapping[str, str],
        batch_size: int,
        split: str,
        seed: int,
        shuffle: bool,
        rank: int = 0,
        world_size: int = 1,
        num_threads: int = 1,
        prefetch_batches: int = 4,
    ) -> None:
        self.graph, self.features, self.seeds = graph, features, seeds
        self.node_type, self.sampler, self.columns = node_type, sampler, dict(columns)
        self.batch_size, self.split, self.seed, self.shuffle = batch_size, split, seed, shuffle
        self.rank, self.world_size = rank, world_size
        self.prefetch_batches = max(prefetch_batches, 1)
        self._pool = ThreadPoolExecutor(num_threads) if num_threads else None

    @property
    def num_batches(self) -> int:
        return -(-len(self.seeds) // self.batch_size)

    def iterate(
        self, epoch: int, start: int = 0, stop: int | None = None
    ) -> Generator[Data, None, None]:
        """This rank's batches with start <= index < stop, in order."""
        stop = self.num_batches if stop is None else min(stop, self.num_batches)
        mine = [i for i in range(start, stop) if i % self.world_size == self.rank]
        if self._pool is None:
            yield from (self.make(epoch, index) for index in mine)
            return
        pending: deque[Future[Data]] = deque()
        try:
            for index in mine:
                pending.append(self._pool.submit(self.make, epoch, index))
                if len(pending) > self.prefetch_batches:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def make(self, epoch: int, index: int) -> Data:
        """Makes one global micro-batch: a pure function of the two numbers."""
        lo, hi = index * self.batch_size, min((index + 1) * self.batch_size, len(self.seeds))
        if self.shuffle:
            ids = self.seeds[seed_order(len(self.seeds), self.seed, epoch, lo, hi)]
        else:
            ids = self.seeds[lo:hi]
        sub = self.sampler.sample(self.node_type, ids, batch_key(self.seed, self.split, epoch, index))
        (edge_type,) = sub.row
        n_id = sub.node[self.node_type]
        batch = Data(num_nodes=len(n_id))
        batch.edge_index = torch.from_numpy(np.stack([sub.row[edge_type], sub.col[edge_type]]))
        batch.n_id, batch.e_id = torch.from_numpy(n_id), torch.from_numpy(sub.edge[edge_type])
        batch.input_id = torch.from_numpy(ids)
        batch.batch_size = batch.num_seeds = len(ids)
        batch.index = index
        batch.num_sampled_nodes = sub.num_sampled_nodes[self.node_type]
        batch.num_sampled_edges = sub.num_sampled_edges[edge_type]
        degree = self.graph.degrees(edge_type, n_id).astype(np.float32)
        batch.degree = torch.from_numpy(degree)
        for column, name in self.columns.items():
            rows = ids if name == "y" else n_id
            batch[name] = torch.from_numpy(self.features.gather(self.node_type, column, rows))
        return batch

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
