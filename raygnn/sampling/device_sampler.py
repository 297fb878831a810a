"""Neighborhoods sampled on a device, without a wait, with the bits of `NeighborSampler`.

All sizes are capacities that are fixed before, and all counts stay on the device, so the operators
of a sample are the same for each batch: a CUDA graph can repeat them. A node keeps the number of
its first arrival, an atomic minimum, so the order of threads does not matter; "did I arrive first?"
and a cumulative sum then number nodes as a CPU does. What does not fit is left out and flagged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.device_memory import copied, read_together
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import EdgesByNode, SampledSubgraph, SampleRequest
from raygnn.sampling.rng import BatchKey, hop_key
from raygnn.sampling.stores import LocalGraphStore

# Of `splitmix64`, as int64.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
_NEVER = 2**31 - 1


def why_not(sampler: NeighborSampler) -> str | None:
    """The setting with which only a host samples, as in a log; None if a device does."""
    graph = sampler.graph
    settings = {
        "a partitioned graph": not isinstance(graph, LocalGraphStore),
        f"sampling.weight={sampler.weight!r}": sampler.weight is not None,
        "sampling.temporal": sampler.temporal is not None,
        "sampling.disjoint": sampler.disjoint,
        "sampling.type='labor'": sampler.labor,
        "sampling.fanouts with -1": any(-1 in hops for hops in sampler.fanouts.values()),
        "edges sorted by time": any(
            info.role == "time" for t in graph.edge_types for info in graph.columns(t).values()
        ),
    }
    return next((name for name, prevents in settings.items() if prevents), None)


@dataclass(frozen=True)
class Capacities:
    """Room for a sample.

    Attributes:
        nodes: by node type, new nodes of each hop, the distinct seeds first.
        edges: by edge type, edges of each hop.
    """

    nodes: Mapping[str, list[int]]
    edges: Mapping[EdgeType, list[int]]

    @classmethod
    def of(cls, sample: SampledSubgraph, spare: float = 0.25) -> Capacities:
        """Room for samples of as many seeds as this one: its counts and a share of them."""

        def enlarged(counts: list[int]) -> list[int]:
            return [ceil((1 + spare) * count) + 16 for count in counts]

        nodes = {t: enlarged(hops) for t, hops in sample.num_sampled_nodes.items()}
        for node_type, index in sample.seed_index.items():
            nodes[node_type][0] = max(nodes[node_type][0], len(index))
        return cls(nodes, {t: enlarged(hops) for t, hops in sample.num_sampled_edges.items()})


@dataclass(frozen=True)
class DeviceSample:
    """A sample on a device. Only the first rows of each tensor are filled.

    Attributes:
        node, row, edge, dst_ptr, seed_index: as in `SampledSubgraph`; `row` is the first row of
            its `edge_index`.
        marks: by node type, int64 [num_hops + 2], nodes before each hop and in all.
        edge_marks: by edge type, int64 [num_hops + 1], the same of edges.
        overflows: bool, a capacity was too small: the sample is not complete.
    """

    node: Mapping[str, Tensor]
    row: Mapping[EdgeType, Tensor]
    edge: Mapping[EdgeType, Tensor]
    dst_ptr: Mapping[EdgeType, Tensor]
    seed_index: Mapping[str, Tensor]
    marks: Mapping[str, Tensor]
    edge_marks: Mapping[EdgeType, Tensor]
    overflows: Tensor

    def on_host(self) -> SampledSubgraph | None:
        """The sample on the host, read with one wait; None if it overflowed."""
        by_node = (self.node, self.marks, self.seed_index)
        by_edge = (self.row, self.edge, self.dst_ptr, self.edge_marks)
        tensors = [x for part in by_node for x in part.values()]
        tensors += [x for part in by_edge for x in part.values()]
        overflows, *read = (x.numpy() for x in read_together([self.overflows, *tensors]))
        if overflows:
            return None
        values = iter(read)
        node, marks, seed_index = ({t: next(values) for t in part} for part in by_node)
        row, edge, dst_ptr, edge_marks = ({t: next(values) for t in part} for part in by_edge)
        num_dst = {t: marks[t[2]][-2] for t in edge}
        ptr = {t: dst_ptr[t][: n + 1] for t, n in num_dst.items()}
        return SampledSubgraph(
            node={t: nodes[: marks[t][-1]] for t, nodes in node.items()},
            edge_index={
                t: np.stack([row[t][: p[-1]], np.repeat(np.arange(len(p) - 1), np.diff(p))])
                for t, p in ptr.items()
            },
            edge={t: edge[t][: p[-1]] for t, p in ptr.items()},
            dst_ptr=ptr,
            num_sampled_nodes={t: np.diff(counts).tolist() for t, counts in marks.items()},
            num_sampled_edges={t: np.diff(counts).tolist() for t, counts in edge_marks.items()},
            seed_index=seed_index,
        )


class DeviceSampler:
    """Samples what a `NeighborSampler` samples, on a device, in operators of torch.

    Args:
        sampler: one that `why_not` accepts.
        device: holds the graph.
    """

    def __init__(
        self, sampler: NeighborSampler, capacities: Capacities, device: torch.device
    ) -> None:
        assert why_not(sampler) is None
        self._sampler, self._capacities, self._device = sampler, capacities, device
        graph = sampler.graph
        self._edges = {t: self._on_device(graph.adjacency(t)) for t in sampler.fanouts}
        #: Number of the first arrival of each node; a further node stands for none.
        self._first = {
            t: torch.full((graph.num_nodes(t) + 1,), _NEVER, dtype=torch.int64, device=device)
            for t in graph.node_types
        }

    def _on_device(self, edges: EdgesByNode) -> tuple[Tensor, Tensor, Tensor | None]:
        """`indptr`, `indices` and `e_id`; one unused element without edges, for masked reads."""

        def stored(array: np.ndarray) -> Tensor:
            rows = array if len(array) else np.zeros(1, array.dtype)
            return copied(torch.from_numpy(np.asarray(rows)), self._device)

        indices, e_id = edges.indices, edges.e_id
        assert isinstance(indices, np.ndarray)
        assert e_id is None or isinstance(e_id, np.ndarray)
        return stored(edges.indptr), stored(indices), None if e_id is None else stored(e_id)

    def sample(self, request: SampleRequest) -> DeviceSample:
        """The sample of a request without times and salts, whose seeds the capacities are for."""
        seeds = {
            t: copied(torch.from_numpy(np.asarray(ids, np.int64)), self._device)
            for t, ids in request.seeds.items()
        }
        isolated = {
            t: copied(torch.from_numpy(np.unique(ids)), self._device)
            for t, ids in (request.isolated or {}).items()
            if len(ids)
        }
        keys = copied(self.keys(request.key), self._device)
        return self.sample_seeds(seeds, keys, self._excluded(request), isolated)

    def keys(self, key: BatchKey) -> Tensor:
        """int64 [num_hops, num_edge_types], keys of the draws of a batch, on the host."""
        every = [
            [hop_key(key, hop, edge_type) for edge_type in self._sampler.fanouts]
            for hop in range(self._sampler.num_hops)
        ]
        return torch.from_numpy(np.array(every, np.uint64).view(np.int64))

    def sample_seeds(
        self,
        seeds: Mapping[str, Tensor],
        keys: Tensor,
        excluded: Mapping[EdgeType, ExcludedEdges] = MappingProxyType({}),
        isolated: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> DeviceSample:
        """Samples from tensors on the device, in operators that a CUDA graph can repeat.

        Args:
            seeds: by node type, int64 dense ids.
            keys: see `keys`.
            isolated: by node type, ascending dense ids of seeds whose edges to ignore.
        """
        growing = {
            t: _Growing(self._capacities.nodes[t], first) for t, first in self._first.items()
        }
        edges = {t: _Edges(hops, self._device) for t, hops in self._capacities.edges.items()}
        for node_type, ids in seeds.items():
            growing[node_type].add(ids, torch.ones_like(ids, dtype=torch.bool))
        for nodes in growing.values():
            nodes.end_hop()
        for hop in range(self._sampler.num_hops):
            for number, (edge_type, fanouts) in enumerate(self._sampler.fanouts.items()):
                neighbor_type, _, node_type = edge_type
                node, inside = growing[node_type].frontier(hop)
                may_sample = inside
                if hop == 0 and node_type in isolated:
                    may_sample = inside & ~_is_in(node, isolated[node_type])[1]
                key, skips = keys[hop, number], excluded.get(edge_type)
                picked = self._pick(edge_type, node, may_sample, fanouts[hop], key, skips)
                chosen, neighbor = edges[edge_type].add(hop, inside, *picked)
                edges[edge_type].arrivals.append(growing[neighbor_type].add(neighbor, chosen))
            for nodes in growing.values():
                nodes.end_hop()
        flags = [nodes.overflows for nodes in growing.values()]
        flags += [of_type.overflows for of_type in edges.values()]
        sample = DeviceSample(
            node={t: nodes.nodes[:-1] for t, nodes in growing.items()},
            row={t: of_type.rows(growing[t[0]]) for t, of_type in edges.items()},
            edge={t: of_type.e_id[:-1] for t, of_type in edges.items()},
            dst_ptr={t: of_type.dst_ptr for t, of_type in edges.items()},
            seed_index={t: growing[t].local(ids) for t, ids in seeds.items()},
            marks={t: torch.stack(nodes.marks) for t, nodes in growing.items()},
            edge_marks={t: torch.stack(of_type.marks) for t, of_type in edges.items()},
            overflows=torch.stack(flags).any(),
        )
        for nodes in growing.values():
            nodes.forget()
        return sample

    def _excluded(self, request: SampleRequest) -> dict[EdgeType, ExcludedEdges]:
        found = {}
        for edge_type, pairs in (request.exclude or {}).items():
            pairs = np.asarray(pairs, np.int64)
            if not pairs.shape[1]:
                continue
            neighbors, nodes = pairs
            indptr, indices, _ = self._edges[edge_type]
            found[edge_type] = ExcludedEdges.of(nodes, neighbors, indptr, indices)
        return found

    def _pick(
        self,
        edge_type: EdgeType,
        node: Tensor,
        may_sample: Tensor,
        fanout: int,
        key: Tensor,
        excluded: ExcludedEdges | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Number of sampled edges of each node, and [num_nodes, fanout] neighbors and e_id."""
        indptr, indices, e_id = self._edges[edge_type]
        nowhere = len(indptr) - 1
        row = node.clamp(max=max(nowhere - 1, 0))
        start = indptr[row]
        degree = torch.where(may_sample, indptr[(row + 1).clamp(max=nowhere)] - start, 0)
        skips = None
        if excluded is not None:
            skips = excluded.of_nodes(node)
            degree = torch.where(may_sample, degree - skips[1].sum(dim=1), 0)
        replace = self._sampler.replace
        taken = degree.clamp(max=fanout)
        state = _splitmix(key ^ node)
        if replace:
            taken = torch.where(degree > 0, fanout, 0)
            number = torch.arange(fanout, device=node.device)
            picks = _draw_below(_splitmix(state[:, None] + number * _GOLDEN), degree[:, None])
        else:
            picks = _floyd(state, degree, fanout)
        if skips is not None:
            for first, length in zip(*(part.unbind(dim=1) for part in skips), strict=True):
                picks = picks + torch.where(picks >= first[:, None], length[:, None], 0)
        number = torch.arange(fanout, device=node.device)
        position = torch.where(number < taken[:, None], start[:, None] + picks, 0)
        edge = position if e_id is None else e_id[position].long()
        return taken, indices[position].long(), edge


class _Growing:
    """The nodes of one type, numbered in the order of arrival."""

    def __init__(self, hops: list[int], first: Tensor) -> None:
        self._hops, self._first = hops, first
        self._size, self._nobody = sum(hops), len(first) - 1
        device = first.device
        self.nodes = torch.full((self._size + 1,), self._nobody, dtype=torch.int64, device=device)
        self.zero = torch.zeros((), dtype=torch.int64, device=device)
        #: Nodes before each hop, and now.
        self.marks, self._number = [self.zero], self.zero
        self._numbers: list[Tensor] = []  # of the nodes that arrive first, by arrival
        self._arrived: list[Tensor] = []
        self._num_arrivals = 0
        self.overflows = torch.zeros((), dtype=torch.bool, device=device)

    def add(self, node: Tensor, valid: Tensor) -> Tensor:
        """Numbers new nodes. Returns them, with `nobody` where they are not valid."""
        node = torch.where(valid, node, self._nobody)
        arrival = self._num_arrivals + torch.arange(len(node), device=node.device)
        self._num_arrivals += len(node)
        self._arrived.append(node)
        self._first.scatter_reduce_(0, node, arrival, "amin")
        is_first = (self._first[node] == arrival) & valid
        number = self._number + is_first.cumsum(0) - 1
        self.nodes.scatter_(
            0, torch.where(is_first, number, self._size).clamp(max=self._size), node
        )
        self._numbers.append(number)
        self._number = self._number + is_first.sum()
        return node

    def end_hop(self) -> None:
        hop = len(self.marks) - 1
        self.overflows = self.overflows | (self._number - self.marks[-1] > self._hops[hop])
        self.marks.append(self._number)

    def frontier(self, hop: int) -> tuple[Tensor, Tensor]:
        """Nodes of the last hop, and which of the rows are filled."""
        place = self.marks[-2] + torch.arange(self._hops[hop], device=self.zero.device)
        inside = place < self.marks[-1]
        node = self.nodes[place.clamp(max=self._size)]
        return torch.where(inside, node, self._nobody), inside

    def local(self, node: Tensor) -> Tensor:
        """Local ids of nodes that have arrived."""
        numbers = torch.cat([*self._numbers, self.zero.view(1)])
        return numbers[self._first[node].clamp(max=len(numbers) - 1)]

    def forget(self) -> None:
        """Makes all nodes unknown again, also those beyond the capacity."""
        for node in self._arrived:
            self._first.scatter_(0, node, _NEVER)


class _Edges:
    """The edges of one type."""

    def __init__(self, hops: list[int], device: torch.device) -> None:
        self._hops, self._size = hops, sum(hops)
        self.e_id = torch.zeros(self._size + 1, dtype=torch.int64, device=device)
        self.zero = torch.zeros((), dtype=torch.int64, device=device)
        self.marks, self.arrivals = [self.zero], list[Tensor]()
        self._ends: list[Tensor] = []
        self._num_dst, self._starts = self.zero, [self.zero]
        self.overflows = torch.zeros((), dtype=torch.bool, device=device)
        self._inside: list[Tensor] = []

    def add(
        self, hop: int, inside: Tensor, taken: Tensor, neighbor: Tensor, e_id: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Adds the edges of the nodes of a hop. Returns which of them are filled, and neighbors, in
        the order of edges.
        """
        end, size = taken.cumsum(0), self._hops[hop]
        number = torch.arange(neighbor.shape[1], device=taken.device)
        valid = number < taken[:, None]
        place = torch.where(valid, (end - taken)[:, None] + number, size).clamp(max=size)
        in_order = torch.zeros(size + 1, dtype=torch.int64, device=taken.device)
        neighbors = in_order.scatter(0, place.flatten(), neighbor.flatten())[:size]
        edges = in_order.scatter(0, place.flatten(), e_id.flatten())[:size]
        count = taken.sum()
        self.overflows = self.overflows | (count > size)
        filled = torch.arange(size, device=taken.device) < count
        to = self.marks[-1] + torch.arange(size, device=taken.device)
        to = torch.where(filled, to, self._size).clamp(max=self._size)
        self.e_id.scatter_(0, to, edges)
        self._ends.append(self.marks[-1] + end)
        self._inside.append(inside)
        self.marks.append(self.marks[-1] + count)
        return filled, neighbors

    @property
    def dst_ptr(self) -> Tensor:
        """Start of each destination's edges, and the end of the last one's."""
        ends, inside = torch.cat(self._ends), torch.cat(self._inside)
        place = torch.where(inside, inside.cumsum(0), len(inside) + 1)
        ptr = ends.new_zeros(len(inside) + 2)
        return ptr.scatter(0, place, ends)[:-1]

    def rows(self, neighbors: _Growing) -> Tensor:
        """Local ids of the sources, in the order of edges."""
        rows = self.e_id.new_zeros(self._size + 1)
        for mark, end, node in zip(self.marks, self.marks[1:], self.arrivals, strict=False):
            place = mark + torch.arange(len(node), device=node.device)
            place = torch.where(place < end, place, self._size).clamp(max=self._size)
            rows = rows.scatter(0, place, neighbors.local(node))
        return rows[:-1]


@dataclass(frozen=True)
class ExcludedEdges:
    """Edges to skip, as ranges among the edges of each excluded node.

    Attributes:
        nodes: int64 [num_nodes], ascending.
        first: int64 [num_nodes, num_ranges], ascending, counted from the node's first edge.
        length: int64 [num_nodes, num_ranges], 0 for no range.
    """

    nodes: Tensor
    first: Tensor
    length: Tensor

    @classmethod
    def of(
        cls, nodes: np.ndarray, neighbors: np.ndarray, indptr: Tensor, indices: Tensor
    ) -> ExcludedEdges:
        pairs = np.unique(np.stack([nodes, neighbors]), axis=1)
        distinct, first, counts = np.unique(pairs[0], return_index=True, return_counts=True)
        table = np.full((len(distinct), counts.max()), -1)
        rows = np.repeat(np.arange(len(distinct)), counts)
        table[rows, np.arange(pairs.shape[1]) - first[rows]] = pairs[1]
        chosen, wanted = (copied(torch.from_numpy(x), indptr.device) for x in (distinct, table))
        start, stop = indptr[chosen][:, None], indptr[chosen + 1][:, None]
        low = _search(indices, start, stop, wanted)
        length = _search(indices, start, stop, wanted + 1) - low
        return cls(chosen, low - start, torch.where(wanted < 0, 0, length))

    def of_nodes(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """Ranges of nodes, [num_nodes, num_ranges] first edges and lengths."""
        place, is_excluded = _is_in(node, self.nodes)
        return self.first[place], torch.where(is_excluded[:, None], self.length[place], 0)


def _is_in(node: Tensor, ascending: Tensor) -> tuple[Tensor, Tensor]:
    place = torch.searchsorted(ascending, node).clamp(max=len(ascending) - 1)
    return place, ascending[place] == node


def _search(indices: Tensor, start: Tensor, stop: Tensor, value: Tensor) -> Tensor:
    """Position of the first index that is at least `value`, between `start` and `stop`."""
    low, high = (bound.expand_as(value) for bound in (start, stop))
    for _ in range(len(indices).bit_length()):
        middle = (low + high) // 2
        is_less = indices[middle.clamp(max=len(indices) - 1)] < value
        is_open = low < high
        low, high = (
            torch.where(is_open & is_less, middle + 1, low),
            torch.where(is_open & ~is_less, middle, high),
        )
    return low


def _shifted(value: Tensor, bits: int) -> Tensor:
    """A shift of unsigned numbers to the right."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _splitmix(value: Tensor) -> Tensor:
    """`splitmix64` of bits in int64."""
    z = value + _GOLDEN
    z = (z ^ _shifted(z, 30)) * _MIX_1
    z = (z ^ _shifted(z, 27)) * _MIX_2
    return z ^ _shifted(z, 31)


def _draw_below(bits: Tensor, bound: Tensor) -> Tensor:
    """High word of the product with a bound below 2^31."""
    low = ((bits & 0xFFFFFFFF) * bound) >> 32
    return (_shifted(bits, 32) * bound + low) >> 32


def _floyd(state: Tensor, degree: Tensor, fanout: int) -> Tensor:
    """[num_nodes, fanout] positions among a node's edges; all in order if it has no more.

    Draw j of Floyd's algorithm is replaced by the last edge that it may give if an earlier draw is
    equal, or if it is the last of an earlier draw i that was replaced: a chain of draws, which is
    followed in log2(fanout) jumps.
    """
    j = torch.arange(fanout, device=degree.device)
    if not fanout:
        return degree[:, None] + j
    last = degree[:, None] - fanout + j
    drawn = _draw_below(_splitmix(state[:, None] + j * _GOLDEN), (last + 1).clamp(min=0))
    is_equal = drawn[:, :, None] == drawn[:, None, :]
    is_replaced = (is_equal & (j[None, :] < j[:, None])).any(dim=2)
    source = drawn - (degree[:, None] - fanout)
    source = torch.where((source >= 0) & (source < j), source, j)
    for _ in range((fanout - 1).bit_length()):
        is_replaced = is_replaced | is_replaced.gather(1, source)
        source = source.gather(1, source)
    return torch.where((degree <= fanout)[:, None], j, torch.where(is_replaced, last, drawn))
