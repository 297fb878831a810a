"""The edges that a time allows, found on a device.

An edge is visible from its own time on, or from that of its neighbor, if that is later. In the
order of these times, the visible edges of a node are consecutive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.stores import LocalGraphStore
from raygnn.sampling.temporal import Horizon, as_times


def why_not_in_time(sampler: NeighborSampler, excluded: Collection[EdgeType]) -> str | None:
    """The times in which only a host finds edges, for a log; None if a device can. Reads the times
    of all edges.

    Args:
        excluded: types of edges that samples exclude.
    """
    graph, temporal = sampler.graph, sampler.temporal
    if temporal is None:
        return None
    assert isinstance(graph, LocalGraphStore)
    column = temporal.column
    types: list[str | EdgeType] = [*graph.node_types, *graph.edge_types]
    columns = [graph.columns(type_).get(column) for type_ in types]
    if len({np.dtype(info.dtype).kind for info in columns if info is not None}) > 1:
        return "times that are integers in some types and floats in others"
    for edge_type in sampler.fanouts:
        picker, name = graph.picker(edge_type), edge_type_name(edge_type)
        times, own = picker.visible_from(column), picker.own_times(column)
        if times is None:
            continue
        if np.isnan(times).any():
            return f"missing times of edges of {name} or of their neighbors"
        if temporal.window is not None and (own is None or not np.array_equal(own, times)):
            return f"sampling.temporal.window and times of neighbors of {name}"
        if edge_type in excluded and not _ascend(times, picker.adjacency.indptr):
            return f"excluded edges of {name}, which are not in the order of their times"
    return None


def _ascend(times: np.ndarray, indptr: np.ndarray) -> bool:
    """Whether times ascend along the edges of each node."""
    is_first = np.zeros(len(times) + 1, bool)
    is_first[indptr] = True
    return bool(np.all((times[1:] >= times[:-1]) | is_first[1:-1]))


class DeviceTimes:
    """The times of all edges on a device, as ranks.

    Args:
        sampler: one that `why_not_in_time` accepts.
        indptr: by edge type, int64 [num_nodes + 1], start of each node's edges.
    Attributes:
        codes: by edge type with times, int64 [num_edges], ascending: `stride` times the node plus
            the rank of the time.
        selections: by edge type, if edges are in another order.
    """

    def __init__(
        self, sampler: NeighborSampler, indptr: Mapping[EdgeType, Tensor], device: torch.device
    ) -> None:
        graph, temporal = sampler.graph, sampler.temporal
        assert isinstance(graph, LocalGraphStore)
        assert temporal is not None
        self._temporal = temporal
        found = {t: graph.picker(t).visible_from(temporal.column) for t in indptr}
        times = {t: torch.from_numpy(x) for t, x in found.items() if x is not None and len(x)}
        joined = torch.cat(list(times.values())) if times else torch.empty(0, dtype=torch.int64)
        #: Distinct times, ascending.
        self._instants, ranks = torch.unique(joined.to(device), return_inverse=True)
        self.stride = len(self._instants)
        self.codes: dict[EdgeType, Tensor] = {}
        self.selections: dict[EdgeType, Selection] = {}
        parts = ranks.split([len(x) for x in times.values()])
        for edge_type, of_edges in zip(times, parts, strict=True):
            degrees = indptr[edge_type].diff()
            nodes = torch.arange(len(degrees), device=device).repeat_interleave(degrees)
            self.codes[edge_type], order = (nodes * self.stride + of_edges).sort(stable=True)
            if not torch.equal(order, torch.arange(len(order), device=device)):
                self.selections[edge_type] = Selection(order - indptr[edge_type][nodes])

    def limits(self, times: np.ndarray) -> np.ndarray:
        """[num_limits, num_times]: earliest times of edges, with a window, and latest ones."""
        dtype = np.dtype(np.float64 if self._instants.is_floating_point() else np.int64)
        earliest = Horizon(self._temporal, times).earliest(dtype)
        return np.concatenate([earliest, as_times(times, dtype)]).reshape(-1, len(times))

    def ranks(self, limits: Tensor) -> Tensor:
        """int64 [2, num_times], the first rank within limits, and the first after them."""
        stop = torch.searchsorted(self._instants, limits[-1], right=True)
        start = torch.searchsorted(self._instants, limits[0]) if len(limits) > 1 else stop * 0
        return torch.stack([start, stop])


class Selection:
    """Selects the visible edges of nodes in the order of the edges: a wavelet matrix.

    Args:
        numbers: int64 [num_edges], the number of each edge among those of its node, in the order of
            the times.
    Attributes:
        num_zeros: int32 [num_bits, num_edges + 1], from the highest bit of the numbers to the
            lowest, the zeros before each position. For the next bit, numbers with a one follow
            those with a zero.

    Source: Claude, Navarro and Ordonez, The wavelet matrix, Information Systems 47, 2015.
    """

    def __init__(self, numbers: Tensor) -> None:
        self.num_zeros = numbers.new_empty(
            (int(numbers.max()).bit_length(), len(numbers) + 1), dtype=torch.int32
        )
        for row, bit in zip(self.num_zeros, reversed(range(len(self.num_zeros))), strict=True):
            is_one = ((numbers >> bit) & 1).bool()
            row[0], row[1:] = 0, (~is_one).cumsum(0)
            numbers = torch.cat([numbers[~is_one], numbers[is_one]])

    def __call__(self, start: Tensor, stop: Tensor, k: Tensor) -> Tensor:
        """The k-th smallest numbers at the positions from `start` to `stop`."""
        found = torch.zeros_like(k)
        for zeros in self.num_zeros:
            first, last, total = zeros[start].long(), zeros[stop].long(), zeros[-1]
            num = last - first
            is_one = k >= num
            start = torch.where(is_one, total + start - first, first)
            stop = torch.where(is_one, total + stop - last, last)
            k = torch.where(is_one, k - num, k)
            found = 2 * found + is_one
        return found
