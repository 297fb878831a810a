"""Batches: sampled nodes and edges by type, and the seeds or links of the loss."""

from __future__ import annotations

from collections.abc import Hashable
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
        num_seeds: distinct seeds of this type; all nodes if the batch is the whole graph.
        num_sampled: number of seeds, then of new nodes per hop.
        columns: by name, [num_nodes, ...] features, sparse if the model accepts sparse ones. Types
            without features have only n_id. `StoredRows` on the way to a device.
        seed: int64 [num_nodes], number of the seed whose neighborhood has the node, with disjoint
            sampling; of shared leaves the first.
        seed_time: [num_nodes], time of that seed, with temporal sampling. A node appears once per
            time.
        seed_index: int64 [num_seeds], local ids of the seeds, if the batch is the whole graph in
            its own order.
    """

    n_id: Tensor
    num_seeds: int
    num_sampled: list[int]
    columns: dict[str, Tensor | SparseFeatures]
    seed: Tensor | None = None
    seed_time: Tensor | None = None
    seed_index: Tensor | None = None


class EdgeCounts(NamedTuple):
    """Edge counts of a layer that a device would make the host wait for.

    Attributes:
        num_self_edges: edges from source i to destination i.
        num_reached: destinations with an edge; all of them in padded batches.
    """

    num_self_edges: int
    num_reached: int


@dataclass(frozen=True, kw_only=True)
class EdgeRecord(TensorRecord):
    """The edges of one type in a batch.

    Attributes:
        edge_index: int64 [2, num_edges], local ids (source, destination), by ascending destination.
        dst_ptr: int64 [num_dst + 1], start of each destination's edges.
        e_id: int64 [num_edges], CSC positions.
        num_sampled: new edges per hop.
        dst_degree: float32, in-degrees of the first nodes of the destination type: those that
            sampled edges, or all if sources have the same type. Counted in the whole graph along
            messages; with temporal sampling, without later edges.
        src_degree: float32 [num_src], out-degrees of sources, likewise; None unless the model reads
            them.
        columns: by name, [num_edges, ...].
        counts: edge counts up to each hop, in batches for a device; else None.
    """

    edge_index: Tensor
    dst_ptr: Tensor
    e_id: Tensor
    num_sampled: list[int]
    dst_degree: Tensor
    columns: dict[str, Tensor]
    src_degree: Tensor | None = None
    counts: tuple[EdgeCounts, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Block(TensorRecord):
    """The edges of one layer. Destinations are the first sources, unless node types differ.

    Attributes:
        edge_index: int64 [2, num_edges], (source, destination), by ascending destination.
        num_src: rows that the layer reads.
        num_dst: rows that the layer writes, at most `num_src`.
        dst_ptr: int64 [num_dst + 1]: destination i has edges `dst_ptr[i]` to `dst_ptr[i + 1]`.
        dst_degree: float32 [num_dst], in-degrees of this type in the whole graph.
        src_in_degree: float32 [num_src], in-degrees of sources, if they have the destinations'
            type.
        src_degree: float32 [num_src], out-degrees of this type in the whole graph, if the model
            sets `reads_src_degree`.
        edge_attr: [num_edges, ...] or None.
        edge_weight: [num_edges] or None.
        counts: see `EdgeCounts`; None counts on demand.
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
        """Results of layers that depend only on edges, by name, stored with the block."""
        return {}


@dataclass(frozen=True, kw_only=True)
class HeteroBlock(TensorRecord):
    """The edges of one layer, of every edge type. Destinations of a type are its first sources.

    Attributes:
        blocks: by edge type (source type, relation, destination type), also without edges. Local
            ids are positions among the rows of the source and destination types.
        num_src: rows that the layer reads, by node type.
        num_dst: rows that the layer writes, by node type.
    """

    blocks: dict[EdgeType, Block]
    num_src: dict[str, int]
    num_dst: dict[str, int]


@dataclass(frozen=True)
class DeviceCopy:
    """A padded batch on a device.

    Attributes:
        memory: uint8 [num_bytes], that of all tensors of the batch.
        layout: of the batch, see `layout_of`.
    """

    memory: Tensor
    layout: Hashable


@dataclass(frozen=True, kw_only=True)
class Batch(TensorRecord):
    """A micro-batch: the inputs of a model, for any loss.

    Attributes:
        index: number in the epoch, over all ranks.
        input_id: int64 [num_seeds], the seeds as given.
        nodes: by node type.
        edges: by edge type.
        blocks: stored blocks of a reused batch; otherwise `blocks_of` makes them.
        key: key of further draws for this batch; differs between epochs.
        num_added_edges: edges that `Padding` added; None if it did not pad the batch. A padded
            batch counts added nodes among the distinct seeds, so these are more than `input_id`.
        copy: how `DeviceCopies` copied the batch.
    """

    index: int
    input_id: Tensor
    nodes: dict[str, NodeRecord]
    edges: dict[EdgeType, EdgeRecord]
    blocks: tuple[HeteroBlock, ...] | None = None
    key: int = 0
    num_added_edges: int | None = None
    copy: DeviceCopy | None = None

    @property
    def num_edges(self) -> int:
        """Sampled edges."""
        total = sum(edges.edge_index.shape[1] for edges in self.edges.values())
        return total - (self.num_added_edges or 0)


@dataclass(frozen=True, kw_only=True)
class NodeBatch(Batch):
    """Seeds of one node type.

    Attributes:
        node_type: type of the seeds; `input_id` are dense ids, which may repeat.
        seed_index: int64 [num_seeds], local ids of the seeds.
        labels: by name, [num_seeds, ...]. Labels of other nodes are not read.
        views: copies without some edges or nodes, for self-supervised learning.
        drawn: by name, int64, local ids of further drawn nodes.
    """

    node_type: str
    seed_index: Tensor
    labels: dict[str, Tensor]
    views: tuple[NodeBatch, ...] = ()
    drawn: dict[str, Tensor] = field(default_factory=dict)

    @property
    def y(self) -> Tensor:
        return self.labels["y"]


@dataclass(frozen=True, kw_only=True)
class EdgeBatch(Batch):
    """Seed edges, and the neighborhoods of their ends without these edges.

    Attributes:
        end_index: int64 [2, num_edges], local ids of sources and targets; `input_id` are edge
            positions.
        end_id: int64 [2, num_edges], dense ids; -1 for nodes that training did not have.
        inputs: float32 [num_edges, width], features of the seed edges; None without any.
        labels: by name, [num_edges, ...].
    """

    end_index: Tensor
    end_id: Tensor
    inputs: Tensor | None
    labels: dict[str, Tensor]

    @property
    def y(self) -> Tensor:
        return self.labels["y"]


@dataclass(frozen=True, kw_only=True)
class HardNegatives(TensorRecord):
    """Declared negatives of the anchors of a batch.

    Attributes:
        index, id: int64 [num_hard], local and dense ids.
        query: int64 [num_hard], their query (`BatchLinks.query`).
    """

    index: Tensor
    id: Tensor
    query: Tensor


@dataclass(frozen=True, kw_only=True)
class RandomNodes(TensorRecord):
    """Random negatives, drawn for all links of a batch.

    Attributes:
        index, id: int64 [num_random], local and dense ids.
        group: int64 [num_random], their group of links, with temporal sampling.
    """

    index: Tensor
    id: Tensor
    group: Tensor | None


@dataclass(frozen=True, kw_only=True)
class LogQ(TensorRecord):
    """Log-probabilities of the random negatives and of in-batch targets.

    Attributes:
        draw_probability: float64 [num_candidates], of one random draw.
        link_share: float64 [num_candidates], share of an epoch's links with this target.
    """

    draw_probability: Tensor
    link_share: Tensor


@dataclass(frozen=True, kw_only=True)
class KnownPairs(TensorRecord):
    """Known links of the anchors of a batch.

    Attributes:
        query, id: int64 [num_known], query and dense id of the target.
    """

    query: Tensor
    id: Tensor


@dataclass(frozen=True, kw_only=True)
class BatchLinks(TensorRecord):
    """The links of a batch, and their candidates.

    Attributes:
        position: int64 [num_links], among the links of the split.
        index, id: int64 [2, num_links], local and dense ids (anchor, target).
        query: int64 [num_links], number of the anchor; with several relations or groups, of the
            anchor with its relation and group.
        hard: hard negatives.
        random: random negatives; in evaluation, the nodes that `candidate` refers to.
        relation: int64 [num_links], with several relations.
        group: int64 [num_links], with temporal sampling; links compete only with candidates of
            their group.
        known: bool [num_links, num_candidates], in training: the candidate is a known link of the
            anchor. Candidates are random negatives, targets (if they compete) and hard negatives.
            None if known links may compete.
        known_pairs: replaces `known` if candidates are all nodes, or come from all batches of a
            step.
        candidate: int64 [num_links, num_negatives], in evaluation: positions of each link's
            candidates among the random negatives; -1 where it has fewer.
        log_q: of the random negatives and targets, if the loss corrects for it.
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
    """Links and negatives in one neighborhood. `input_id`: positions of links or anchors."""

    links: BatchLinks
