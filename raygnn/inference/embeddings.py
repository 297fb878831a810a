"""Embeddings of the nodes of a graph, exact or sampled, equal for any number of ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType
from raygnn.data.extended_bundle import AddedEdges, ExtendedBundle
from raygnn.data.past_labels import PastLabels
from raygnn.inference.seed_times import SeedTimes
from raygnn.inference.set_up import AppliedModel, loader_options
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks.build_encoder import feature_store, graph_store
from raygnn.loops.tasks.build_sampler import build_sampler, with_all_neighbors
from raygnn.loops.tasks.exact_encoding import check_exact, encode_exactly, link_basis
from raygnn.loops.tasks.link_prediction.target import find_dated_links
from raygnn.loops.tasks.node_classification.target import find_past_labels
from raygnn.models.exact import ExactOptions
from raygnn.models.link_factors import LinkBasis, LinkFactors
from raygnn.parallel.shared_rows import SharedRows
from raygnn.sampling.extended_stores import ExtendedFeatureStore, ExtendedGraphStore
from raygnn.sampling.loader import NeighborLoader, RowPlan
from raygnn.sampling.protocols import FeatureStore, GraphStore
from raygnn.sampling.stores import LocalGraphStore

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


def exact_embeddings(
    applied: AppliedModel, node_types: Sequence[str], times: SeedTimes | None, chunk_size: int
) -> KeptEmbeddings:
    """All rows of some node types, computed layer by layer, without what is later than the moment
    of `times`. Collective: all ranks must call. Raises a ConfigError if the encoder does not work
    layer by layer.
    """
    env, stores = applied.env, Stores.of(applied)
    check_exact(applied.encoder, env.loaded.config.model.type)
    return KeptEmbeddings(
        encode_exactly(
            applied.encoder,
            stores.graph,
            stores.features,
            applied.spec,
            node_types,
            as_of=None if times is None else times.moment,
            options=ExactOptions(
                device=env.device, chunk_size=chunk_size, compute=SharedRows(env.scratch)
            ),
        )
    )


class JoinedEmbeddings(Embeddings):
    """Rows of an encoder followed by closed-form rows of links, of the types that have these.

    `nodes`: as of `SampledEmbeddings`; None if rows are asked for by dense id.
    """

    def __init__(
        self,
        encoded: Embeddings,
        factors: LinkFactors,
        basis: LinkBasis,
        ends: tuple[str, str],
        nodes: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._encoded, self._factors = encoded, factors
        self._rows = dict(zip(ends, factors.rows(basis), strict=True))
        for name, ids in (nodes or {}).items():
            if name in self._rows:
                self._rows[name] = self._rows[name][torch.from_numpy(ids)]
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
        return self._factors.join(encoded, self._rows[node_type][index])


def with_factors(
    embeddings: Embeddings,
    applied: AppliedModel,
    basis: Callable[[LinkFactors], LinkBasis],
    nodes: Mapping[str, np.ndarray] | None = None,
) -> Embeddings:
    """The embeddings, joined with closed-form rows where the model weighs these."""
    factors = used_factors(applied.model)
    if factors is None:
        return embeddings
    anchor, target = applied.spec.output.ends
    return JoinedEmbeddings(embeddings, factors, basis(factors), (anchor, target), nodes)


def used_factors(model: nn.Module) -> LinkFactors | None:
    factors = getattr(model, "factors", None)
    return factors if isinstance(factors, LinkFactors) and factors.is_used else None


def find_basis(applied: AppliedModel, times: SeedTimes | None, factors: LinkFactors) -> LinkBasis:
    """The decomposed links of a graph, with added nodes and links if there are any; for a model of
    rows with times, those known at the moment of `times`.
    """
    (edge_type,), loaded, settings = applied.spec.output.links, applied.env.loaded, factors.settings
    graph = known_graph(applied.bundle)
    if factors.by_time:
        links = find_dated_links(graph, loaded.config, (edge_type[0], edge_type[2]))
        assert links is not None
        assert times is not None
        basis = LinkBasis.as_of(links, times.moment.time, settings)
    else:
        basis = link_basis(graph_store(loaded, graph), graph, edge_type, settings)
    return extended_basis(basis, applied.bundle, edge_type)


def known_graph(bundle: Bundle) -> Bundle:
    """A graph without added nodes and edges."""
    return bundle.graph if isinstance(bundle, ExtendedBundle) else bundle


def extended_basis(basis: LinkBasis, bundle: Bundle, edge_type: EdgeType) -> LinkBasis:
    """With the nodes and links that were added to a graph, if any."""
    if not isinstance(bundle, ExtendedBundle):
        return basis
    anchor, _, target = edge_type
    none = np.empty(0, np.int64)
    added = bundle.addition.edges.get(edge_type, AddedEdges(none, none))
    num_nodes = bundle.num_nodes(anchor), bundle.num_nodes(target)
    return basis.extended(num_nodes, added.sources, added.targets)


class Stores(NamedTuple):
    """Edges, features and past labels of a graph, kept because of what they have derived."""

    graph: GraphStore
    features: FeatureStore
    past: tuple[str, PastLabels] | None

    @classmethod
    def of(cls, applied: AppliedModel) -> Stores:
        env, spec, bundle = applied.env, applied.spec, known_graph(applied.bundle)
        graph = graph_store(env.loaded, bundle, env.parts)
        features = feature_store(env.loaded, bundle, spec, env.parts, env.device)
        return cls(graph, features, find_past_labels(spec, bundle)).extended(applied.bundle, spec)

    def extended(self, bundle: Bundle, spec: ModelSpec) -> Stores:
        """With the nodes and edges that were added to the graph, if any."""
        if not isinstance(bundle, ExtendedBundle):
            return self
        assert isinstance(self.graph, LocalGraphStore)
        return Stores(
            ExtendedGraphStore(self.graph, bundle),
            ExtendedFeatureStore(bundle, spec.standardization),
            self.past,
        )

    def loader(
        self,
        applied: AppliedModel,
        node_type: str,
        nodes: np.ndarray,
        times: SeedTimes | None,
        plan: RowPlan | None,
        *,
        exact: bool,
        **options: Any,
    ) -> NeighborLoader:
        """Batches of nodes with their neighborhoods, as the model reads them.

        Args:
            nodes: int64, dense ids, or positions in the rows of the plan.
            exact: takes all neighbors instead of the model's fanouts.
            options: of the loader, instead of some of `loader_options`.
        """
        as_of = None if times is None else times.of(node_type)
        loaded, spec = applied.env.loaded, applied.spec
        return NeighborLoader(
            self.graph,
            self.features,
            nodes,
            node_type,
            sampler=build_sampler(with_all_neighbors(loaded) if exact else loaded, self.graph),
            columns=spec.node_columns,
            edge_columns=spec.batch_edge_columns,
            as_of=None if as_of is None else as_of.time,
            plan=plan,
            past=self.past,
            **{**loader_options(applied), **options},
        )


class SampledEmbeddings(Embeddings):
    """Rows of fixed batches of nodes in order, computed on demand.

    For a user's model with several outputs, the first one.

    Args:
        nodes: int64, dense ids by node type; rows are requested by position in them.
        exact: see `Stores.loader`.
        plan: rows of (entity, time); `nodes` are positions in them.
    """

    def __init__(
        self,
        applied: AppliedModel,
        stores: Stores,
        nodes: Mapping[str, np.ndarray],
        times: SeedTimes | None,
        plan: RowPlan | None = None,
        *,
        exact: bool,
    ) -> None:
        self._loaders = {
            name: stores.loader(applied, name, ids, times, plan, exact=exact)
            for name, ids in nodes.items()
        }
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
