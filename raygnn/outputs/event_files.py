"""TensorBoard event files: writing them, reading them, and taking out what will come again."""

from __future__ import annotations

import os
import secrets
import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any

from raygnn.data.filesystem import join, open_fs, read_bytes, write_bytes

PREFIX = "events.out.tfevents"

# Of a record: its length, the checksum of that, the event, the checksum of the event.
_HEADER, _FOOTER_BYTES = struct.Struct("<QI"), 4
# What is written once, after training: a run that gets there again writes it again.
_WRITTEN_AT_THE_END = ("test/", "_hparams_/")


class EventWriter:
    """An event file that is written in the caller's thread.

    tensorboardX hands events to a thread: a flush does not wait for it, and when that thread fails,
    as on a full disk, the next event waits forever.

    Args:
        folder: local, and there.
        purge_step: what a TensorBoard that shows this folder shall forget from; None is nothing.
    """

    def __init__(self, folder: str, purge_step: int | None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._event_of = Event
        # Names are by second: two starts may meet.
        suffix = f".{secrets.token_hex(3)}"
        self._file = EventsWriter(os.path.join(folder, "events"), suffix)
        if purge_step is not None:
            self._file.write_event(Event(step=purge_step, file_version="brain.Event:2"))
            start = SessionLog(status=SessionLog.START)
            self._file.write_event(Event(step=purge_step, session_log=start))

    def add_scalars(self, values: dict[str, float], step: int) -> None:
        """Adds a point to each named curve, under just that name, as hyperparameters have it.

        tensorboardX's own `scalar` replaces an `@` and says so each time.
        """
        from tensorboardX.proto.summary_pb2 import Summary

        for name, value in values.items():
            point = Summary.Value(tag=name, simple_value=float(value))
            self.add_summaries([Summary(value=[point])], step)

    def add_summaries(self, summaries: Iterable[Any], step: int = 0) -> None:
        for summary in summaries:
            event = self._event_of(wall_time=time.time(), step=step, summary=summary)
            self._file.write_event(event)

    def flush(self) -> None:
        """Makes what was added visible to readers."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_events(content: bytes) -> Iterator[tuple[Any, bytes]]:
    """The events of a file, each with its whole record.

    Ends at a record that is cut off or damaged: a killed process leaves such a last one.
    """
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event

    start = 0
    while start + _HEADER.size <= len(content):
        length, _ = _HEADER.unpack_from(content, start)
        begin = start + _HEADER.size
        stop = begin + length + _FOOTER_BYTES
        if stop > len(content):
            return
        event = Event()
        try:
            event.ParseFromString(content[begin : stop - _FOOTER_BYTES])
        except DecodeError:
            return
        yield event, content[start:stop]
        start = stop


def drop_events_from(logs_uri: str, step: int) -> int:
    """Takes events of `step` and later out of the event files in a folder.

    Returns:
        How many there were.
    """
    fs, root = open_fs(logs_uri)
    fs.invalidate_cache()
    if not fs.isdir(root):
        return 0
    dropped = 0
    for path in fs.ls(root, detail=False):
        name = path.rsplit("/", 1)[-1]
        if not name.startswith(PREFIX):
            continue
        events = list(read_events(read_bytes(join(logs_uri, name))))
        kept = [record for event, record in events if not _is_late(event, step)]
        if len(kept) < len(events):
            write_bytes(join(logs_uri, name), b"".join(kept))
            dropped += len(events) - len(kept)
    return dropped


def _is_late(event: Any, step: int) -> bool:
    if not event.HasField("summary"):
        return False
    at_the_end = any(value.tag.startswith(_WRITTEN_AT_THE_END) for value in event.summary.value)
    return event.step >= step or at_the_end
