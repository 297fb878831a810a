"""TensorBoard event files: reading them, and taking out what a resumed run will write again."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from raygnn.data.filesystem import open_fs, write_bytes

PREFIX = "events.out.tfevents"

# Of a record: its length, the checksum of that, the event, the checksum of the event.
_HEADER, _FOOTER_BYTES = struct.Struct("<QI"), 4
# What is written once, after training: a run that gets there again writes it again.
_WRITTEN_AT_THE_END = ("test/", "_hparams_/")


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
        events = list(read_events(fs.cat_file(path)))
        kept = [record for event, record in events if not _is_late(event, step)]
        if len(kept) < len(events):
            write_bytes(f"{logs_uri.rstrip('/')}/{name}", b"".join(kept))
            dropped += len(events) - len(kept)
    return dropped


def _is_late(event: Any, step: int) -> bool:
    if not event.HasField("summary"):
        return False
    at_the_end = any(value.tag.startswith(_WRITTEN_AT_THE_END) for value in event.summary.value)
    return event.step >= step or at_the_end
