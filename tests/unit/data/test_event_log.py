"""An event log keeps each accepted entry once, whatever happens to its writers."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import raygnn.events
from raygnn.data import filesystem
from raygnn.data.event_log import Entry, EventLog, added_rows
from tests.errors import raises
from tests.folders import contents
from tests.wait_until import wait_until

BUYS = "user__buys__item"


def read(uri: str | Path) -> list[Entry]:
    return [entry for segment in EventLog(str(uri)).read() for entry in segment.entries]


def entry(number: int, key: str | None = None) -> Entry:
    return Entry.of({"user": [{"id": number}]}, {BUYS: [{"s": number, "t": 1.5}] * 2}, key)


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_rows_are_read_as_they_were_appended(store, tmp_path):
    uri = str(tmp_path / "log") if store == "disk" else f"memory://{tmp_path}/log"
    nodes = {"user": [{"id": "ü", "x": [0.1, 1e-300], "day": datetime(2024, 5, 1, 12), "n": None}]}
    edges = {BUYS: [{"s": 2**63 - 1, "t": np.float32(0.1), "b": True}]}
    assert raygnn.events.append(uri, nodes, edges) == 2
    assert raygnn.events.append(uri, {}, {BUYS: [{"s": 1}]}, key="k") == 3
    first, second = read(uri)
    rows = added_rows(first.rows)
    assert rows.nodes == {"user": [{**nodes["user"][0], "day": "2024-05-01T12:00:00"}]}
    assert rows.edges == {BUYS: [{"s": 2**63 - 1, "t": float(np.float32(0.1)), "b": True}]}
    assert second.key == "k"
    log = EventLog(uri)
    assert [(s.first, s.end) for s in log.read()] == [(0, 2), (2, 3)]
    assert list(log.read()) == []
    raygnn.events.append(uri, {"user": [{"id": 1}]})
    assert [s.first for s in log.read()] == [3]
    assert raygnn.events.verify(uri) == 4


def test_an_entry_of_a_key_is_appended_once(tmp_path):
    logs = [EventLog.create(str(tmp_path)) for _ in range(2)]
    a, b = entry(1, "a"), entry(2, "b")
    assert logs[0].append([a, a, b]) == [3, 3, 6]
    assert logs[1].append([b, entry(3), a]) == [6, 9, 3]
    assert [each.key for each in read(tmp_path)][:2] == ["a", "b"]
    assert raygnn.events.verify(str(tmp_path)) == 9
    assert logs[0].append([Entry.of(key="nothing")]) == [9]


def test_files_are_appended_once(tmp_path):
    log, table = str(tmp_path / "log"), tmp_path / "buys.csv"
    pd.DataFrame({"s": range(5), "t": range(5)}).to_csv(table, index=False)
    for _ in range(2):
        assert raygnn.events.main(["append", log, str(table), "--type", BUYS]) == 0
    assert raygnn.events.verify(log) == 5
    table.write_text("s,t\n007,1\n008,2\n")  # ids whose leading zeros count
    assert raygnn.events.append_file(str(tmp_path / "zeros"), str(table), BUYS) == 2
    (zeros,) = read(tmp_path / "zeros")
    assert zeros.rows == ((BUYS, '{"s":"007","t":1}'), (BUYS, '{"s":"008","t":2}'))
    lines = tmp_path / "more.jsonl"
    lines.write_text('{"nodes": {"user": [{"id": 9}]}, "key": "k"}\n{"edges": {}}\n')
    assert raygnn.events.append_file(log, str(lines)) == 6
    assert raygnn.events.main(["append", log, str(table)]) == 2  # without --type
    for text, id in (
        ("[]", "events-line"),
        ('{"nodes": [1]}', "events-shape"),
        ('{"nodes": {"user": [1]}}', "events-row"),
        ('{"nodes": {"user": [{"x": {"y": 1}}]}}', "serve-request"),
        ('{"key": 1}', "events-key"),
    ):
        lines.write_text(text)
        with raises(id, 1):
            raygnn.events.append_file(log, str(lines))


def test_messages_of_a_topic_are_appended_once(tmp_path, monkeypatch):
    """The code of the page, with a Ray Data that knows two messages."""
    page = (Path(__file__).parents[3] / "docs" / "events.md").read_text("utf-8")
    *_, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    rows = [{"partition": 0, "offset": i, "value": b'{"user": 1, "item": 2}'} for i in range(2)]
    dataset = SimpleNamespace(iter_rows=lambda: iter(rows))
    data = SimpleNamespace(read_kafka=lambda topics, *, bootstrap_servers: dataset)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(data=data))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        exec(code, {"raygnn": raygnn})
        assert raygnn.events.verify("log") == 2
    assert [each.key for each in read(tmp_path / "log")] == ["0-0", "0-1"]


def test_values_that_no_table_has_are_refused(tmp_path):
    for value in (float("nan"), b"x", {1}):
        with raises("events-row", "user"):
            raygnn.events.append(str(tmp_path), {"user": [{"id": value}]})
    for value in (2**70, "x" * 2000, {"a": 1}):
        with raises("serve-request"):
            raygnn.events.append(str(tmp_path), {"user": [{"id": value}]})
    assert read(tmp_path) == []


def test_two_writers_lose_nothing_and_repeat_nothing(tmp_path):
    """Eight logs in threads, of which two at a time send the same keys."""

    def write(number: int) -> None:
        log = EventLog.create(str(tmp_path))
        for i in range(10):
            log.append([entry(i, f"{number // 2}-{i}"), entry(i)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    keys = [each.key for each in read(tmp_path)]
    named = [key for key in keys if "-" in key]
    assert sorted(named) == sorted(f"{n}-{i}" for n in range(4) for i in range(10))
    assert len(keys) == len(set(keys)) == 40 + 80
    assert raygnn.events.verify(str(tmp_path)) == 3 * len(keys)


def _write_until_killed(folder: str, number: int, accepted: Any) -> None:
    log = EventLog.create(folder)
    for i in range(10**9):
        log.append([entry(i, f"{number}-{i}")])
        os.write(accepted, f"{number}-{i}\n".encode())


def test_a_killed_writer_loses_no_accepted_entry(tmp_path):
    reading, writing = os.pipe()
    for number in range(5):
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_write_until_killed, args=(str(tmp_path), number, writing))
        process.start()
        wait_until(lambda: len(list(tmp_path.glob("[0-9]*"))) > 4 * number)  # noqa: B023
        time.sleep(0.003 * number)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    os.close(writing)
    with os.fdopen(reading) as file:
        accepted = file.read().splitlines()
    keys = [each.key for each in read(tmp_path)]
    assert set(accepted) <= set(keys)
    assert len(keys) == len(set(keys))
    assert len(accepted) >= len(keys) - 5
    assert raygnn.events.verify(str(tmp_path)) == 3 * len(keys)


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_full_disk_changes_nothing(step, tmp_path, monkeypatch):
    log = EventLog.create(str(tmp_path))
    log.append([entry(1)])
    before, waiting = contents(tmp_path), [entry(2)]

    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(filesystem.os, step, fail)
        with pytest.raises(OSError, match="No space"):
            log.append(waiting)
        assert contents(tmp_path) == before
    log.append(waiting)
    assert len(read(tmp_path)) == 2


def test_damage_is_noticed(tmp_path):
    for i in range(3):
        raygnn.events.append(str(tmp_path), {"user": [{"id": i}]})
    segments = sorted(tmp_path.iterdir())
    middle = segments[1].read_bytes()
    rng = np.random.default_rng(0)
    damages = [middle[:-1], b"", middle + b"x", segments[0].read_bytes(), middle[:-64]]
    for position in rng.integers(0, len(middle), 30):
        damages.append(middle[:position] + bytes([middle[position] ^ 1]) + middle[position + 1 :])
    for damage in damages:
        segments[1].write_bytes(damage)
        log = EventLog(str(tmp_path))
        with raises("events-damaged", segments[1].name):
            list(log.read())
        assert log.position == 1
    segments[1].unlink()
    with raises("events-incomplete", 2, 1):
        raygnn.events.verify(str(tmp_path))


def test_another_history_is_noticed(tmp_path):
    """A segment of another log at the same position."""
    for name in ("a", "b"):
        for i in range(2):
            raygnn.events.append(str(tmp_path / name), {"user": [{"id": f"{name}{i}"}]})
    second = f"{1:020d}.arrow"
    (tmp_path / "a" / second).write_bytes((tmp_path / "b" / second).read_bytes())
    with raises("events-damaged", "does not follow"):
        read(tmp_path / "a")


def test_a_file_that_is_whole_but_wrong_is_refused(tmp_path):
    """With the right sha256, as from someone who may write to the folder."""
    import hashlib

    sink = pa.BufferOutputStream()
    table = pa.table({"key": ["a"], "type": ["user"], "row": ["{}"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue().to_pybytes()
    for content in (body, b"", b"cos\nsystem\n(S'x'\ntR."):
        whole = content + hashlib.sha256(content).hexdigest().encode()
        (tmp_path / f"{0:020d}.arrow").write_bytes(whole)
        with raises("events-damaged"):
            read(tmp_path)
