"""Batches of links with their negatives and sampled neighborhoods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.data.hashing import splitmix64_array
from raygnn.device_memory import unused_bytes
from raygnn.errors import ConfigError, DataError
from raygnn.sampling.batch import (
    BatchLinks,
    HardNegatives,
    KnownPairs,
    LinkBatch,
    LogQ,
    RandomNodes,
)
from raygnn.sampling.batch_assembler import BatchAssembler
from raygnn.sampling.negatives import (
    NONE,
    UNIFORM,
    EvaluationCandidates,
    KnownOnDevice,
    RandomNegatives,
)
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import FeatureStore, GraphStore, SampleRequest
from raygnn.sampling.rng import BatchKey, batch_key, chain_key, text_key
from raygnn.sampling.sampled_sequence import SampledOptions, SampledSequence
from raygnn.sampling.seeds import LinkSeeds, RowDraws, SeedKind, check_seeds, edges_of_links
from raygnn.sampling.temporal import as_seed_times

if TYPE_CHECKING:
    from raygnn.data.links.supervision import KnownLinks, SupervisionEdges

# Groups of links that a temporal batch is cut into; see `LinkLoader`.
_TRAINING_GROUPS, _EVALUATION_GROUPS = 32, 8


@dataclass(frozen=True, kw_only=True)
class LinkPlan:
    """Links to divide into batches, and their candidates.

    Attributes:
        seeds: `links`, or `anchors` with their links: the unit of `batch_size` and of the epoch.
        max_labels_per_anchor: links, and hard negatives, of an anchor per epoch, drawn anew; None
            takes all.
        num_negatives: random negatives of a training batch; candidates of an evaluation link.
        all_targets: all nodes of the target type, by dense id, replace random negatives. A batch
            has the known links of its queries instead of a mask.
        negatives: distribution of training negatives: `uniform`, or `degree` for degree^0.75 in the
            message graph. Evaluation candidates are uniform.
        is_evaluation: every link has the same number of candidates, the same in each evaluation and
            without `known` ones.
        in_batch: targets of other links also compete, in training.
        known: links that may not compete; None allows them.
        is_joint: candidates of other batches also compete, in training, so a batch has known links
            instead of a mask.
        log_q: adds probabilities of random negatives and targets.
        cold_share: share of nodes with features among a training batch's anchors, targets and
            negatives that receive no messages, to learn embeddings of nodes without links. Source:
            DropoutNet (Volkovs et al., NeurIPS 2017).
        exclude: excludes edges that repeat the links of the batch.
        reverse_types: edge types of the graph and their reverses, in either order.
    """

    seeds: SeedKind = "links"
    max_labels_per_anchor: int | None = None
    num_negatives: int = 0
    all_targets: bool = False
    negatives: str = UNIFORM
    is_evaluation: bool = False
    in_batch: bool = False
    known: KnownLinks | None = None
    is_joint: bool = False
    log_q: bool = False
    cold_share: float = 0.0
    exclude: bool = True
    reverse_types: Mapping[EdgeType, EdgeType] = field(default_factory=dict)


class LinkLoader(SampledSequence[LinkBatch]):
    """Batches of links: hard and random negatives, and one neighborhood for all.

    All ends and negatives are seeds of one sample, so each node is encoded once. See `BatchLinks`.

    Message edges that repeat the links of the batch are excluded from the sample: between anchor
    and target, of the links' type and its reverse types, in both directions if both have one node
    type, including parallel edges.

    With temporal sampling, links of a batch are sorted by time and divided into groups of one size,
    32 in training and 8 in evaluation, where epochs are also in the order of times. Links compete
    only with candidates of their group. All anchors, targets and candidates of a group are encoded
    as of its earliest link, so a candidate's encoding does not reveal whether it is the target.

    Args:
        supervision: the links of the split, and its hard negatives.
        columns: node columns to read, and their names in the batch; labels are not read.
        edge_columns: the same for edges.
        plan: links and candidates.
        options: see `BatchSequence` and `SampledSequence`.
    Raises:
        ConfigError: the sampler is disjoint.
        DataError: the graph has no such types or columns, an anchor or target is not one of its
            nodes, there is no node to draw as negative, or temporal links have no times.
    """

    def __init__(
        self,
        graph: GraphStore,
        features: FeatureStore,
        supervision: SupervisionEdges,
        *,
        sampler: NeighborSampler,
        columns: Mapping[str, str],
        edge_columns: Mapping[str, str] | None = None,
        plan: LinkPlan,
        **options: Unpack[SampledOptions],
    ) -> None:
        if sampler.disjoint:
            raise ConfigError(
                "sampling.disjoint=True is invalid: a batch of links encodes each node once, for "
                "all of its links. Set it to false. [sampling-disjoint-links]"
            )
        if sampler.temporal is not None and supervision.times is None:
            raise DataError(
                "sampling.temporal is set, and the links have no times. Declare the time of their "
                "edge type or label edges in graph.yaml, or leave it out. [links-no-times]"
            )
        self.supervision = supervision
        self.anchors = check_seeds(graph, supervision.anchor_type, supervision.anchors)
        check_seeds(graph, supervision.target_type, supervision.targets)
        seed, split, limit = options["seed"], options["split"], plan.max_labels_per_anchor
        self._seeds = LinkSeeds(supervision, plan.seeds, limit, seed, split)
        super().__init__(self._seeds.num_seeds, sampler, **options)
        self.plan = plan
        self._assembler = BatchAssembler(
            graph, features, columns, edge_columns or {}, src_degrees=self.src_degrees
        )
        # Degrees of hundreds of edge types take longer than all else of a batch without messages.
        several = len(graph.edge_types) > 1
        self._has_edges = not several or any(map(any, sampler.fanouts.values()))
        ends = dict.fromkeys((supervision.anchor_type, supervision.target_type))
        #: types of which some nodes are cold; one without features would have nothing to read
        self._cold_types = [
            name for name in ends if plan.cold_share and columns.keys() & features.columns(name)
        ]
        self._hard: RowDraws | None = None
        if supervision.hard_negatives is not None:
            keys = (seed, text_key(split), text_key("hard negatives"))
            self._hard = RowDraws(supervision.hard_negatives.indptr, limit, *keys)
        both = list(plan.reverse_types.items())
        self._reverses_of = {
            edge_type: dict(pair for pair in both if edge_type in pair)
            for edge_type in supervision.message_types
        }
        self._by_time: np.ndarray | None = None
        if plan.is_evaluation and sampler.temporal is not None and supervision.times is not None:
            self._by_time = np.argsort(supervision.times, kind="stable")
        self._prepare_negatives(graph)
        #: known links on a device that samples and marks them
        self._known: KnownOnDevice | None = None

    def _prepare_negatives(self, graph: GraphStore) -> None:
        links, plan = self.supervision, self.plan
        num_targets = self._num_targets = graph.num_nodes(links.target_type)
        #: the distribution of the random negatives of training; None where there are none
        self.negatives: RandomNegatives | None = None
        self._candidates: EvaluationCandidates | None = None
        if plan.num_negatives and plan.is_evaluation:
            self._candidates = EvaluationCandidates(
                num_targets,
                plan.num_negatives,
                batch_key(self.seed, self.split, 0, 0),
                plan.known,
                is_one_type=links.anchor_type == links.target_type,
            )
        elif plan.num_negatives:
            message_types = links.message_types
            edge_type = message_types[0] if len(message_types) == 1 else None
            arguments = (links.target_type, plan.negatives, edge_type)
            self.negatives = RandomNegatives.of_graph(graph, *arguments)
        if plan.log_q:
            weights = np.ones(links.num_links)
            if plan.max_labels_per_anchor is not None:
                num_links = np.diff(links.indptr)
                share = np.minimum(1.0, plan.max_labels_per_anchor / np.maximum(num_links, 1))
                weights = np.repeat(share, num_links)
            #: float64 [num_targets], the share of an epoch's links that lead to each node
            self.link_share = np.bincount(links.targets, weights, num_targets) / weights.sum()

    def without_neighborhood(self, epoch: int, index: int) -> tuple[LinkBatch, SampleRequest]:
        drawn = self._draw(epoch, index)
        return self._batch(drawn, index), self._request(drawn, self.key(epoch, index))

    def part_for_device(self, epoch: int, index: int) -> tuple[LinkBatch, SampleRequest]:
        drawn = self._draw(epoch, index)
        batch = self._batch(drawn, index, marks_known=self._known is None)
        return batch, self._request(drawn, self.key(epoch, index))

    def sample_on_device(self) -> str | None:
        reason, known, device = super().sample_on_device(), self.plan.known, self._device
        if reason is None and known is not None and device is not None:
            num_bytes = 8 * sum(len(part.targets) for part in known.parts)
            if device.type == "cpu" or 3 * num_bytes <= unused_bytes(device):
                num_anchors = self.sampler.graph.num_nodes(self.supervision.anchor_type)
                self._known = KnownOnDevice(known, num_anchors, self._num_targets, device)
        return reason

    def localized(self, batch: LinkBatch, seed_index: Mapping[str, Tensor]) -> LinkBatch:
        links, local, end = batch.links, {}, dict.fromkeys(seed_index, 0)
        parts = *links.id, links.hard.id, links.random.id
        for (name, node_type), ids in zip(self._types_of_parts.items(), parts, strict=True):
            start, end[node_type] = end[node_type], end[node_type] + len(ids)
            local[name] = seed_index[node_type][start : end[node_type]]
        known = links.known
        if known is None and self._known is not None:
            targets = [links.id[1]] if self.plan.in_batch else []
            candidates = torch.cat([links.random.id, *targets, links.hard.id])
            known = self._known.mask(links.id[0], candidates, links.relation)
        return replace(
            batch,
            links=replace(
                links,
                known=known,
                index=torch.stack([local["anchor"], local["target"]]),
                hard=replace(links.hard, index=local["hard"]),
                random=replace(links.random, index=local["random"]),
            ),
        )

    def request(self, epoch: int, index: int) -> SampleRequest:
        return self._request(self._draw(epoch, index), self.key(epoch, index))

    def with_dense_ids(self, index: int, epoch: int = 0) -> LinkBatch:
        """A batch without its graph, whose local ids are dense ids, for precomputed rows."""
        return self._batch(self._draw(epoch, index), index)

    def _batch(self, drawn: _Drawn, index: int, *, marks_known: bool = True) -> LinkBatch:
        seeds, links = torch.from_numpy(drawn.seeds), self._links(drawn, marks_known=marks_known)
        return LinkBatch(index=index, input_id=seeds, nodes={}, edges={}, links=links)

    def positions(self, epoch: int, index: int) -> np.ndarray:
        """int64 [num_links], `BatchLinks.position` of a batch."""
        edges, places = self.supervision, self.places(epoch, index)
        links = self._seeds.links(places if self._by_time is None else self._by_time[places], epoch)
        if self.sampler.temporal is None:
            return links
        assert edges.times is not None
        return links[np.argsort(edges.times[links], kind="stable")]

    def _draw(self, epoch: int, index: int) -> _Drawn:
        edges, places = self.supervision, self.places(epoch, index)
        links = self.positions(epoch, index)
        group = time = None
        num_groups = 1
        if self.sampler.temporal is not None:
            assert edges.times is not None
            times = edges.times[links]
            most = _EVALUATION_GROUPS if self.plan.is_evaluation else _TRAINING_GROUPS
            num_groups = min(most, len(links))
            group = np.arange(len(links)) * num_groups // len(links)
            time = as_seed_times(times)[np.searchsorted(group, np.arange(num_groups))]
        rows = edges.row_of(links)
        queries = rows if group is None else rows + group * edges.num_anchors
        distinct, query = np.unique(queries, return_inverse=True)
        hard, hard_query = np.empty(0, np.int64), np.empty(0, np.int64)
        if self._hard is not None:
            assert edges.hard_negatives is not None
            negatives, offsets = self._hard.draw(distinct % edges.num_anchors, epoch)
            hard = edges.hard_negatives.targets[negatives].astype(np.int64)
            hard_query = np.repeat(np.arange(len(distinct)), np.diff(offsets))
        anchors, targets = self.anchors[rows], edges.targets[links].astype(np.int64)
        relations = None if edges.relations is None else edges.relations[rows]
        candidate = None
        by_row = self.plan.known is not None and self.plan.known.by_row
        known_rows = rows if by_row else anchors
        if self._candidates is not None:
            random, candidate = self._candidates.choose(anchors, targets, relations, known_rows)
            random_group = np.repeat(np.arange(num_groups), len(random))
            random = np.tile(random, num_groups)
            if group is not None:
                first = (group * (len(random) // num_groups))[:, None]
                candidate = np.where(candidate == NONE, NONE, candidate + first)
        else:
            random = np.arange(self._num_targets if self.plan.all_targets else 0)
            if self.negatives is not None:
                num_random = max(self.plan.num_negatives, num_groups)
                random = self.negatives.draw(num_random, self.key(epoch, index))
            random_group = np.arange(len(random)) * num_groups // max(len(random), 1)
        return _Drawn(
            seeds=places,
            links=links,
            anchors=anchors,
            targets=targets,
            relations=relations,
            known_rows=known_rows,
            query=query,
            hard=hard,
            hard_query=hard_query,
            random=random,
            candidate=candidate,
            group=group,
            random_group=random_group,
            hard_group=distinct[hard_query] // edges.num_anchors,
            time=time,
        )

    def _request(self, drawn: _Drawn, key: BatchKey) -> SampleRequest:
        types, seeds = self._types_of_parts, _joined(drawn.parts, self._types_of_parts)
        return SampleRequest(
            seeds,
            key,
            exclude=self._excluded(drawn),
            times=None if drawn.time is None else _joined(drawn.times, types),
            isolated={name: self._cold(seeds[name], name, key) for name in self._cold_types},
        )

    @property
    def _types_of_parts(self) -> dict[str, str]:
        links = self.supervision
        of_part = dict.fromkeys(("target", "hard", "random"), links.target_type)
        return {"anchor": links.anchor_type, **of_part}

    def _cold(self, nodes: np.ndarray, node_type: str, key: BatchKey) -> np.ndarray:
        draws = splitmix64_array(nodes, chain_key(key, text_key("cold"), text_key(node_type)))
        return nodes[draws < np.uint64(self.plan.cold_share * 2.0**64)]

    def _excluded(self, drawn: _Drawn) -> dict[EdgeType, np.ndarray]:
        if not self.plan.exclude:
            return {}
        links, pairs = self.supervision, np.stack([drawn.anchors, drawn.targets])
        relations = drawn.relations
        if relations is None:
            relations = np.zeros(len(drawn.links), np.int64)
        excluded: dict[EdgeType, list[np.ndarray]] = defaultdict(list)
        for relation in np.unique(relations):
            edge_type = links.message_types[relation]
            if edge_type is not None:
                ends = (links.anchor_type, links.target_type, pairs[:, relations == relation])
                repeated = edges_of_links(edge_type, self._reverses_of[edge_type], *ends)
                for each, of_type in repeated.items():
                    excluded[each].append(of_type)
        return {edge_type: np.concatenate(parts, axis=1) for edge_type, parts in excluded.items()}

    def _links(self, drawn: _Drawn, *, marks_known: bool) -> BatchLinks:
        offered = drawn.random
        if self.plan.in_batch:
            offered = np.concatenate([offered, drawn.targets])
        known = known_pairs = log_q = None
        if self.plan.known is not None and (self.plan.is_joint or self.plan.all_targets):
            known_pairs = _known_pairs(self.plan.known, drawn)
        elif self.plan.known is not None and not self.plan.is_evaluation and marks_known:
            candidates = np.concatenate([offered, drawn.hard])
            known = self.plan.known.mask(drawn.known_rows, candidates, drawn.relations)
        if self.plan.log_q:
            log_q = self._log_q(offered)
        ends = np.stack([drawn.anchors, drawn.targets])
        return BatchLinks(
            position=torch.from_numpy(drawn.links),
            index=torch.from_numpy(ends),
            id=torch.from_numpy(ends),
            query=torch.from_numpy(drawn.query),
            hard=HardNegatives(
                index=torch.from_numpy(drawn.hard),
                id=torch.from_numpy(drawn.hard),
                query=torch.from_numpy(drawn.hard_query),
            ),
            random=RandomNodes(
                index=torch.from_numpy(drawn.random),
                id=torch.from_numpy(drawn.random),
                group=None if drawn.group is None else torch.from_numpy(drawn.random_group),
            ),
            relation=_optional(drawn.relations),
            group=_optional(drawn.group),
            known=_optional(known),
            known_pairs=known_pairs,
            candidate=_optional(drawn.candidate),
            log_q=log_q,
        )

    def _log_q(self, offered: np.ndarray) -> LogQ:
        probability = np.zeros(len(offered))
        if self.negatives is not None:
            probability = self.negatives.probability(offered)
        return LogQ(
            draw_probability=torch.from_numpy(probability),
            link_share=torch.from_numpy(self.link_share[offered]),
        )


def _optional(values: np.ndarray | None) -> Tensor | None:
    return None if values is None else torch.from_numpy(values)


class _Drawn(NamedTuple):
    """The draws of one batch.

    Attributes:
        known_rows: int64 [num_links], row of each link in the known links.
        time: [num_groups], encoding time of each group; None without temporal sampling.
    """

    seeds: np.ndarray
    links: np.ndarray
    anchors: np.ndarray
    targets: np.ndarray
    relations: np.ndarray | None
    known_rows: np.ndarray
    query: np.ndarray
    hard: np.ndarray
    hard_query: np.ndarray
    random: np.ndarray
    candidate: np.ndarray | None
    group: np.ndarray | None
    random_group: np.ndarray
    hard_group: np.ndarray
    time: np.ndarray | None

    @property
    def parts(self) -> dict[str, np.ndarray]:
        return {
            "anchor": self.anchors,
            "target": self.targets,
            "hard": self.hard,
            "random": self.random,
        }

    @property
    def times(self) -> dict[str, np.ndarray]:
        assert self.time is not None
        assert self.group is not None
        of_links = self.time[self.group]
        return {
            "anchor": of_links,
            "target": of_links,
            "hard": self.time[self.hard_group],
            "random": self.time[self.random_group],
        }


def _known_pairs(known: KnownLinks, drawn: _Drawn) -> KnownPairs:
    first = np.unique(drawn.query, return_index=True)[1]
    relations = None if drawn.relations is None else drawn.relations[first]
    bounds, targets = known.rows(drawn.known_rows[first], relations)
    query = np.repeat(np.arange(len(first)), np.diff(bounds))
    return KnownPairs(query=torch.from_numpy(query), id=torch.from_numpy(targets))


def _joined(parts: Mapping[str, np.ndarray], types: Mapping[str, str]) -> dict[str, np.ndarray]:
    return {
        node_type: np.concatenate(
            [part for name, part in parts.items() if types[name] == node_type]
        )
        for node_type in dict.fromkeys(types.values())
    }
