"""Records of history columns: what they mean, and the constants that training rows give them."""

from __future__ import annotations

from dataclasses import dataclass

from raygnn.data.edge_types import EdgeType


@dataclass(frozen=True)
class Attribute:
    """A column of events.

    Attributes:
        name: readable, with the table.
        holder: edge types from the event's source to the node with the column: none or one.
        owner: node or edge type with the column.
        feature: name of the feature.
        column: name of the column in the feature.
        center: constant that sums are of differences from: the mean until the end of training.
        codes: the most frequent categories. Empty for numbers.
        ids: of all nodes of `owner` in training, if the column is the node itself; else empty.
        is_summed: sums mean something: the column is a number of the event itself.
    """

    name: str
    holder: tuple[EdgeType, ...]
    owner: str | EdgeType
    feature: str
    column: str
    kind: str
    is_summed: bool
    center: float = 0.0
    codes: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class HistoryColumn:
    """Meaning of a column of a node at a time.

    Attributes:
        subject: readable: a table, or a column with its table.
        table: table of the rows that it is computed from.
        what: what is computed of the subject, such as `count` or `since last`; empty for the value
            itself.
        span: age up to which rows count; empty without one.
        of: other end that the column belongs to; empty for the node itself.
        names: of categories, whose codes are the values.
        is_category: trees read the codes as categories.
        is_age: the value is a time back from the row's.
    """

    subject: str
    table: str
    what: str = ""
    span: str = ""
    of: str = ""
    names: tuple[str, ...] = ()
    is_category: bool = False
    is_age: bool = False

    @property
    def is_own(self) -> bool:
        """Whether it is a column of the table's row itself, not computed from events."""
        return not self.what and self.subject.startswith(f"{self.table}.")

    @property
    def name(self) -> str:
        """Readable, with the table: `orders.amount sum 30d`."""
        words = " ".join(filter(None, (self.subject, self.what, self.span)))
        return f"{self.of}: {words}" if self.of else words


@dataclass(frozen=True)
class EventSpec:
    """Events of the nodes, and their columns.

    Attributes:
        name: readable.
        path: edge types from the events to the nodes, one or two.
        attributes: columns of the events.
        gap: median time between the events of a node until the end of training.
        windows: ages up to which events count, ascending. Shorter than the gap, a window would say
            what the age of the latest event says.
        lags: the windows of a forecast a week, a month and a year before, as ages of their ends.
    """

    name: str
    path: tuple[EdgeType, ...]
    attributes: tuple[Attribute, ...]
    gap: float
    windows: tuple[float, ...]
    lags: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class OtherSpec:
    """The other end of each node's latest event, or of the node itself.

    Attributes:
        name: readable.
        events: position in `HistorySpec.events`; null for the node itself.
        edge_type: from the event or node to the other end; null for the source of the event.
        history: columns of the other end.
    """

    name: str
    events: int | None
    edge_type: EdgeType | None
    history: HistorySpec


@dataclass(frozen=True)
class HistorySpec:
    """Columns of a node type, fitted on training rows; JSON by `dataclasses.asdict`.

    Attributes:
        unit: of the times, as in `SeedRows.time_unit`.
        max_age: age from which on events are not known; null without one.
        is_brief: counts, the age of the latest event and means only.
        own: the node's own features are columns.
        left_out: names of columns that are constant, a copy of another, or a clock.
        age: the time since the node's own time is a column.
        ids: of all nodes of the type in training, if the node itself is a column; else empty.
        labels: earlier labels of the training rows whose entity refers to the node are columns.
    """

    node_type: str
    feature: str
    unit: str | None
    max_age: float | None
    is_brief: bool
    own: bool
    events: tuple[EventSpec, ...]
    others: tuple[OtherSpec, ...] = ()
    left_out: tuple[str, ...] = ()
    age: bool = False
    ids: tuple[str, ...] = ()
    labels: bool = False

    @property
    def reads_labels(self) -> bool:
        """Whether a column of another end is computed from labels."""
        return any(other.history.labels for other in self.others)
