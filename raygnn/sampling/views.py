"""Views of a batch: without some edges, with hidden feature columns, or with chosen nodes.

Each draw is a hash of the view's key and of its edge, column or node. So a view is the same on
every rank and device, and after a resume.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from raygnn.data.edge_types import edge_type_name
from raygnn.sampling.batch import EdgeRecord, NodeBatch
from raygnn.sampling.blocks import hetero_blocks_of
from raygnn.sampling.rng import chain_key, text_key
from raygnn.sampling.sparse_features import SparseFeatures
from raygnn.sampling.tensor_hash import signed, splitmix64
from raygnn.sampling.tensor_record import StoredRows


def view_key(batch: NodeBatch, number: int) -> int:
    return chain_key(batch.key, text_key("view"), number)


def drawn(ids: Tensor, share: float, key: int) -> Tensor:
    """Draws ids independently with probability `share`; bool of their shape."""
    uniform = (splitmix64(ids ^ signed(key)) >> 11) & ((1 << 53) - 1)
    return uniform < int(share * (1 << 53))


def places_drawn(ids: Tensor, number: int, key: int) -> Tensor:
    """For each id a uniform draw of range(number); int64 of their shape."""
    return (splitmix64(ids ^ signed(key)) >> 1 & ((1 << 62) - 1)) % number


def drop_edges(batch: NodeBatch, share: float, key: int) -> NodeBatch:
    """Drops a share of the batch's edges, each independently.

    Degrees become those of the graph without the edges: counted if the batch has all edges of a
    node, else estimated from the remaining share.
    """
    if share == 0:
        return batch
    edges = {}
    for edge_type, record in batch.edges.items():
        ids = record.e_id
        if ids is None:
            ids = torch.arange(record.edge_index.shape[1], device=record.edge_index.device)
        keep = ~drawn(ids, share, chain_key(key, text_key(edge_type_name(edge_type))))
        edges[edge_type] = _kept(record, keep, share)
    changed = replace(batch, edges=edges, blocks=None)
    if batch.blocks is None:
        return changed
    return replace(changed, blocks=(hetero_blocks_of(changed)[0],) * len(batch.blocks))


def mask_features(batch: NodeBatch, share: float, key: int) -> NodeBatch:
    """Sets a share of the columns of `x` to 0, the same for all nodes."""
    if share == 0:
        return batch
    nodes = dict(batch.nodes)
    for node_type, record in batch.nodes.items():
        if "x" not in record.columns:
            continue
        x = record.columns["x"]
        columns = torch.arange(x.shape[1], device=record.n_id.device)
        keep = ~drawn(columns, share, chain_key(key, text_key(node_type)))
        shown: Any
        if isinstance(x, SparseFeatures):
            is_kept = keep.index_select(0, x.indices)
            shown = x.with_values(x.values_or_ones() * is_kept)
        elif isinstance(x, StoredRows):
            shown = replace(x, keep=keep)
        else:
            shown = x * keep
        nodes[node_type] = replace(record, columns={**record.columns, "x": shown})
    return replace(batch, nodes=nodes)


def with_hop_of_seeds(batch: NodeBatch) -> NodeBatch:
    """The batch with the seeds and their first-hop neighbors as seeds, and one hop less.

    On the whole graph, all nodes become seeds.
    """
    if batch.blocks is not None:
        every = {name: replace(record, seed_index=None) for name, record in batch.nodes.items()}
        return replace(batch, nodes=every)
    nodes = {
        name: replace(
            record,
            num_seeds=sum(record.num_sampled[:2]),
            num_sampled=_first_two_joined(record.num_sampled),
        )
        for name, record in batch.nodes.items()
    }
    edges = {
        edge_type: replace(record, num_sampled=_first_two_joined(record.num_sampled))
        for edge_type, record in batch.edges.items()
    }
    return replace(batch, nodes=nodes, edges=edges)


def _first_two_joined(counts: list[int]) -> list[int]:
    return [sum(counts[:2]), *counts[2:]]


def _kept(record: EdgeRecord, keep: Tensor, share: float) -> EdgeRecord:
    kept_before = functional.pad(keep.cumsum(0), (1, 0))
    dst_ptr = kept_before[record.dst_ptr]
    before, after = record.dst_ptr.diff(), dst_ptr.diff()
    dst_degree = _degree_left(record.dst_degree, before, after, share, by_ratio=True)
    src_degree = record.src_degree
    if src_degree is not None:
        src, num_src = record.edge_index[0], len(src_degree)
        before, after = (torch.bincount(s, minlength=num_src) for s in (src, src[keep]))
        src_degree = _degree_left(src_degree, before, after, share, by_ratio=False)
    return replace(
        record,
        edge_index=record.edge_index[:, keep],
        dst_ptr=dst_ptr,
        e_id=record.e_id[keep],
        num_sampled=[int(part.sum()) for part in keep.split(record.num_sampled)],
        src_degree=src_degree,
        dst_degree=dst_degree,
        columns={name: column[keep] for name, column in record.columns.items()},
    )


def _degree_left(
    degree: Tensor, before: Tensor, after: Tensor, share: float, *, by_ratio: bool
) -> Tensor:
    """Degrees without dropped edges, from the batch's edges of the first nodes.

    `by_ratio`: a node's edges in the batch represent all its edges.
    """
    before, after = (
        functional.pad(count, (0, len(degree) - len(count))).to(degree.dtype)
        for count in (before, after)
    )
    expected = degree * (1 - share)
    if by_ratio:
        expected = expected.where(before == 0, degree * (after / before.clamp(min=1)))
    return after.where(before == degree, expected)
