"""Kernels of Triton for `DeviceSampler` and `DevicePadding`. Importing this module needs Triton.

Kernels write nothing beyond a capacity and flag what does not fit. `counts` is that of the sampler,
and names that begin with `at_` are positions in it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.sampling.batch import EdgeRecord
from raygnn.sampling.device_padding import DevicePadding, PaddedRows
from raygnn.sampling.device_sampler import NEVER, DeviceSampler, SampleInputs

_BLOCK = 256  # rows of a program; with 1,024, registers of `_pad_edges` spill on an H200
_DRAWS = 1024  # draws of a program
_NEVER = tl.constexpr(NEVER)


@triton.jit
def _splitmix(value):  # type: ignore[no-untyped-def]
    z = value + 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _store_count(counts, at, value, size):  # type: ignore[no-untyped-def]
    tl.store(counts + at, tl.minimum(value, size))
    tl.store(counts, 1, mask=value > size)


@triton.jit
def _num_below(rows, num_rows, value, step):  # type: ignore[no-untyped-def]
    """Number of ascending rows that are below values, each less `step` times its index."""
    low = value * 0
    high = low + num_rows
    while tl.max(high - low) > 0:
        middle = (low + high) // 2
        is_open = low < high
        row = tl.load(rows + middle, mask=is_open, other=0) - step * middle
        low, high = (
            tl.where(is_open & (row < value), middle + 1, low),
            tl.where(is_open & (row >= value), middle, high),
        )
    return low


@triton.jit(do_not_specialize=["at_nodes"])
def _count(  # type: ignore[no-untyped-def]
    node, counts, at_nodes, indptr, skips, num_skips, isolated, num_isolated,
    starts, degrees, taken, size,
    fanout: tl.constexpr, replaces: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """First edge, number of edges, and number of edges to take of each node of a section."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < tl.load(counts + at_nodes)
    row = tl.load(node + i, mask=inside, other=0)
    start = tl.load(indptr + row, mask=inside, other=0)
    stop = tl.load(indptr + row + 1, mask=inside, other=0)
    num_skipped = _num_below(skips, num_skips, stop, 0) - _num_below(skips, num_skips, start, 0)
    at = _num_below(isolated, num_isolated, row, 0)
    is_isolated = tl.load(isolated + at, mask=at < num_isolated, other=-1) == row
    degree = tl.where(is_isolated, 0, stop - start - num_skipped)
    count = tl.minimum(degree, fanout)
    if replaces:
        count = tl.where(degree > 0, fanout, 0).to(tl.int64)
    tl.store(starts + i, start, mask=i < size)
    tl.store(degrees + i, degree, mask=i < size)
    tl.store(taken + i, count, mask=i < size)


@triton.jit(do_not_specialize=["at_edges", "at_key"])
def _draw(  # type: ignore[no-untyped-def]
    node, counts, at_edges, keys, at_key, starts, degrees, taken, ends, indices, e_ids,
    skips, num_skips, first,
    neighbors, edges, cols, dst_starts, first_arrival, first_col, num_rows, size,
    fanout: tl.constexpr, width: tl.constexpr, replaces: tl.constexpr, has_e_id: tl.constexpr,
    has_skips: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Edges of each node of a section, and the first arrivals of their neighbors."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < num_rows
    degree = tl.load(degrees + i, mask=inside, other=0)
    start = tl.load(starts + i, mask=inside, other=0)
    count = tl.load(taken + i, mask=inside, other=0)
    begin = tl.load(ends + i, mask=inside, other=0) - count
    tl.store(dst_starts + i, begin, mask=inside)
    row = tl.load(node + i, mask=inside, other=0).to(tl.uint64, bitcast=True)
    state = _splitmix(tl.load(keys + at_key).to(tl.uint64, bitcast=True) ^ row)
    column = tl.arange(0, width)
    bits = _splitmix(state[:, None] + column[None, :].to(tl.uint64) * 0x9E3779B97F4A7C15)
    if replaces:
        bound = (degree[:, None] + tl.zeros([block, width], tl.int64)).to(tl.uint64, bitcast=True)
        picks = tl.umulhi(bits, bound).to(tl.int64, bitcast=True)
    else:
        # All draws together; only replacements of repeated ones depend on earlier picks.
        last = degree[:, None] - fanout + column[None, :]
        bound = tl.maximum(last + 1, 0).to(tl.uint64, bitcast=True)
        drawn = tl.umulhi(bits, bound).to(tl.int64, bitcast=True)
        picks = tl.full([block, width], -1, tl.int64)
        for j in range(fanout):
            pick = tl.sum(tl.where(column[None, :] == j, drawn, 0), axis=1)
            is_known = tl.max((picks == pick[:, None]).to(tl.int32), axis=1) > 0
            pick = tl.where(is_known, degree - fanout + j, pick)
            picks = tl.where(column[None, :] == j, pick[:, None], picks)
        picks = tl.where((degree <= fanout)[:, None], column[None, :].to(tl.int64), picks)
    place = begin[:, None] + column[None, :]
    valid = (column[None, :] < count[:, None]) & (place < size)
    position = start[:, None] + picks
    if has_skips:  # skips[k] - k edges are left before the k-th that is stepped over
        before = _num_below(skips, num_skips, start, 0)[:, None]
        position += _num_below(skips, num_skips, position - before + 1, 1) - before
    neighbor = tl.load(indices + position, mask=valid, other=0).to(tl.int64)
    edge = position
    if has_e_id:
        edge = tl.load(e_ids + position, mask=valid, other=0).to(tl.int64)
    col = (first_col + i).to(tl.int64)[:, None] + tl.zeros([block, width], tl.int64)
    tl.store(neighbors + place, neighbor, mask=valid)
    tl.store(edges + place, edge, mask=valid)
    tl.store(cols + place, col, mask=valid)
    arrival = (first_arrival + place).to(tl.int32)
    tl.atomic_min(first + neighbor, arrival, mask=valid, sem="relaxed")
    if tl.program_id(0) == 0:
        _store_count(counts, at_edges, tl.load(ends + num_rows - 1), size)


@triton.jit
def _claim(arrived, first, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """First arrivals of seeds."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    node = tl.load(arrived + i, mask=i < size, other=0)
    tl.atomic_min(first + node, i, mask=i < size, sem="relaxed")


@triton.jit
def _find_new(  # type: ignore[no-untyped-def]
    arrived, num_arrived, first, first_arrival, is_new, size, block: tl.constexpr
):
    """Which arrivals are the first of their node."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    valid = i < tl.load(num_arrived)
    node = tl.load(arrived + i, mask=valid, other=0)
    arrival = tl.load(first + node, mask=valid, other=-1)
    tl.store(is_new + i, ((arrival == first_arrival + i) & valid).to(tl.int32), mask=i < size)


@triton.jit(do_not_specialize=["before", "after", "at_nodes"])
def _append(  # type: ignore[no-untyped-def]
    arrived, is_new, ranks, sums, before, after, counts, at_nodes, node, positions,
    first_position, nowhere, size, num_arrivals, block: tl.constexpr,
):  # fmt: skip
    """Adds new nodes to a section that has `sums[before]` ones."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < num_arrivals
    known = tl.load(sums + before)
    rank = known + tl.load(ranks + i, mask=inside, other=0)
    fits = (tl.load(is_new + i, mask=inside, other=0) > 0) & (rank <= size)
    tl.store(node + rank - 1, tl.load(arrived + i, mask=fits, other=0), mask=fits)
    tl.store(positions + i, tl.where(fits, first_position + rank - 1, nowhere), mask=inside)
    if tl.program_id(0) == 0:
        total = known + tl.load(ranks + num_arrivals - 1)
        tl.store(sums + after, total)
        _store_count(counts, at_nodes, total, size)


@triton.jit(do_not_specialize=["at_edges", "at_loops"])
def _find_rows(  # type: ignore[no-untyped-def]
    neighbors, cols, first, positions, num_arrivals, rows, counts, at_edges, at_loops, size,
    has_loops: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Positions of nodes that have arrived; of a section of edges, also counts loops."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < size
    arrival = tl.load(first + tl.load(neighbors + i, mask=inside, other=0))
    row = tl.load(positions + arrival, mask=arrival < num_arrivals, other=0)
    tl.store(rows + i, row, mask=inside)
    if has_loops:
        filled = inside & (i < tl.load(counts + at_edges))
        is_loop = filled & (row == tl.load(cols + i, mask=filled, other=-1))
        tl.atomic_add(counts + at_loops, tl.sum(is_loop.to(tl.int64), axis=0), sem="relaxed")


@triton.jit
def _forget(node, first, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.load(node + i, mask=i < size, other=0)
    tl.store(first + row, _NEVER, mask=i < size)


@triton.jit
def _first_row(counts, at, starts, num_sections):  # type: ignore[no-untyped-def]
    """Position of the first row of a sample, and whether there is one."""
    position, is_any = tl.full((), 0, tl.int64), tl.full((), 0, tl.int32)
    for section in range(num_sections):
        is_filled = (tl.load(counts + at + section) > 0).to(tl.int32)
        start = tl.load(starts + section)
        position = tl.where((is_any == 0) & (is_filled > 0), start, position)
        is_any = is_any | is_filled
    return position, is_any


@triton.jit(do_not_specialize=["at", "size"])
def _pad_rows(  # type: ignore[no-untyped-def]
    sample, counts, at, sections, numbers, sources, starts, num_sections, out, size,
    block: tl.constexpr,
):  # fmt: skip
    """Rows of a sample with added ones; see `PaddedRows.of`."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < size
    have = tl.load(counts + at + tl.load(sections + i, mask=inside, other=0))
    first, is_any = _first_row(counts, at, starts, num_sections)
    is_sampled = inside & (tl.load(numbers + i, mask=inside, other=0) < have)
    row = tl.load(sample + tl.load(sources + i, mask=is_sampled, other=0), mask=is_sampled)
    added = tl.load(sample + first, mask=is_any > 0, other=0)
    tl.store(out + i, tl.where(is_sampled, row, added), mask=inside)


@triton.jit(do_not_specialize=["at_edges", "at_loops", "at_nodes", "size"])
def _pad_edges(  # type: ignore[no-untyped-def]
    rows, cols, counts, at_edges, at_loops, at_nodes, sections, numbers, sources, per_hop,
    src_starts, src_moves, num_hops, num_sections, out, size,
    has_one_type: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Ends of the edges, as `DevicePadding` computes them."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < size
    hop = tl.load(sections + i, mask=inside, other=0)
    number = tl.load(numbers + i, mask=inside, other=0)
    have, have_dst = tl.load(counts + at_edges + hop), tl.load(counts + at_nodes + hop)
    missing = tl.load(per_hop + hop) - have
    loops = tl.load(per_hop + num_hops + hop) - tl.load(counts + at_loops + hop)
    num_added = tl.maximum(tl.load(per_hop + 2 * num_hops + hop) - have_dst, 1)
    first_dst = tl.load(per_hop + 4 * num_hops + hop)
    num_sources = tl.load(per_hop + 5 * num_hops + hop)
    move = tl.load(per_hop + 6 * num_hops + hop)
    share, rest = missing // num_added, missing % num_added
    extra = tl.maximum(number - have, 0)
    larger = rest * (share + 1)
    after = rest + (extra - larger) // tl.maximum(share, 1)
    added_dst = first_dst + have_dst + tl.where(extra < larger, extra // (share + 1), after)
    added_src = (extra - loops) % num_sources
    if has_one_type:
        added_src = added_src + (added_src >= added_dst).to(tl.int64)
    added_src = tl.where(extra < loops, added_dst, added_src)
    is_sampled = inside & (number < have)
    source = tl.load(sources + i, mask=is_sampled, other=0)
    src = tl.load(rows + source, mask=is_sampled, other=0)
    src_move = tl.zeros([block], tl.int64) + tl.load(src_moves)
    for section in range(1, num_sections):
        is_later = src >= tl.load(src_starts + section)
        src_move = tl.where(is_later, tl.load(src_moves + section), src_move)
    dst = tl.load(cols + source, mask=is_sampled, other=0) + move
    tl.store(out + i, tl.where(is_sampled, src + src_move, added_src), mask=inside)
    tl.store(out + size + i, tl.where(is_sampled, dst, added_dst), mask=inside)


@triton.jit(do_not_specialize=["at_edges", "at_nodes", "size", "num_edges"])
def _pad_starts(  # type: ignore[no-untyped-def]
    dst_starts, counts, at_edges, at_nodes, sections, numbers, sources, per_hop, num_hops,
    out, size, num_edges, block: tl.constexpr,
):  # fmt: skip
    """Start of each destination's edges, and the end of the last one's."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < size
    hop = tl.load(sections + i, mask=inside, other=0)
    number = tl.load(numbers + i, mask=inside, other=0)
    have, have_dst = tl.load(counts + at_edges + hop), tl.load(counts + at_nodes + hop)
    missing = tl.load(per_hop + hop) - have
    num_added = tl.maximum(tl.load(per_hop + 2 * num_hops + hop) - have_dst, 1)
    added = tl.maximum(number - have_dst, 0)
    first = have + added * (missing // num_added) + tl.minimum(added, missing % num_added)
    is_sampled = inside & (number < have_dst)
    source = tl.load(sources + i, mask=is_sampled, other=0)
    first = tl.where(is_sampled, tl.load(dst_starts + source, mask=is_sampled, other=0), first)
    first = tl.where(inside, first + tl.load(per_hop + 3 * num_hops + hop), num_edges)
    tl.store(out + i, first, mask=i <= size)


@triton.jit(do_not_specialize=["size"])
def _find_degrees(node, indptr, out, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.load(node + i, mask=i < size, other=0)
    degree = tl.load(indptr + row + 1) - tl.load(indptr + row)
    tl.store(out + i, degree.to(tl.float32), mask=i < size)


class TritonSampler(DeviceSampler):
    """A `DeviceSampler` with kernels of Triton: six launches and two sums for a type and hop."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: Nodes of a section after each addition, from 1 on.
        self._sums = torch.zeros(2 + len(self._arrivals), dtype=torch.int64, device=self.device)
        self._nothing = torch.zeros(1, dtype=torch.int64, device=self.device)

    def sample(self, inputs: SampleInputs) -> None:
        self._num_sums = 0
        self._last_sum: dict[tuple[str, int], int] = {}
        super().sample(inputs)

    def _draw(self, edge_type: EdgeType, hop: int, fanout: int, inputs: SampleInputs) -> None:
        node_type, section = edge_type[2], self.edges[edge_type][hop]
        sections, size = self.nodes[node_type], self.edges[edge_type].sizes[hop]
        chosen, num_rows = sections[hop], sections.sizes[hop]
        indptr, indices, e_id = self.adjacency[edge_type]
        node, replaces = self.node[node_type][chosen], self._sampler.replace
        starts, degrees, taken = indptr.new_empty((3, num_rows))
        skips, num_skips = self._rows_of(inputs.skips.get(edge_type))
        isolated = self._rows_of(inputs.isolated.get(node_type) if hop == 0 else None)
        _count[_grid(num_rows, _BLOCK)](
            node, self.counts, self.at("nodes", node_type) + hop, indptr, skips, num_skips,
            *isolated, starts, degrees, taken, num_rows,
            fanout=fanout, replaces=replaces, block=_BLOCK,
        )  # fmt: skip
        width = triton.next_power_of_2(fanout)
        block = max(_DRAWS // width, 1)
        _draw[_grid(num_rows, block)](
            node, self.counts, self.at("edges", edge_type) + hop,
            inputs.keys, hop * len(self.edges) + self._number[edge_type],
            starts, degrees, taken, taken.cumsum(0), indices, indices if e_id is None else e_id,
            skips, num_skips, self._first[edge_type[0]], self._neighbor[edge_type][section],
            self.e_id[edge_type][section], self.col[edge_type][section],
            self.dst_start[edge_type][chosen], self._arrivals[edge_type, hop],
            sections.starts[hop], num_rows, size,
            fanout=fanout, width=width, replaces=replaces, has_e_id=e_id is not None,
            has_skips=num_skips > 0, block=block,
        )  # fmt: skip

    def _rows_of(self, rows: Tensor | None) -> tuple[Tensor, int]:
        return (self._nothing, 0) if rows is None else (rows, len(rows))

    def _arrive(
        self, node_type: str, number: int, arrived: Tensor, num_arrived: Tensor, first_arrival: int
    ) -> None:
        first, sections, num = self._first[node_type], self.nodes[node_type], len(arrived)
        grid = _grid(num, _BLOCK)
        if number == 0:  # a draw claims its neighbors itself
            _claim[grid](arrived, first, num, block=_BLOCK)
        is_new = torch.empty(num, dtype=torch.int32, device=self.device)
        _find_new[grid](arrived, num_arrived, first, first_arrival, is_new, num, block=_BLOCK)
        # Programs of a kernel read the last sum while one of them stores the next.
        self._num_sums += 1
        last = self._last_sum.get((node_type, number), 0)
        self._last_sum[node_type, number] = self._num_sums
        _append[grid](
            arrived, is_new, is_new.cumsum(0, dtype=torch.int32), self._sums, last, self._num_sums,
            self.counts, self.at("nodes", node_type) + number,
            self.node[node_type][sections[number]], self._position[node_type][first_arrival:],
            sections.starts[number], sections.total, sections.sizes[number], num, block=_BLOCK,
        )  # fmt: skip

    def _find_rows(self, edge_type: EdgeType) -> None:
        has_loops = edge_type[0] == edge_type[2]
        for hop, size in enumerate(self.edges[edge_type].sizes):
            section = self.edges[edge_type][hop]
            self._find(
                edge_type[0], self._neighbor[edge_type][section], self.row[edge_type][section],
                self.col[edge_type][section], self.at("edges", edge_type) + hop,
                self.at("loops", edge_type) + hop, size, has_loops=has_loops,
            )  # fmt: skip

    def _find_positions(self, node_type: str, node: Tensor, out: Tensor) -> None:
        self._find(node_type, node, out, node, 0, 0, len(node), has_loops=False)

    def _find(
        self, node_type: str, node: Tensor, out: Tensor, col: Tensor,
        at_edges: int, at_loops: int, size: int, **options: bool,
    ) -> None:  # fmt: skip
        if size:
            first, position = self._first[node_type], self._position[node_type]
            _find_rows[_grid(size, _BLOCK)](
                node, col, first, position, len(position), out, self.counts, at_edges, at_loops,
                size, block=_BLOCK, **options,
            )  # fmt: skip

    def _forget(self, node_type: str, node: Tensor) -> None:
        if len(node):
            grid = _grid(len(node), _BLOCK)
            _forget[grid](node, self._first[node_type], len(node), block=_BLOCK)


class TritonPadding(DevicePadding):
    """A `DevicePadding` with kernels of Triton."""

    def _fill_nodes(self, node_type: str, out: Tensor) -> None:
        self._fill_rows(
            self._rows[node_type], self._sampler.node[node_type], ("nodes", node_type), out
        )

    def _fill_rows(
        self, rows: PaddedRows, sample: Tensor, counted: tuple[str, Any], out: Tensor
    ) -> None:
        if len(out):
            _pad_rows[_grid(len(out), _BLOCK)](
                sample, self._sampler.counts, self._sampler.at(*counted), rows.section,
                rows.number, rows.source, rows.starts, len(rows.starts), out, len(out),
                block=_BLOCK,
            )  # fmt: skip

    def _fill_degrees(self, edge_type: EdgeType, node: Tensor, out: Tensor) -> None:
        if len(out):
            indptr = self._sampler.adjacency[edge_type][0]
            _find_degrees[_grid(len(out), _BLOCK)](node, indptr, out, len(out), block=_BLOCK)

    def _fill_edges(self, edge_type: EdgeType, out: EdgeRecord) -> None:
        sampler, edges = self._sampler, self._edges[edge_type]
        rows, dst, num_edges = edges.rows, edges.dst, out.edge_index.shape[1]
        at_edges, at_nodes = sampler.at("edges", edge_type), sampler.at("nodes", edge_type[2])
        if num_edges:
            _pad_edges[_grid(num_edges, _BLOCK)](
                sampler.row[edge_type], sampler.col[edge_type], sampler.counts, at_edges,
                sampler.at("loops", edge_type), at_nodes, rows.section, rows.number, rows.source,
                edges.per_hop, edges.src_starts, edges.src_moves, sampler.num_hops,
                sampler.num_hops + 1, out.edge_index, num_edges,
                has_one_type=edges.has_one_type, block=_BLOCK,
            )  # fmt: skip
        self._fill_rows(rows, sampler.e_id[edge_type], ("edges", edge_type), out.e_id)
        _pad_starts[_grid(len(out.dst_ptr), _BLOCK)](
            sampler.dst_start[edge_type], sampler.counts, at_edges, at_nodes, dst.section,
            dst.number, dst.source, edges.per_hop, sampler.num_hops, out.dst_ptr,
            len(out.dst_ptr) - 1, num_edges, block=_BLOCK,
        )  # fmt: skip


def _grid(size: int, block: int) -> tuple[int]:
    return (triton.cdiv(size, block),)
