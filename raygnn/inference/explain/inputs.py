"""Columns that predictions depend on: their names, tables, values and phrases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raygnn.data.edge_types import EdgeType
from raygnn.data.extended_bundle import ExtendedBundle
from raygnn.data.history import table_of_edges
from raygnn.data.history_spec import HistoryColumn
from raygnn.data.manifest import DenseFeature, Manifest
from raygnn.data.past_labels import PAST
from raygnn.data.raw_columns import RawColumn, raw_columns_of
from raygnn.data.time_units import TIME, TIME_UNIT
from raygnn.data.transforms.fitted import FittedColumn, FittedFeature
from raygnn.inference.applied_model import AppliedModel
from raygnn.loops.tasks.node_classification.task import NodeClassification
from raygnn.models.feature_layers import embedding_channels
from raygnn.models.relative_time import TimeColumn
from raygnn.models.sparse_input import dense
from raygnn.sampling.batch import Batch

_DAY_US = 86_400_000_000
_PHRASE = "{what} of {subject} is {value}{within}"
_PHRASES = {
    "last": "the latest {subject} is {value}",
    "mean": "mean {subject} is {value}{within}",
    "sum": "{subject} sums to {value}{within}",
    "times": "{subject} at {value} times{within}",
    "since first": "the first of {subject} {value} ago",
    "since the one before": "{subject} before the latest {value} ago",
    "gap mean": "{subject} every {value}",
}
_BETWEEN = " to "  # ends of a span that is a lag
_YEAR_US, _MINUTE_US = 365.25 * _DAY_US, 60_000_000
_UNITS = ((_DAY_US, "days"), (_DAY_US / 24, "hours"))


@dataclass(frozen=True)
class Element:
    """The column that an element of an input row comes from.

    Attributes:
        node_type: of the row.
        described: the column; `what` is `recent` for columns of a node's edges.
        element: its position in a list column.
    """

    node_type: str
    described: HistoryColumn
    element: int | None = None

    @property
    def column(self) -> str:
        return short_name(self.described)


def short_name(column: HistoryColumn) -> str:
    """The name without the table."""
    alone = replace(column, of="").name
    for separator in (".", " "):
        alone = alone.removeprefix(f"{column.table}{separator}")
    return f"{alone} ({column.of})" if column.of else alone


class InputNames:
    """Names the elements of the encoder's input rows.

    Without the manifest of a graph's tables, columns are named by the feature.
    """

    def __init__(self, applied: AppliedModel, manifest: Manifest | None) -> None:
        self._applied, self._manifest = applied, manifest
        self._bundle, self._spec = applied.bundle, applied.spec

    @property
    def _task(self) -> NodeClassification:
        assert isinstance(self._applied.task, NodeClassification)
        return self._applied.task

    def elements(self) -> dict[str, list[Element]]:
        """By node type, in the order of `MaskedModel.elements`."""
        names = {name: list(self._features(name)) for name in self._spec.widths}
        times = self._applied.encoder.relative_time
        if times is None:
            return names
        for name in times.node_types:
            rows = {each: list(found) for each, found in names.items()}
            appended = [self._of_time(name, each, rows) for each in times.describe(name)]
            names[name] = [*names.get(name, []), *appended]
        return names

    def _features(self, name: str) -> Iterator[Element]:
        spec, manifest = self._spec, self._manifest
        fitted = spec.transforms.get(name, {}).get(spec.feature)
        if fitted is not None:
            yield from self._of_transforms(name, fitted)
            return
        width = spec.widths[name]
        declared = (
            None if manifest is None else manifest.node_types[name].features.get(spec.feature)
        )
        names = declared.column_names if isinstance(declared, DenseFeature) else (spec.feature,)
        if len(names) == width:
            yield from (self._own(name, column) for column in names)
        else:
            shown = names[0] if len(names) == 1 else spec.feature
            yield from (self._own(name, shown, i) for i in range(width))

    def _own(self, name: str, column: str, element: int | None = None) -> Element:
        raw = self._raw(name).get(column)
        names, is_age = ((), False) if raw is None else (raw.names, raw.kind == "date")
        described = HistoryColumn(f"{name}.{column}", name, names=names, is_age=is_age)
        return Element(name, described, element)

    def _raw(self, name: str, node: int | None = None) -> dict[str, RawColumn]:
        """Columns of a node in the units of the tables, or of none; not of a partitioned graph."""
        bundle, feature = self._bundle, self._spec.feature
        info = bundle.columns(name).get(feature)
        if bundle.is_of_parts or info is None or info.sparse:
            return {}
        if isinstance(bundle, ExtendedBundle):
            num_known = bundle.graph.num_nodes(name)
            is_new = node is not None and node >= num_known
            stored = (bundle.addition if is_new else bundle.graph).column(name, feature)
            node = node - num_known if node is not None and is_new else node
        else:
            stored = bundle.column(name, feature)
        assert isinstance(stored, np.ndarray)
        rows = stored[[] if node is None else [node]]
        return {column.name: column for column in raw_columns_of(info, rows)}

    def _of_transforms(self, name: str, fitted: FittedFeature) -> list[Element]:
        numbers, embedded = [], []
        codes: Mapping[int, int] = fitted.num_codes
        for position, (column, i) in enumerate(_columns_of(fitted)):
            element = self._own(name, column, i)
            if position in codes:
                embedded += [element] * embedding_channels(codes[position])
            else:
                numbers.append(element)
        return numbers + embedded

    def _of_time(
        self, name: str, column: TimeColumn, rows: Mapping[str, Sequence[Element]]
    ) -> Element:
        output = self._spec.output
        if column.edge_type is not None:
            return Element(name, *self._of_edges(column, column.edge_type, rows))
        match column.what:
            case "age":
                return Element(name, self.age(name))
            case "date":
                return Element(name, rows[name][column.position].described)
            case "season":
                return Element(name, HistoryColumn("day of year", getattr(output, "table", name)))
            case _:
                return Element(name, self._task.past_columns[column.position])

    def age(self, name: str) -> HistoryColumn:
        """The time of a node type's rows."""
        declared = None if self._manifest is None else self._manifest.node_types[name].time
        shown = "time" if declared is None else declared.column
        return HistoryColumn(f"{name}.{shown}", name, is_age=True)

    def _of_edges(
        self, column: TimeColumn, edge_type: EdgeType, rows: Mapping[str, Sequence[Element]]
    ) -> tuple[HistoryColumn, int | None]:
        table = self.table(edge_type)
        if column.what == "event row":
            of_event = rows[edge_type[0]][column.position]
            name = short_name(of_event.described)
            return HistoryColumn(f"{table}.{name}", table, "recent"), of_event.element
        if column.what == "edge feature":
            name, element = self._edge_column(edge_type, column.feature or "", column.position)
            return HistoryColumn(f"{table}.{name}", table, "recent"), element
        if column.what == "count":
            return HistoryColumn(table, table, "count", "all"), None
        return HistoryColumn(table, table, "since last", is_age=True), None

    def table(self, edge_type: EdgeType) -> str:
        """The table of the edges of a message type."""
        return table_of_edges(self._bundle, edge_type)

    def _edge_column(
        self, edge_type: EdgeType, feature: str, position: int
    ) -> tuple[str, int | None]:
        """The table column of an element of an edge feature."""
        columns = self._bundle.columns(edge_type) if edge_type in self._bundle.edge_types else {}
        info = columns.get(feature)
        if info is not None and info.transforms is not None:
            return list(_columns_of(info.transforms))[position]
        relation = self.table(edge_type)
        for table in () if self._manifest is None else self._manifest.edge_types:
            declared = table.features.get(feature) if table.type[1] == relation else None
            if isinstance(declared, DenseFeature) and len(declared.column_names) > position:
                return declared.column_names[position], None
        return feature, position

    def values(self, batch: Batch, name: str, end: int) -> dict[str, float]:
        """Numbers of a node of a batch, by name of the column, in the units of the tables.

        Args:
            end: local id of the node.
        """
        nodes, found = batch.nodes[name], {}
        moment = math.nan if nodes.seed_time is None else nodes.seed_time[end].item()
        for column, raw in self._raw(name, int(nodes.n_id[end])).items():
            value = float(raw.values[0])
            found[f"{name}.{column}"] = moment - value if raw.kind == "date" else value
        if nodes.seed_time is None:
            return found
        if TIME in nodes.columns:
            found[self.age(name).name] = moment - dense(nodes.columns[TIME])[end].item()
        for edge_type, edges in batch.edges.items():
            if edge_type[2] != name or end >= len(edges.dst_degree):
                continue
            table = self.table(edge_type)
            found[f"{table} count all"] = float(edges.dst_degree[end])
            positions = (edges.edge_index[1] == end).nonzero().flatten()
            source = batch.nodes[edge_type[0]].columns
            if TIME in edges.columns:
                times = edges.columns[TIME][positions]
            elif TIME in source:
                times = dense(source[TIME])[edges.edge_index[0][positions]]
            else:
                continue
            ages = moment - times.double()
            if len(ages):
                found[f"{table} since last"] = float(ages.min())
            if len(ages) > 1:
                found[f"{table} gap mean"] = float(ages.max() - ages.min()) / (len(ages) - 1)
        if PAST in nodes.columns:
            rows = dense(nodes.columns[PAST])[[end]].cpu().numpy()
            past = self._task.past_in_units(rows)
            names = [each.name for each in self._task.past_columns]
            found |= dict(zip(names, past[0].tolist(), strict=True))
        return found

    def is_date(self) -> bool:
        times = self._applied.times
        return times is not None and times.moment.unit == TIME_UNIT


def _columns_of(fitted: FittedFeature) -> Iterator[tuple[str, int | None]]:
    for part in fitted.parts:
        is_list = not isinstance(part, FittedColumn) and part.width > 1
        for i in range(part.width):
            yield part.column, (i if is_list else None)


@dataclass(frozen=True)
class Words:
    """Writes values of columns in words.

    Attributes:
        values: numbers of a row, by name of the column.
        is_date: times are microseconds; else plain numbers.
    """

    values: Mapping[str, float]
    is_date: bool

    def value(self, column: HistoryColumn) -> str | None:
        """The value of a column; None if unknown."""
        value = self.values.get(column.name, math.nan)
        if math.isnan(value):
            return None
        if column.names:
            return column.names[int(value)] if 0 <= value < len(column.names) else None
        return self.duration(value) if column.is_age else _number(value)

    def duration(self, value: float) -> str:
        if not self.is_date:
            return _number(value)
        if abs(value) >= 2 * _YEAR_US:
            return f"{value / _YEAR_US:.1f} years"
        for size, unit in _UNITS:
            if abs(value) >= size:
                return _counted(value / size, unit)
        return _counted(value / _MINUTE_US, "minutes")

    def phrase(self, column: HistoryColumn) -> str:
        """A column and its value, such as "no orders for 41 days (usually every 6 days)"."""
        shown, subject = self.value(column), column.subject
        within = self._within(column.span)
        match column.what:
            case "count":
                text = self._count(column, shown, within)
            case "since last":
                text = self._since_last(column, shown)
            case "recent" | "":
                text = f"{column.what} {subject}".strip()
                if shown is not None:
                    text += f" {shown} ago" if column.is_age else f" is {shown}"
            case _:
                words, value = _PHRASES.get(column.what, _PHRASE), shown or "unknown"
                if column.name not in self.values:
                    words = "{what} {subject}"
                elif shown is None and column.what == "since the one before":
                    words = "no {subject} before the latest"
                text = words.format(what=column.what, subject=subject, value=value, within=within)
        return f"{text} ({column.of})" if column.of else text

    def _within(self, span: str) -> str:
        if span in ("", "all"):
            return ""
        if _BETWEEN in span:
            older, younger = span.replace("d", "").split(_BETWEEN)
            return f" from {older} to {younger} days before"
        days = span.removesuffix("d") if self.is_date else span
        return f" in the last {days} days" if self.is_date else f" in the last {days}"

    def _count(self, column: HistoryColumn, shown: str | None, within: str) -> str:
        number = "no" if shown in (None, "0") else shown
        usual, subject = None, column.subject
        whole, first = (
            self.values.get(replace(column, what=what, span=span).name, math.nan)
            for what, span in (("count", "all"), ("since first", ""))
        )
        window = self._span(column.span)
        if window is not None and first > window:
            usual = whole * window / first
        if shown == "1" and not subject.endswith("ss"):
            subject = subject.removesuffix("s")
        text = f"{number} {subject}{within or ' so far'}"
        return text if usual is None else f"{text} (usually {usual:.2g})"

    def _span(self, span: str) -> float | None:
        if span in ("", "all") or _BETWEEN in span:
            return None
        return float(span.removesuffix("d")) * (_DAY_US if self.is_date else 1)

    def _since_last(self, column: HistoryColumn, shown: str | None) -> str:
        subject = column.subject
        if shown is None:
            return f"no {subject} so far"
        gap = self.values.get(replace(column, what="gap mean").name, math.nan)
        text = f"no {subject} for {shown}"
        return text if math.isnan(gap) else f"{text} (usually every {self.duration(gap)})"


def _counted(value: float, unit: str) -> str:
    number = f"{value:.0f}"
    return f"{number} {unit.removesuffix('s') if number == '1' else unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.3g}"
