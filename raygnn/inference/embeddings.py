"""Embeddings of the nodes of a graph, exact or sampled, equal for any number of ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from raygnn.data.time_units import Time
from raygnn.inference.applied_model import AppliedModel
from raygnn.inference.seed_times import SeedTimes
from raygnn.loops.tasks.exact_encoding import encode_exactly, is_layerwise
from raygnn.models.exact import ExactOptions
from raygnn.parallel.shared_rows import SharedRows
from raygnn.sampling.loader import RowPlan

# Sampled batches per chunk, so that sampling the next one overlaps with encoding.
_BATCHES_PER_CHUNK = 16


class Embeddings(ABC):
    """Encoder outputs of a graph's nodes."""

    #: `rows` begins at multiples of it.
    alignment = 1

    @abstractmethod
    def rows(self, node_type: str, first: int, last: int) -> Tensor:
        """[last - first, channels] on the CPU, of the nodes with these dense ids."""

    @abstractmethod
    def all_rows(self, node_type: str) -> Tensor:
        """[num_nodes, channels] on the CPU. Collective: all ranks must call."""

    @abstractmethod
    def rows_of(self, node_type: str, ids: np.ndarray) -> Tensor:
        """[num_ids, channels] on the CPU, of int64 dense ids. Collective: all ranks must call, with
        equal ids.
        """

    def close(self) -> None:  # noqa: B027 - nothing to free is fine
        ...


class KeptEmbeddings(Embeddings):
    """Precomputed rows of all nodes, [num_nodes, channels] on the CPU by node type.

    `applied`: blends rows with those of its linear recommender as they are read.
    """

    def __init__(self, rows: Mapping[str, Tensor], applied: AppliedModel | None = None) -> None:
        self._rows, self._applied = rows, applied

    def rows(self, node_type: str, first: int, last: int) -> Tensor:
        return self._read(node_type, slice(first, last))

    def all_rows(self, node_type: str) -> Tensor:
        return self._read(node_type, slice(None))

    def rows_of(self, node_type: str, ids: np.ndarray) -> Tensor:
        return self._read(node_type, torch.from_numpy(ids))

    def _read(self, node_type: str, index: slice | Tensor) -> Tensor:
        rows = self._rows[node_type][index]
        return rows if self._applied is None else self._applied.blended(node_type, rows, index)


class SampledEmbeddings(Embeddings):
    """Rows of fixed batches of nodes in order, computed on demand. Those of nodes are blended with
    rows of a linear recommender, if the model has one.

    For a user's model with several outputs, the first one.

    Args:
        nodes: int64, dense ids by node type; rows are requested by position in them.
        plan: rows of (entity, time); `nodes` are positions in them.
    """

    def __init__(
        self, applied: AppliedModel, nodes: Mapping[str, np.ndarray], plan: RowPlan | None = None
    ) -> None:
        self._loaders = {name: applied.loader(name, ids, plan) for name, ids in nodes.items()}
        self._applied, self._nodes, self._is_blended = applied, nodes, plan is None
        self._shared = SharedRows(applied.env.scratch)
        self.alignment = applied.env.loaded.config.loader_plan("test").batch_size

    @torch.no_grad()
    def rows(self, node_type: str, first: int, last: int) -> Tensor:
        size = self.alignment
        assert first % size == 0
        parts = []
        with closing(self._loaders[node_type].iterate(0, first // size, -(-last // size))) as made:
            for batch in made:
                moved = batch.to(self._applied.env.device)
                rows = self._applied.encoder(moved)[node_type]
                rows = next(iter(rows.values())) if isinstance(rows, Mapping) else rows
                parts.append(rows[moved.seed_index].float().cpu())
        encoded = torch.cat(parts)
        if not self._is_blended:
            return encoded
        nodes = torch.from_numpy(self._nodes[node_type][first:last])
        return self._applied.blended(node_type, encoded, nodes)

    def all_rows(self, node_type: str) -> Tensor:
        return self._compute(
            node_type,
            self._loaders[node_type].num_examples,
            self.alignment * _BATCHES_PER_CHUNK,
            partial(self.rows, node_type),
        )

    def rows_of(self, node_type: str, ids: np.ndarray) -> Tensor:
        size = self.alignment
        batches, places = np.unique(ids // size, return_inverse=True)
        last_row = min((int(batches[-1]) + 1) * size, self._loaders[node_type].num_examples)
        num_rows = (len(batches) - 1) * size + last_row - int(batches[-1]) * size

        def batch_rows(first: int, last: int) -> Tensor:
            start = int(batches[first // size]) * size
            return self.rows(node_type, start, start + last - first)

        rows = self._compute(node_type, num_rows, size, batch_rows)
        return rows[torch.from_numpy(places * size + ids % size)]

    def close(self) -> None:
        for loader in self._loaders.values():
            loader.close()

    def _compute(
        self, node_type: str, num_rows: int, size: int, rows_of: Callable[[int, int], Tensor]
    ) -> Tensor:
        # A user's model does not say how wide its output is: the first batch does.
        width = self.rows(node_type, 0, min(self.alignment, num_rows)).shape[1]
        chunks = [(first, min(first + size, num_rows)) for first in range(0, num_rows, size)]
        return self._shared(chunks, rows_of, width)


class NodeEncoder:
    """Encodes nodes of a graph alone or together.

    Args:
        own_batches: nodes that are sampled are encoded from their own neighborhoods.
        keeps_rows: exact rows of all nodes are kept, with those of the model's end types.
        chunk_size: rows on the device at a time in exact encoding.
    """

    def __init__(
        self,
        applied: AppliedModel,
        own_batches: bool = False,
        keeps_rows: bool = True,
        chunk_size: int | None = None,
    ) -> None:
        self.applied = applied
        self._has_own_batches, self._keeps_rows = own_batches, keeps_rows
        self._chunk_size = chunk_size
        self._kept: dict[str, Tensor] = {}

    def as_of(self, times: SeedTimes | None) -> NodeEncoder:
        return NodeEncoder(self.applied.as_of(times), self._has_own_batches, self._keeps_rows)

    def at(self, time: Time) -> NodeEncoder:
        """The same, with all nodes as of a time."""
        assert self.applied.times is not None
        return self.as_of(SeedTimes(replace(self.applied.times.moment, time=time)))

    def keeps(self, node_types: Sequence[str]) -> bool:
        return set(node_types) <= self._kept.keys()

    def keep(self, node_types: Sequence[str]) -> None:
        with self.encoded(node_types) as embeddings:
            rows = {name: embeddings.all_rows(name) for name in node_types}
        self._kept |= rows

    def rows(self, node_type: str, dense: np.ndarray) -> Tensor:
        """[num_ids, channels] of nodes that may repeat, each encoded once."""
        ids, places = np.unique(dense, return_inverse=True)
        with self.chosen({node_type: ids}) as embeddings:
            rows = embeddings.rows(node_type, 0, len(ids))
        return rows[torch.from_numpy(places)]

    @contextmanager
    def chosen(
        self, nodes: Mapping[str, np.ndarray], plan: RowPlan | None = None
    ) -> Iterator[Embeddings]:
        """Rows of some nodes, by position.

        Args:
            nodes: int64, distinct dense ids, ascending, by node type.
            plan: rows of (node, time); `nodes` are positions in them.
        """
        if plan is not None or all(self._takes_neighborhoods(*each) for each in nodes.items()):
            with closing(SampledEmbeddings(self.applied, nodes, plan)) as embeddings:
                yield embeddings
        else:
            with self.encoded(list(nodes)) as every:
                rows = {name: every.rows_of(name, ids) for name, ids in nodes.items()}
            yield KeptEmbeddings(rows)

    def _takes_neighborhoods(self, node_type: str, ids: np.ndarray) -> bool:
        """Whether nodes are encoded from their own neighborhoods, not with all nodes."""
        if self.applied.known is not None:  # the graph has new nodes
            return True
        if self.keeps([node_type]):
            return False
        if not self.applied.is_exact:
            return self._has_own_batches
        if not self._is_layered([node_type]):
            return True
        return len(ids) <= self.applied.env.loaded.config.loader_plan("test").batch_size

    def encoded(self, node_types: Sequence[str]) -> closing[Embeddings]:
        """Rows of all nodes of some types, by dense id."""
        applied = self.applied
        every: Embeddings
        if not self.keeps(node_types) and not self._is_layered(node_types):
            numbers = {name: applied.bundle.num_nodes(name) for name in node_types}
            nodes = {name: np.arange(number) for name, number in numbers.items()}
            every = SampledEmbeddings(applied, nodes)
        elif self._keeps_rows:
            self._keep_every(node_types)
            every = KeptEmbeddings(self._kept)
        else:
            every = KeptEmbeddings(self._every(node_types), applied)
        return closing(every)

    def _is_layered(self, node_types: Sequence[str]) -> bool:
        applied = self.applied
        return is_layerwise(applied.encoder) and applied.encodes_by_layers(node_types)

    def _keep_every(self, node_types: Sequence[str]) -> None:
        if self.keeps(node_types):
            return
        wanted = {*node_types, *self.applied.spec.output.ends} - self._kept.keys()
        if self.applied.times is not None:
            wanted -= self.applied.times.own
        order = [name for name in self.applied.bundle.node_types if name in wanted]
        for name, rows in self._every(order).items():
            self._kept[name] = self.applied.blended(name, rows, slice(None))

    def _every(self, node_types: Sequence[str]) -> dict[str, Tensor]:
        """All rows of some types, computed layer by layer, without what is later than the moment of
        the model's times. Collective: all ranks must call.
        """
        applied = self.applied
        env, times = applied.env, applied.times
        return encode_exactly(
            applied.encoder,
            applied.stores.graph,
            applied.stores.features,
            applied.spec,
            node_types,
            as_of=None if times is None else times.moment,
            options=ExactOptions(
                device=env.device, chunk_size=self._chunk_size, compute=SharedRows(env.scratch)
            ),
        )
