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
from raygnn.sampling.device_inputs import SampleInputs
from raygnn.sampling.device_padding import DevicePadding, PaddedRows
from raygnn.sampling.device_sampler import NEVER, DeviceSampler

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
def _first_at_least(rows, low, high, value, step):  # type: ignore[no-untyped-def]
    """First positions, from `low` to `high`, of ascending rows that are not below values, each row
    less `step` times its position.
    """
    while tl.max(high - low) > 0:
        middle = (low + high) // 2
        is_open = low < high
        row = tl.load(rows + middle, mask=is_open, other=0) - step * middle
        low, high = (
            tl.where(is_open & (row < value), middle + 1, low),
            tl.where(is_open & (row >= value), middle, high),
        )
    return low


@triton.jit
def _find_edges(  # type: ignore[no-untyped-def]
    row, numbers, inside, indptr, codes, stride, ranks, num_numbers, in_time: tl.constexpr
):
    """First position of the edges of each node, and the end; see `DeviceSampler.edges_of`."""
    start = tl.load(indptr + row, mask=inside, other=0)
    stop = tl.load(indptr + row + 1, mask=inside, other=0)
    if in_time:
        number = tl.load(numbers, mask=inside, other=0)
        first = stride * row + tl.load(ranks + number, mask=inside, other=0)
        last = stride * row + tl.load(ranks + num_numbers + number, mask=inside, other=0)
        start = _first_at_least(codes, start, stop, first, 0)
        stop = _first_at_least(codes, start, stop, last, 0)
    return start, stop


@triton.jit(do_not_specialize=["at_nodes", "stride", "skip_stride"])
def _count(  # type: ignore[no-untyped-def]
    node, numbers, counts, at_nodes, indptr, codes, stride, ranks, num_numbers,
    skips, num_skips, skip_stride, isolated, num_isolated, starts, degrees, taken, size,
    fanout: tl.constexpr, in_time: tl.constexpr,
    skips_by_number: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """First edge, number of edges, and number of edges to take of each node of a section."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < tl.load(counts + at_nodes)
    row = tl.load(node + i, mask=inside, other=0)
    start, stop = _find_edges(
        row, numbers + i, inside, indptr, codes, stride, ranks, num_numbers, in_time
    )
    shift, low = row * 0, row * 0
    if skips_by_number:
        shift = tl.load(numbers + i, mask=inside, other=0) * skip_stride
    num_skipped = _first_at_least(skips, low, low + num_skips, stop + shift, 0)
    num_skipped -= _first_at_least(skips, low, low + num_skips, start + shift, 0)
    at = _first_at_least(isolated, low, low + num_isolated, row, 0)
    is_isolated = tl.load(isolated + at, mask=at < num_isolated, other=-1) == row
    degree = tl.where(is_isolated, 0, stop - start - num_skipped)
    count = tl.minimum(degree, fanout)
    tl.store(starts + i, start, mask=i < size)
    tl.store(degrees + i, degree, mask=i < size)
    tl.store(taken + i, count, mask=i < size)


@triton.jit
def _select(num_zeros, num_edges, num_bits, start, num, k, valid):  # type: ignore[no-untyped-def]
    """See `Selection`: the k-th smallest of `num` numbers from `start` on."""
    start, stop, found = start + k * 0, start + num + k * 0, k * 0
    zeros = num_zeros
    for _ in range(num_bits):
        first = tl.load(zeros + start, mask=valid, other=0).to(tl.int64)
        last = tl.load(zeros + stop, mask=valid, other=0).to(tl.int64)
        total = tl.load(zeros + num_edges).to(tl.int64)
        is_one = k >= last - first
        start = tl.where(is_one, total + start - first, first)
        stop = tl.where(is_one, total + stop - last, last)
        k = tl.where(is_one, k - (last - first), k)
        found = 2 * found + is_one.to(tl.int64)
        zeros += num_edges + 1
    return found


@triton.jit(do_not_specialize=["at_edges", "at_key", "num_edges", "num_bits", "skip_stride"])
def _draw(  # type: ignore[no-untyped-def]
    node, numbers, counts, at_edges, keys, at_key, salts, starts, degrees, taken, ends, indptr,
    num_zeros, num_edges, num_bits, indices, e_ids, skips, num_skips, skip_stride, first,
    neighbors, neighbor_numbers, edges, cols, dst_starts, first_arrival, first_col, num_rows, size,
    fanout: tl.constexpr, width: tl.constexpr, takes_last: tl.constexpr,
    has_numbers: tl.constexpr, has_e_id: tl.constexpr, has_skips: tl.constexpr,
    selects: tl.constexpr, skips_by_number: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Edges of each node of a section; with one neighborhood, first arrivals of their neighbors."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < num_rows
    degree = tl.load(degrees + i, mask=inside, other=0)
    start = tl.load(starts + i, mask=inside, other=0)
    count = tl.load(taken + i, mask=inside, other=0)
    begin = tl.load(ends + i, mask=inside, other=0) - count
    tl.store(dst_starts + i, begin, mask=inside)
    row = tl.load(node + i, mask=inside, other=0).to(tl.uint64, bitcast=True)
    state = _splitmix(tl.load(keys + at_key).to(tl.uint64, bitcast=True) ^ row)
    number = row.to(tl.int64, bitcast=True) * 0
    if has_numbers:
        number = tl.load(numbers + i, mask=inside, other=0)
        state = _splitmix(state ^ tl.load(salts + number).to(tl.uint64, bitcast=True))
    column = tl.arange(0, width)
    bits = _splitmix(state[:, None] + column[None, :].to(tl.uint64) * 0x9E3779B97F4A7C15)
    if takes_last:
        picks = (degree - count)[:, None] + column[None, :]
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
    if selects:
        first = tl.load(indptr + row.to(tl.int64, bitcast=True), mask=inside, other=0)
        position = first[:, None] + _select(
            num_zeros, num_edges, num_bits, start[:, None], degree[:, None], picks, valid
        )
    if has_skips:  # skips[k] - k edges are left before the k-th that is stepped over
        shift = number * 0
        if skips_by_number:
            shift = number * skip_stride
        low = position * 0
        before = _first_at_least(skips, start * 0, start * 0 + num_skips, start + shift, 0)
        wanted = position + (shift - before)[:, None] + 1
        position += _first_at_least(skips, low, low + num_skips, wanted, 1) - before[:, None]
    neighbor = tl.load(indices + position, mask=valid, other=0).to(tl.int64)
    edge = position
    if has_e_id:
        edge = tl.load(e_ids + position, mask=valid, other=0).to(tl.int64)
    col = (first_col + i).to(tl.int64)[:, None] + tl.zeros([block, width], tl.int64)
    tl.store(neighbors + place, neighbor, mask=valid)
    tl.store(edges + place, edge, mask=valid)
    tl.store(cols + place, col, mask=valid)
    if has_numbers:
        same = number[:, None] + tl.zeros([block, width], tl.int64)
        tl.store(neighbor_numbers + place, same, mask=valid)
    else:
        arrival = (first_arrival + place).to(tl.int32)
        tl.atomic_min(first + neighbor, arrival, mask=valid, sem="relaxed")
    if tl.program_id(0) == 0:
        _store_count(counts, at_edges, tl.load(ends + num_rows - 1), size)


@triton.jit
def _claim(arrived, first, slots, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """First arrivals of seeds."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    node = tl.load(arrived + i, mask=i < size, other=0)
    tl.store(slots + i, node, mask=i < size)
    tl.atomic_min(first + node, i, mask=i < size, sem="relaxed")


@triton.jit
def _home_of(code, num_slots):  # type: ignore[no-untyped-def]
    spread = (code.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15) >> 32
    return spread.to(tl.int64, bitcast=True) & (num_slots - 1)


@triton.jit(do_not_specialize=["first_arrival", "num_nodes", "leaves"])
def _claim_codes(  # type: ignore[no-untyped-def]
    arrived, numbers, num_arrived, keys, first, slots, first_arrival, num_nodes, leaves,
    num_slots, size, may_share: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Slots of codes in a table with open addressing, and their first arrivals.

    A key of -1 is a free slot. The slot after the table is that of other lanes.
    """
    i = tl.program_id(0) * block + tl.arange(0, block)
    valid = i < tl.load(num_arrived)
    node = tl.load(arrived + i, mask=valid, other=0)
    code = tl.load(numbers + i, mask=valid, other=0) * num_nodes + node
    if may_share:  # unless an earlier hop found the node in its neighborhood
        at = _home_of(code, num_slots)
        key = tl.load(keys + at)
        while tl.max(((key != code) & (key != -1)).to(tl.int32), axis=0) > 0:
            at = tl.where((key != code) & (key != -1), (at + 1) & (num_slots - 1), at)
            key = tl.load(keys + at)
        code = tl.where(key == code, code, leaves + node)
    # Lanes that are done compare their own slot with what no key is: a common one would be busy.
    at, is_open = tl.where(valid, _home_of(code, num_slots), i & (num_slots - 1)), valid
    while tl.max(is_open.to(tl.int32), axis=0) > 0:
        expected = tl.where(is_open, -1, -2).to(tl.int64)
        held = tl.atomic_cas(keys + at, expected, code, sem="relaxed")
        is_open = is_open & (held != -1) & (held != code)
        at = tl.where(is_open, (at + 1) & (num_slots - 1), at)
    tl.atomic_min(first + at, (first_arrival + i).to(tl.int32), mask=valid, sem="relaxed")
    tl.store(slots + i, tl.where(valid, at, num_slots), mask=i < size)


@triton.jit
def _find_new(  # type: ignore[no-untyped-def]
    slots, num_arrived, first, first_arrival, is_new, size, block: tl.constexpr
):
    """Which arrivals are the first of their slot."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    valid = i < tl.load(num_arrived)
    slot = tl.load(slots + i, mask=valid, other=0)
    arrival = tl.load(first + slot, mask=valid, other=-1)
    tl.store(is_new + i, ((arrival == first_arrival + i) & valid).to(tl.int32), mask=i < size)


@triton.jit(do_not_specialize=["before", "after", "at_nodes"])
def _append(  # type: ignore[no-untyped-def]
    arrived, arrived_numbers, is_new, ranks, sums, before, after, counts, at_nodes, node, numbers,
    positions, first_position, nowhere, size, num_arrivals, has_numbers: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Adds new nodes to a section that has `sums[before]` ones."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < num_arrivals
    known = tl.load(sums + before)
    rank = known + tl.load(ranks + i, mask=inside, other=0)
    fits = (tl.load(is_new + i, mask=inside, other=0) > 0) & (rank <= size)
    tl.store(node + rank - 1, tl.load(arrived + i, mask=fits, other=0), mask=fits)
    if has_numbers:
        number = tl.load(arrived_numbers + i, mask=fits, other=0)
        tl.store(numbers + rank - 1, number, mask=fits)
    tl.store(positions + i, tl.where(fits, first_position + rank - 1, nowhere), mask=inside)
    if tl.program_id(0) == 0:
        total = known + tl.load(ranks + num_arrivals - 1)
        tl.store(sums + after, total)
        _store_count(counts, at_nodes, total, size)


@triton.jit(do_not_specialize=["at_edges", "at_loops"])
def _find_rows(  # type: ignore[no-untyped-def]
    slots, cols, first, positions, num_arrivals, rows, counts, at_edges, at_loops, size,
    has_loops: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Positions of nodes that have arrived; of a section of edges, also counts loops."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < size
    arrival = tl.load(first + tl.load(slots + i, mask=inside, other=0))
    row = tl.load(positions + arrival, mask=arrival < num_arrivals, other=0)
    tl.store(rows + i, row, mask=inside)
    if has_loops:
        filled = inside & (i < tl.load(counts + at_edges))
        is_loop = filled & (row == tl.load(cols + i, mask=filled, other=-1))
        tl.atomic_add(counts + at_loops, tl.sum(is_loop.to(tl.int64), axis=0), sem="relaxed")


@triton.jit
def _forget(slots, first, keys, size, has_keys: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * block + tl.arange(0, block)
    slot = tl.load(slots + i, mask=i < size, other=0)
    tl.store(first + slot, _NEVER, mask=i < size)
    if has_keys:
        tl.store(keys + slot, -1, mask=i < size)


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
    sample, counts, at, sections, numbers, sources, starts, num_sections, added, out, size,
    has_added: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Rows of a sample and added ones; see `PaddedRows.of`."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < size
    have = tl.load(counts + at + tl.load(sections + i, mask=inside, other=0))
    is_sampled = inside & (tl.load(numbers + i, mask=inside, other=0) < have)
    row = tl.load(sample + tl.load(sources + i, mask=is_sampled, other=0), mask=is_sampled)
    if has_added:
        other = tl.load(added)
    else:
        first, is_any = _first_row(counts, at, starts, num_sections)
        other = tl.load(sample + first, mask=is_any > 0, other=0)
    tl.store(out + i, tl.where(is_sampled, row, other), mask=inside)


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


@triton.jit(do_not_specialize=["size", "stride"])
def _find_degrees(  # type: ignore[no-untyped-def]
    node, numbers, indptr, codes, stride, ranks, num_numbers, out, size,
    in_time: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < size
    row = tl.load(node + i, mask=inside, other=0)
    start, stop = _find_edges(
        row, numbers + i, inside, indptr, codes, stride, ranks, num_numbers, in_time
    )
    tl.store(out + i, (stop - start).to(tl.float32), mask=inside)


class TritonSampler(DeviceSampler):
    """A `DeviceSampler` with kernels of Triton: five launches and two sums for a type and hop, and
    a launch more with several neighborhoods.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        device = self.device
        #: Nodes of a section after each addition, from 1 on.
        self._sums = torch.zeros(2 + len(self._arrivals), dtype=torch.int64, device=device)
        self.nothing = torch.zeros(1, dtype=torch.int64, device=device)
        #: Nodes and neighborhoods by arrival, and a hash table of their codes, at most half full.
        #: With one neighborhood, the slot of a node is the node.
        self._arrived, self._arrived_numbers, self._keys = self._slot, self._slot, self._slot
        if self._sampler.is_numbered:
            sizes = {t: triton.next_power_of_2(2 * len(x)) for t, x in self._slot.items()}
            self._arrived, self._arrived_numbers = (
                {t: torch.zeros_like(x) for t, x in self._slot.items()} for _ in range(2)
            )
            self._keys = {t: self.nothing.new_full((n + 1,), -1) for t, n in sizes.items()}
            self._first = {
                t: torch.full_like(keys, NEVER, dtype=torch.int32) for t, keys in self._keys.items()
            }

    def sample(self, inputs: SampleInputs) -> None:
        self._num_sums = 0
        self._last_sum: dict[tuple[str, int], int] = {}
        super().sample(inputs)

    def in_time(self, edge_type: EdgeType) -> tuple[tuple[Any, ...], bool]:
        """Arguments of `_find_edges`."""
        indptr, times = self.adjacency[edge_type][0], self.times
        if times is None or edge_type not in times.codes:
            return (indptr, self.nothing, 1, self.nothing, 1), False
        return (
            indptr,
            times.codes[edge_type],
            times.stride,
            self._ranks,
            self.inputs.num_numbers,
        ), True

    def _draw(
        self, edge_type: EdgeType, hop: int, fanout: int, inputs: SampleInputs
    ) -> tuple[Tensor, Tensor | None]:
        neighbor_type, _, node_type = edge_type
        section, first_arrival = self.edges[edge_type][hop], self._arrivals[edge_type, hop]
        sections, size = self.nodes[node_type], self.edges[edge_type].sizes[hop]
        chosen, num_rows = sections[hop], sections.sizes[hop]
        indptr, indices, e_id = self.adjacency[edge_type]
        node, number, salts = self.node[node_type][chosen], self.nothing, self.nothing
        if inputs.numbered is not None:
            number, salts = self.number[node_type][chosen], inputs.numbered.salts
        starts, degrees, taken = indptr.new_empty((3, num_rows))
        skips, num_skips = self._rows_of(inputs.skips.get(edge_type))
        isolated = self._rows_of(inputs.isolated.get(node_type) if hop == 0 else None)
        options = {
            "fanout": fanout,
            "skips_by_number": self.inputs.skips_by_number and num_skips > 0,
        }
        edges_in_time, in_time = self.in_time(edge_type)
        _count[_grid(num_rows, _BLOCK)](
            node, number, self.counts, self.at("nodes", node_type) + hop, *edges_in_time,
            skips, num_skips, len(indices), *isolated, starts, degrees, taken, num_rows,
            in_time=in_time, block=_BLOCK, **options,
        )  # fmt: skip
        selection: tuple[Any, ...] = self.nothing, 1, 0
        if self.times is not None and edge_type in self.times.selections:
            num_zeros = self.times.selections[edge_type].num_zeros
            selection = num_zeros, num_zeros.shape[1] - 1, len(num_zeros)
        num_bits = selection[-1]
        width = triton.next_power_of_2(fanout)
        block = max(_DRAWS // width, 1)
        of_arrivals = slice(first_arrival, first_arrival + size)
        neighbors = self._arrived[neighbor_type][of_arrivals]
        numbers = self._arrived_numbers[neighbor_type][of_arrivals]
        _draw[_grid(num_rows, block)](
            node, number, self.counts, self.at("edges", edge_type) + hop,
            inputs.keys, hop * len(self.edges) + self._order[edge_type], salts,
            starts, degrees, taken, taken.cumsum(0), indptr, *selection, indices,
            indices if e_id is None else e_id,
            skips, num_skips, len(indices), self._first[neighbor_type], neighbors, numbers,
            self.e_id[edge_type][section], self.col[edge_type][section],
            self.dst_start[edge_type][chosen], first_arrival, sections.starts[hop], num_rows, size,
            width=width, takes_last=edge_type in self._takes_last,
            has_numbers=inputs.numbered is not None, has_e_id=e_id is not None,
            has_skips=num_skips > 0, selects=num_bits > 0, block=block, **options,
        )  # fmt: skip
        return neighbors, None if inputs.numbered is None else numbers

    def _rows_of(self, rows: Tensor | None) -> tuple[Tensor, int]:
        return (self.nothing, 0) if rows is None else (rows, len(rows))

    def _arrive(
        self,
        node_type: str,
        section: int,
        arrived: tuple[Tensor, Tensor | None],
        num_arrived: Tensor,
        first_arrival: int,
    ) -> None:
        first, sections, (node, number) = self._first[node_type], self.nodes[node_type], arrived
        num, slots = len(node), self._slot[node_type][first_arrival:]
        grid = _grid(num, _BLOCK)
        if number is not None:
            num_nodes, keys = self._sampler.graph.num_nodes(node_type), self._keys[node_type]
            _claim_codes[grid](
                node, number, num_arrived, keys, first, slots, first_arrival, num_nodes,
                num_nodes * self.inputs.num_numbers, len(keys) - 1, num,
                may_share=self._may_share(node_type, section), block=_BLOCK,
            )  # fmt: skip
        elif section == 0:  # a draw claims its neighbors itself
            _claim[grid](node, first, slots, num, block=_BLOCK)
        is_new = torch.empty(num, dtype=torch.int32, device=self.device)
        _find_new[grid](slots, num_arrived, first, first_arrival, is_new, num, block=_BLOCK)
        # Programs of a kernel read the last sum while one of them stores the next.
        self._num_sums += 1
        last = self._last_sum.get((node_type, section), 0)
        self._last_sum[node_type, section] = self._num_sums
        numbers = (
            self.number[node_type][sections[section]] if self._sampler.is_numbered else self.nothing
        )
        _append[grid](
            node, self.nothing if number is None else number, is_new,
            is_new.cumsum(0, dtype=torch.int32), self._sums, last, self._num_sums,
            self.counts, self.at("nodes", node_type) + section,
            self.node[node_type][sections[section]], numbers,
            self._position[node_type][first_arrival:], sections.starts[section], sections.total,
            sections.sizes[section], num, has_numbers=self._sampler.is_numbered, block=_BLOCK,
        )  # fmt: skip

    def _find_rows(self, edge_type: EdgeType, hop: int) -> None:
        section, first_arrival = self.edges[edge_type][hop], self._arrivals[edge_type, hop]
        self._find(
            edge_type[0], first_arrival, self.row[edge_type][section],
            self.col[edge_type][section], self.at("edges", edge_type) + hop,
            self.at("loops", edge_type) + hop, has_loops=edge_type[0] == edge_type[2],
        )  # fmt: skip

    def _find_positions(self, node_type: str, first_arrival: int, out: Tensor) -> None:
        self._find(node_type, first_arrival, out, self.nothing, 0, 0, has_loops=False)

    def _find(
        self, node_type: str, first_arrival: int, out: Tensor, col: Tensor,
        at_edges: int, at_loops: int, **options: bool,
    ) -> None:  # fmt: skip
        if len(out):
            slots, position = self._slot[node_type][first_arrival:], self._position[node_type]
            _find_rows[_grid(len(out), _BLOCK)](
                slots, col, self._first[node_type], position, len(position), out, self.counts,
                at_edges, at_loops, len(out), block=_BLOCK, **options,
            )  # fmt: skip

    def _forget(self, node_type: str) -> None:
        slots = self._slot[node_type]
        if len(slots):
            _forget[_grid(len(slots), _BLOCK)](
                slots, self._first[node_type], self._keys[node_type], len(slots),
                has_keys=self._sampler.is_numbered, block=_BLOCK,
            )  # fmt: skip


class TritonPadding(DevicePadding):
    """A `DevicePadding` with kernels of Triton."""

    _sampler: TritonSampler

    def _fill_nodes(
        self, node_type: str, rows: Tensor, out: Tensor, added: Tensor | None = None
    ) -> None:
        self._fill_rows(self._rows[node_type], rows, ("nodes", node_type), out, added)

    def _fill_rows(
        self,
        rows: PaddedRows,
        sample: Tensor,
        counted: tuple[str, Any],
        out: Tensor,
        added: Tensor | None = None,
    ) -> None:
        if len(out):
            _pad_rows[_grid(len(out), _BLOCK)](
                sample, self._sampler.counts, self._sampler.at(*counted), rows.section,
                rows.number, rows.source, rows.starts, len(rows.starts),
                self._sampler.nothing if added is None else added, out, len(out),
                has_added=added is not None, block=_BLOCK,
            )  # fmt: skip

    def _fill_degrees(
        self, edge_type: EdgeType, node: Tensor, number: Tensor | None, out: Tensor
    ) -> None:
        if len(out):
            edges_in_time, in_time = self._sampler.in_time(edge_type)
            numbers = self._sampler.nothing if number is None else number
            _find_degrees[_grid(len(out), _BLOCK)](
                node, numbers, *edges_in_time, out, len(out), in_time=in_time, block=_BLOCK
            )

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
