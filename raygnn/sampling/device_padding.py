"""Samples of a device padded there to one of the sizes of `Padding`, with the same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.data.past_labels import PAST, PastLabels
from raygnn.device_memory import copied
from raygnn.sampling.batch import Batch, EdgeRecord, NodeRecord
from raygnn.sampling.device_sampler import DeviceSampler, Sections
from raygnn.sampling.padding import Counts
from raygnn.sampling.temporal import as_seed_times
from raygnn.sampling.tensor_record import StoredRows


class DevicePadding:
    """Fills a batch of one size from the last sample of a `DeviceSampler`, in operators of torch.

    Args:
        size: one of the sizes of `Padding`.
        src_degrees: by edge type, float32 [num_source_nodes], for batches with these.
        past: node type and its past labels, for batches with these.
    """

    def __init__(
        self,
        sampler: DeviceSampler,
        size: Counts,
        src_degrees: Mapping[EdgeType, Tensor],
        past: tuple[str, DevicePastLabels] | None,
    ) -> None:
        self._sampler, self._src_degrees, self._past = sampler, src_degrees, past
        nodes = {t: Sections(size["nodes", t]) for t in sampler.nodes}
        self._rows = {t: PaddedRows(nodes[t], sampler.nodes[t], sampler.device) for t in nodes}
        self._edges = {
            t: PaddedEdges(sampler, t, nodes, size["edges", t], size["loops", t])
            for t in sampler.edges
        }

    def fill(self, batch: Batch) -> None:
        """Overwrites the neighborhood of a batch of this size."""
        numbers = {}
        for node_type, record in batch.nodes.items():
            self._fill_nodes(node_type, self._sampler.node[node_type], record.n_id)
            numbers[node_type] = self._fill_numbers(node_type, record)
            if self._past is not None and node_type == self._past[0]:
                past = record.columns[PAST]
                assert isinstance(past, Tensor)
                assert record.seed_time is not None
                self._past[1].fill(record.n_id, record.seed_time, past)
            _name_rows(record.columns, record.n_id)
        for edge_type, edges in batch.edges.items():
            neighbor_type, _, node_type = edge_type
            self._fill_edges(edge_type, edges)
            node, number = batch.nodes[node_type].n_id, numbers[node_type]
            self._fill_degrees(edge_type, node, number, edges.dst_degree)
            _name_rows(edges.columns, edges.e_id)
            if edges.src_degree is not None:
                neighbors = batch.nodes[neighbor_type].n_id
                edges.src_degree.copy_(self._src_degrees[edge_type][neighbors])

    def _fill_nodes(
        self, node_type: str, rows: Tensor, out: Tensor, added: Tensor | None = None
    ) -> None:
        counts = self._sampler.count("nodes", node_type)
        out.copy_(self._rows[node_type].of(rows, counts, added))

    def _fill_numbers(self, node_type: str, record: NodeRecord) -> Tensor | None:
        """Overwrites seeds and their times. Returns neighborhoods in whose times degrees count;
        those of added nodes are the latest.
        """
        numbered = self._sampler.numbered
        if numbered is None:
            return None
        number = self._sampler.number[node_type]
        if record.seed is not None:
            self._fill_nodes(node_type, number, record.seed)
        if record.seed_time is None:
            return None
        assert numbered.times is not None
        padded = torch.empty_like(record.n_id)
        self._fill_nodes(node_type, number, padded, numbered.newest)
        record.seed_time.copy_(numbered.times[padded])
        return padded

    def _fill_degrees(
        self, edge_type: EdgeType, node: Tensor, number: Tensor | None, out: Tensor
    ) -> None:
        """Degrees of the first nodes of a type."""
        first = None if number is None else number[: len(out)]
        start, stop = self._sampler.edges_of(edge_type, node[: len(out)], first)
        out.copy_(stop - start)

    def _fill_edges(self, edge_type: EdgeType, out: EdgeRecord) -> None:
        sampler, edges = self._sampler, self._edges[edge_type]
        rows, dst = edges.rows, edges.dst
        have = sampler.count("edges", edge_type)
        have_dst = sampler.count("nodes", edge_type[2])[: sampler.num_hops]
        num_edges, num_loops, num_dst, starts, *_ = edges.per_hop
        missing, num_added = num_edges - have, (num_dst - have_dst).clamp(min=1)
        # The first `rest` added nodes get an edge more than the others.
        share, rest = missing // num_added, missing % num_added
        loops = num_loops - sampler.count("loops", edge_type)
        of_batch = torch.stack([have, share, rest, loops, have_dst])
        have_of, share_of, rest_of, loops_of, have_dst_of = of_batch[:, rows.section]
        first_dst, num_sources, move = edges.per_hop[4:, rows.section]
        number = (rows.number - have_of).clamp(min=0)
        larger = rest_of * (share_of + 1)
        after = rest_of + (number - larger) // share_of.clamp(min=1)
        added_dst = torch.where(number < larger, number // (share_of + 1), after)
        added_dst = first_dst + have_dst_of + added_dst
        added_src = (number - loops_of) % num_sources
        if edges.has_one_type:
            added_src = added_src + (added_src >= added_dst)
        added_src = torch.where(number < loops_of, added_dst, added_src)
        src, col = sampler.row[edge_type][rows.source], sampler.col[edge_type][rows.source]
        src = src + edges.src_moves[torch.bucketize(src, edges.src_starts[1:], right=True)]
        is_sampled = rows.number < have_of
        torch.where(is_sampled, src, added_src, out=out.edge_index[0])
        torch.where(is_sampled, col + move, added_dst, out=out.edge_index[1])
        out.e_id.copy_(rows.of(sampler.e_id[edge_type], have))
        hop = dst.section
        added = (dst.number - have_dst[hop]).clamp(min=0)
        first_added = have[hop] + added * share[hop] + torch.minimum(added, rest[hop])
        first = sampler.dst_start[edge_type][dst.source]
        first = torch.where(dst.number < have_dst[hop], first, first_added)
        out.dst_ptr[:-1].copy_(first + starts[hop])
        out.dst_ptr[-1].fill_(len(rows.source))


class DevicePastLabels:
    """`PastLabels.columns` on a device: all of a row but the age depends on its latest label."""

    def __init__(self, past: PastLabels, device: torch.device) -> None:
        self._stride, self._counts_own_time = 1 + len(past.instants), past.counts_own_time
        self._span = past.span
        arrays = past.codes, as_seed_times(past.instants), past.rows_after_labels()
        self._codes, self._instants, self._rows = (torch.from_numpy(x).to(device) for x in arrays)

    @staticmethod
    def num_bytes(past: PastLabels) -> int:
        """Memory on the device."""
        of_label = past.codes.itemsize + 4 * past.width(past.scores.shape[1])
        return of_label * len(past.codes) + 8 * len(past.instants)

    def fill(self, node: Tensor, time: Tensor, out: Tensor) -> None:
        """Overwrites the columns of nodes, float32 [num_nodes, width]."""
        if not len(self._codes):
            out.zero_()
            return
        moment = time.to(self._instants.dtype)
        known = torch.searchsorted(self._instants, moment, right=self._counts_own_time)
        entity = node * self._stride
        start, stop = torch.searchsorted(self._codes, torch.stack([entity, entity + known]))
        has_labels, last = stop > start, (stop - 1).clamp(min=0)
        out.copy_(torch.where(has_labels[:, None], self._rows[last], 0))
        rank = torch.where(has_labels, self._codes[last] - entity, 0)
        age = (time - self._instants[rank]).double() / self._span
        out[:, 1] = torch.where(has_labels, age, 0)


def _name_rows(columns: Mapping[str, Any], ids: Tensor) -> None:
    """Overwrites the ids of rows that the device holds."""
    for rows in columns.values():
        if isinstance(rows, StoredRows):
            rows.data.copy_(ids)


class PaddedRows:
    """Positions of the rows of padded sections in the sections of a sample.

    Attributes:
        section, number: int64 [num_rows], section of each row and its number there.
        source: int64 [num_rows], position of the row in the sample.
        starts: int64 [num_sections], position of each section in the sample.
    """

    def __init__(self, padded: Sections, sampled: Sections, device: torch.device) -> None:
        sizes, starts = np.array(padded.sizes, np.int64), np.array(sampled.starts, np.int64)
        section = np.repeat(np.arange(len(sizes)), sizes)
        number = np.arange(padded.total) - np.array(padded.starts, np.int64)[section]
        constants = section, number, starts[section] + number, starts
        self.section, self.number, self.source, self.starts = (
            copied(torch.from_numpy(x), device) for x in constants
        )

    def of(self, sample: Tensor, counts: Tensor, added: Tensor | None = None) -> Tensor:
        """Rows of a sample and added ones. Default: copies of the first row, or 0 without any."""
        if not len(self.source):
            return sample[:0]
        if added is None:
            # A tensor of one element, because indexing with a number makes the host read it.
            first = sample[self.starts[(counts > 0).long().argmax(dim=0, keepdim=True)]]
            added = torch.where(counts.any(), first, 0)
        return torch.where(self.number < counts[self.section], sample[self.source], added)


class PaddedEdges:
    """Positions of the edges of one type, and of their ends, in a sample.

    Attributes:
        rows: of the edges.
        dst: of the nodes that sample them.
        per_hop: int64 [7, num_hops], numbers of edges, of edges from a node to itself and of
            destinations; position of the first edge and of the first destination; number of
            sources of added edges; change of the positions of destinations.
        src_starts, src_moves: int64 [num_hops + 1], positions of the sections of sources in the
            sample, and the change of these.
    """

    def __init__(
        self,
        sampler: DeviceSampler,
        edge_type: EdgeType,
        nodes: Mapping[str, Sections],
        num_edges: Sequence[int],
        num_loops: Sequence[int],
    ) -> None:
        neighbor_type, _, node_type = edge_type
        device, num_hops = sampler.device, sampler.num_hops
        self.has_one_type = neighbor_type == node_type
        edges = Sections(np.add(num_edges, num_loops).tolist())
        src, dst = nodes[neighbor_type], nodes[node_type]
        num_dst = dst.sizes[:num_hops]
        self.rows = PaddedRows(edges, sampler.edges[edge_type], device)
        self.dst = PaddedRows(Sections(num_dst), sampler.nodes[node_type], device)
        num_sources = [sum(src.sizes[: hop + 2]) - self.has_one_type for hop in range(num_hops)]
        per_hop = [
            *(edges.sizes, num_loops, num_dst, edges.starts, dst.starts[:num_hops]),
            [max(number, 1) for number in num_sources],
            np.subtract(dst.starts, sampler.nodes[node_type].starts)[:num_hops].tolist(),
        ]
        self.per_hop = copied(torch.tensor(per_hop), device)
        starts = sampler.nodes[neighbor_type].starts
        moves = np.subtract(src.starts, starts).tolist()
        self.src_starts, self.src_moves = copied(torch.tensor([starts, moves]), device)
