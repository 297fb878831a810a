"""Blocks of a whole graph on a CUDA device, built there and kept."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.device_memory import copied, unused_bytes
from raygnn.models.in_edges import InEdges
from raygnn.sampling.batch import EdgeCounts
from raygnn.sampling.blocks import Block, HeteroBlock

_BYTES_PER_EDGE = 8 + 3 * 8  # of a kept block: source, destination, and what layers derive


class DeviceBlocks:
    """Builds the blocks of ranges of destinations from edges on a device, with one wait each.

    Blocks depend on the graph only. A block is kept if it takes a quarter of the unused memory at
    most.

    Args:
        in_edges: with `indices` in memory; see `fits`.
        degrees: float32 in-degrees and out-degrees by edge type, on the host.
    """

    def __init__(
        self,
        in_edges: Mapping[EdgeType, InEdges],
        num_nodes: Mapping[str, int],
        device: torch.device,
        dst_degrees: Mapping[EdgeType, np.ndarray],
        src_degrees: Mapping[EdgeType, np.ndarray],
    ) -> None:
        self._in_edges, self._num_nodes, self.device = in_edges, num_nodes, device
        self._indices = {t: self._copied(np.asarray(e.indices)) for t, e in in_edges.items()}
        self._indptr = {t: self._copied(e.indptr) for t, e in in_edges.items()}
        self._dst_degrees, self._src_degrees = (
            {t: self._copied(degrees.astype(np.float32)) for t, degrees in by_type.items()}
            for by_type in (dst_degrees, src_degrees)
        )
        self._kept: dict[tuple[str, int, int], tuple[dict[str, Tensor], HeteroBlock]] = {}

    def _copied(self, array: np.ndarray) -> Tensor:
        return copied(torch.from_numpy(np.ascontiguousarray(array)), self.device)

    @staticmethod
    def fits(
        in_edges: Mapping[EdgeType, InEdges], num_nodes: Mapping[str, int], device: torch.device
    ) -> bool:
        """Whether all edges are in memory, and take a quarter of a device's unused memory at most:
        they stay there.
        """
        arrays = [edges.indices for edges in in_edges.values()]
        if not all(isinstance(array, np.ndarray) for array in arrays):
            return False
        num_bytes = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
        num_bytes += sum(16 * (num_nodes[t[0]] + num_nodes[t[2]]) for t in in_edges)
        return 4 * num_bytes <= unused_bytes(device)

    def block(self, node_type: str, first: int, last: int) -> tuple[dict[str, Tensor], HeteroBlock]:
        """Source ids by node type, the destinations first, and the blocks."""
        key = node_type, first, last
        if key not in self._kept:
            built = self._build(node_type, first, last)
            num_edges = sum(block.num_edges for block in built[1].blocks.values())
            if 4 * num_edges * _BYTES_PER_EDGE > unused_bytes(self.device):
                return built
            self._kept[key] = built
        return self._kept[key]

    def _build(
        self, node_type: str, first: int, last: int
    ) -> tuple[dict[str, Tensor], HeteroBlock]:
        num_dst, edge_types = last - first, [t for t in self._in_edges if t[2] == node_type]
        bounds = {t: self._in_edges[t].indptr[[first, last]].tolist() for t in edge_types}
        taken = {t: self._indices[t][slice(*bounds[t])].long() for t in edge_types}
        columns = {t: self._columns(t, num_dst, first, *bounds[t]) for t in edge_types}
        is_source = {
            name: torch.zeros(self._num_nodes[name], dtype=torch.bool, device=self.device)
            for name in dict.fromkeys([node_type, *(t[0] for t in edge_types)])
        }
        loops = []
        for t in edge_types:
            is_source[t[0]].index_fill_(0, taken[t], value=True)
            is_loop = taken[t] - first == columns[t] if t[0] == t[2] else taken[t][:0]
            loops.append(is_loop.sum())
        is_source[node_type][first:last] = False  # destinations come first
        sums = [chosen.sum() for chosen in is_source.values()]
        numbers: list[int] = torch.stack([*sums, *loops]).tolist()
        num_sources = dict(zip(is_source, numbers, strict=False))
        num_loops = dict(zip(edge_types, numbers[len(sums) :], strict=True))
        ids, local = {}, {}
        for name, chosen in is_source.items():
            before = num_dst if name == node_type else 0
            ids[name], local[name] = self._numbered(chosen, before, num_sources[name], first)
        blocks = {}
        for t in edge_types:
            num_reached = int(np.count_nonzero(np.diff(self._in_edges[t].indptr[first : last + 1])))
            edge_index = torch.stack([local[t[0]][taken[t]], columns[t]])
            counts = EdgeCounts(num_loops[t], num_reached)
            blocks[t] = self._block(t, edge_index, ids[t[0]], first, last, counts)
        for t in self._src_degrees:
            if t not in blocks and t[0] in ids:
                none = torch.empty((2, 0), dtype=torch.int64, device=self.device)
                blocks[t] = self._block(t, none, ids[t[0]], 0, 0, EdgeCounts(0, 0))
        num_src = {name: len(of_type) for name, of_type in ids.items()}
        return ids, HeteroBlock(blocks=blocks, num_src=num_src, num_dst={node_type: num_dst})

    def _columns(
        self, edge_type: EdgeType, num_dst: int, first: int, start: int, stop: int
    ) -> Tensor:
        degrees = self._indptr[edge_type][first : first + num_dst + 1].diff()
        destinations = torch.arange(num_dst, device=self.device)
        return destinations.repeat_interleave(degrees, output_size=stop - start)

    def _numbered(
        self, chosen: Tensor, num_before: int, number: int, first: int
    ) -> tuple[Tensor, Tensor]:
        """Sources by local id, after `num_before` destinations from `first` on, and local ids of
        all nodes.
        """
        total, nodes = num_before + number, torch.arange(len(chosen), device=self.device)
        local = chosen.cumsum(0) + (num_before - 1)
        ids = torch.empty(total + 1, dtype=torch.int64, device=self.device)
        ids.scatter_(0, torch.where(chosen, local, total), nodes)  # the last is not read
        if num_before:
            ids[:num_before] = nodes[first : first + num_before]
            local[first : first + num_before] = nodes[:num_before]
        return ids[:total], local

    def _block(
        self,
        edge_type: EdgeType,
        edge_index: Tensor,
        sources: Tensor,
        first: int,
        last: int,
        counts: EdgeCounts,
    ) -> Block:
        indptr = self._indptr[edge_type][first : last + 1]
        in_degree, out_degree = self._dst_degrees[edge_type], self._src_degrees.get(edge_type)
        return Block(
            edge_index=edge_index,
            dst_ptr=indptr - indptr[0],
            num_src=len(sources),
            num_dst=last - first,
            dst_degree=in_degree[first:last],
            src_in_degree=in_degree[sources] if edge_type[0] == edge_type[2] else None,
            src_degree=None if out_degree is None else out_degree[sources],
            counts=counts,
            **self._in_edges[edge_type].columns(first, last, self.device),
        )
