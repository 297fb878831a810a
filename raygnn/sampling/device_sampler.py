"""Neighborhoods sampled on a device, without a wait, with the bits of `NeighborSampler`.

All sizes are fixed and all counts stay on the device, so the operators of a sample are the same for
each batch: a CUDA graph can repeat them. A node keeps the number of its first arrival, an atomic
minimum, so the order of threads does not matter. "Did I arrive first?" and a cumulative sum then
number nodes as a CPU does. Nodes and edges beyond a capacity are left out and flagged.

With temporal or disjoint sampling, a node arrives once for each of its neighborhoods. These are
numbered as in `DisjointIds`, and codes of node and number replace nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.sampling.device_inputs import BEYOND, InputsMaker, SampleInputs
from raygnn.sampling.device_times import DeviceTimes
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.padding import Counts
from raygnn.sampling.protocols import SampleRequest
from raygnn.sampling.stores import LocalGraphStore
from raygnn.sampling.tensor_hash import GOLDEN, shifted, splitmix64

#: Later than any arrival.
NEVER = 2**31 - 1


def why_not(sampler: NeighborSampler) -> str | None:
    """The setting with which only a host samples, for a log; None if a device can."""
    settings = {
        "a partitioned graph": not isinstance(sampler.graph, LocalGraphStore),
        f"sampling.weight={sampler.weight!r}": sampler.weight is not None,
        "sampling.type='labor'": sampler.labor,
        "sampling.fanouts with -1": any(-1 in hops for hops in sampler.fanouts.values()),
    }
    return next((name for name, prevents in settings.items() if prevents), None)


def graph_bytes(sampler: NeighborSampler) -> int:
    """Memory that a `DeviceSampler` takes for the graph while it is built."""
    graph, total = sampler.graph, 0
    for edge_type in sampler.fanouts:
        edges = graph.adjacency(edge_type)
        arrays = (edges.indptr, edges.indices, edges.e_id)
        total += sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
        if sampler.temporal is not None:
            # Times, which are sorted, their ranks and codes; at most all bits of a `Selection`.
            num_bits = int(np.diff(edges.indptr).max(initial=0)).bit_length()
            total += (32 + 4 * num_bits) * graph.num_edges(edge_type)
    if not sampler.is_numbered:
        total += sum(4 * graph.num_nodes(node_type) for node_type in graph.node_types)
    return total


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
        reference: see `InputsMaker`.
        shared_leaves: node types of which neighborhoods share the nodes of the last hop, see
            `share_leaves`.
    Attributes:
        nodes, edges: sections by node type and by edge type.
        node: by node type, int64 [num_rows], dense ids.
        number: by node type, int64 [num_rows], the nodes' neighborhoods, if seeds have several.
        row: by edge type, int64 [num_edges], positions of the sources in `node`.
        col: by edge type, int64 [num_edges], positions of the destinations in `node`.
        e_id: by edge type, int64 [num_edges].
        dst_start: by edge type, int64 [num_rows], for the nodes of a section the number of their
            first edge in the section of the hop.
        seed_index: by node type with seeds, int64 [num_seeds], positions of the seeds in `node`.
        counts: int64, read with `counts_of`.
        inputs: makes the inputs of samples.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        capacities: Counts,
        reference: SampleRequest,
        device: torch.device,
        shared_leaves: frozenset[str] = frozenset(),
    ) -> None:
        assert why_not(sampler) is None
        self._sampler, self.device, self._shared_leaves = sampler, device, shared_leaves
        graph, self.num_hops = sampler.graph, sampler.num_hops
        assert isinstance(graph, LocalGraphStore)
        self.nodes = {t: Sections(_aligned(capacities["nodes", t])) for t in graph.node_types}
        self.edges = {
            t: Sections(_aligned(np.add(capacities["edges", t], capacities["loops", t])))
            for t in sampler.fanouts
        }
        self._order = {edge_type: number for number, edge_type in enumerate(self.edges)}
        temporal = sampler.temporal
        self._takes_last: set[EdgeType] = set()
        if temporal is not None:
            self._takes_last = {t for t in self.edges if graph.picker(t).takes_last(temporal)}
        self.adjacency = {t: self._on_device(t) for t in sampler.fanouts}
        self.times: DeviceTimes | None = None
        if sampler.temporal is not None:
            indptr = {t: arrays[0] for t, arrays in self.adjacency.items()}
            self.times = DeviceTimes(sampler, indptr, device)
        # Arrivals of a node type are numbered by their capacities: seeds, then edges in the order
        # of sampling.
        num_seeds = {t: len(seeds) for t, seeds in reference.seeds.items()}
        num_arrivals = dict.fromkeys(graph.node_types, 0)
        num_arrivals |= zip(num_seeds, _aligned(num_seeds.values()), strict=True)
        self._arrivals: dict[tuple[EdgeType, int], int] = {}
        for hop in range(self.num_hops):
            self._first_leaf = dict(num_arrivals)
            for edge_type, sections in self.edges.items():
                self._arrivals[edge_type, hop] = num_arrivals[edge_type[0]]
                num_arrivals[edge_type[0]] += sections.sizes[hop]

        def filled(size: int, value: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.full((size,), value, dtype=dtype, device=device)

        zeros = partial(filled, value=0)
        self.inputs = InputsMaker(sampler, reference, self.times)
        #: Number of the first arrival in each slot: one for each node and one for padding, or, if
        #: there are several neighborhoods, one for each arrival.
        num_slots = num_arrivals
        if not sampler.is_numbered:
            num_slots = {t: graph.num_nodes(t) for t in graph.node_types}
        self._first = {t: filled(n + 1, NEVER, torch.int32) for t, n in num_slots.items()}
        #: Slot of each arrival, and its position in `node` if it was the first there.
        self._slot = {t: zeros(number) for t, number in num_arrivals.items()}
        self._position = {t: zeros(number) for t, number in num_arrivals.items()}
        # A further row takes what does not fit.
        self.node = {t: zeros(sections.total + 1) for t, sections in self.nodes.items()}
        self.number: dict[str, Tensor] = {}
        self._codes: dict[str, Tensor] = {}
        #: See `DeviceTimes.ranks`.
        self._ranks = zeros(2 * self.inputs.num_numbers).view(2, -1)
        if sampler.is_numbered:
            self.number = {t: zeros(len(rows)) for t, rows in self.node.items()}
            self._codes = {t: filled(number, BEYOND) for t, number in num_arrivals.items()}
        self.row, self.col, self.e_id = (
            {t: zeros(sections.total) for t, sections in self.edges.items()} for _ in range(3)
        )
        self.dst_start = {t: zeros(self.nodes[t[2]].total) for t in self.edges}
        self.seed_index = {t: zeros(number) for t, number in num_seeds.items()}
        self._num_seeds = {t: zeros(1) + number for t, number in num_seeds.items()}
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
        self.numbered = inputs.numbered
        of_seeds: Mapping[str, Tensor] = {}
        if self.numbered is not None:
            of_seeds = self.numbered.of_seeds
            if self.times is not None and self.numbered.limits is not None:
                self._ranks.copy_(self.times.ranks(self.numbered.limits))
        for node_type, seeds in inputs.seeds.items():
            arrived = seeds, of_seeds.get(node_type)
            self._arrive(node_type, 0, arrived, self._num_seeds[node_type][0], 0)
            self._find_positions(node_type, 0, self.seed_index[node_type])
        for hop in range(self.num_hops):
            for edge_type, fanouts in self._sampler.fanouts.items():
                section = self.edges[edge_type][hop]
                if fanouts[hop] and section.start < section.stop:
                    arrived = self._draw(edge_type, hop, fanouts[hop], inputs)
                    count = self.count("edges", edge_type)[hop]
                    first = self._arrivals[edge_type, hop]
                    self._arrive(edge_type[0], hop + 1, arrived, count, first)
                    self._find_rows(edge_type, hop)
        for node_type in self.nodes:
            self._forget(node_type)

    def edges_of(
        self, edge_type: EdgeType, node: Tensor, number: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """First position of the edges that nodes may sample in a neighborhood, and the end."""
        if self.times is None or edge_type not in self.times.codes:
            indptr = self.adjacency[edge_type][0]
            return indptr[node], indptr[node + 1]
        wanted = self.times.stride * node + self._ranks[:, number]
        start, stop = torch.searchsorted(self.times.codes[edge_type], wanted)
        return start, stop

    def _draw(
        self, edge_type: EdgeType, hop: int, fanout: int, inputs: SampleInputs
    ) -> tuple[Tensor, Tensor | None]:
        """Draws the edges of the nodes of a hop, in the order of the nodes. Returns the neighbors,
        and their neighborhoods if there are several.
        """
        node_type, size = edge_type[2], self.edges[edge_type].sizes[hop]
        sections = self.nodes[node_type]
        chosen, section = sections[hop], self.edges[edge_type][hop]
        indptr, indices, e_id = self.adjacency[edge_type]
        place = torch.arange(sections.sizes[hop], device=self.device)
        inside = place < self.count("nodes", node_type)[hop]
        node = torch.where(inside, self.node[node_type][chosen], 0)
        number = self.number[node_type][chosen] if self._sampler.is_numbered else None
        start, stop = self.edges_of(edge_type, node, number)
        degree, skips = stop - start, inputs.skips.get(edge_type)
        shift: Tensor | int = 0
        if skips is not None:
            if self.inputs.skips_by_number:
                assert number is not None
                shift = len(indices) * number
            # By node, the numbers of its first edge to skip and of the next node's.
            first, last = torch.searchsorted(skips, torch.stack([start, stop]) + shift)
            degree = degree - (last - first)
        if hop == 0 and node_type in inputs.isolated:
            isolated = inputs.isolated[node_type]
            found = torch.searchsorted(isolated, node).clamp(max=len(isolated) - 1)
            inside &= isolated[found] != node
        degree = torch.where(inside, degree, 0)
        state = splitmix64(inputs.keys[hop, self._order[edge_type]] ^ node)
        if inputs.numbered is not None:
            state = splitmix64(state ^ inputs.numbered.salts[number])
        j = torch.arange(fanout, device=self.device)
        taken = degree.clamp(max=fanout)
        if edge_type in self._takes_last:
            picks = (degree - taken)[:, None] + j
        else:
            picks = _floyd(state, degree, fanout)
        end = taken.cumsum(0)
        begin = end - taken
        is_taken = j < taken[:, None]
        selection = None if self.times is None else self.times.selections.get(edge_type)
        if selection is None:
            position = start[:, None] + picks
        else:
            chosen_edges = selection(start[:, None], stop[:, None], picks)
            position = indptr[node][:, None] + chosen_edges
        if skips is not None:
            # skips[k] - k edges are left before the k-th that is stepped over
            left = skips - torch.arange(len(skips), device=self.device)
            shifted_by = (shift - first)[:, None]
            before = torch.searchsorted(left, position + shifted_by, right=True)
            position = position + before - first[:, None]
        position = torch.where(is_taken, position, 0)
        to = torch.where(is_taken, begin[:, None] + j, size).clamp(max=size).flatten()

        def joined(values: Tensor) -> Tensor:
            rows = torch.zeros(size + 1, dtype=torch.int64, device=self.device)
            return rows.scatter(0, to, values.long().flatten())[:size]

        self.e_id[edge_type][section] = joined(position if e_id is None else e_id[position])
        col = joined((sections.starts[hop] + place)[:, None].expand_as(position))
        self.col[edge_type][section] = col
        self.dst_start[edge_type][chosen] = begin
        self._set(self.count("edges", edge_type)[hop], end[-1], size)
        numbers = self.number[node_type][col] if self._sampler.is_numbered else None
        return joined(indices[position]), numbers

    def _set(self, count: Tensor, value: Tensor, size: int) -> None:
        """Stores a count, and flags one beyond the capacity."""
        self.counts[0].logical_or_(value > size)
        count.copy_(value.clamp(max=size))

    def _arrive(
        self,
        node_type: str,
        section: int,
        arrived: tuple[Tensor, Tensor | None],
        num_arrived: Tensor,
        first_arrival: int,
    ) -> None:
        """Adds new nodes to a section, in the order of their first arrival.

        Args:
            section: its number.
            arrived: int64, dense ids and neighborhoods, of which the first `num_arrived` are valid.
            first_arrival: number of the first arrival.
        """
        first, sections, (node, number) = self._first[node_type], self.nodes[node_type], arrived
        last_arrival = first_arrival + len(node)
        arrival = torch.arange(len(node), device=self.device, dtype=torch.int32)
        is_valid, arrival = arrival < num_arrived, first_arrival + arrival
        slot = torch.where(is_valid, node, len(first) - 1)
        if number is not None:
            codes = self._codes[node_type][:last_arrival]
            own = self._coded(node_type, section, node, number)
            codes[first_arrival:] = torch.where(is_valid, own, BEYOND)
            ordered, order = codes.sort(stable=True)
            slot = order[torch.searchsorted(ordered, codes[first_arrival:])]
        self._slot[node_type][first_arrival:last_arrival] = slot
        first.scatter_reduce_(0, slot, arrival, "amin")
        is_new = is_valid & (first[slot] == arrival)
        count, size = self.count("nodes", node_type)[section], sections.sizes[section]
        rank = count + is_new.cumsum(0)
        place = sections.starts[section] + rank - 1
        place = torch.where(is_new & (rank <= size), place, sections.total)
        self.node[node_type].scatter_(0, place, node)
        if number is not None:
            self.number[node_type].scatter_(0, place, number)
        self._position[node_type][first_arrival:last_arrival] = place
        self._set(count, rank[-1], size)

    def _coded(self, node_type: str, section: int, node: Tensor, number: Tensor) -> Tensor:
        """Codes of nodes in neighborhoods. Shared leaves are in one of their own, unless an earlier
        hop found them.
        """
        num_nodes = self._sampler.graph.num_nodes(node_type)
        codes = number * num_nodes + node
        if not self._may_share(node_type, section):
            return codes
        leaves = self.inputs.num_numbers * num_nodes + node
        earlier = self._codes[node_type][: self._first_leaf[node_type]].sort().values
        if not len(earlier):
            return leaves
        found = torch.searchsorted(earlier, codes).clamp(max=len(earlier) - 1)
        return torch.where(earlier[found] == codes, codes, leaves)

    def _may_share(self, node_type: str, section: int) -> bool:
        return section == self.num_hops and node_type in self._shared_leaves

    def _find_rows(self, edge_type: EdgeType, hop: int) -> None:
        """Positions of the sources of a section of edges, and its number of loops."""
        section = self.edges[edge_type][hop]
        row = self.row[edge_type][section]
        self._find_positions(edge_type[0], self._arrivals[edge_type, hop], row)
        if edge_type[0] == edge_type[2]:
            num_edges = self.count("edges", edge_type)[hop]
            is_edge = torch.arange(len(row), device=self.device) < num_edges
            is_loop = is_edge & (row == self.col[edge_type][section])
            self.count("loops", edge_type)[hop].copy_(is_loop.sum())

    def _find_positions(self, node_type: str, first_arrival: int, out: Tensor) -> None:
        """Positions of nodes that have arrived, by arrival."""
        position = self._position[node_type]
        slot = self._slot[node_type][first_arrival : first_arrival + len(out)]
        out.copy_(position[self._first[node_type][slot].clamp(max=len(position) - 1)])

    def _forget(self, node_type: str) -> None:
        self._first[node_type].scatter_(0, self._slot[node_type], NEVER)


def _aligned(sizes: Iterable[int]) -> list[int]:
    """Multiples of 16, so that compiled kernels do not depend on the sizes."""
    return [-(-int(size) // 16) * 16 for size in sizes]


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
