"""Times at which predicted nodes and edges are encoded: their own, or one time for all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raygnn.data.bundle import Bundle, LabelEdges
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.extended_bundle import Addition
from raygnn.data.links.split import find_label_edges
from raygnn.data.links.supervision import SeedEdges
from raygnn.data.time_units import AsOf, Time, latest_time, parse_time, time_unit, window_as_time
from raygnn.errors import ConfigError
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks.node_classification.target import NodeOutput
from raygnn.outputs.saved_model import SavedModel

#: The end of the graph, in place of a time.
LATEST = "latest"


@dataclass(frozen=True)
class SeedTimes:
    """The time at which each node and edge is encoded. Nothing later influences its row.

    Attributes:
        moment: time of all nodes and edges without their own.
        own: node types and edge types (`src__rel__dst`) whose rows are encoded at their own times.
        is_latest: the moment is the latest time in the graph.
    """

    moment: AsOf
    own: frozenset[str] = frozenset()
    is_latest: bool = False

    def of(self, type_name: str) -> AsOf | None:
        """The time of all rows of a type; None if each has its own."""
        return None if type_name in self.own else self.moment

    def extended(self, addition: Addition) -> SeedTimes:
        """Extends the latest time by the times of new rows."""
        if not self.is_latest:
            return self
        latest = latest_of(addition, self.moment.column, self.moment.time)
        return replace(self, moment=replace(self.moment, time=latest))

    def describe(self, type_names: Sequence[str]) -> str:
        timed = [name for name in type_names if name in self.own]
        if not timed:
            return f"as of {self.moment}"
        if len(timed) == len(type_names):
            return "each at its own time"
        return f"{', '.join(timed)} each at its own time, others as of {self.moment}"

    def manifest(self, type_names: Sequence[str]) -> dict[str, object]:
        """Entries of `_manifest.json`."""
        timed = [name for name in type_names if name in self.own]
        content: dict[str, object] = {"own_times": timed} if timed else {}
        if len(timed) < len(type_names):
            content["as_of"] = self.moment.time
        return {**content, "time_unit": self.moment.unit}


def latest_of(addition: Addition, column: str, latest: Time) -> Time:
    """The latest of a time and of the times of new rows."""
    found = [latest]
    for arrays in addition.arrays.values():
        times = arrays.get(column)
        if isinstance(times, np.ndarray) and len(times):
            found.append(np.fmax.reduce(times).item())
    return max(found)


def find_seed_times(
    saved: SavedModel, bundle: Bundle, as_of: str | Time | None
) -> SeedTimes | None:
    """Chooses the times at which nodes and edges of a graph are encoded; None without times.

    By default, rows that training encodes at their own times are encoded so: nodes of a node model,
    edges of a model of edges or links. Nodes of a model of edges or links, and rows without times,
    are encoded as of the latest time in the graph.

    Args:
        as_of: a date, a number or `latest`: the time of all rows.
    Raises:
        ConfigError: it is not a time, has another unit, or the model reads no times.
        DataError: the graph has no times, or times of several units.
    """
    temporal = saved.loaded.config.sampling.temporal
    if temporal is None:
        if as_of is not None:
            raise ConfigError(
                f"as_of={as_of!r} is invalid: the model was trained without sampling.temporal, and "
                "uses edges of all times. Leave it out. [infer-as-of-unread]"
            )
        return None
    unit = time_unit(bundle, temporal.column)
    window = window_as_time(temporal.window, unit)
    if as_of is not None and as_of != LATEST:
        return SeedTimes(AsOf(temporal.column, _parsed_time(str(as_of), unit), unit, window))
    latest = latest_time(bundle, temporal.column)
    moment = AsOf(temporal.column, 0 if latest is None else latest, unit, window)
    if as_of == LATEST:
        return SeedTimes(moment, is_latest=True)
    spec, column = saved.spec, temporal.column
    predicted = spec.output.predicted_edges
    edge_types = spec.output.links if predicted is None else (predicted,)
    timed = [edge_type_name(t) for t in edge_types if _have_times(spec, bundle, t)]
    if isinstance(spec.output, NodeOutput) and spec.output.table is not None:
        timed = []  # rows of the table have times, their nodes are encoded as of now
    elif not edge_types:
        timed = [name for name in bundle.node_types if column in bundle.columns(name)]
    return SeedTimes(moment, frozenset(timed), is_latest=True)


def seed_edges(spec: ModelSpec, bundle: Bundle, edge_type: EdgeType) -> SeedEdges:
    """The label edges of a type if there are any, else its message edges, as for a model that reads
    edge features, which label edges lack.
    """
    is_label = _labels(spec, bundle, edge_type) is not None
    return SeedEdges.of_bundle(bundle, edge_type, label_edges=is_label)


def _labels(spec: ModelSpec, bundle: Bundle, edge_type: EdgeType) -> LabelEdges | None:
    return None if spec.output.own_columns else find_label_edges(bundle, edge_type, "positive")


def _have_times(spec: ModelSpec, bundle: Bundle, edge_type: EdgeType) -> bool:
    labels = _labels(spec, bundle, edge_type)
    if labels is not None:
        return labels.time is not None
    return edge_type in bundle.edge_types and "time" in bundle.columns(edge_type)


def times_of_pairs(
    edges: SeedEdges, sources: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Times of pairs of int64 dense ids that are edges of a type; the earliest of parallel edges.

    Returns:
        bool [num_pairs], whether the pair is an edge, and [num_pairs], its time.
    """
    assert edges.indptr is not None
    assert edges.times is not None
    rows, others = (targets, sources) if edges.by_target else (sources, targets)
    is_known = rows < len(edges.indptr) - 1  # added nodes have no edges in the graph
    rows = np.where(is_known, rows, 0)
    starts = edges.indptr[rows]
    counts = np.where(is_known, edges.indptr[rows + 1] - starts, 0)
    pair = np.repeat(np.arange(len(rows)), counts)
    position = np.arange(len(pair)) + (starts - np.cumsum(counts) + counts)[pair]
    is_same = edges.others[position] == others[pair]
    pair, times = pair[is_same], np.asarray(edges.times[position[is_same]])
    order = np.lexsort((times, pair))
    known, first = np.unique(pair[order], return_index=True)
    is_known = np.isin(np.arange(len(rows)), known)
    pair_times = np.zeros(len(rows), times.dtype)
    pair_times[known] = times[order][first]
    return is_known, pair_times


def _parsed_time(text: str, unit: str | None) -> Time:
    """A time in the graph's unit. Numbers are microseconds if times are dates."""
    key = f"as_of={text[:50]!r} is invalid"
    try:
        return parse_time(text, unit)
    except OverflowError as error:
        raise ConfigError(
            f"{key}: {error}. Set a number as in the graph, or a date. [infer-as-of-range]"
        ) from error
    except TypeError as error:
        if unit is not None:
            return math.floor(parse_time(text, None))
        raise ConfigError(
            f"{key}: {error}. Set such a number, or {LATEST}. [infer-as-of-plain]"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{key}: it is neither a date nor a number. Set a time such as 2024-03-01, '2024-03-01 "
            f"12:00', a number of microseconds since 1970, or {LATEST}. [infer-as-of]"
        ) from error
