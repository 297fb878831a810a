"""TensorBoard's event files as TensorBoard shows them: what a later start purges is not there."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError
from tensorboardX.proto.event_pb2 import Event, SessionLog

from raygnn.data.filesystem import open_fs

# Of a record: its length, the checksum of that, the event, the checksum of the event.
_HEADER, _FOOTER_BYTES = struct.Struct("<QI"), 4


def read_events(content: bytes) -> Iterator[Any]:
    """The events of a file, up to a record that is cut off or damaged."""
    start = 0
    while start + _HEADER.size <= len(content):
        length, _ = _HEADER.unpack_from(content, start)
        begin = start + _HEADER.size
        start = begin + length + _FOOTER_BYTES
        event = Event()
        try:
            event.ParseFromString(content[begin : begin + length])
        except DecodeError:
            return
        if start <= len(content):
            yield event


def shown_scalars(logs_uri: str) -> dict[tuple[str, int], float]:
    """Every scalar by name and step.

    A step is logged once by each start. What is written after training has the value that it had
    before, where a run that was killed there is tested again.
    """
    fs, root = open_fs(logs_uri)
    shown: dict[tuple[str, int], float] = {}
    for path in sorted(fs.glob(f"{root}/events.out.tfevents.*")):
        for event in read_events(fs.cat_file(path)):
            if event.session_log.status == SessionLog.START:
                shown = {key: value for key, value in shown.items() if key[1] < event.step}
            for value in event.summary.value:
                key = value.tag, event.step
                assert key not in shown or key[0].startswith(("test/", "_hparams_/")), key
                shown[key] = value.simple_value
    return shown
