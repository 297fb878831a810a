"""Batches of anchors with their links, negatives and sampled neighborhoods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import ConfigError, DataError
from raygnn.sampling.batch import BatchAssembler
from raygnn.sampling.batch_sequence import Batch, BatchSequence, SequenceOptions
from raygnn.sampling.links import LinkDraws, Links, edges_of_links
from raygnn.sampling.negatives import UNIFORM, RandomNegatives
from raygnn.sampling.neighbor_sampler import DISJOINT_LINKS, NeighborSampler
from raygnn.sampling.protocols import FeatureStore, GraphStore
from raygnn.sampling.rng import BatchKey, batch_key
from raygnn.sampling.seeds import check_seeds
from raygnn.sampling.subgraph import SampledSubgraph

if TYPE_CHECKING:
    from raygnn.data.links.supervision import SupervisionEdges

_NO_LINKS = Links(*(np.empty(0, np.int64),) * 3)


class LinkLoader(BatchSequence):
    """Batches of anchors: their links, hard and random negatives, and one neighborhood for all.

    All nodes of a batch are the seeds of one sample, so each is encoded once, and places among the
    nodes say which is which. The batch has, beside what `BatchAssembler` gives:

        input_id: int64 [num_anchors], dense ids of the anchors.
        anchor_index: int64 [num_anchors], their places among the nodes of their type.
        label_index: int64 [2, num_links], (anchor, target) places; links of an anchor are together.
        label_id: int64 [2, num_links], the same as dense ids.
        label_query: int64 [num_links], which of input_id each link is of.
        negative_index, negative_id, negative_query: the same of (anchor, hard negative) pairs.
        relation: int64 [num_anchors], of several relations: which the links of each are of.
        place: int64 [num_anchors], rows of the anchors in the supervision edges.
        random_negatives, random_negative_id: int64 [num_negatives], drawn for the whole batch, with
            replacement; a draw may be a positive of some anchor.

    The message edges that repeat the links of the batch are kept out of the sample: those between
    anchor and target of the type that the links are of and of its reverse types, in both directions
    where the two are of one node type, parallel ones included.

    Sampled in time, both ends of a link are encoded as of the time of the link: an anchor is there
    once for each time of its links. As anchor alone, and with hard negatives, it is of the latest
    of these; random negatives take the times of the links in turn.

    Args:
        supervision: the links of the split, and its hard negatives.
        sampler: raygnn's.
        columns: which columns of the nodes a batch has, and under what names; labels are not read.
        edge_columns: the same of the edges.
        num_negatives: random negatives per batch.
        negatives: how they are drawn: `uniform`, or `degree` for degree^0.75 in the message graph.
        fixed_negatives: all batches of all epochs have the same random negatives.
        max_labels_per_anchor: links, and hard negatives, of an anchor in one epoch, drawn anew in
            each; None takes all.
        exclude: whether edges that repeat the links of the batch are kept out.
        reverse_types: edge types of the graph and their reverses, either way round.
        options: batch_size (anchors per batch), split, seed, shuffle, rank, world_size,
            num_threads, prefetch_batches, device; see `BatchSequence`.
    Raises:
        ConfigError: a number is out of range, or the sampler is not raygnn's, or disjoint.
        DataError: the graph has no such types or columns, an anchor or target is not one of its
            nodes, there is no node to draw as negative, or links to be sampled in time have none.
    """

    def __init__(
        self,
        graph: GraphStore,
        features: FeatureStore,
        supervision: SupervisionEdges,
        *,
        sampler: NeighborSampler | BaseSampler,
        columns: Mapping[str, str],
        edge_columns: Mapping[str, str] | None = None,
        num_negatives: int = 0,
        negatives: str = UNIFORM,
        fixed_negatives: bool = False,
        max_labels_per_anchor: int | None = None,
        exclude: bool = True,
        reverse_types: Mapping[EdgeType, EdgeType] | None = None,
        **options: Unpack[SequenceOptions],
    ) -> None:
        if not isinstance(sampler, NeighborSampler):
            raise ConfigError(
                f"sampling.type={type(sampler).__name__!r} is invalid: links are kept out of their "
                "own messages by raygnn's sampler, and PyG's cannot leave edges out. Use raygnn's."
            )
        if sampler.disjoint:
            raise ConfigError(DISJOINT_LINKS)
        _check_counts(num_negatives, max_labels_per_anchor)
        _check_edge_types(graph, supervision, reverse_types or {})
        if sampler.temporal is not None and supervision.times is None:
            raise DataError(
                "sampling.temporal is set, and the links have no times. Declare the time of their "
                "edge type or label edges in graph.yaml, or leave it out."
            )
        self.supervision = supervision
        self.anchors = check_seeds(graph, supervision.anchor_type, supervision.anchors)
        check_seeds(graph, supervision.target_type, supervision.targets)
        super().__init__(len(self.anchors), **options)
        self.num_negatives = num_negatives
        self.fixed_negatives = fixed_negatives
        #: the distribution of the random negatives; None where there are none
        self.negatives = (
            RandomNegatives.of_graph(
                graph,
                supervision.target_type,
                negatives,
                supervision.message_types[0] if len(supervision.message_types) == 1 else None,
            )
            if num_negatives
            else None
        )
        both = list((reverse_types or {}).items())
        self._reverses_of = {
            edge_type: dict(pair for pair in both if edge_type in pair)
            for edge_type in supervision.message_types
        }
        self._exclude = exclude
        given = (max_labels_per_anchor, self.seed, self.split)
        hard = supervision.hard_negatives
        self._links = LinkDraws(supervision, *given, "labels")
        self._hard = None if hard is None else LinkDraws(hard, *given, "hard negatives")
        self._sampler = sampler
        self._assembler = BatchAssembler(graph, features, columns, edge_columns or {})

    def build(self, places: np.ndarray, epoch: int, key: BatchKey) -> Batch:
        """The batch of some anchors."""
        drawn = self._draw(places, epoch, key)
        times = None
        if self._sampler.temporal is not None:
            times = self._times(drawn.links, drawn.hard, len(drawn.random))
        subgraph, local = self._sample(drawn, times, key)
        return drawn.added_to(self._assembler.assemble(subgraph), local)

    def without_neighborhood(self, index: int, epoch: int = 0) -> Batch:
        """A batch without its graph: places among the nodes are dense ids.

        So it fits the rows of all nodes.
        """
        key = batch_key(self.seed, self.split, epoch, index)
        drawn = self._draw(self.places(epoch, index), epoch, key)
        batch = drawn.added_to(Data(), drawn.parts)
        batch.index = index
        return batch

    def _draw(self, places: np.ndarray, epoch: int, key: BatchKey) -> _Drawn:
        return _Drawn(
            places,
            self.anchors[places],
            None if self.supervision.relations is None else self.supervision.relations[places],
            self._links.draw(places, epoch),
            _NO_LINKS if self._hard is None else self._hard.draw(places, epoch),
            self._random_negatives(key),
        )

    def _sample(
        self,
        drawn: _Drawn,
        times: dict[str, np.ndarray] | None,
        key: BatchKey,
    ) -> tuple[SampledSubgraph, dict[str, np.ndarray]]:
        """One sample for all parts, and the places of each part among the nodes of its type."""
        links, parts = self.supervision, drawn.parts
        is_anchor = ("anchor", "source", "hard_source")
        types = {n: links.anchor_type if n in is_anchor else links.target_type for n in parts}
        subgraph = self._sampler.sample(
            _joined(parts, types),
            key,
            exclude=self._excluded(drawn),
            times=None if times is None else _joined(times, types),
        )
        local, before = {}, dict.fromkeys(types.values(), 0)
        for name, node_type in types.items():
            start = before[node_type]
            before[node_type] = start + len(parts[name])
            local[name] = subgraph.seed_index[node_type][start : before[node_type]]
        return subgraph, local

    def _times(self, links: Links, hard: Links, num_random: int) -> dict[str, np.ndarray]:
        """A time for each part; see the class."""
        of_links = self.supervision.times
        assert of_links is not None
        times = of_links[links.place]
        times = times.astype(np.int64 if times.dtype.kind in "iu" else np.float64)
        latest = np.maximum.reduceat(times, np.unique(links.anchor, return_index=True)[1])
        of_hard = latest[hard.anchor]
        return {
            "anchor": latest,
            "source": times,
            "target": times,
            "hard_source": of_hard,
            "hard_target": of_hard,
            "random": np.resize(times, num_random),
        }

    def _random_negatives(self, key: BatchKey) -> np.ndarray:
        if self.negatives is None:
            return np.empty(0, np.int64)
        fixed = batch_key(self.seed, self.split, 0, 0)
        return self.negatives.draw(self.num_negatives, fixed if self.fixed_negatives else key)

    def _excluded(self, drawn: _Drawn) -> dict[EdgeType, np.ndarray]:
        if not self._exclude:
            return {}
        links, pairs = self.supervision, drawn.label_id
        relations = np.zeros(len(drawn.anchors), np.int64)
        if drawn.relations is not None:
            relations = drawn.relations
        relations = relations[drawn.links.anchor]
        found: dict[EdgeType, list[np.ndarray]] = defaultdict(list)
        for relation in np.unique(relations):
            edge_type = links.message_types[relation]
            if edge_type is not None:
                ends = (links.anchor_type, links.target_type, pairs[:, relations == relation])
                repeated = edges_of_links(edge_type, self._reverses_of[edge_type], *ends)
                for each, of_type in repeated.items():
                    found[each].append(of_type)
        return {edge_type: np.concatenate(parts, axis=1) for edge_type, parts in found.items()}


class _Drawn(NamedTuple):
    """What a batch is of: rows of the supervision edges, their anchors, links and negatives."""

    places: np.ndarray
    anchors: np.ndarray
    relations: np.ndarray | None
    links: Links
    hard: Links
    random: np.ndarray

    @property
    def label_id(self) -> np.ndarray:
        """int64 [2, num_links], (anchor, target) dense ids."""
        return np.stack([self.anchors[self.links.anchor], self.links.target])

    @property
    def parts(self) -> dict[str, np.ndarray]:
        """Dense ids of all nodes of the batch, by what they are there for."""
        return {
            "anchor": self.anchors,
            "source": self.anchors[self.links.anchor],
            "target": self.links.target,
            "hard_source": self.anchors[self.hard.anchor],
            "hard_target": self.hard.target,
            "random": self.random,
        }

    def added_to(self, batch: Batch, local: Mapping[str, np.ndarray]) -> Batch:
        """Adds the attributes of `LinkLoader` to a batch.

        Args:
            local: places among the nodes of the batch, by part.
        """
        parts = self.parts
        found = {
            "place": self.places,
            "input_id": self.anchors,
            "anchor_index": local["anchor"].copy(),
            "label_index": np.stack([local["source"], local["target"]]),
            "label_id": np.stack([parts["source"], parts["target"]]),
            "label_query": self.links.anchor,
            "negative_index": np.stack([local["hard_source"], local["hard_target"]]),
            "negative_id": np.stack([parts["hard_source"], parts["hard_target"]]),
            "negative_query": self.hard.anchor,
            "random_negatives": local["random"].copy(),
            "random_negative_id": self.random,
        }
        if self.relations is not None:
            found["relation"] = self.relations
        for name, value in found.items():
            batch[name] = torch.from_numpy(value)
        return batch


def _joined(parts: Mapping[str, np.ndarray], types: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Joins what is of one type, in the order of the parts."""
    return {
        node_type: np.concatenate(
            [part for name, part in parts.items() if types[name] == node_type]
        )
        for node_type in dict.fromkeys(types.values())
    }


def _check_counts(num_negatives: int, max_labels_per_anchor: int | None) -> None:
    if num_negatives < 0:
        raise ConfigError(
            f"num_negatives={num_negatives!r} is invalid: it is a number of nodes. Set 0 or more."
        )
    if max_labels_per_anchor is not None and max_labels_per_anchor < 1:
        raise ConfigError(
            f"max_labels_per_anchor={max_labels_per_anchor!r} is invalid: an anchor without links "
            "teaches nothing. Set 1 or more, or null for all."
        )


def _check_edge_types(
    graph: GraphStore, links: SupervisionEdges, reverse_types: Mapping[EdgeType, EdgeType]
) -> None:
    given: list[Any] = [*links.message_types, *reverse_types, *reverse_types.values()]
    for edge_type in given:
        if edge_type is not None and edge_type not in graph.edge_types:
            known = [edge_type_name(known) for known in graph.edge_types]
            raise DataError(
                f"edge type {edge_type_name(edge_type)!r} of the links is invalid: the graph has "
                f"{known}. Use one of these."
            )
