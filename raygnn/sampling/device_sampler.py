"""Neighborhoods sampled on a device, without a wait, with the bits of `NeighborSampler`.

All sizes are fixed and all counts stay on the device, so the operators of a sample are the same for
each batch: a CUDA graph can repeat them. A node keeps the number of its first arrival, an atomic
minimum, so the order of threads does not matter. "Did I arrive first?" and a cumulative sum then
number nodes as a CPU does. Nodes and edges beyond a capacity are left out and flagged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.padding import Counts
from raygnn.sampling.protocols import SampleRequest
from raygnn.sampling.rng import hop_key
from raygnn.sampling.seeds import exclusions
from raygnn.sampling.stores import LocalGraphStore
from raygnn.sampling.tensor_hash import GOLDEN, shifted, splitmix64
from raygnn.sampling.tensor_record import TensorRecord

#: Later than any arrival.
NEVER = 2**31 - 1
#: Greater than any dense id and any position of an edge.
_BEYOND = 1 << 62
#: Edges of each type that a sample may exclude beyond twice those of the reference.
_SPARE_SKIPS = 64


def why_not(sampler: NeighborSampler) -> str | None:
    """The setting with which only a host samples, for a log; None if a device can."""
    settings = {
        "a partitioned graph": not isinstance(sampler.graph, LocalGraphStore),
        f"sampling.weight={sampler.weight!r}": sampler.weight is not None,
        "sampling.temporal": sampler.temporal is not None,
        "sampling.disjoint": sampler.disjoint,
        "sampling.type='labor'": sampler.labor,
        "sampling.fanouts with -1": any(-1 in hops for hops in sampler.fanouts.values()),
    }
    return next((name for name, prevents in settings.items() if prevents), None)


def graph_bytes(sampler: NeighborSampler) -> int:
    """Memory that a `DeviceSampler` takes for the graph."""
    graph, total = sampler.graph, 0
    for edge_type in sampler.fanouts:
        edges = graph.adjacency(edge_type)
        arrays = (edges.indptr, edges.indices, edges.e_id)
        total += sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    return total + sum(4 * graph.num_nodes(node_type) for node_type in graph.node_types)


@dataclass(frozen=True, kw_only=True)
class SampleInputs(TensorRecord):
    """What a sample depends on, besides the graph. All tensors have the same sizes in each sample.

    Attributes:
        seeds: by node type, int64 [num_seeds], dense ids.
        keys: int64 [num_hops, num_edge_types], keys of the draws.
        skips: by edge type, int64, ascending CSC positions of the edges to ignore.
        isolated: by node type, int64 [num_seeds], ascending dense ids of the seeds without edges.
    """

    seeds: dict[str, Tensor]
    keys: Tensor
    skips: dict[EdgeType, Tensor]
    isolated: dict[str, Tensor]


class Sections:
    """Consecutive ranges of fixed sizes in a tensor."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        *self.starts, self.total = accumulate(sizes, initial=0)

    def __getitem__(self, number: int) -> slice:
        return slice(self.starts[number], self.starts[number] + self.sizes[number])


class DeviceSampler:
    """Samples what a `NeighborSampler` samples, in operators of torch.

    A sample has a section of nodes for the seeds and for each hop, and a section of edges for each
    hop. `counts` says how many rows of a section are filled, from its start. The next sample
    overwrites all of it.

    Args:
        sampler: one that `why_not` accepts.
        capacities: sizes of the sections, as one of the sizes of `Padding`.
        reference: a request like those of all samples. If it excludes edges, samples may exclude
            twice as many of each type, and some more.
    Attributes:
        nodes, edges: sections by node type and by edge type.
        node: by node type, int64 [num_rows], dense ids.
        row: by edge type, int64 [num_edges], positions of the sources in `node`.
        col: by edge type, int64 [num_edges], positions of the destinations in `node`.
        e_id: by edge type, int64 [num_edges].
        dst_start: by edge type, int64 [num_rows], for the nodes of a section the number of their
            first edge in the section of the hop.
        seed_index: by node type with seeds, int64 [num_seeds], positions of the seeds in `node`.
        counts: int64, read with `counts_of`.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        capacities: Counts,
        reference: SampleRequest,
        device: torch.device,
    ) -> None:
        assert why_not(sampler) is None
        self._sampler, self.device = sampler, device
        graph, self.num_hops = sampler.graph, sampler.num_hops
        self.nodes = {t: Sections(_aligned(capacities["nodes", t])) for t in graph.node_types}
        self.edges = {
            t: Sections(_aligned(np.add(capacities["edges", t], capacities["loops", t])))
            for t in sampler.fanouts
        }
        self._number = {edge_type: number for number, edge_type in enumerate(self.edges)}
        self.adjacency = {t: self._on_device(t) for t in sampler.fanouts}
        #: Number of the first arrival of each node. The last row is for padding.
        self._first = {
            t: torch.full((graph.num_nodes(t) + 1,), NEVER, dtype=torch.int32, device=device)
            for t in graph.node_types
        }
        # Arrivals of a node type are numbered by their capacities: seeds, then edges in the order
        # of sampling.
        num_seeds = {t: len(seeds) for t, seeds in reference.seeds.items()}
        num_arrivals = dict.fromkeys(graph.node_types, 0)
        num_arrivals |= zip(num_seeds, _aligned(num_seeds.values()), strict=True)
        self._arrivals: dict[tuple[EdgeType, int], int] = {}
        for hop in range(self.num_hops):
            for edge_type, sections in self.edges.items():
                self._arrivals[edge_type, hop] = num_arrivals[edge_type[0]]
                num_arrivals[edge_type[0]] += sections.sizes[hop]

        def zeros(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int64, device=device)

        #: Position of each arrival in `node`, if it was the first of its node.
        self._position = {t: zeros(number) for t, number in num_arrivals.items()}
        # A further row takes what does not fit.
        self.node = {t: zeros(sections.total + 1) for t, sections in self.nodes.items()}
        self._neighbor, self.row, self.col, self.e_id = (
            {t: zeros(sections.total) for t, sections in self.edges.items()} for _ in range(4)
        )
        self.dst_start = {t: zeros(self.nodes[t[2]].total) for t in self.edges}
        self.seed_index = {t: zeros(number) for t, number in num_seeds.items()}
        self._num_seeds = {t: zeros(1) + number for t, number in num_seeds.items()}
        found = self._find_excluded(reference)
        self._num_skips = {t: 2 * len(found.get(t, ())) + _SPARE_SKIPS for t in self.edges if found}
        self._places: dict[tuple[str, Any], slice] = {}
        first = 1  # after the flag of an overflow
        for kind, name, number in (
            *(("nodes", t, self.num_hops + 1) for t in self.nodes),
            *((kind, t, self.num_hops) for kind in ("edges", "loops") for t in self.edges),
        ):
            self._places[kind, name] = slice(first, first + number)
            first += number
        self.counts = zeros(first)

    def _on_device(self, edge_type: EdgeType) -> tuple[Tensor, Tensor, Tensor | None]:
        """`indptr`, `indices` and `e_id`, with an unused element if there are no edges."""

        def stored(array: object) -> Tensor:
            assert isinstance(array, np.ndarray)
            rows = array if len(array) else np.zeros(1, array.dtype)
            return torch.from_numpy(np.asarray(rows)).to(self.device)

        edges = self._sampler.graph.adjacency(edge_type)
        e_id = None if edges.e_id is None else stored(edges.e_id)
        return stored(edges.indptr), stored(edges.indices), e_id

    def inputs(self, request: SampleRequest) -> SampleInputs | None:
        """The inputs of a sample, on the host; None if it excludes more edges than fit."""
        found, key = self._find_excluded(request), request.key
        if any(len(edges) > self._num_skips.get(t, 0) for t, edges in found.items()):
            return None
        keys = [[hop_key(key, hop, t) for t in self.edges] for hop in range(self.num_hops)]
        return SampleInputs(
            seeds={t: torch.from_numpy(seeds) for t, seeds in request.seeds.items()},
            keys=torch.from_numpy(np.array(keys, np.uint64).view(np.int64)),
            skips={t: _filled(found.get(t, ()), size) for t, size in self._num_skips.items()},
            isolated={
                t: _filled(np.sort(nodes), len(self.seed_index[t]))
                for t, nodes in (request.isolated or {}).items()
            },
        )

    def _find_excluded(self, request: SampleRequest) -> dict[EdgeType, np.ndarray]:
        """By edge type, ascending CSC positions of the excluded edges."""
        graph = self._sampler.graph
        assert isinstance(graph, LocalGraphStore)
        excluded = exclusions(graph, request.exclude or {}, {}, None)
        return {t: graph.picker(t).find_excluded(pairs) for t, pairs in excluded.items()}

    def at(self, kind: str, name: str | EdgeType) -> int:
        """Position of the first of these counts."""
        position: int = self._places[kind, name].start
        return position

    def count(self, kind: str, name: str | EdgeType) -> Tensor:
        """Counts on the device: "nodes" by section, "edges" and "loops" by hop."""
        return self.counts[self._places[kind, name]]

    def counts_of(self, counts: np.ndarray) -> Counts | None:
        """Counts as `Padding` reads them, from `counts` on the host; None after an overflow."""
        if counts[0]:
            return None
        found = {key: counts[place].tolist() for key, place in self._places.items()}
        for edge_type in self.edges:
            loops = found["loops", edge_type]
            found["edges", edge_type] = np.subtract(found["edges", edge_type], loops).tolist()
        return found

    def sample(self, inputs: SampleInputs) -> None:
        """Samples in operators that a CUDA graph can repeat. The inputs are on the device."""
        self.counts.zero_()
        for node_type, seeds in inputs.seeds.items():
            self._arrive(node_type, 0, seeds, self._num_seeds[node_type][0], 0)
        for hop in range(self.num_hops):
            for edge_type, fanouts in self._sampler.fanouts.items():
                section = self.edges[edge_type][hop]
                if fanouts[hop] and section.start < section.stop:
                    self._draw(edge_type, hop, fanouts[hop], inputs)
                    arrived = self._neighbor[edge_type][section]
                    count, first = (
                        self.count("edges", edge_type)[hop],
                        self._arrivals[edge_type, hop],
                    )
                    self._arrive(edge_type[0], hop + 1, arrived, count, first)
        for edge_type in self.edges:
            self._find_rows(edge_type)
        for node_type, seeds in inputs.seeds.items():
            self._find_positions(node_type, seeds, self.seed_index[node_type])
        for edge_type, neighbors in self._neighbor.items():
            self._forget(edge_type[0], neighbors)
        for node_type, seeds in inputs.seeds.items():
            self._forget(node_type, seeds)

    def _draw(self, edge_type: EdgeType, hop: int, fanout: int, inputs: SampleInputs) -> None:
        """Draws the edges of the nodes of a hop, in the order of the nodes."""
        node_type, size = edge_type[2], self.edges[edge_type].sizes[hop]
        sections = self.nodes[node_type]
        chosen, section = sections[hop], self.edges[edge_type][hop]
        indptr, indices, e_id = self.adjacency[edge_type]
        place = torch.arange(sections.sizes[hop], device=self.device)
        inside = place < self.count("nodes", node_type)[hop]
        node = torch.where(inside, self.node[node_type][chosen], 0)
        start, stop = indptr[node], indptr[node + 1]
        degree, skips = stop - start, inputs.skips.get(edge_type)
        if skips is not None:
            # By node, the numbers of its first edge to skip and of the next node's.
            first, last = torch.searchsorted(skips, torch.stack([start, stop]))
            degree = degree - (last - first)
        if hop == 0 and node_type in inputs.isolated:
            isolated = inputs.isolated[node_type]
            found = torch.searchsorted(isolated, node).clamp(max=len(isolated) - 1)
            inside &= isolated[found] != node
        degree = torch.where(inside, degree, 0)
        key = inputs.keys[hop, self._number[edge_type]]
        state, number = splitmix64(key ^ node), torch.arange(fanout, device=self.device)
        if self._sampler.replace:
            taken = torch.where(degree > 0, fanout, 0)
            picks = _draw_below(splitmix64(state[:, None] + number * GOLDEN), degree[:, None])
        else:
            taken = degree.clamp(max=fanout)
            picks = _floyd(state, degree, fanout)
        end = taken.cumsum(0)
        begin = end - taken
        is_taken = number < taken[:, None]
        position = start[:, None] + picks
        if skips is not None:
            # skips[k] - k edges are left before the k-th that is stepped over
            left = skips - torch.arange(len(skips), device=self.device)
            before = torch.searchsorted(left, position - first[:, None], right=True)
            position = position + before - first[:, None]
        position = torch.where(is_taken, position, 0)
        to = torch.where(is_taken, begin[:, None] + number, size).clamp(max=size).flatten()

        def fill(out: Tensor, values: Tensor) -> None:
            rows = torch.zeros(size + 1, dtype=torch.int64, device=self.device)
            out[section] = rows.scatter(0, to, values.long().flatten())[:size]

        fill(self._neighbor[edge_type], indices[position])
        fill(self.e_id[edge_type], position if e_id is None else e_id[position])
        fill(self.col[edge_type], (sections.starts[hop] + place)[:, None].expand_as(position))
        self.dst_start[edge_type][chosen] = begin
        self._set(self.count("edges", edge_type)[hop], end[-1], size)

    def _set(self, count: Tensor, value: Tensor, size: int) -> None:
        """Stores a count, and flags one beyond the capacity."""
        self.counts[0].logical_or_(value > size)
        count.copy_(value.clamp(max=size))

    def _arrive(
        self, node_type: str, number: int, arrived: Tensor, num_arrived: Tensor, first_arrival: int
    ) -> None:
        """Adds new nodes to a section, in the order of their first arrival.

        Args:
            number: of the section.
            arrived: int64, dense ids, of which the first `num_arrived` are valid.
            first_arrival: number of the first arrival.
        """
        first, sections = self._first[node_type], self.nodes[node_type]
        arrival = torch.arange(len(arrived), device=self.device, dtype=torch.int32)
        is_valid, arrival = arrival < num_arrived, first_arrival + arrival
        arrived = torch.where(is_valid, arrived, len(first) - 1)
        first.scatter_reduce_(0, arrived, arrival, "amin")
        is_new = is_valid & (first[arrived] == arrival)
        count, size = self.count("nodes", node_type)[number], sections.sizes[number]
        rank = count + is_new.cumsum(0)
        place = sections.starts[number] + rank - 1
        place = torch.where(is_new & (rank <= size), place, sections.total)
        self.node[node_type].scatter_(0, place, arrived)
        self._position[node_type][first_arrival : first_arrival + len(arrived)] = place
        self._set(count, rank[-1], size)

    def _find_rows(self, edge_type: EdgeType) -> None:
        neighbor, row = self._neighbor[edge_type], self.row[edge_type]
        self._find_positions(edge_type[0], neighbor, row)
        if edge_type[0] == edge_type[2]:
            is_loop, counts = row == self.col[edge_type], self.count("edges", edge_type)
            for hop in range(self.num_hops):
                of_hop = is_loop[self.edges[edge_type][hop]]
                filled = torch.arange(len(of_hop), device=self.device) < counts[hop]
                self.count("loops", edge_type)[hop].copy_((of_hop & filled).sum())

    def _find_positions(self, node_type: str, node: Tensor, out: Tensor) -> None:
        """Positions of nodes that have arrived."""
        position = self._position[node_type]
        out.copy_(position[self._first[node_type][node].clamp(max=len(position) - 1)])

    def _forget(self, node_type: str, node: Tensor) -> None:
        self._first[node_type].scatter_(0, node, NEVER)


def _aligned(sizes: Iterable[int]) -> list[int]:
    """Multiples of 16, so that compiled kernels do not depend on the sizes."""
    return [-(-int(size) // 16) * 16 for size in sizes]


def _filled(rows: Sequence[int] | np.ndarray, size: int) -> Tensor:
    """int64 [size], ascending: the rows, then numbers beyond them."""
    filled = np.arange(_BEYOND, _BEYOND + size)
    filled[: len(rows)] = rows
    return torch.from_numpy(filled)


def _draw_below(bits: Tensor, bound: Tensor) -> Tensor:
    """High word of the product with a bound below 2^31."""
    low = ((bits & 0xFFFFFFFF) * bound) >> 32
    return (shifted(bits, 32) * bound + low) >> 32


def _floyd(state: Tensor, degree: Tensor, fanout: int) -> Tensor:
    """[num_nodes, fanout] positions among a node's edges; all in order if it has no more.

    Draw j of Floyd's algorithm is replaced by the last edge that it may give if an earlier draw is
    equal, or if it is the last of an earlier draw i that was replaced: a chain of draws, which is
    followed in log2(fanout) jumps.
    """
    j = torch.arange(fanout, device=degree.device)
    last = degree[:, None] - fanout + j
    drawn = _draw_below(splitmix64(state[:, None] + j * GOLDEN), (last + 1).clamp(min=0))
    is_equal = drawn[:, :, None] == drawn[:, None, :]
    is_replaced = (is_equal & (j[None, :] < j[:, None])).any(dim=2)
    source = drawn - (degree[:, None] - fanout)
    source = torch.where((source >= 0) & (source < j), source, j)
    for _ in range((fanout - 1).bit_length()):
        is_replaced = is_replaced | is_replaced.gather(1, source)
        source = source.gather(1, source)
    return torch.where((degree <= fanout)[:, None], j, torch.where(is_replaced, last, drawn))
