"""Chooses history columns by training rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raygnn.data.arrays import thinned
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import REVERSE_PREFIX, EdgeType
from raygnn.data.events import Events, fits, gaps
from raygnn.data.history import DAY_US, MAX_CODES, EventArrays, History, ids_as_texts
from raygnn.data.history_spec import Attribute, EventSpec, HistoryColumn, HistorySpec, OtherSpec
from raygnn.data.past_labels import TableLabels
from raygnn.data.raw_columns import RawColumn
from raygnn.data.time_units import TIME, TIME_UNIT, is_clock, time_unit

_DAYS = (7, 14, 30, 90, 180, 365, 1095)
_SHARES = (1 / 64, 1 / 16, 1 / 4)  # of the span of plain numbers
_LAGS = (7, 28, 364)  # days before a forecast, whole weeks each
_MAX_LAGS = 32  # windows of a forecast that have lags
MAX_NUMBERS = 16  # columns of an edge type's events with numbers
_MAX_CATEGORIES, _NUM_CODES = 8, 3
_ROWS_PER_NODE = 200  # training rows, from which on the node itself is a category
_MAX_FITTED = 1 << 15  # rows on which columns are compared
_ALL = 0.95
_LATE = 0.15  # share of rows that are the latest


def fit_history(
    bundle: Bundle,
    node_type: str,
    feature: str,
    nodes: np.ndarray,
    times: np.ndarray | None,
    window: float | None = None,
    max_age: float | None = None,
    edge_features: Sequence[str] = (),
    num_windows: int = 1,
    labels: TableLabels | None = None,
) -> HistorySpec:
    """Chooses columns by training rows.

    Args:
        feature: name of the features of nodes.
        nodes: int64 [num_rows], nodes of the training rows.
        times: [num_rows], or null.
        window: the time that a label covers, as `SeedRows.window`, in the unit of the times.
        max_age: age from which on events are not known.
        edge_features: names of features of edges, without the label.
        num_windows: windows of a forecast that `window` covers, of the same length.
        labels: of training rows, for columns of the nodes that the entity refers to.
    """
    arrays, num_rows, has_labels = EventArrays(bundle), len(nodes), labels is not None
    more = (times, window, max_age, num_windows, num_rows, has_labels)
    fitting = _Fitting(arrays, feature, edge_features, *more)
    spec = fitting.history(node_type)
    sample = None if times is None else thinned(times, _MAX_FITTED)
    history = History(bundle, spec, arrays, labels=labels)
    columns = history.columns(thinned(nodes, _MAX_FITTED), sample)
    left_out = _left_out(history.described, columns, sample)
    return replace(spec, left_out=tuple(left_out))


def _left_out(
    described: Sequence[HistoryColumn], columns: np.ndarray, times: np.ndarray | None
) -> Iterator[str]:
    seen = set()
    for column, values in zip(described, columns.T, strict=True):
        known = ~np.isnan(values)
        content = column.is_category, values.tobytes()
        follows_time = times is not None and (
            is_clock(values[known], times[known])
            or (_only_grows(column) and outgrows(values, times))
        )
        if follows_time or content in seen or _is_constant(values, known):
            yield column.name
        seen.add(content)


def _only_grows(column: HistoryColumn) -> bool:
    """Whether the value of a node grows with time, as long as it exists."""
    is_age = column.what in ("", "age", "since first") and column.is_age
    return is_age or (column.what in ("count", "times") and column.span == "all")


def outgrows(values: np.ndarray, times: np.ndarray) -> bool:
    """Whether most of the latest rows lie beyond all earlier ones.

    So do ages and counts of nodes that began with the data, if others began later: a split between
    two such values is a split between times, and later rows would be predicted as the last ones.
    """
    is_late = times >= np.quantile(times, 1 - _LATE)
    earlier = values[~is_late & ~np.isnan(values)]
    if not len(earlier):
        return False
    late = values[is_late]
    return bool(np.mean((late < earlier.min()) | (late > earlier.max())) > 1 / 2)


def _is_constant(values: np.ndarray, known: np.ndarray) -> bool:
    chosen = values[known]
    return not len(chosen) or (bool(known.all()) and bool((chosen == chosen[0]).all()))


@dataclass(frozen=True)
class _Fitting:
    arrays: EventArrays
    feature: str
    edge_features: Sequence[str]
    times: np.ndarray | None
    window: float | None
    max_age: float | None
    num_windows: int
    num_rows: int
    has_labels: bool

    @property
    def bundle(self) -> Bundle:
        return self.arrays.bundle

    def history(
        self, node_type: str, *, is_brief: bool = False, is_own: bool = True
    ) -> HistorySpec:
        unit = None if self.times is None else time_unit(self.bundle, TIME)
        paths = list(self._paths(node_type))
        if is_brief:
            paths = [path for path in paths if self._has_time(path[0])]
        tables = [self.arrays.table_of(path[0]) for path in paths]
        events = []
        for path, table in zip(paths, tables, strict=True):
            by = " of ".join(relation for _, relation, _ in path)
            name = table if tables.count(table) == 1 else f"{table} by {by}"
            found = self.arrays.events(path)
            attributes = tuple(self._attributes(name, path, is_brief=is_brief))
            gap = self._usual_gap(found)
            windows, lags = self._windows(unit, found.times, gap)
            if is_brief:
                windows, lags = windows[len(windows) // 2 :][:1], ()
            events.append(EventSpec(name, path, attributes, gap, windows, lags))
        others = () if is_brief else tuple(self._others(node_type, events))
        return HistorySpec(
            *(node_type, self.feature, unit, self.max_age, is_brief),
            own=is_own,
            events=tuple(events),
            others=others,
            age=is_own and self.times is not None and TIME in self.bundle.columns(node_type),
        )

    def _paths(self, node_type: str) -> Iterator[tuple[EdgeType, ...]]:
        bundle = self.bundle
        for into in bundle.edge_types:
            if into[2] != node_type:
                continue
            yield (into,)
            for first in bundle.edge_types:
                is_back = first[0] == node_type or first == bundle.reverse_of(into)
                if first[2] != into[0] or is_back or not self._has_time(first):
                    continue
                reverse = bundle.reverse_of(first)
                is_attribute = reverse is not None and self._is_reference(reverse)
                if is_attribute or self._repeats(first, into):
                    continue
                if fits(bundle, (first, into)):
                    yield (first, into)

    def _repeats(self, first: EdgeType, into: EdgeType) -> bool:
        """Whether the events refer to the node themselves, too, as visits of a stay do to the
        patient of the stay.
        """
        one, two = (self.arrays.reference(each) for each in (first, into))
        if one is None or two is None:
            return False
        for edge_type in self.bundle.edge_types:
            if (edge_type[0], edge_type[2]) != (first[0], into[2]):
                continue
            if (direct := self.arrays.reference(edge_type)) is not None:
                known = (direct.targets >= 0) & (one.targets >= 0)
                same = two.targets[one.targets[known]] == direct.targets[known]
                if len(same) and np.mean(same) > _ALL:
                    return True
        return False

    def _has_time(self, edge_type: EdgeType) -> bool:
        return any(TIME in self.bundle.columns(t) for t in (edge_type, edge_type[0]))

    def _is_reference(self, edge_type: EdgeType) -> bool:
        """Whether each source leads to at most one node, which is not an event of the source."""
        is_back = edge_type[1].startswith(REVERSE_PREFIX)
        if is_back and any(TIME in self.bundle.columns(t) for t in (edge_type, edge_type[2])):
            return False
        return self.arrays.reference(edge_type) is not None

    def _references(self, node_type: str, besides: EdgeType | None) -> Iterator[EdgeType]:
        """Edge types that lead from each node of a type to at most one other node."""
        bundle = self.bundle
        for edge_type in bundle.edge_types:
            is_own = edge_type[0] == node_type and edge_type != besides
            if is_own and edge_type[2] != node_type and self._is_reference(edge_type):
                yield edge_type

    def _known(self, events: Events) -> np.ndarray:
        """Positions of events until the end of training."""
        if events.times is None or self.times is None or not len(self.times):
            return np.arange(len(events.sources))
        return np.flatnonzero(events.times <= self.times.max())

    def _usual_gap(self, events: Events) -> float:
        """The median, since a few long gaps, such as missed seasons, would raise the mean."""
        if events.times is None:
            return 0.0
        found = gaps(events.indptr, events.times)[self._known(events)]
        found = found[~np.isnan(found)]
        return float(np.median(found)) if len(found) else 0.0

    def _attributes(
        self, name: str, path: tuple[EdgeType, ...], *, is_brief: bool
    ) -> Iterator[Attribute]:
        first, events = path[0], self.arrays.events(path)
        known = self._known(events)
        holders: list[tuple[str, tuple[EdgeType, ...], str | EdgeType, str]] = []
        is_of_source = self.arrays.table_of(first) == first[0]
        holders.append((name if is_of_source else f"{name}.{first[0]}", (), first[0], self.feature))
        holders += [(name, (), first, each) for each in self.edge_features]
        for reference in self._references(first[0], besides=first) if not is_brief else ():
            end = reference[2]
            holders.append((f"{name}.{end}", (reference,), end, self.feature))
        numbers = categories = 0
        for holder, to, owner, feature in holders:
            for raw in self.arrays.columns(owner, feature).values():
                title = f"{holder}.{raw.name}"
                is_summed = raw.kind == "number" and not to and not is_brief
                attribute = Attribute(title, to, owner, feature, raw.name, raw.kind, is_summed)
                values = self.arrays.values(events, attribute, known)
                fitted = _fitted(attribute, raw, values, events.times, known)
                if fitted is None or (fitted.codes and is_brief):
                    continue
                is_category = bool(fitted.codes)
                numbers, categories = numbers + (not is_category), categories + is_category
                if categories <= _MAX_CATEGORIES and numbers <= MAX_NUMBERS:
                    yield fitted
        if events.times is None or self.times is None or is_brief:
            return
        for holder, to, owner, _ in holders[is_of_source:]:
            if isinstance(owner, str) and (ids := self._ids(owner)):
                node = Attribute(f"{holder}.id", to, owner, "", "id", "category", False, ids=ids)
                values = self.arrays.values(events, node, known)
                if column := _fitted(node, self.arrays.column(node), values, None, known):
                    yield column

    def _ids(self, node_type: str) -> tuple[str, ...]:
        """Ids of the nodes of a type if they are few, and the rows enough to learn each by itself;
        else none.
        """
        num_nodes = self.bundle.num_nodes(node_type)
        if num_nodes > MAX_CODES or self.num_rows < _ROWS_PER_NODE * num_nodes:
            return ()
        return tuple(ids_as_texts(self.bundle, node_type).to_pylist())

    def _others(self, node_type: str, events: Sequence[EventSpec]) -> Iterator[OtherSpec]:
        """The nodes that the node refers to and, of other types, those of its latest events."""
        ends: list[tuple[str, int | None, EdgeType | None, str]] = []
        references = list(self._references(node_type, None))
        types = [reference[2] for reference in references]
        for reference in references:
            name = reference[2] if types.count(reference[2]) == 1 else reference[1]
            ends.append((name, None, reference, reference[2]))
        for i, spec in enumerate(events):
            source = spec.path[0][0]
            if self.arrays.events(spec.path).times is None:
                continue
            ends.append((f"latest {spec.name}", i, None, source))
            for reference in self._references(source, besides=spec.path[0]):
                ends.append((f"{spec.name}.{reference[2]}", i, reference, reference[2]))
        seen = {node_type}
        for name, position, edge_type, other in ends:
            if position is not None and (
                other in seen or self._is_new(events[position], edge_type)
            ):
                continue
            seen.add(other)
            history = self.history(other, is_brief=True, is_own=position is None)
            if position is None:
                history = replace(history, ids=self._ids(other), labels=self.has_labels)
            if history.events or history.own:
                yield OtherSpec(name, position, edge_type, history)

    def _is_new(self, spec: EventSpec, reference: EdgeType | None) -> bool:
        """Whether other ends begin with the event, so that they have no history."""
        events = self.arrays.events(spec.path)
        other = spec.path[0][0] if reference is None else reference[2]
        if TIME not in self.bundle.columns(other) or events.times is None:
            return False
        ends = events.sources if reference is None else self.arrays.ends(reference, events.sources)
        begin = self.bundle.dense(other, TIME)[ends]
        return bool(np.mean(begin[ends >= 0] >= events.times[ends >= 0]) > 1 / 2)

    def _windows(
        self, unit: str | None, times: np.ndarray | None, gap: float
    ) -> tuple[tuple[float, ...], tuple[tuple[float, float], ...]]:
        """The windows and lags of events."""
        if self.times is None or times is None or not len(self.times) or not len(times):
            return (), ()
        span = float(self.times.max() - times.min())
        if self.max_age is not None:
            span = min(span, self.max_age)
        own = [] if self.window is None else [self.window, 2 * self.window]
        days = [float(num * DAY_US) for num in _DAYS]
        regular = days if unit == TIME_UNIT else [share * span for share in _SHARES]
        windows = {float(each) for each in (*regular, *own) if gap < each < span}
        lags = []
        if unit == TIME_UNIT and self.window is not None and self.num_windows > 1:
            length = self.window / self.num_windows
            for lag in (float(num * DAY_US) for num in _LAGS):
                num = min(self.num_windows, _MAX_LAGS, int(lag / length))
                if gap < length and lag < span:
                    lags += [(lag - i * length, lag - (i + 1) * length) for i in range(num)]
        return tuple(sorted(windows)), tuple(lags)


def _fitted(
    attribute: Attribute,
    raw: RawColumn,
    values: np.ndarray,
    times: np.ndarray | None,
    known: np.ndarray,
) -> Attribute | None:
    """With the constants of sums; None if the column has one value, or is a clock."""
    is_known = ~np.isnan(values)
    chosen = values[is_known]
    if not len(chosen) or chosen.min() == chosen.max():
        return None
    if raw.kind == "category":
        counts = np.bincount(chosen.astype(np.int64), minlength=len(raw.names))
        codes = np.argsort(-counts, kind="stable")[:_NUM_CODES]
        return replace(attribute, codes=tuple(codes[counts[codes] > 0].tolist()))
    step = -(-len(chosen) // _MAX_FITTED)
    if times is not None:
        moments = times[known][is_known]
        if is_clock(chosen[::step], moments[::step]):
            return None
    return replace(attribute, center=float(chosen.mean()))
