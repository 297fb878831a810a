"""Posted rows on their way to an event log: checked against the graph, and appended in groups."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from pydantic_core import from_json

from raygnn.data.event_log import Entry, EventLog, first_segment
from raygnn.errors import DataError, RaygnnError, ResourceError
from raygnn.inference.logged_rows import Checked, LoggedRows, RefusedRow
from raygnn.serving.answers import shortened
from raygnn.serving.messages import Appended, Events, RefusedEvent

# A segment costs each replica some milliseconds, so rows wait for others.
_SECONDS_PER_SEGMENT = 0.1
_LOOK_EVERY_S = 0.5
_SECONDS_PER_WARNING = 60.0
_MAX_WAITING = 10_000
_MAX_REFUSED = 20  # rows of a request that are found one by one
_MAX_SHOWN = 50  # letters of a name of the client

_Posted = tuple[Entry, "Future[Appended]"]


class EventIntake:
    """Appends rows to the log that replicas follow, in a thread.

    Rows that do not fit the graph and the rows before them are refused, one by one.

    Args:
        rows: those of the log. No one else may change it.
    """

    def __init__(self, rows: LoggedRows, log: EventLog) -> None:
        self._rows, self._log = rows, log
        self._changing = threading.Lock()
        self._waiting: queue.Queue[_Posted] = queue.Queue(_MAX_WAITING)
        self._stops = threading.Event()
        self._warns_after_s = 0.0
        self._follow()
        self._thread = threading.Thread(target=self._run, name="raygnn-events", daemon=True)
        self._thread.start()

    @property
    def rows(self) -> LoggedRows:
        """Rows of the log. Some may not fit the graph, if another program appended them."""
        return self._rows

    def post(self, events: Events) -> Future[Appended]:
        """Returns when the rows are durable.

        Raises a ResourceError if too many requests wait, or a DataError if a row cannot be stored;
        the future raises a ResourceError if the log cannot be written.
        """
        entry = Entry.of(events.nodes, events.edges, events.key)
        future: Future[Appended] = Future()
        try:
            self._waiting.put_nowait((entry, future))
        except queue.Full:
            raise ResourceError(
                "the server is overloaded. Send the events again later. [serve-overloaded]"
            ) from None
        return future

    def replace(self, rows: LoggedRows, log: EventLog) -> None:
        """Checks rows by another model or graph from now on. Arguments: see the class."""
        rows.follow(log)
        with self._changing:
            self._rows, self._log = rows, log

    def stop(self) -> None:
        """Returns when the rows that wait are appended."""
        self._stops.set()
        self._thread.join()

    def _run(self) -> None:
        while not (self._stops.is_set() and self._waiting.empty()):
            began = time.monotonic()
            try:
                group = [self._waiting.get(timeout=_LOOK_EVERY_S)]
            except queue.Empty:
                group = []
            while group and len(group) < _MAX_WAITING and not self._waiting.empty():
                group.append(self._waiting.get_nowait())
            try:
                with self._changing:
                    self._append(group)
            except Exception as error:
                logging.getLogger(__name__).exception("Events could not be appended.")
                for _, future in group:
                    if not future.done():
                        future.set_exception(_reported(error))
            rest_s = began + _SECONDS_PER_SEGMENT - time.monotonic()
            self._stops.wait(max(rest_s, 0.0))

    def _follow(self) -> None:
        """Reads what other programs have appended. At most every minute, a warning names rows
        that do not fit.
        """
        before = self._rows.num_refused
        self._rows.follow(self._log)
        if self._rows.num_refused > before and time.monotonic() > self._warns_after_s:
            self._rows.warn_of_refused()
            self._warns_after_s = time.monotonic() + _SECONDS_PER_WARNING

    def _checked(self, entries: Sequence[Entry]) -> Checked:
        return self._rows.check([r for entry in entries for r in entry.rows], _MAX_REFUSED)

    def _append(self, group: Sequence[_Posted]) -> None:
        refused: dict[str, Sequence[RefusedRow]] = {}
        entries: dict[str, Entry] = {}
        for entry, _ in group:
            entries.setdefault(entry.key, entry)
        while True:
            self._follow()
            new = (e for e in entries.values() if self._log.position_of(e.key) is None)
            chosen = first_segment(new)
            checked = self._checked(chosen)
            if checked.refused and len(chosen) > 1:  # no client refuses rows of another one
                chosen = chosen[:1]
                checked = self._checked(chosen)
            kept, bad = _of_entries(chosen, checked)
            refused |= bad
            if not chosen:
                break
            for key in bad.keys() - {entry.key for entry in kept}:
                del entries[key]  # no row of it is left
            if kept:
                segment = self._log.write(kept)
                if segment is not None:
                    self._rows.add(segment, replace(checked, refused=()))
        for entry, future in group:
            future.set_result(
                Appended(
                    position=self._log.position_of(entry.key) or self._rows.position,
                    accepted=self._log.num_rows_of(entry.key),
                    refused=[_described(entry, row) for row in refused.get(entry.key, ())],
                )
            )


def _of_entries(
    entries: Sequence[Entry], checked: Checked
) -> tuple[list[Entry], dict[str, list[RefusedRow]]]:
    """Entries with their accepted rows, and the refused rows by key, by position in the entry."""
    bad = {row.position: row for row in checked.refused}
    kept: list[Entry] = []
    refused: dict[str, list[RefusedRow]] = {}
    first = 0
    for entry in entries:
        positions = range(first, first + len(entry.rows))
        first += len(entry.rows)
        good = tuple(row for i, row in zip(positions, entry.rows, strict=True) if i not in bad)
        if good:
            kept.append(Entry(good, entry.key))
        if len(good) < len(entry.rows):
            of_entry = [bad[i] for i in positions if i in bad]
            refused[entry.key] = [
                replace(row, position=row.position - positions[0]) for row in of_entry
            ]
    return kept, refused


def _described(entry: Entry, row: RefusedRow) -> RefusedEvent:
    number = sum(name == row.type for name, _ in entry.rows[: row.position])
    reason = shortened(row.reason, [row.type, from_json(entry.rows[row.position][1])])
    return RefusedEvent(type=row.type[:_MAX_SHOWN], row=number, reason=reason, id=row.id)


def _reported(error: Exception) -> Exception:
    if isinstance(error, DataError):  # of the log, not of a request
        return ResourceError(str(error), id=error.id)
    if isinstance(error, RaygnnError):
        return error
    return ResourceError(
        f"the events were not appended ({type(error).__name__}). Send them again with their key. "
        "The log of the server has the reason. [serve-events-failed]"
    )
