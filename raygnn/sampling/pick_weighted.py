"""Sampling of in-edges in proportion to their weights.

Each edge is drawn in proportion to its weight among the remaining ones. This is the distribution of
the keys of Efraimidis and Spirakis (2006), log of a uniform number over weight, of which the
largest are taken. Here edges are drawn from the alias table, and drawn again if already taken;
after too many vain draws, keys decide about the rest, with the same distribution.

Draws are numbered as in `raygnn.sampling.pick`; an edge's uniform number is the draw of its
position among the node's edges, from another start. Skipped edges have weight 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from raygnn.data.edge_kernels import NO_EDGE
from raygnn.data.hashing import GOLDEN_GAMMA, splitmix64
from raygnn.data.intrinsics import first_at_least, multiply_high, prefetch
from raygnn.sampling.pick import ALL

_KEYS = np.uint64(0x5851F42D4C957F2D)  # distinguishes keys from draws; any odd number would do
# Draws until keys decide: enough for nearly all nodes, unless few of many edges have the weight.
_DRAWS_PER_EDGE = 4
_DEGREE_PER_EDGE = 2
_DRAWS_AHEAD, _ROWS_AHEAD = 64, 32  # as in `raygnn.sampling.pick`
_LOW_HALF = np.int64(0xFFFFFFFF)


class Weighting(NamedTuple):
    """The weights of edges.

    Attributes:
        alias: see `fill_alias`; empty if nodes choose from only some of their edges.
        weights: [num_edges], by CSC position.
        e_id: CSC positions of the edges, or empty if they are in CSC order.
    """

    alias: np.ndarray
    weights: np.ndarray
    e_id: np.ndarray


@njit(nogil=True, cache=True)
def _base(key, node, salts, i):  # type: ignore[no-untyped-def]
    base = splitmix64(key ^ np.uint64(node))
    return splitmix64(base ^ salts[i]) if len(salts) else base


@njit(nogil=True, cache=True)
def _draw(base, number, start, degree):  # type: ignore[no-untyped-def]
    """A position, and 32 bits that decide between it and its alias."""
    bits = splitmix64(base + np.uint64(number) * GOLDEN_GAMMA)
    edge = np.int64(multiply_high(bits, np.uint64(degree)))
    # the low half of the product is uniform too, whichever edge the high half chose
    return start + edge, np.uint32((bits * np.uint64(degree)) >> np.uint64(32))


@njit(nogil=True, cache=True)
def _settle(position, remainder, entry):  # type: ignore[no-untyped-def]
    other = entry >> np.int64(32)
    if other == NO_EDGE:
        return np.int64(-1)
    return position + (np.int64(0) if np.int64(remainder) < (entry & _LOW_HALF) else other)


@njit(nogil=True, cache=True)
def _is_drawn_for(degree, fanout):  # type: ignore[no-untyped-def]
    return fanout != ALL and degree > _DEGREE_PER_EDGE * fanout


@njit(nogil=True, cache=True)
def first_draws(rows, draws, alias, drawn, rests):  # type: ignore[no-untyped-def]
    """Fills `drawn` with the first `fanout` draws of each node that draws edges.

    A separate loop, so that many cache misses of the table overlap. `drawn`: int64, `rests`:
    uint32, with room for `fanout` per node.
    """
    nodes, salts, starts, degrees, _ = rows
    fanout, key = draws
    count = 0
    for i in range(len(nodes)):
        if _is_drawn_for(degrees[i], fanout):
            base = _base(key, nodes[i], salts, i)
            for j in range(fanout):
                drawn[count], rests[count] = _draw(base, j, starts[i], degrees[i])
                count += 1
    for i in range(count):
        if i + _DRAWS_AHEAD < count:
            prefetch(alias, drawn[i + _DRAWS_AHEAD])
        drawn[i] = _settle(drawn[i], rests[i], alias[drawn[i]])


@njit(nogil=True, cache=True)
def _key_start(base):  # type: ignore[no-untyped-def]
    return splitmix64(base ^ _KEYS)


@njit(nogil=True, cache=True)
def _uniform(keys, edge):  # type: ignore[no-untyped-def]
    """A number in (0, 1], of 53 bits."""
    bits = splitmix64(keys + np.uint64(edge) * GOLDEN_GAMMA)
    return (np.float64(bits >> np.uint64(11)) + 1.0) * 2.0**-53


@njit(nogil=True, cache=True)
def _has(values, first, last, value):  # type: ignore[no-untyped-def]
    position = first_at_least(values, first, last, value)
    return position < last and values[position] == value


@njit(nogil=True, cache=True)
def weight_of(weights, e_id, position):  # type: ignore[no-untyped-def]
    return np.float64(weights[e_id[position] if len(e_id) else position])


@njit(nogil=True, cache=True)
def pick_weighted(rows, draws, weighting, drawn, skips, positions):  # type: ignore[no-untyped-def]
    """Fills `positions` with the sampled edges, node by node, and the rows' offsets.

    `positions`: int64, with room for all edges of a node or `fanout`, whichever is less.
    """
    nodes, salts, starts, degrees, offsets = rows
    fanout, key = draws
    alias, weights, e_id = weighting
    skip_rows, skip_ptr, skip_edges = skips
    next_skip = next_draw = 0
    total = 0
    offsets[0] = 0
    for i in range(len(nodes)):
        if i + _ROWS_AHEAD < len(nodes) and len(e_id) == 0:
            ahead = i + _ROWS_AHEAD
            if not (len(alias) and _is_drawn_for(degrees[ahead], fanout)):
                prefetch(weights, starts[ahead])
        first = last = 0
        if next_skip < len(skip_rows) and skip_rows[next_skip] == i:
            first, last = skip_ptr[next_skip], skip_ptr[next_skip + 1]
            next_skip += 1
        start, degree = starts[i], degrees[i]
        begin = total
        if fanout == ALL or degree <= fanout:
            for edge in range(degree):
                if weight_of(weights, e_id, start + edge) > 0 and not (
                    first < last and _has(skip_edges, first, last, edge)
                ):
                    positions[total] = start + edge
                    total += 1
        else:
            base = _base(key, nodes[i], salts, i)
            num_draws = 0
            if len(alias) and _is_drawn_for(degree, fanout):
                num_draws = _DRAWS_PER_EDGE * fanout
            for number in range(num_draws):
                if number < fanout:
                    position = drawn[next_draw]
                    next_draw += 1
                elif total == begin + fanout:
                    break
                else:
                    position, remainder = _draw(base, number, start, degree)
                    position = _settle(position, remainder, alias[position])
                if position < 0:
                    continue
                is_new = True
                for k in range(begin, total):
                    if positions[k] == position:
                        is_new = False
                        break
                if is_new and not (
                    first < last and _has(skip_edges, first, last, position - start)
                ):
                    positions[total] = position
                    total += 1
            if total < begin + fanout:
                row = (start, degree, weights, e_id, skip_edges, first, last)
                total = begin + _by_keys(base, row, fanout, total - begin, positions[begin:])
        offsets[i + 1] = total


@njit(nogil=True, cache=True)
def _by_keys(base, row, fanout, num_taken, out):  # type: ignore[no-untyped-def]
    start, degree, weights, e_id, skip_edges, first, last = row
    keys = _key_start(base)
    best = np.empty(fanout - num_taken, np.float64)
    count = num_taken
    for edge in range(degree):
        weight = weight_of(weights, e_id, start + edge)
        uniform = _uniform(keys, edge)
        # A logarithm is below its argument less one, which decides about most edges without it.
        if count == fanout and uniform - 1.0 <= best[-1] * weight:
            continue
        if not weight > 0 or _has(skip_edges, first, last, edge):
            continue
        rank = np.log(uniform) / weight
        if (count == fanout and rank <= best[-1]) or _is_among(out, num_taken, start + edge):
            continue
        if count < fanout:
            count += 1
        slot = count - 1
        while slot > num_taken and best[slot - num_taken - 1] < rank:
            best[slot - num_taken] = best[slot - num_taken - 1]
            out[slot] = out[slot - 1]
            slot -= 1
        best[slot - num_taken] = rank
        out[slot] = start + edge
    return count


@njit(nogil=True, cache=True)
def _is_among(values, count, value):  # type: ignore[no-untyped-def]
    for i in range(count):  # noqa: SIM110, any() of a generator is slow in a kernel
        if values[i] == value:
            return True
    return False
