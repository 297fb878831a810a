"""Batches: the sampled nodes and edges by type, and the seeds or links that the loss is on."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.sampling.sparse_features import SparseFeatures
from raygnn.sampling.tensor_record import TensorRecord


@dataclass(frozen=True, kw_only=True)
class NodeRecord(TensorRecord):
    """The nodes of one type in a batch, the distinct seeds first.

    Attributes:
        n_id: int64 [num_nodes], dense ids.
        num_seeds: distinct seeds of this type; all nodes, where the batch is the whole graph.
        num_sampled: seeds, then nodes found in each hop; None where the sampler does not count.
        columns: by name, [num_nodes, ...] features; a type without features is known by its n_id
            alone. Sparse features stay sparse where the model takes them so.
        seed: int64 [num_nodes], with disjoint sampling only: the number of the seed whose
            neighborhood a node is in.
        seed_time: [num_nodes], with temporal sampling only: the time of the seed whose neighborhood
            a node is in. A node is there once for each.
        seed_index: int64 [num_seeds], where the batch is the whole graph, in which nodes keep their
            order: local ids of the distinct seeds of this type.
    """

    n_id: Tensor
    num_seeds: int
    num_sampled: list[int] | None
    columns: dict[str, Tensor | SparseFeatures]
    seed: Tensor | None = None
    seed_time: Tensor | None = None
    seed_index: Tensor | None = None


class EdgeCounts(NamedTuple):
    """Sizes that follow from the edges of a layer: a device would make the host wait for them.

    Attributes:
        num_self_edges: edges from source i to destination i.
        num_reached: destinations with an edge.
    """

    num_self_edges: int
    num_reached: int


@dataclass(frozen=True, kw_only=True)
class EdgeRecord(TensorRecord):
    """The edges of one type in a batch.

    Attributes:
        edge_index: int64 [2, num_edges], local ids (source, destination), by ascending destination.
        dst_ptr: int64 [num_dst + 1], where the edges of each destination begin.
        e_id: int64 [num_edges], CSC positions; None where the sampler does not say them.
        num_sampled: edges found in each hop; None where the sampler does not count.
        dst_degree: float32, edges of the type into each of the first nodes of the destination
            type: those that took edges, or all if sources are of that type too. Counted in the
            whole graph along messages; with temporal sampling, without later edges.
        src_degree: float32 [num_src], likewise, edges out of each node of the source type; None
            unless the model reads them.
        columns: by name, [num_edges, ...].
        counts: of the edges up to each hop, in batches for a device; else None.
    """

    edge_index: Tensor
    dst_ptr: Tensor
    e_id: Tensor | None
    num_sampled: list[int] | None
    dst_degree: Tensor
    columns: dict[str, Tensor]
    src_degree: Tensor | None = None
    counts: tuple[EdgeCounts, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Block(TensorRecord):
    """The edges of one layer. Its destinations are the first of its sources.

    Not so in a `HeteroBlock` where the two are of different node types.

    Attributes:
        edge_index: int64 [2, num_edges], (source, destination), by ascending destination.
        num_src: rows that the layer reads.
        num_dst: rows that the layer writes, at most `num_src`.
        dst_ptr: int64 [num_dst + 1]: the edges into destination i are `dst_ptr[i]` to
            `dst_ptr[i + 1]`.
        dst_degree: float32 [num_dst], edges of the type into each destination, in the whole graph.
        src_in_degree: float32 [num_src], the same of the sources, if they are of the type of the
            destinations; else None.
        src_degree: float32 [num_src], edges of the type out of each source, in the whole graph;
            None unless the model sets `reads_src_degree`.
        edge_attr: [num_edges, ...] or None.
        edge_weight: [num_edges] or None.
        counts: see `EdgeCounts`; None where they are counted when they are asked for.
    """

    edge_index: Tensor
    num_src: int
    num_dst: int
    dst_ptr: Tensor
    dst_degree: Tensor
    src_in_degree: Tensor | None = None
    src_degree: Tensor | None = None
    edge_attr: Tensor | None = None
    edge_weight: Tensor | None = None
    counts: EdgeCounts | None = None

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    @cached_property
    def derived(self) -> dict[str, Any]:
        """Results of layers that depend on edges alone, by name; kept with the block."""
        return {}


@dataclass(frozen=True, kw_only=True)
class HeteroBlock(TensorRecord):
    """The edges of one layer, of every edge type. Destinations of a type are its first sources.

    Attributes:
        blocks: by edge type (source type, relation, destination type), those without an edge too.
            Local ids are positions among the rows of the source and of the destination type.
        num_src: rows that the layer reads, by node type.
        num_dst: rows that the layer writes, by node type.
    """

    blocks: dict[EdgeType, Block]
    num_src: dict[str, int]
    num_dst: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Batch(TensorRecord):
    """A micro-batch: what a model reads of it, whatever the loss is on.

    Attributes:
        index: its number in the epoch, over all ranks.
        input_id: int64 [num_seeds], the seeds as given.
        nodes: by node type.
        edges: by edge type as messages go: against the edges (`out`), those of (src, rel, dst) are
            under (dst, rev_rel, src).
        blocks: of a batch that is computed on again and again; else `blocks_of` makes them.
        key: what draws for this batch follow from, after those of its sampler; another one in
            each epoch.
    """

    index: int
    input_id: Tensor
    nodes: dict[str, NodeRecord]
    edges: dict[EdgeType, EdgeRecord]
    blocks: tuple[HeteroBlock, ...] | None = None
    key: int = 0

    @property
    def num_edges(self) -> int:
        """Number of edges of all types."""
        return sum(edges.edge_index.shape[1] for edges in self.edges.values())


@dataclass(frozen=True, kw_only=True)
class NodeBatch(Batch):
    """Seeds of one node type.

    Attributes:
        node_type: of the seeds; `input_id` are dense ids, which may repeat.
        seed_index: int64 [num_seeds], local ids of the seeds.
        labels: by name, [num_seeds, ...]; of no other node are labels read.
        views: the batch without some of its edges, for self-supervised learning; its nodes.
        drawn: by name, int64, local ids of nodes that were drawn for it.
    """

    node_type: str
    seed_index: Tensor
    labels: dict[str, Tensor]
    views: tuple[NodeBatch, ...] = ()
    drawn: dict[str, Tensor] = field(default_factory=dict)

    @property
    def y(self) -> Tensor:
        """[num_seeds, ...], the labels that the task is about."""
        return self.labels["y"]


@dataclass(frozen=True, kw_only=True)
class EdgeBatch(Batch):
    """Seed edges, and the neighborhoods of their ends without these edges.

    Attributes:
        end_index: int64 [2, num_edges], local ids of sources and targets; `input_id` are positions
            of the edges.
        inputs: float32 [num_edges, width], features of the edges themselves; None without any.
        labels: by name, [num_edges, ...].
    """

    end_index: Tensor
    inputs: Tensor | None
    labels: dict[str, Tensor]

    @property
    def y(self) -> Tensor:
        """[num_edges, ...], the labels that the task is about."""
        return self.labels["y"]


@dataclass(frozen=True, kw_only=True)
class HardNegatives(TensorRecord):
    """Declared negatives of the anchors of a batch.

    Attributes:
        index, id: int64 [num_hard], local and dense ids.
        query: int64 [num_hard], which query (`BatchLinks.query`) each belongs to.
    """

    index: Tensor
    id: Tensor
    query: Tensor


@dataclass(frozen=True, kw_only=True)
class RandomNodes(TensorRecord):
    """Nodes that the links of a batch compete with, drawn for all of them.

    Attributes:
        index, id: int64 [num_random], local and dense ids.
        group: int64 [num_random], with temporal sampling: the group of links that each competes
            with.
    """

    index: Tensor
    id: Tensor
    group: Tensor | None


@dataclass(frozen=True, kw_only=True)
class LogQ(TensorRecord):
    """Log-probabilities of the random negatives and of in-batch targets.

    Attributes:
        draw_probability: float64 [num_candidates], of one random draw.
        link_share: float64 [num_candidates], the share of an epoch's links that lead there.
    """

    draw_probability: Tensor
    link_share: Tensor


@dataclass(frozen=True, kw_only=True)
class KnownPairs(TensorRecord):
    """Known links of the anchors of a batch.

    Attributes:
        query, id: int64 [num_known], of each the query and the dense id of the target.
    """

    query: Tensor
    id: Tensor


@dataclass(frozen=True, kw_only=True)
class BatchLinks(TensorRecord):
    """The links of a batch, and what they compete with.

    Attributes:
        position: int64 [num_links], among the links of the split.
        index, id: int64 [2, num_links], local and dense ids (anchor, target).
        query: int64 [num_links], a number for each anchor of the batch; of several relations or
            groups, for each anchor with its relation and group.
        hard: hard negatives.
        random: random negatives; in evaluation those that `candidate` points at.
        relation: int64 [num_links], of several relations: which each link is of.
        group: int64 [num_links], with temporal sampling; links of a group compete with its own
            candidates only.
        known: bool [num_links, num_candidates], in training: whether a candidate is a known link
            of the anchor. Candidates are random negatives, targets of the links where they compete,
            hard negatives. None where known links may compete.
        known_pairs: in place of `known`, where candidates come from all batches of a step, or are
            all nodes.
        candidate: int64 [num_links, num_negatives], in evaluation: what each link competes with,
            positions among the random negatives.
        log_q: of the random negatives and targets, where the loss corrects for it.
    """

    position: Tensor
    index: Tensor
    id: Tensor
    query: Tensor
    hard: HardNegatives
    random: RandomNodes
    relation: Tensor | None
    group: Tensor | None
    known: Tensor | None
    known_pairs: KnownPairs | None
    candidate: Tensor | None
    log_q: LogQ | None


@dataclass(frozen=True, kw_only=True)
class LinkBatch(Batch):
    """Links and their negatives, in one sampled neighborhood.

    Attributes:
        links: `input_id` are positions of the seeds among the links, or anchors, of the split.
    """

    links: BatchLinks
