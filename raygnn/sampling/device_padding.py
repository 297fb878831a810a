"""Samples of a device padded there to one of the sizes of `Padding`, with the same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.device_memory import copied
from raygnn.sampling.batch import EdgeRecord, NodeBatch
from raygnn.sampling.device_sampler import DeviceSampler, Sections
from raygnn.sampling.padding import Counts
from raygnn.sampling.tensor_record import StoredRows


class DevicePadding:
    """Fills a batch of one size from the last sample of a `DeviceSampler`, in operators of torch.

    Args:
        size: one of the sizes of `Padding`.
        src_degrees: by edge type, float32 [num_source_nodes], for batches with these.
    """

    def __init__(
        self, sampler: DeviceSampler, size: Counts, src_degrees: Mapping[EdgeType, Tensor]
    ) -> None:
        self._sampler, self._src_degrees = sampler, src_degrees
        device = sampler.device
        nodes = {t: Sections(size["nodes", t]) for t in sampler.nodes}
        self._nodes = {t: _Rows(nodes[t], sampler.nodes[t], device) for t in nodes}
        self._edges = {
            t: _AddedEdges(sampler, t, nodes, size["edges", t], size["loops", t])
            for t in sampler.edges
        }

    def fill(self, batch: NodeBatch) -> None:
        """Overwrites the neighborhood of a batch of this size."""
        sampler = self._sampler
        for node_type, record in batch.nodes.items():
            rows = self._nodes[node_type]
            record.n_id.copy_(rows.of(sampler.node[node_type], sampler.count("nodes", node_type)))
            _name_rows(record.columns, record.n_id)
        batch.seed_index.copy_(sampler.seed_index)
        for edge_type, edges in batch.edges.items():
            self._edges[edge_type].fill(edges)
            neighbor_type, _, node_type = edge_type
            node = batch.nodes[node_type].n_id[: len(edges.dst_degree)]
            indptr = sampler.adjacency[edge_type][0]
            edges.dst_degree.copy_(indptr[node + 1] - indptr[node])
            if edges.e_id is not None:
                _name_rows(edges.columns, edges.e_id)
            if edges.src_degree is not None:
                neighbors = batch.nodes[neighbor_type].n_id
                edges.src_degree.copy_(self._src_degrees[edge_type][neighbors])


def _name_rows(columns: Mapping[str, Any], ids: Tensor) -> None:
    """Overwrites the ids of rows that the device holds."""
    for rows in columns.values():
        assert isinstance(rows, StoredRows)
        rows.data.copy_(ids)


class _Rows:
    """Where the rows of padded sections are in the sections of a sample.

    Attributes:
        section, number: int64 [num_rows], section of each row and its number there.
        source: int64 [num_rows], position of the row in the sample.
    """

    def __init__(self, padded: Sections, sampled: Sections, device: torch.device) -> None:
        sizes = np.array(padded.sizes, np.int64)
        section = np.repeat(np.arange(len(sizes)), sizes)
        number = np.arange(padded.total) - np.array(padded.starts, np.int64)[section]
        source = np.array(sampled.starts, np.int64)[section] + number
        self.section, self.number, self.source, self._starts = (
            copied(torch.from_numpy(x), device)
            for x in (section, number, source, np.array(sampled.starts, np.int64))
        )

    def of(self, sample: Tensor, counts: Tensor) -> Tensor:
        """Rows of a sample; added ones are copies of the first row, or 0 without any."""
        if not len(self.source):
            return sample[:0]
        # Of one element: to index with a number, the host would read it.
        first = sample[self._starts[(counts > 0).long().argmax(dim=0, keepdim=True)]]
        first = torch.where(counts.any(), first, 0)
        return torch.where(self.number < counts[self.section], sample[self.source], first)


class _AddedEdges:
    """The edges of one type, with those that `Padding` adds."""

    def __init__(
        self,
        sampler: DeviceSampler,
        edge_type: EdgeType,
        nodes: Mapping[str, Sections],
        num_edges: Sequence[int],
        num_loops: Sequence[int],
    ) -> None:
        neighbor_type, _, node_type = edge_type
        self._sampler, self._edge_type = sampler, edge_type
        self._has_one_type = neighbor_type == node_type
        edges = Sections(np.add(num_edges, num_loops).tolist())
        src, dst, num_hops = nodes[neighbor_type], nodes[node_type], sampler.num_hops
        self._total = edges.total

        def constants(*rows: Sequence[int]) -> Tensor:
            return copied(torch.tensor(rows, dtype=torch.int64), sampler.device)

        self._rows = _Rows(edges, sampler.edges[edge_type], sampler.device)
        of_nodes = sampler.nodes[node_type], sampler.device
        self._dst = _Rows(Sections(dst.sizes[:num_hops]), *of_nodes)
        self._sizes = constants(edges.sizes, num_loops, dst.sizes[:num_hops])
        self._starts = constants(edges.starts)[0][self._dst.section]
        num_sources = [sum(src.sizes[: hop + 2]) - self._has_one_type for hop in range(num_hops)]
        moves = np.subtract(dst.starts, sampler.nodes[node_type].starts)[:num_hops].tolist()
        per_hop = constants(dst.starts[:num_hops], num_sources, moves)
        self._dst_start, num_sources_of, self._dst_move = per_hop[:, self._rows.section]
        self._num_sources = num_sources_of.clamp(min=1)
        sampled = sampler.nodes[neighbor_type].starts
        self._boundaries = constants(sampled[1:])[0]
        self._src_moves = constants(np.subtract(src.starts, sampled).tolist())[0]

    def fill(self, out: EdgeRecord) -> None:
        """Overwrites the edges of a record."""
        sampler, edge_type, rows = self._sampler, self._edge_type, self._rows
        have = sampler.count("edges", edge_type)
        num_edges, num_loops, num_dst = self._sizes
        have_dst = sampler.count("nodes", edge_type[2])[: sampler.num_hops]
        missing, num_added = num_edges - have, (num_dst - have_dst).clamp(min=1)
        # The first `rest` added nodes get an edge more than the others.
        share, rest = missing // num_added, missing % num_added
        loops = num_loops - sampler.count("loops", edge_type)
        per_hop = torch.stack([have, share, rest, loops, have_dst])
        have_of, share_of, rest_of, loops_of, have_dst_of = per_hop[:, rows.section]
        number = (rows.number - have_of).clamp(min=0)
        larger = rest_of * (share_of + 1)
        after = rest_of + (number - larger) // share_of.clamp(min=1)
        added_dst = torch.where(number < larger, number // (share_of + 1), after)
        added_dst = self._dst_start + have_dst_of + added_dst
        added_src = (number - loops_of) % self._num_sources
        if self._has_one_type:
            added_src = added_src + (added_src >= added_dst)
        added_src = torch.where(number < loops_of, added_dst, added_src)
        src, dst = sampler.row[edge_type][rows.source], sampler.col[edge_type][rows.source]
        src = src + self._src_moves[torch.bucketize(src, self._boundaries, right=True)]
        is_sampled = rows.number < have_of
        torch.where(is_sampled, src, added_src, out=out.edge_index[0])
        torch.where(is_sampled, dst + self._dst_move, added_dst, out=out.edge_index[1])
        if out.e_id is not None:
            out.e_id.copy_(rows.of(sampler.e_id[edge_type], have))
        hop, number = self._dst.section, self._dst.number
        added = (number - have_dst[hop]).clamp(min=0)
        first_added = have[hop] + added * share[hop] + torch.minimum(added, rest[hop])
        first = sampler.dst_start[edge_type][self._dst.source]
        first = torch.where(number < have_dst[hop], first, first_added)
        out.dst_ptr[:-1].copy_(first + self._starts)
        out.dst_ptr[-1].fill_(self._total)
