"""History columns: what is known of a node at a time, computed from all its earlier events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import REVERSE_PREFIX, EdgeType
from raygnn.data.events import Events, Reference, first_of_kind, gaps, running_sums, sums_between
from raygnn.data.history_spec import Attribute, EventSpec, HistoryColumn, HistorySpec
from raygnn.data.past_labels import PastLabels, TableLabels
from raygnn.data.raw_columns import RawColumn, raw_columns
from raygnn.data.time_units import TIME, TIME_UNIT
from raygnn.data.transforms.state import YEAR_US

DAY_US = 86_400_000_000
MAX_CODES = 256  # categories that trees read as such, and whose distinct values are counted
_EQUAL_GAPS = 1e-6  # deviation as a share of the usual gap, which may be rounding


def ids_as_texts(bundle: Bundle, node_type: str) -> pa.Array:
    every = np.arange(bundle.num_nodes(node_type))
    return bundle.take_ids(node_type, every).cast(pa.large_string())


def table_of_edges(bundle: Bundle, edge_type: EdgeType) -> str:
    """Name of the table whose rows are the edges.

    It is the relation, or for references the node type whose nodes refer to at most one other.
    """
    if bundle.is_of_parts or edge_type not in bundle.edge_types:
        return edge_type[1].removeprefix(REVERSE_PREFIX)
    return EventArrays(bundle).table_of(edge_type)


class EventArrays:
    """Arrays of a graph that columns are computed from, each made once."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._events: dict[tuple[EdgeType, ...], Events] = {}
        self._references: dict[EdgeType, Reference | None] = {}
        self._since: dict[EdgeType, np.ndarray | None] = {}
        self._columns: dict[tuple[str | EdgeType, str], dict[str, RawColumn]] = {}
        self._ids: dict[str, RawColumn] = {}

    def events(self, path: tuple[EdgeType, ...]) -> Events:
        if path not in self._events:
            self._events[path] = Events.of(self.bundle, path)
        return self._events[path]

    def reference(self, edge_type: EdgeType) -> Reference | None:
        if edge_type not in self._references:
            self._references[edge_type] = Reference.of(self.bundle, edge_type)
        return self._references[edge_type]

    def table_of(self, edge_type: EdgeType) -> str:
        for each in (edge_type, self.bundle.reverse_of(edge_type)):
            if each is not None and self.reference(each) is not None:
                return each[0]
        return edge_type[1].removeprefix(REVERSE_PREFIX)

    def columns(self, type_: str | EdgeType, feature: str) -> dict[str, RawColumn]:
        key = type_, feature
        if key not in self._columns:
            found = raw_columns(self.bundle, type_, feature)
            self._columns[key] = {column.name: column for column in found}
        return self._columns[key]

    def column(self, attribute: Attribute) -> RawColumn:
        """The column of all nodes or edges of `attribute.owner`."""
        owner, feature = attribute.owner, attribute.feature
        if not attribute.ids:
            return self.columns(owner, feature)[attribute.column]
        assert isinstance(owner, str)
        return self.ids(owner, attribute.ids)

    def times(self, type_: str | EdgeType) -> np.ndarray:
        return self.bundle.dense(type_, TIME)

    def ids(self, node_type: str, known: tuple[str, ...]) -> RawColumn:
        """The nodes of a type as codes of the ids that training had."""
        if node_type not in self._ids:
            texts = ids_as_texts(self.bundle, node_type)
            codes = pc.index_in(texts, pa.array(known, texts.type))
            values = codes.to_numpy(zero_copy_only=False).astype(np.float64)
            self._ids[node_type] = RawColumn("id", "category", values, known)
        return self._ids[node_type]

    def ends(
        self, edge_type: EdgeType, nodes: np.ndarray, times: np.ndarray | None = None
    ) -> np.ndarray:
        """int64 [num_nodes], the node that each node refers to; -1 for none, and for those that
        are later than `times`, or linked later.
        """
        reference = self.reference(edge_type)
        if reference is None or not len(reference.targets):  # the graph differs from training's
            return np.full(len(nodes), -1)
        ends = np.where(nodes >= 0, reference.targets[nodes], -1)
        if times is not None and (since := self._known_since(edge_type, reference)) is not None:
            ends[(ends >= 0) & (since[nodes] > times)] = -1
        return ends

    def _known_since(self, edge_type: EdgeType, reference: Reference) -> np.ndarray | None:
        """[num_sources], from when on each node's reference is known; null without times."""
        if edge_type not in self._since:
            rows = (edge_type, reference.edges), (edge_type[2], reference.targets)
            columns = [
                (self.times(type_), positions)
                for type_, positions in rows
                if TIME in self.bundle.columns(type_)
            ]
            found = [times[positions] for times, positions in columns if len(times)]
            self._since[edge_type] = reduce(np.maximum, found) if found else None
        return self._since[edge_type]

    def values(self, events: Events, attribute: Attribute, positions: np.ndarray) -> np.ndarray:
        """float64 [num_positions], a column of events at some positions.

        NaN for unknown values, among them those of nodes that are later than the event.
        """
        raw = self.column(attribute)
        times = None if events.times is None else events.times[positions]
        if not isinstance(attribute.owner, str):
            values = raw.values[events.edges[positions]]
        elif not attribute.holder:
            values = raw.values[events.sources[positions]]
        else:
            ends = self.ends(attribute.holder[0], events.sources[positions], times)
            values = np.full(len(ends), np.nan)
            values[ends >= 0] = raw.values[ends[ends >= 0]]
        return times - values if raw.kind == "date" and times is not None else values


class History:
    """History columns of a graph.

    The events of an edge type are sorted once, and running sums are made per column when first
    needed. They take 8 bytes per event and column, beside 24 bytes per event for the order and 8
    per row and column of a table. A sum is exact up to the rounding of the running sum of a node,
    which starts again at each node, of differences from a constant.

    Args:
        spec: fitted on training rows, perhaps of another graph with the same types.
        max_age: age from which on events are not known, instead of that of `spec`.
        labels: of training rows, if columns of `spec` read them.
        reference: edge type that leads from entities of `labels` to the nodes.
    """

    #: int64, ids of the nodes in `_labels`; null if they are the same.
    _ids: np.ndarray | None = None

    def __init__(
        self,
        bundle: Bundle,
        spec: HistorySpec,
        arrays: EventArrays | None = None,
        max_age: float | None = None,
        labels: TableLabels | None = None,
        reference: EdgeType | None = None,
    ) -> None:
        self.spec = spec
        self._arrays = arrays = arrays or EventArrays(bundle)
        self._events = [_EventColumns(arrays, spec, each, max_age) for each in spec.events]
        self._others = [
            History(bundle, each.history, arrays, max_age, labels, each.edge_type)
            for each in spec.others
        ]
        self._own = self._own_columns_of(arrays)
        self._labels: PastLabels | None = None
        self._label_columns: Sequence[HistoryColumn] = ()
        if spec.labels:
            assert labels is not None
            assert reference is not None
            self._labels = labels.of(partial(arrays.ends, reference))
            self._label_columns = labels.described
        described = list(self._describe())
        self._kept = [i for i, each in enumerate(described) if each.name not in spec.left_out]
        self.described = tuple(described[i] for i in self._kept)
        self.names = tuple(each.name for each in self.described)
        #: Positions of columns of categories.
        self.categorical = tuple(i for i, each in enumerate(self.described) if each.is_category)

    def on(self, bundle: Bundle, others: Sequence[History], ids: np.ndarray) -> History:
        """The same columns on another graph of the same types.

        Args:
            others: columns of the other ends, in the order of `spec.others`.
            ids: int64, ids of the graph's nodes in this one.
        """
        history, arrays = copy(self), EventArrays(bundle)
        history._arrays, history._others, history._ids = arrays, list(others), ids
        history._events = [each.on(arrays) for each in self._events]
        history._own = self._own_columns_of(arrays)
        return history

    def _own_columns_of(self, arrays: EventArrays) -> list[RawColumn]:
        """Columns of the nodes' own table, `RawColumn.name` without the table's."""
        spec, found = self.spec, list[RawColumn]()
        if spec.own:
            found += arrays.columns(spec.node_type, spec.feature).values()
        if spec.ids:
            found.append(arrays.ids(spec.node_type, spec.ids))
        return found

    def reference(self, edge_type: EdgeType) -> Reference | None:
        """The only edge that leaves each node; null if a node has several."""
        return self._arrays.reference(edge_type)

    def _describe(self) -> Iterator[HistoryColumn]:
        table = self.spec.node_type
        for column in self._own:
            yield HistoryColumn(
                f"{table}.{column.name}",
                table,
                names=column.names,
                is_category=column.kind == "category" and len(column.names) <= MAX_CODES,
                is_age=column.kind == "date",
            )
        if self.spec.age:
            yield HistoryColumn(table, table, "age", is_age=True)
        if self._has_season:
            yield HistoryColumn("day of year", table)
        for events in self._events:
            yield from events.describe()
        yield from self._label_columns
        for other, history in zip(self.spec.others, self._others, strict=True):
            yield from (replace(each, of=other.name) for each in history.described)

    def columns(self, nodes: np.ndarray, times: np.ndarray | None) -> np.ndarray:
        """float64 [num_rows, num_columns], NaN for unknown values.

        Args:
            nodes: int64 [num_rows], dense ids.
            times: [num_rows]. Nothing later is read. None reads all that is known.
        """
        found = [self._own_columns(nodes, times)]
        if self.spec.age:
            assert times is not None
            found.append((times - self._arrays.times(self.spec.node_type)[nodes])[:, None])
        if self._has_season:
            assert times is not None
            found.append((times / YEAR_US % 1 * 366)[:, None])
        found += [events.columns(nodes, times) for events in self._events]
        if self._labels is not None:
            assert times is not None
            found.append(
                self._labels.means(nodes if self._ids is None else self._ids[nodes], times)
            )
        for other, history in zip(self.spec.others, self._others, strict=True):
            ends = nodes
            if other.events is not None:
                ends = self._events[other.events].latest_sources(nodes, times)
            if other.edge_type is not None:
                ends = self._arrays.ends(other.edge_type, ends, times)
            out = np.full((len(nodes), len(history.names)), np.nan)
            some = np.flatnonzero(ends >= 0)
            out[some] = history.columns(ends[some], None if times is None else times[some])
            found.append(out)
        return np.concatenate(found, axis=1)[:, self._kept]

    @property
    def _has_season(self) -> bool:
        return self.spec.unit == TIME_UNIT and not self.spec.is_brief

    def _own_columns(self, nodes: np.ndarray, times: np.ndarray | None) -> np.ndarray:
        out = np.empty((len(nodes), len(self._own)))
        for i, column in enumerate(self._own):
            out[:, i] = column.values[nodes]
            if column.kind == "date" and times is not None:
                out[:, i] = times - out[:, i]
        return out


@dataclass(frozen=True)
class _Ranges:
    """Events of rows: those of window w of row i are at [lows[w][i], last[i])."""

    first: np.ndarray
    lows: Sequence[np.ndarray]
    last: np.ndarray

    @property
    def oldest(self) -> np.ndarray:
        return self.lows[-1]

    @cached_property
    def has_any(self) -> np.ndarray:
        return self.last > self.oldest

    @cached_property
    def latest(self) -> np.ndarray:
        """int64, positions of the latest events of rows with any."""
        return self.last[self.has_any] - 1

    def of_latest(self, values: np.ndarray) -> np.ndarray:
        return self.spread(self.has_any, values)

    @staticmethod
    def spread(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        out = np.full(len(rows), np.nan)
        out[rows] = values
        return out


class _EventColumns:
    """Columns of one kind of events."""

    def __init__(
        self, arrays: EventArrays, spec: HistorySpec, events: EventSpec, max_age: float | None
    ) -> None:
        self._arrays, self._spec, self._of = arrays, spec, events
        self._max_age = spec.max_age if max_age is None else max_age
        self._sums: dict[str | tuple[str, str | int], np.ndarray | None] = {}
        bundle = arrays.bundle
        types: list[str | EdgeType] = [t for step in events.path for t in (step, step[0])]
        is_timed = any(TIME in bundle.columns(type_) for type_ in types)
        self._is_timed = is_timed
        self._windows = events.windows
        # Counts of categories have two spans, a middle one and all.
        spans = len(self._windows) + 1
        self._few = slice(None) if spans <= 2 else slice(spans // 2, None, spans - 1 - spans // 2)

    def on(self, arrays: EventArrays) -> _EventColumns:
        columns = copy(self)
        columns._arrays, columns._sums = arrays, {}
        return columns

    @property
    def _events(self) -> Events:
        return self._arrays.events(self._of.path)

    def describe(self) -> Iterator[HistoryColumn]:
        spec, is_brief, is_timed = self._spec, self._spec.is_brief, self._is_timed
        table = self._arrays.table_of(self._of.path[0])
        column = partial(HistoryColumn, self._of.name, table)
        spans = [*(_span_name(window, spec.unit) for window in self._windows), "all"]
        yield from (column("count", span) for span in spans)
        if is_timed:
            yield column("since last", is_age=True)
        if is_timed and not is_brief:
            yield from (column("times", span) for span in spans)
            for what in ("since the one before", "since first", "gap mean", "gap std"):
                yield column(what, is_age=True)
        for attribute in self._of.attributes:
            owner = attribute.owner
            holder = owner if isinstance(owner, str) else table
            column = partial(HistoryColumn, attribute.name, holder)
            if attribute.codes:
                names, is_small = self._names_of(attribute)
                if is_timed:
                    yield column("last", names=names, is_category=is_small)
                if is_small and spec.max_age is None:
                    yield column("distinct")
                for code in attribute.codes:
                    for span in spans[self._few]:
                        yield HistoryColumn(
                            f"{attribute.name}={names[code]}", holder, "count", span
                        )
                continue
            column = partial(column, is_age=attribute.kind == "date")
            yield from (column("mean", span) for span in spans[self._few])
            yield from (column("sum", span) for span in spans if attribute.is_summed)
            if is_timed and not is_brief:
                yield column("last")
        for older, younger in self._of.lags:
            span = f"{_span_name(older, spec.unit)} to {_span_name(younger, spec.unit)}"
            yield HistoryColumn(self._of.name, table, "count", span)
            for attribute in self._summed_attributes:
                holder = attribute.owner if isinstance(attribute.owner, str) else table
                is_age = attribute.kind == "date"
                yield HistoryColumn(attribute.name, holder, "sum", span, is_age=is_age)

    @property
    def _summed_attributes(self) -> list[Attribute]:
        return [each for each in self._of.attributes if each.is_summed and not each.codes]

    def _names_of(self, attribute: Attribute) -> tuple[tuple[str, ...], bool]:
        names = self._arrays.column(attribute).names
        return names, len(names) <= MAX_CODES

    def columns(self, nodes: np.ndarray, times: np.ndarray | None) -> np.ndarray:
        events, ranges = self._events, self._ranges(nodes, times)
        found = [(ranges.last - low).astype(np.float64) for low in ranges.lows]
        if self._is_timed:
            assert events.times is not None
            age = np.full(np.count_nonzero(ranges.has_any), np.nan)
            if times is not None:
                age = times[ranges.has_any] - events.times[ranges.latest]
            found.append(ranges.of_latest(age))
        if self._is_timed and not self._spec.is_brief:
            found += self._columns_of_times(nodes, ranges, times)
        for attribute in self._of.attributes:
            latest = self._arrays.values(events, attribute, ranges.latest)
            of_latest = ranges.of_latest(latest)
            if attribute.codes:
                found += self._columns_of_category(attribute, ranges, of_latest)
            else:
                found += self._columns_of_number(attribute, ranges, of_latest)
        if self._of.lags and times is not None:
            found += self._columns_of_lags(nodes, ranges, times)
        return np.stack(found, axis=1)

    def _columns_of_lags(
        self, nodes: np.ndarray, ranges: _Ranges, times: np.ndarray
    ) -> Iterator[np.ndarray]:
        for ages in self._of.lags:
            ends = (self._events.until(nodes, times - age) for age in ages)
            low, high = (np.maximum(end, ranges.oldest) for end in ends)
            yield (high - low).astype(np.float64)
            for attribute in self._summed_attributes:
                sums, number = self._sums_of(attribute), self._num_known(attribute)
                num: Any = high - low
                if number is not None:
                    num = sums_between(number, ranges.first, low, high)
                yield sums_between(sums, ranges.first, low, high) + attribute.center * num

    def latest_sources(self, nodes: np.ndarray, times: np.ndarray | None) -> np.ndarray:
        """int64 [num_rows], the source of each node's latest event; -1 without one."""
        ranges = self._ranges(nodes, times)
        out = np.full(len(nodes), -1, np.int64)
        out[ranges.has_any] = self._events.sources[ranges.latest]
        return out

    def _ranges(self, nodes: np.ndarray, times: np.ndarray | None) -> _Ranges:
        events, max_age = self._events, self._max_age
        oldest = first = events.indptr[nodes]
        lows = []
        if self._is_timed and times is not None:
            if max_age is not None:
                oldest = events.until(nodes, times - max_age, inclusive=False)
            lows = [events.until(nodes, times - window) for window in self._windows]
            lows = [np.maximum(low, oldest) for low in lows]
        return _Ranges(first, [*lows, oldest], events.until(nodes, times))

    def _columns_of_times(
        self, nodes: np.ndarray, ranges: _Ranges, until: np.ndarray | None
    ) -> Iterator[np.ndarray]:
        events, first, last, oldest = self._events, ranges.first, ranges.last, ranges.oldest
        times, center = events.times, self._of.gap
        assert times is not None
        number = self._running("gap number", 0, lambda: ~np.isnan(gaps(events.indptr, times)))
        total = self._running("gaps", center, lambda: gaps(events.indptr, times))
        squares = self._running(
            "squared gaps", 0, lambda: (gaps(events.indptr, times) - center) ** 2
        )
        for low in ranges.lows:
            # The first event of a window has a time of its own, also if an earlier one has it.
            inner = np.minimum(low + 1, last)
            yield sums_between(number, first, inner, last) + (last > low)
        if until is None:
            yield from np.full((2, len(nodes)), np.nan)
        else:
            latest = times[ranges.latest]
            before, rows = oldest.copy(), ranges.has_any
            before[rows] = events.until(nodes[rows], latest, inclusive=False)
            rows = before > oldest
            yield ranges.spread(rows, until[rows] - times[before[rows] - 1])
            rows = ranges.has_any
            yield ranges.spread(rows, until[rows] - times[oldest[rows]])
        inner = np.minimum(oldest + 1, last)
        num = sums_between(number, first, inner, last)
        mean = _ratio(sums_between(total, first, inner, last), num)
        yield mean + center
        variance = _ratio(sums_between(squares, first, inner, last), num) - mean**2
        variance = np.where(variance > (_EQUAL_GAPS * center) ** 2, variance, 0)
        yield np.where(num > 1, np.sqrt(variance), np.nan)

    def _columns_of_number(
        self, attribute: Attribute, ranges: _Ranges, latest: np.ndarray
    ) -> Iterator[np.ndarray]:
        first, last, center = ranges.first, ranges.last, attribute.center
        sums = self._sums_of(attribute)
        number = self._num_known(attribute)
        lows = ranges.lows if attribute.is_summed else ranges.lows[self._few]
        nums = [(last - low).astype(np.float64) for low in lows]
        if number is not None:
            nums = [sums_between(number, first, low, last) for low in lows]
        totals = [sums_between(sums, first, low, last) for low in lows]
        means = [_ratio(total, num) + center for total, num in zip(totals, nums, strict=True)]
        yield from means[self._few] if attribute.is_summed else means
        if attribute.is_summed:
            for total, num in zip(totals, nums, strict=True):
                yield total + center * num
        if self._is_timed and not self._spec.is_brief:
            yield latest

    def _columns_of_category(
        self, attribute: Attribute, ranges: _Ranges, latest: np.ndarray
    ) -> Iterator[np.ndarray]:
        if self._is_timed:
            yield latest
        name, indptr = attribute.name, self._events.indptr
        names, is_small = self._names_of(attribute)
        if is_small and self._spec.max_age is None and self._max_age is not None:
            yield np.full(len(latest), np.nan)  # running sums count distinct values of all events
        elif is_small and self._spec.max_age is None:

            def firsts() -> np.ndarray:
                codes = np.nan_to_num(self._values(attribute), nan=-1).astype(np.int64)
                return np.asarray(first_of_kind(indptr, codes, len(names)))

            distinct = self._running((name, "distinct"), 0, firsts)
            yield sums_between(distinct, ranges.first, ranges.first, ranges.last)
        for code in attribute.codes:
            counts = self._running((name, code), 0, partial(self._is_code, attribute, code))
            for low in ranges.lows[self._few]:
                yield sums_between(counts, ranges.first, low, ranges.last)

    def _is_code(self, attribute: Attribute, code: int) -> np.ndarray:
        return self._values(attribute) == code

    def _values(self, attribute: Attribute) -> np.ndarray:
        events = self._events
        return self._arrays.values(events, attribute, np.arange(len(events.sources)))

    def _sums_of(self, attribute: Attribute) -> np.ndarray:
        return self._running(attribute.name, attribute.center, lambda: self._values(attribute))

    def _num_known(self, attribute: Attribute) -> np.ndarray | None:
        """Running numbers of events with a value; None if all have one."""
        key = attribute.name, "number"
        if key not in self._sums:
            is_known = ~np.isnan(self._values(attribute))
            self._sums[key] = None if is_known.all() else self._summed(0, is_known)
        return self._sums[key]

    def _running(
        self, key: str | tuple[str, str | int], center: float, values: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """Running sums of the values of all events, made once."""
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = self._summed(center, values())
        return found

    def _summed(self, center: float, values: np.ndarray) -> np.ndarray:
        out = np.empty(len(values))
        running_sums(self._events.indptr, values.astype(np.float64), center, out)
        return out


def _ratio(total: np.ndarray, num: np.ndarray) -> np.ndarray:
    return np.where(num > 0, total / np.maximum(num, 1), np.nan)


def _span_name(window: float, unit: str | None) -> str:
    return f"{window / DAY_US:g}d" if unit == TIME_UNIT else f"{window:g}"
