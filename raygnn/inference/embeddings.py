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
from raygnn.inference.applied_model import AppliedModel, used_recommender
from raygnn.inference.seed_times import SeedTimes
from raygnn.loops.tasks.exact_encoding import encode_exactly, is_layerwise
from raygnn.models.exact import ExactOptions
from raygnn.parallel.shared_rows import SharedRows
from raygnn.recommender.recommender import LinearRecommender
from raygnn.recommender.regression import AnchorRows
from raygnn.sampling.loader import RowPlan

# Sampled batches that are made one after the other, so that making the next overlaps.
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
    """Precomputed rows of all nodes, [num_nodes, channels] on the CPU by node type."""

    def __init__(self, rows: Mapping[str, Tensor]) -> None:
        self._rows = rows

    def rows(self, node_type: str, first: int, last: int) -> Tensor:
        return self._rows[node_type][first:last]

    def all_rows(self, node_type: str) -> Tensor:
        return self._rows[node_type]

    def rows_of(self, node_type: str, ids: np.ndarray) -> Tensor:
        return self._rows[node_type][torch.from_numpy(ids)]


class BlendedEmbeddings(Embeddings):
    """Rows of an encoder followed by those of a linear recommender, of the types that have these.

    `nodes`: as of `SampledEmbeddings`; None if rows are asked for by dense id.
    """

    def __init__(
        self,
        encoded: Embeddings,
        recommender: LinearRecommender,
        rows: Mapping[str, Tensor | AnchorRows],
        nodes: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._encoded, self._recommender = encoded, recommender
        self._rows, self._nodes = rows, nodes or {}
        self.alignment = encoded.alignment

    def rows(self, node_type: str, first: int, last: int) -> Tensor:
        return self._join(node_type, self._encoded.rows(node_type, first, last), slice(first, last))

    def all_rows(self, node_type: str) -> Tensor:
        return self._join(node_type, self._encoded.all_rows(node_type), slice(None))

    def rows_of(self, node_type: str, ids: np.ndarray) -> Tensor:
        rows = self._encoded.rows_of(node_type, ids)
        return self._join(node_type, rows, torch.from_numpy(ids))

    def close(self) -> None:
        self._encoded.close()

    def _join(self, node_type: str, encoded: Tensor, index: slice | Tensor) -> Tensor:
        if node_type not in self._rows:
            return encoded
        if node_type in self._nodes:
            index = torch.from_numpy(self._nodes[node_type])[index]
        return self._recommender.join(encoded, self._rows[node_type][index])


def blended(
    embeddings: Embeddings, applied: AppliedModel, nodes: Mapping[str, np.ndarray] | None = None
) -> Embeddings:
    """The embeddings, blended with a linear recommender if the model has one."""
    recommender = used_recommender(applied.model)
    if recommender is None:
        return embeddings
    anchor_type, target_type = applied.spec.output.ends
    anchors, targets = recommender.rows(applied.basis(recommender), applied.target_attributes)
    rows: dict[str, Tensor | AnchorRows] = {anchor_type: anchors, target_type: targets}
    return BlendedEmbeddings(embeddings, recommender, rows, nodes)


class SampledEmbeddings(Embeddings):
    """Rows of fixed batches of nodes in order, computed on demand.

    For a user's model with several outputs, the first one.

    Args:
        nodes: int64, dense ids by node type; rows are requested by position in them.
        plan: rows of (entity, time); `nodes` are positions in them.
    """

    def __init__(
        self,
        applied: AppliedModel,
        nodes: Mapping[str, np.ndarray],
        plan: RowPlan | None = None,
    ) -> None:
        self._loaders = {name: applied.loader(name, ids, plan) for name, ids in nodes.items()}
        self._encoder = applied.encoder
        self._device = applied.env.device
        self._shared = SharedRows(applied.env.scratch)
        self.alignment = applied.env.loaded.config.loader_plan("test").batch_size

    @torch.no_grad()
    def rows(self, node_type: str, first: int, last: int) -> Tensor:
        size = self.alignment
        assert first % size == 0
        parts = []
        with closing(self._loaders[node_type].iterate(0, first // size, -(-last // size))) as made:
            for batch in made:
                moved = batch.to(self._device)
                rows = self._encoder(moved)[node_type]
                rows = next(iter(rows.values())) if isinstance(rows, Mapping) else rows
                parts.append(rows[moved.seed_index].float().cpu())
        return torch.cat(parts)

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
        chunk_size: int = ExactOptions.chunk_size,
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
            with closing(self.sampled(nodes, plan)) as embeddings:
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
        config = self.applied.env.loaded.config
        return (
            config.sampling.component is None and len(ids) <= config.loader_plan("test").batch_size
        )

    def encoded(self, node_types: Sequence[str]) -> closing[Embeddings]:
        """Rows of all nodes of some types, by dense id."""
        every: Embeddings
        if self.keeps(node_types):
            every = KeptEmbeddings(self._kept)
        elif not self._is_layered(node_types):
            numbers = {name: self.applied.bundle.num_nodes(name) for name in node_types}
            every = self.sampled({name: np.arange(num) for name, num in numbers.items()})
        elif not self._keeps_rows:
            every = self._every(node_types)
        else:
            self._keep_every(node_types)
            every = KeptEmbeddings(self._kept)
        return closing(every)

    def _is_layered(self, node_types: Sequence[str]) -> bool:
        applied = self.applied
        return is_layerwise(applied.encoder) and applied.encodes_by_layers(node_types)

    def _keep_every(self, node_types: Sequence[str]) -> None:
        wanted = {*node_types, *self.applied.spec.output.ends} - self._kept.keys()
        if self.applied.times is not None:
            wanted -= self.applied.times.own
        order = [name for name in self.applied.bundle.node_types if name in wanted]
        every = self._every(order)
        self._kept |= {name: every.all_rows(name) for name in order}

    def _every(self, node_types: Sequence[str]) -> Embeddings:
        """All rows of some types, computed layer by layer, without what is later than the moment of
        the model's times. Collective: all ranks must call.
        """
        applied = self.applied
        env, times = applied.env, applied.times
        rows = encode_exactly(
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
        return blended(KeptEmbeddings(rows), applied)

    def sampled(self, nodes: Mapping[str, np.ndarray], plan: RowPlan | None = None) -> Embeddings:
        return blended(SampledEmbeddings(self.applied, nodes, plan), self.applied, nodes)
