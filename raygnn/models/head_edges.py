"""Edges once per attention head, so that one call reduces all heads of all segments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from numba import njit
from torch import Tensor
from torch.nn import functional


class HeadEdges(NamedTuple):
    """Edges of segments once per head: by segment, then head, then edge.

    A segment's heads stand next to each other: what they read of a node is read while it is in the
    cache, and each result is written where it belongs in [num_segments, heads, channels].

    Attributes:
        ptr: int64 [num_segments * heads + 1], where each head of each segment begins.
        rows: int64 [num_edges * heads], the row that each edge reads.
        order: int64 [num_edges * heads], positions in [num_edges, heads] laid flat.
        place: int64 [num_edges * heads], the inverse of `order`.
    """

    ptr: Tensor
    rows: Tensor
    order: Tensor
    place: Tensor


def edges_by_head(index: Tensor, ptr: Tensor, heads: int, *, own_rows: bool) -> HeadEdges:
    """Repeats the edges of each segment once per head.

    Args:
        index: int64 [num_edges], the node that each edge reads.
        ptr: int64 [num_segments + 1], where each segment's edges begin.
        own_rows: whether a node has a row per head, in [num_nodes, heads, channels]; all heads
            read one where not.
    """
    head = torch.arange(heads, device=index.device)
    starts = heads * ptr[:-1].unsqueeze(1) + ptr.diff().unsqueeze(1) * head
    ends = functional.pad(starts.flatten(), (0, 1), value=len(index) * heads)
    order, place = _order_and_place(ptr, starts, len(index))
    index = index.unsqueeze(1)
    rows = index * heads + head if own_rows else index.expand(-1, heads)
    return HeadEdges(ends, rows.flatten().index_select(0, order), order, place)


def _order_and_place(ptr: Tensor, starts: Tensor, num_edges: int) -> tuple[Tensor, Tensor]:
    order, place = (ptr.new_empty(num_edges * starts.shape[1]) for _ in range(2))
    if ptr.device.type == "cpu":
        arrays = (tensor.contiguous().numpy() for tensor in (ptr, starts, order, place))
        _write_order_and_place(*arrays)
        return order, place
    edge = torch.arange(num_edges, device=ptr.device)
    segment = torch.repeat_interleave(ptr.diff(), output_size=num_edges)
    place = (starts[segment] + (edge - ptr[segment]).unsqueeze(1)).flatten()
    order[place] = torch.arange(len(place), device=ptr.device)
    return order, place


@njit(nogil=True, cache=True)
def _write_order_and_place(ptr, starts, order, place):  # type: ignore[no-untyped-def]
    num_segments, heads = starts.shape
    for segment in range(num_segments):
        for head in range(heads):
            to = starts[segment, head]
            for edge in range(ptr[segment], ptr[segment + 1]):
                place[edge * heads + head] = to
                order[to] = edge * heads + head
                to += 1
