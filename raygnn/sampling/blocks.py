"""Per-layer bipartite blocks of a batch, which contain only rows that a layer reads."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

import numpy as np

from raygnn.data.edge_types import EdgeType
from raygnn.sampling.batch import Batch, Block, EdgeCounts, EdgeRecord, HeteroBlock, NodeBatch
from raygnn.sampling.sparse_features import SparseFeatures

BatchT = TypeVar("BatchT", bound=Batch)

_NONE = np.empty(0, np.int64)


def blocks_of(batch: Batch) -> list[Block]:
    """Blocks of a batch with one node type and one edge type, in the order of the layers.

    blocks[0], of the first layer, has all edges; blocks[-1] only those into the seeds. They are
    nested prefixes of the batch's edge lists and share its tensors.
    """
    ((edge_type, _),) = batch.edges.items()
    return [block.blocks[edge_type] for block in hetero_blocks_of(batch)]


def hetero_blocks_of(batch: Batch) -> list[HeteroBlock]:
    if batch.blocks is not None:
        return list(batch.blocks)
    nodes = {t: _up_to_each_hop(nodes.num_sampled) for t, nodes in batch.nodes.items()}
    edges = {t: _up_to_each_hop(edges.num_sampled) for t, edges in batch.edges.items()}
    num_hops = min(len(counts) for counts in nodes.values()) - 1
    return [_hetero_block(batch, hop, nodes, edges) for hop in reversed(range(num_hops))]


def _hetero_block(
    batch: Batch, hop: int, nodes: dict[str, list[int]], edges: dict[EdgeType, list[int]]
) -> HeteroBlock:
    num_src = {node_type: counts[hop + 1] for node_type, counts in nodes.items()}
    num_dst = {node_type: counts[hop] for node_type, counts in nodes.items()}
    blocks = {
        edge_type: _block(
            batch.edges[edge_type],
            num_src[edge_type[0]],
            num_dst[edge_type[2]],
            hop,
            counts[hop],
            one_type=edge_type[0] == edge_type[2],
        )
        for edge_type, counts in edges.items()
    }
    return HeteroBlock(blocks=blocks, num_src=num_src, num_dst=num_dst)


def _block(
    edges: EdgeRecord, num_src: int, num_dst: int, hop: int, num_edges: int, *, one_type: bool
) -> Block:
    edge_attr, edge_weight = edges.columns.get("edge_attr"), edges.columns.get("edge_weight")
    return Block(
        edge_index=edges.edge_index[:, :num_edges],
        num_src=num_src,
        num_dst=num_dst,
        dst_ptr=edges.dst_ptr[: num_dst + 1],
        dst_degree=edges.dst_degree[:num_dst],
        src_in_degree=edges.dst_degree[:num_src] if one_type else None,
        src_degree=None if edges.src_degree is None else edges.src_degree[:num_src],
        edge_attr=None if edge_attr is None else edge_attr[:num_edges],
        edge_weight=None if edge_weight is None else edge_weight[:num_edges],
        counts=None if edges.counts is None else edges.counts[hop],
    )


def with_counts(batch: BatchT) -> BatchT:
    """Adds all sizes that layers need, so that no layer waits for a device to count them."""
    if isinstance(batch, NodeBatch) and batch.views:
        batch = replace(batch, views=tuple(with_counts(view) for view in batch.views))
    up_to = {name: _up_to_each_hop(nodes.num_sampled) for name, nodes in batch.nodes.items()}
    padded = batch.num_added_edges is not None
    edges = {
        t: replace(e, counts=_counts(e, up_to[t[2]], t, padded=padded))
        for t, e in batch.edges.items()
    }
    nodes = {
        name: replace(
            record,
            columns={
                column: rows.with_ends(up_to[name]) if isinstance(rows, SparseFeatures) else rows
                for column, rows in record.columns.items()
            },
        )
        for name, record in batch.nodes.items()
    }
    return replace(batch, nodes=nodes, edges=edges)


def _counts(
    edges: EdgeRecord, num_nodes: list[int], edge_type: EdgeType, *, padded: bool
) -> tuple[EdgeCounts, ...]:
    src, dst = edges.edge_index.numpy()
    loops = np.flatnonzero(src == dst) if edge_type[0] == edge_type[2] else _NONE
    num_loops = np.searchsorted(loops, _up_to_each_hop(edges.num_sampled)).tolist()
    num_reached = num_nodes[: len(num_loops)]
    if not padded:
        reached = np.flatnonzero(np.diff(edges.dst_ptr.numpy()))
        num_reached = np.searchsorted(reached, num_reached).tolist()
    return tuple(map(EdgeCounts, num_loops, num_reached))


def _up_to_each_hop(num_sampled: list[int]) -> list[int]:
    return list(accumulate(num_sampled))
