"""Relative times and counts as inputs: age of a row, number of edges, and their age."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.data.time_units import TIME
from raygnn.sampling.batch import Batch

_NUM_WAVES = 4
_FINEST = 1 / 1000  # of the span of a type's times
_MEMORIES = (1 / 512, 1 / 128, 1 / 32, 1 / 8)  # of the span, in which a past edge fades to 1/e
#: Width of the encoding of an age.
AGE_CHANNELS = 1 + 2 * _NUM_WAVES


def encode_age(age: Tensor, span: float) -> Tensor:
    """Encodes ages so that both days and years can be distinguished.

    With u = log(1 + age / scale) / log(1 + span / scale) and scale = span / 1000, the columns are
    2u - 1, and the sine and cosine of u at geometrically spaced frequencies.

    Args:
        age: [num_rows], seed time minus row time. Negative ages count as 0.
        span: time between the first row of a type and the end of training.
    Returns:
        float32 [num_rows, AGE_CHANNELS].

    Source: the temporal encoder of RelBench, arXiv:2407.20060.
    """
    u = torch.log1p(age.float().clamp(min=0) / (span * _FINEST)) / math.log1p(1 / _FINEST)
    waves = u.unsqueeze(1) * (math.pi * 2.0 ** torch.arange(_NUM_WAVES, device=u.device))
    return torch.cat([2 * u.unsqueeze(1) - 1, waves.sin(), waves.cos()], dim=1)


@dataclass(frozen=True)
class RelativeTime:
    """Columns of time and counts that are appended to the features of each node.

    They encode the node's own age, if its type has times, and for each edge type into it the
    logarithm of the number of edges until the seed's time. If the edge type has times, also the age
    of the latest sampled edge and the mean encoding of the sampled edges' ages. If it has
    `edge_features`, also sums of the sampled edges and of their features in which older edges fade,
    at four rates. Nodes of the last hop sample no edges, so these are 0 there.

    Args:
        span: see `encode_age`.
        node_types: types that get columns.
        timed_nodes: node types with times.
        edge_types: message types.
        timed_edges: edge types with times.
        edge_features: by edge type with times, the widths of its features by column.
    """

    span: float
    node_types: tuple[str, ...]
    timed_nodes: frozenset[str]
    edge_types: tuple[EdgeType, ...]
    timed_edges: frozenset[EdgeType]
    edge_features: Mapping[EdgeType, Mapping[str, int]] = field(default_factory=dict)

    def channels(self, node_type: str) -> int:
        width = AGE_CHANNELS if node_type in self.timed_nodes else 0
        into = [t for t in self.edge_types if t[2] == node_type]
        return width + sum(self._width(edge_type) for edge_type in into)

    def _width(self, edge_type: EdgeType) -> int:
        if edge_type not in self.timed_edges:
            return 1
        features = self.edge_features.get(edge_type, {})
        memory = len(_MEMORIES) * (1 + sum(features.values())) if features else 0
        return 2 + AGE_CHANNELS + memory

    def columns(self, batch: Batch, node_type: str) -> Tensor:
        nodes = batch.nodes[node_type]
        assert nodes.seed_time is not None
        num_nodes = len(nodes.n_id)
        found = [torch.zeros(num_nodes, 0, device=nodes.n_id.device)]
        if node_type in self.timed_nodes:
            time = nodes.columns[TIME]
            assert isinstance(time, Tensor)
            found.append(encode_age(nodes.seed_time - time, self.span))
        for edge_type in self.edge_types:
            if edge_type[2] == node_type:
                found.append(self._of_edges(batch, edge_type))
        return torch.cat(found, dim=1)

    def _of_edges(self, batch: Batch, edge_type: EdgeType) -> Tensor:
        nodes = batch.nodes[edge_type[2]]
        num_nodes, device = len(nodes.n_id), nodes.n_id.device
        out = torch.zeros(num_nodes, self._width(edge_type), device=device)
        edges = batch.edges.get(edge_type)
        if edges is None:
            return out
        num_sampled = edges.dst_ptr.diff()
        num_dst = len(num_sampled)
        out[:num_dst, 0] = edges.dst_degree[:num_dst].log1p()
        if edge_type not in self.timed_edges:
            return out
        assert nodes.seed_time is not None
        target = edges.edge_index[1]
        age = nodes.seed_time[target] - edges.columns[TIME]
        ages = encode_age(age, self.span)
        total = ages.new_zeros(num_nodes, AGE_CHANNELS).index_add_(0, target, ages)
        means = total[:num_dst] / num_sampled.clamp(min=1).unsqueeze(1)
        out[:num_dst, 2 : 2 + AGE_CHANNELS] = means
        # Without edges, the latest one is as old as the span.
        out[:, 1] = out.new_ones(num_nodes).scatter_reduce_(0, target, ages[:, 0], "amin")
        if features := self.edge_features.get(edge_type):
            rows = [edges.columns[name].reshape(len(age), -1).float() for name in features]
            out[:, 2 + AGE_CHANNELS :] = self._memory(age, rows, target, num_nodes)
        return out

    def _memory(
        self, age: Tensor, features: Sequence[Tensor], target: Tensor, num_nodes: int
    ) -> Tensor:
        """[num_nodes, len(_MEMORIES) * (1 + width)]: logarithms of fading counts, fading sums."""
        rows = torch.cat([age.new_ones(len(age), 1).float(), *features], dim=1)
        rates = 1 / (self.span * torch.tensor(_MEMORIES, device=age.device))
        weight = (-age.float().clamp(min=0).unsqueeze(1) * rates).exp()
        faded = (weight.unsqueeze(2) * rows.unsqueeze(1)).flatten(1)
        sums = faded.new_zeros(num_nodes, faded.shape[1]).index_add_(0, target, faded)
        return sums.sign() * sums.abs().log1p()
