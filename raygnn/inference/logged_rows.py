"""The rows of an event log, decoded for a model and a graph, one segment after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raygnn.console import count, warn
from raygnn.data.added_rows import AddedRows, RowReader
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import edge_type_name
from raygnn.data.event_log import EventLog, Segment, added_rows
from raygnn.data.extended_bundle import Addition, ExtendedBundle, ExtendedIds
from raygnn.data.growth import GrowingIds, Growth, joined
from raygnn.data.id_map import IdMap
from raygnn.data.time_units import TIME, Time
from raygnn.errors import ConfigError, DataError
from raygnn.inference.new_rows import read_new
from raygnn.inference.open_graph import OpenGraph
from raygnn.inference.seed_times import SeedTimes, latest_of
from raygnn.outputs.saved_model import SavedModel

#: Errors of rows, also of values that Arrow or NumPy cannot convert.
_REFUSING = (DataError, ConfigError, ValueError, TypeError, OverflowError)

_MANY = ("too many rows of the request do not fit. Send the others again.", "events-many-refused")


@dataclass(frozen=True)
class RefusedRow:
    """A row that the graph does not take. `position`: among the rows that were checked."""

    position: int
    type: str
    reason: str
    id: str


@dataclass(frozen=True)
class Checked:
    """Rows that fit the graph, decoded; their positions, and the others."""

    addition: Addition
    accepted: Sequence[int]
    refused: Sequence[RefusedRow]


class LoggedRows:
    """Rows that were added to a graph. Rows that do not fit it are left out, one by one.

    Which rows fit depends on the segments alone, so that all readers of a log agree.

    Args:
        graph: the part of the graph that the model reads.
        times: of its seeds; None without times.
        position: the graph's tables contain the rows of the log until there.

    Attributes:
        position, sha256: see `EventLog`; the sha256 is empty before the first segment.
        num_late: rows earlier than the latest time before them.
        refused: the newest rows that were left out.
    """

    def __init__(
        self,
        saved: SavedModel,
        graph: Bundle,
        reader: RowReader,
        times: SeedTimes | None,
        position: int = 0,
    ) -> None:
        self._saved, self._graph, self._reader = saved, graph, reader
        self._growth = Growth(graph, reader.read(AddedRows({})))
        self._latest: Time | None = None if times is None else times.moment.time
        self.addition = self._growth.view()
        self.position, self.sha256 = position, ""
        self.num_late = self.num_refused = 0
        self.refused: Sequence[RefusedRow] = ()

    @classmethod
    def of(cls, graph: OpenGraph, position: int = 0) -> LoggedRows:
        return cls(graph.saved, graph.bundle, graph.row_reader, graph.times, position)

    def follow(self, log: EventLog, until: int | None = None) -> bool:
        """Adds the segments that were appended to a log; returns whether there were any.

        `until`: the position to stop at. Raises a DataError if no segment ends there.
        """
        before = self.position
        while until is None or self.position < until:
            segment = next(log.read(), None)
            if segment is None:
                break
            if segment.end > self.position:
                self.add(segment)
        if until is not None and self.position != until:
            raise DataError(
                f"position={until:,} is invalid: the log has {self.position:,} rows there or "
                "before. Take the position of an answer of this log. [events-position]"
            )
        return self.position > before

    def add(self, segment: Segment, checked: Checked | None = None) -> None:
        """Adds the rows of the next segment. `checked`: these rows, if they were checked."""
        assert segment.first == self.position
        found = self.check(segment.rows) if checked is None else checked
        self._count_late(found.addition)
        self._growth.append(found.addition)
        self.addition = self._growth.view()
        self.position, self.sha256 = segment.end, segment.sha256
        self.num_refused += len(found.refused)
        self.refused = found.refused or self.refused

    def check(self, rows: Sequence[tuple[str, str]], max_refused: int | None = None) -> Checked:
        """Decodes rows after those that were added, and finds the ones that do not fit.

        A row fits if its node or edge could be ingested with the rows before it. Nodes come before
        edges.

        Args:
            max_refused: after as many rows, all rows that are not decoded yet are refused, because
                each one takes some milliseconds to find.
        """
        bundle = ExtendedBundle(self._graph, self.addition)
        # Edges may join nodes of any row.
        order = sorted(range(len(rows)), key=lambda i: (self._reader.is_edge(rows[i][0]), i))

        def read(positions: Sequence[int], graph: Bundle) -> Addition:
            new = added_rows([rows[i] for i in positions])
            self._reader.check_directed(new.edges)
            return read_new(self._saved, self._reader.on(graph), new)

        try:
            return Checked(read(order, bundle), order, ())
        except _REFUSING:
            pass
        with_accepted = _WithIds(bundle)
        accepted: list[int] = []
        refused: list[RefusedRow] = []

        def extend(positions: Sequence[int]) -> None:
            if max_refused is not None and len(refused) >= max_refused:
                refused.extend(RefusedRow(i, rows[i][0], *_MANY) for i in positions)
                return
            try:
                part = read(positions, with_accepted)
            except _REFUSING as error:
                if len(positions) == 1:
                    (position,) = positions
                    id = getattr(error, "id", None) or "events-row"
                    refused.append(RefusedRow(position, rows[position][0], str(error), id))
                    return
                middle = len(positions) // 2
                extend(positions[:middle])
                extend(positions[middle:])
            else:
                with_accepted.add(part)
                parts.append(part)
                accepted.extend(positions)

        parts = [read((), bundle)]
        extend(order)
        refused.sort(key=lambda row: row.position)
        return Checked(joined(parts), accepted, refused)

    def warn_of_refused(self) -> None:
        """Prints how many rows were left out, and why the newest one was."""
        if self.num_refused:
            newest = self.refused[0]
            warn(
                f"{count(self.num_refused, 'row')} of the event log left out, such as of "
                f"{newest.type}: {newest.reason}"
            )

    def _count_late(self, addition: Addition) -> None:
        if self._latest is None:
            return
        for type_, arrays in addition.arrays.items():
            times = arrays.get(TIME)
            is_table = isinstance(type_, str) or self._reader.is_edge(edge_type_name(type_))
            if is_table and isinstance(times, np.ndarray):  # reverse types repeat the rows
                self.num_late += int(np.count_nonzero(times < self._latest))
        self._latest = latest_of(addition, TIME, self._latest)

    @property
    def picklable(self) -> Addition:
        """The added rows without the indexes that later rows share."""
        return replace(self.addition, numbers={}, chains={})


class _WithIds(ExtendedBundle):
    """A graph whose ids grow. Nothing else of it is read."""

    def __init__(self, bundle: ExtendedBundle) -> None:
        super().__init__(bundle.graph, bundle.addition)
        self._of_graph = bundle
        self._added = {name: GrowingIds(ids[:0]) for name, ids in bundle.addition.ids.items()}

    def add(self, addition: Addition) -> None:
        for name, ids in addition.ids.items():
            self._added[name].append(ids)

    def id_map(self, node_type: str) -> IdMap:
        added = self._added[node_type]
        return ExtendedIds(self._of_graph.id_map(node_type), added.ids, added.numbers)
