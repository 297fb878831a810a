"""Inputs of encoders: times, counts and past events relative to the seed's time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.data.past_labels import PAST
from raygnn.data.time_units import TIME
from raygnn.data.transforms.state import YEAR_US
from raygnn.models.sparse_input import Features, dense
from raygnn.sampling.batch import Batch

_NUM_WAVES = 4
_FINEST = 1 / 1000  # of the span of a type's times
_MEMORIES = (1 / 512, 1 / 128, 1 / 32, 1 / 8)  # of the span, in which a past edge fades to 1/e
_FADED = 0.1  # weight of no events in a mean, so that events long ago say little
_SEASON_CHANNELS = 4
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
class DateColumn:
    """A feature that counts time back from a moment, in the encoder's input rows.

    Attributes:
        position: of the feature in a row.
        unit: time of 1, in the unit of the seeds' times.
        origin: the moment.
    """

    position: int
    unit: float
    origin: float

    def age(self, x: Tensor, seed_time: Tensor) -> Tensor:
        return (seed_time - self.origin).double() + x[:, self.position].double() * self.unit


@dataclass(frozen=True)
class TimeColumn:
    """Meaning of an element of the columns of `RelativeTime`.

    Attributes:
        what: `age` of the node, `count` and `recency` of edges (their ages, and fading counts),
            recent `edge feature` and `event row` of edges, a `date` among the features, `past
            labels` or `season`.
        edge_type: message type of the edges; None for the node itself.
        feature: column of edge features, for these.
        position: of the element in an edge feature or in the row of an event; of the feature in the
            node's row, for a date.
    """

    what: str
    edge_type: EdgeType | None = None
    feature: str | None = None
    position: int = 0


@dataclass(frozen=True)
class RelativeTime:
    """Columns of time and counts that are appended to the features of each node.

    They encode the node's own age, if its type has times, and for each edge type into it the
    logarithm of the number of edges until the seed's time. If the edge type has times, also the age
    of the latest sampled edge and the mean encoding of the sampled edges' ages. If it has
    `edge_features`, also sums of the sampled edges and of their features in which older edges fade,
    at four rates; with `averages`, means of the features. Nodes of the last hop sample no edges, so
    these are 0 there.

    Edges from events, which are nodes with times, have the age of the latest event, fading counts,
    and the means of the events' input rows in which older events fade, instead. A mean over
    neighbors would not show how the latest of them differ. If these edges have times, these count.

    Dates among the features become ages at the seed's time, with their sign: a date of its own says
    in which period a row lies, and rows of the test lie in another one.

    Args:
        span: see `encode_age`.
        node_types: types that get columns.
        timed_nodes: node types with times.
        edge_types: message types.
        timed_edges: edge types with times.
        edge_features: by edge type with times, the widths of its features by column.
        averages: edge features are averaged. Sums of few rows overfit.
        event_widths: by edge type from events, the width of their input rows.
        dates: dates among the features, by node type.
        past: node type with columns of past labels, and their number.
        season: node type with columns of the time of the year, if any. Times are microseconds.
    """

    span: float
    node_types: tuple[str, ...]
    timed_nodes: frozenset[str]
    edge_types: tuple[EdgeType, ...]
    timed_edges: frozenset[EdgeType]
    edge_features: Mapping[EdgeType, Mapping[str, int]] = field(default_factory=dict)
    averages: bool = False
    event_widths: Mapping[EdgeType, int] = field(default_factory=dict)
    dates: Mapping[str, Sequence[DateColumn]] = field(default_factory=dict)
    past: tuple[str, int] | None = None
    season: str | None = None

    def channels(self, node_type: str) -> int:
        width = AGE_CHANNELS if node_type in self.timed_nodes else 0
        width += (1 + AGE_CHANNELS) * len(self.dates.get(node_type, ()))
        if self.past is not None and node_type == self.past[0]:
            width += self.past[1]
        if node_type == self.season:
            width += _SEASON_CHANNELS
        into = [t for t in self.edge_types if t[2] == node_type]
        return width + sum(self._width(edge_type) for edge_type in into)

    def _width(self, edge_type: EdgeType) -> int:
        if edge_type in self.event_widths:
            return 1 + AGE_CHANNELS + len(_MEMORIES) * (1 + self.event_widths[edge_type])
        if edge_type not in self.timed_edges:
            return 1
        features = self.edge_features.get(edge_type, {})
        memory = len(_MEMORIES) * (1 + sum(features.values())) if features else 0
        return 2 + AGE_CHANNELS + memory

    def joined(self, batch: Batch, node_type: str, inputs: Mapping[str, Features]) -> Tensor:
        """Input rows [num_nodes, width] with the columns appended; the columns alone without rows.

        Args:
            inputs: input rows by node type.
        """
        return self.join(node_type, inputs, self.appended(batch, node_type, inputs))

    def join(self, node_type: str, inputs: Mapping[str, Features], appended: Tensor) -> Tensor:
        """Input rows with given columns appended; the columns alone without rows."""
        x, dates = inputs.get(node_type), self.dates.get(node_type, ())
        if x is None:
            return appended
        rows = dense(x)
        if dates:
            rows = rows.clone()
            for date in dates:
                rows[:, date.position] = 0
        return torch.cat([rows, appended], dim=1)

    def appended(self, batch: Batch, node_type: str, inputs: Mapping[str, Features]) -> Tensor:
        """The appended columns, [num_nodes, channels(node_type)]."""
        columns, x = [self.columns(batch, node_type, inputs)], inputs.get(node_type)
        for date in self.dates.get(node_type, ()) if x is not None else ():
            seed_time = batch.nodes[node_type].seed_time
            assert x is not None
            assert seed_time is not None
            age = date.age(dense(x), seed_time)
            columns += [age.sign().float().unsqueeze(1), encode_age(age.abs(), self.span)]
        return torch.cat(columns, dim=1)

    def describe(self, node_type: str) -> list[TimeColumn]:
        """Descriptions of the appended columns, in order."""
        found = [TimeColumn("age")] * (AGE_CHANNELS if node_type in self.timed_nodes else 0)
        for edge_type in self.edge_types:
            if edge_type[2] == node_type:
                found += self._describe_edges(edge_type)
        if self.past is not None and node_type == self.past[0]:
            found += [TimeColumn("past labels", position=i) for i in range(self.past[1])]
        found += [TimeColumn("season")] * (_SEASON_CHANNELS if node_type == self.season else 0)
        for date in self.dates.get(node_type, ()):
            found += [TimeColumn("date", position=date.position)] * (1 + AGE_CHANNELS)
        return found

    def _describe_edges(self, edge_type: EdgeType) -> Iterator[TimeColumn]:
        count, recency = (TimeColumn(what, edge_type) for what in ("count", "recency"))
        yield count
        if edge_type in self.event_widths:
            yield from [recency] * (AGE_CHANNELS + len(_MEMORIES))
            for _ in _MEMORIES:
                for i in range(self.event_widths[edge_type]):
                    yield TimeColumn("event row", edge_type, position=i)
        elif edge_type in self.timed_edges:
            yield from [recency] * (1 + AGE_CHANNELS)
            features = self.edge_features.get(edge_type, {})
            for _ in _MEMORIES if features else ():
                yield recency
                for name, width in features.items():
                    for i in range(width):
                        yield TimeColumn("edge feature", edge_type, name, i)

    def columns(
        self, batch: Batch, node_type: str, inputs: Mapping[str, Features] = MappingProxyType({})
    ) -> Tensor:
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
                found.append(self._of_edges(batch, edge_type, inputs))
        if self.past is not None and node_type == self.past[0]:
            past = nodes.columns[PAST]
            assert isinstance(past, Tensor)
            found.append(past)
        if node_type == self.season:
            turn = nodes.seed_time.double() / YEAR_US % 1 * (2 * math.pi)
            waves = torch.stack([turn, 2 * turn], dim=1)
            found.append(torch.cat([waves.sin(), waves.cos()], dim=1).float())
        return torch.cat(found, dim=1)

    def _of_edges(
        self, batch: Batch, edge_type: EdgeType, inputs: Mapping[str, Features]
    ) -> Tensor:
        nodes = batch.nodes[edge_type[2]]
        num_nodes, device = len(nodes.n_id), nodes.n_id.device
        out = torch.zeros(num_nodes, self._width(edge_type), device=device)
        edges = batch.edges.get(edge_type)
        if edges is None:
            return out
        num_sampled = edges.dst_ptr.diff()
        num_dst = len(num_sampled)
        out[:num_dst, 0] = edges.dst_degree[:num_dst].log1p()
        if edge_type in self.event_widths:
            out[:, 1:] = self._of_events(batch, edge_type, inputs)
            return out
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
            rows = [
                edges.columns[name].reshape(len(age), width).float()
                for name, width in features.items()
            ]
            counts, sums = self._faded(age, torch.cat(rows, dim=1), target, num_nodes)
            memory = out[:, 2 + AGE_CHANNELS :].unflatten(1, (len(_MEMORIES), -1))
            memory[:, :, 0] = counts.log1p()
            for i, total in enumerate(sums):
                if self.averages:
                    memory[:, i, 1:] = total / (counts[:, i : i + 1] + _FADED)
                else:
                    memory[:, i, 1:] = total.sign() * total.abs().log1p()
        return out

    def _of_events(
        self, batch: Batch, edge_type: EdgeType, inputs: Mapping[str, Features]
    ) -> Tensor:
        """[num_nodes, width]: encoded age of the latest event, logarithms of fading counts, fading
        means at each rate.
        """
        source, target = batch.edges[edge_type].edge_index
        nodes = batch.nodes[edge_type[2]]
        if edge_type in self.timed_edges:
            time = batch.edges[edge_type].columns[TIME]
        else:
            times = batch.nodes[edge_type[0]].columns[TIME]
            assert isinstance(times, Tensor)
            time = times[source]
        assert nodes.seed_time is not None
        age = (nodes.seed_time[target] - time).float()
        # Without events, the latest one is as old as the span.
        latest = age.new_full((len(nodes.n_id),), self.span)
        latest = latest.scatter_reduce_(0, target, age, "amin")
        width = self.event_widths[edge_type]
        rows = dense(inputs[edge_type[0]])[source].float() if width else age.new_zeros(len(age), 0)
        counts, sums = self._faded(age, rows, target, len(latest))
        found = [encode_age(latest, self.span), counts.log1p()]
        found += [
            total / (num.unsqueeze(1) + _FADED)
            for total, num in zip(sums, counts.unbind(1), strict=True)
        ]
        return torch.cat(found, dim=1)

    def _faded(
        self, age: Tensor, rows: Tensor, target: Tensor, num_nodes: int
    ) -> tuple[Tensor, list[Tensor]]:
        """Sums by target, of weights that fall from 1 at age 0 to 0 and of weighted rows.

        Returns:
            Fading counts [num_nodes, len(_MEMORIES)], and at each rate sums [num_nodes, width].
        """
        # Filled in place: copies of numbers make the host wait for the device.
        memories = [torch.full((), memory, device=age.device) for memory in _MEMORIES]
        rates = 1 / (self.span * torch.stack(memories))
        weights = (-age.float().clamp(min=0).unsqueeze(1) * rates).exp()
        counts = weights.new_zeros(num_nodes, len(_MEMORIES)).index_add_(0, target, weights)
        empty = rows.new_zeros(num_nodes, rows.shape[1])
        sums = [empty.index_add(0, target, rows * each) for each in weights.split(1, dim=1)]
        return counts, sums
