"""The edges that a time allows, found on a device.

An edge is visible from its own time on, or from that of its neighbor, if that is later. A device
finds the visible edges of a node if these times ascend in the order of its edges.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.stores import LocalGraphStore
from raygnn.sampling.temporal import Horizon, as_times


def why_not_in_time(sampler: NeighborSampler) -> str | None:
    """The times in which only a host finds edges, for a log; None if a device can. Reads the times
    of all edges.
    """
    graph, temporal = sampler.graph, sampler.temporal
    if temporal is None:
        return None
    assert isinstance(graph, LocalGraphStore)
    column = temporal.column
    types: list[str | EdgeType] = [*graph.node_types, *graph.edge_types]
    columns = [graph.columns(type_).get(column) for type_ in types]
    kinds = {np.dtype(info.dtype).kind for info in columns if info is not None}
    if len(kinds) > 1:
        return "times that are integers in some types and floats in others"
    for edge_type in sampler.fanouts:
        times = graph.picker(edge_type).visible_from(column)
        if times is None:
            continue
        is_first = np.zeros(len(times) + 1, bool)
        is_first[graph.adjacency(edge_type).indptr] = True
        if not np.all((times[1:] >= times[:-1]) | is_first[1:-1]) or np.isnan(times).any():
            return f"edges of {edge_type_name(edge_type)} that are not in the order of their times"
        if temporal.window is not None and not _are_own(graph, edge_type, column, times):
            return f"sampling.temporal.window and neighbors of {edge_type_name(edge_type)}"
    return None


def _are_own(
    graph: LocalGraphStore, edge_type: EdgeType, column: str, visible_from: np.ndarray
) -> bool:
    """Whether no neighbor is later than its edge."""
    own = graph.picker(edge_type).own_times(column)
    return own is not None and np.array_equal(own, visible_from)


class DeviceTimes:
    """The times of all edges on a device, as ranks.

    Args:
        sampler: one that `why_not_in_time` accepts.
        indptr: by edge type, int64 [num_nodes + 1], start of each node's edges.
    Attributes:
        codes: by edge type with times, int64 [num_edges], ascending: `stride` times the node plus
            the rank of the time.
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
        self.stride, self.codes = len(self._instants), {}
        parts = ranks.split([len(x) for x in times.values()])
        for edge_type, of_edges in zip(times, parts, strict=True):
            degrees = indptr[edge_type].diff()
            nodes = torch.arange(len(degrees), device=device).repeat_interleave(degrees)
            self.codes[edge_type] = nodes * self.stride + of_edges

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
