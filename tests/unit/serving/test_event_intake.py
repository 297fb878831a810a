"""Posted rows are checked one by one, and each accepted one is in the log once."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

pytest.importorskip("fastapi")  # an extra
from fastapi.testclient import TestClient

from raygnn.data import checksums, filesystem
from raygnn.data.added_rows import RowReader
from raygnn.data.checksums import Seal
from raygnn.data.compactions import log_after, newest_tables
from raygnn.data.event_log import Entry, EventLog
from raygnn.data.extended_bundle import ExtendedBundle
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.manifest import Manifest
from raygnn.data.time_units import AsOf
from raygnn.errors import ResourceError
from raygnn.inference.logged_rows import LoggedRows
from raygnn.inference.seed_times import SeedTimes
from raygnn.serving.app import build_app
from raygnn.serving.compaction import compact, overrides_of
from raygnn.serving.event_intake import EventIntake
from raygnn.serving.messages import Appended, Events
from tests.graph_writer import write_graph
from tests.wait_until import wait_until

TO = "n__to__n"
SAVED: Any = SimpleNamespace(spec=SimpleNamespace(embedded_types=frozenset()))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    folder = tmp_path_factory.mktemp("intake")
    nodes = pa.table({"id": ["a", "b"], "x": [0.5, 1.5], "name": ["Al", "Bo"]})
    edges = pa.table({"s": ["a"], "t": ["b"], "day": [10]})
    spec = {"features": {"x": {"columns": ["x"]}}}
    uri = str(write_graph(folder / "graph", nodes, edges, spec, {"time": "day"}))
    return uri, ingest(uri, IngestOptions(), folder / "cache")


def rows_of(graph: tuple[str, Any]) -> LoggedRows:
    uri, bundle = graph
    reader = RowReader(uri, bundle, ["x", "time"], IngestOptions())
    return LoggedRows(SAVED, bundle, reader, SeedTimes(AsOf("time", 10), is_latest=True))


@pytest.fixture
def intake(graph, tmp_path) -> Iterator[EventIntake]:
    made = EventIntake(rows_of(graph), EventLog.create(str(tmp_path)))
    yield made
    made.stop()


def post(
    intake: EventIntake, nodes: list[Any], edges: list[Any], key: str | None = None
) -> Appended:
    return intake.post(Events(nodes={"n": nodes}, edges={TO: edges}, key=key)).result(60)


def followed(graph: tuple[str, Any], folder: Path) -> LoggedRows:
    rows = rows_of(graph)
    rows.follow(EventLog(str(folder)))
    return rows


def test_bad_rows_are_refused_and_the_others_appended(intake, graph, tmp_path):
    nodes = [
        {"id": "c", "x": 1, "name": "Cy"},  # a column that only the file has
        {"id": "a", "x": 1},
        {"id": "d"},
        {"id": "d", "x": 2.5},
        {"id": 1},
    ]
    edges = [
        {"s": "c", "t": "d", "day": 11},  # of nodes that are new
        {"s": "c", "t": "zz", "day": 11},
        {"s": "c", "t": "a", "day": 9},  # late
        {"s": "c", "t": "a", "day": "x"},
    ]
    done = post(intake, nodes, edges, "k")
    assert (done.position, done.accepted) == (4, 4)
    assert [(row.type, row.row, row.id) for row in done.refused] == [
        ("n", 1, "rows-id-known"),
        ("n", 2, "table-null-values"),
        ("n", 4, "nodes-id-kind"),
        (TO, 1, "edges-dangling"),
        (TO, 3, "rows-time-unit"),
    ]
    again = post(intake, nodes, edges, "k")
    assert (again.position, again.accepted, again.refused) == (4, 4, [])
    assert intake.rows.num_refused == 0  # the log has no bad row
    unknown = intake.post(Events(nodes={"m": [{"id": 1}]})).result(60)
    assert (unknown.accepted, unknown.refused[0].id) == (0, "rows-type-unknown")
    assert intake.rows.num_late == 1
    rows = followed(graph, tmp_path)
    assert (rows.position, rows.num_refused, rows.num_late) == (4, 0, 1)
    np.testing.assert_array_equal(rows.addition.column("n", "x").reshape(-1), [1, 2.5])
    assert [end.tolist() for end in rows.addition.edges["n", "to", "n"]] == [[2, 2], [3, 0]]


def test_many_bad_rows_take_no_long_time(intake):
    nodes = [{"id": f"n{i}", "x": "bad"} for i in range(3_000)]
    before = time.process_time()
    done = post(intake, [{"id": "c", "x": 1}, *nodes], [])
    assert time.process_time() - before < 3
    assert (done.accepted, len(done.refused)) == (1, 3_000)
    assert [row.row for row in done.refused] == list(range(1, 3_001))
    assert {row.id for row in done.refused[30:]} == {"events-many-refused"}


def test_several_clients_and_another_writer_lose_nothing(intake, graph, tmp_path, capsys):
    """The other writer does not check its rows: those that do not fit are counted."""
    other = EventLog.create(str(tmp_path))

    def send(client: int) -> int:
        accepted = 0
        for i in range(4):
            if client == 0:
                other.append([Entry.of({"n": [{"id": f"other{i}", "x": 1.0}, {"id": "a"}]})])
            else:
                nodes = [{"id": f"{client}-{i}", "x": i}, {"id": f"both{i}", "x": client}]
                accepted += post(
                    intake, nodes, [{"s": nodes[0]["id"], "t": "b", "day": i}]
                ).accepted
        return accepted

    with ThreadPoolExecutor(4) as pool:
        num_accepted = sum(pool.map(send, range(4)))
    assert num_accepted == 3 * 4 * 2 + 4  # `both0` to `both3` once each
    assert "of the event log left out, such as of n" in capsys.readouterr().out
    rows = followed(graph, tmp_path)
    assert (rows.position, rows.num_refused) == (num_accepted + 8, 4)
    ids = rows.addition.ids["n"].to_pylist()
    assert len(ids) == len(set(ids)) == 12 + 4 + 4
    assert len(rows.addition.edges["n", "to", "n"].sources) == 12


@dataclass
class _Server:
    """A server's intake, and the tables and rows that its replicas answer from."""

    base: str
    log: str
    cache: Path

    def opened(self, overrides: Sequence[str]) -> Any:
        keys = dict(zip(overrides[::2], overrides[1::2], strict=True))
        uri, allowed = keys["--data.uri"], yaml.safe_load(keys.get("--data.allow_outside", "[]"))
        options = IngestOptions(allow_outside=tuple(allowed))
        bundle = ingest(uri, options, self.cache)
        return SimpleNamespace(
            saved=SAVED,
            bundle=bundle,
            row_reader=RowReader(uri, bundle, ["x", "time"], options),
            times=SeedTimes(AsOf("time", 10), is_latest=True),
            manifest=lambda: Manifest.load(uri, options.allow_outside),
            open=lambda: self.opened(overrides),
        )

    def start(self) -> None:
        """With the newest tables, of which rows before their position are a part."""
        tables = newest_tables(self.base, self.log)
        graph = self.opened(overrides_of([], self.base, self.log, tables.uri))
        self.bundle, self.rows = graph.bundle, LoggedRows.of(graph, tables.position)
        self._read = EventLog(self.log, *tables[1:])
        rows = LoggedRows.of(graph, tables.position)
        self.intake = EventIntake(rows, log_after(self.log, tables))

    def content(self) -> tuple[list[tuple[str, float]], list[tuple[str, str, int]]]:
        """All nodes and edges by original ids, after the replicas have looked at the log."""
        self.rows.follow(self._read)
        graph, edge_type = ExtendedBundle(self.bundle, self.rows.addition), ("n", "to", "n")
        ids = graph.ids("n").to_pylist()
        x = graph.rows("n", "x", np.arange(len(ids))).reshape(-1).tolist()
        known, added = self.bundle.csc(edge_type), self.rows.addition.edges[edge_type]
        targets = np.repeat(np.arange(len(known.indptr) - 1), np.diff(known.indptr))
        ends = [*zip(known.indices.tolist(), targets.tolist(), strict=True)]
        ends += zip(added.sources.tolist(), added.targets.tolist(), strict=True)
        days = graph.rows(edge_type, "time", np.arange(len(ends)))  # type: ignore[arg-type]
        edges = [(ids[s], ids[t], int(day)) for (s, t), day in zip(ends, days, strict=True)]
        return sorted(zip(ids, x, strict=True)), sorted(edges)


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_appends_compactions_and_requests_is_that_of_one_writer(
    seed, graph, tmp_path, monkeypatch
):
    """Two servers take events, some twice and some bad; another program appends, compactions are
    killed or not, and servers are started again. Each then has the rows of a list.
    """
    draw = random.Random(seed)
    nodes, edges = {"a": 0.5, "b": 1.5}, [("a", "b", 10)]
    sent: list[tuple[Events, tuple[int, int]]] = []
    log = str(tmp_path / "log")
    EventLog.create(log)
    servers = [_Server(graph[0], log, tmp_path / f"cache{i}") for i in range(2)]
    for server in servers:
        server.start()

    def events(number: int) -> tuple[Events, int]:
        """Some rows and how many of them fit; these are in the list then."""
        new = {f"n{number}-{i}": i / 2 for i in range(draw.randrange(4))}
        bad = [{"id": draw.choice([*nodes]), "x": 0}, {"id": f"bad{number}"}][: draw.randrange(3)]
        rows = [*({"id": id, "x": x} for id, x in new.items()), *bad]
        nodes.update(new)
        ends = [draw.choices([*nodes], k=2) for _ in range(draw.randrange(5))]
        links = [(*pair, draw.randrange(30)) for pair in ends]
        edges.extend(links)
        links += [("a", "nobody", 3)][: draw.randrange(2)]
        sides = [dict(zip(("s", "t", "day"), link, strict=True)) for link in links]
        found = Events(nodes={"n": rows}, edges={TO: sides}, key=f"k{number}")
        return found, len(new) + len(ends)

    for number in range(14):
        server, action = draw.choice(servers), draw.choice(["post"] * 4 + ["append", *"crsk"])
        if action == "post":
            posted, num_good = events(number)
            answer = server.intake.post(posted).result(60)
            assert answer.accepted == num_good
            sent.append((posted, (answer.position, answer.accepted)))
        elif action == "append":
            posted, _ = events(number)
            EventLog.create(log).append([Entry.of(posted.nodes, posted.edges, posted.key)])
        elif action == "s" and sent:  # again, to any server
            posted, expected = draw.choice(sent)
            answer = server.intake.post(posted).result(60)
            assert not expected[1] or (answer.position, answer.accepted) == expected
        elif action == "r":  # starts again
            server.intake.stop()
            server.start()
        elif action in "ck":  # compacts, perhaps until it is killed
            before = newest_tables(server.base, log)
            with monkeypatch.context() as patched:
                if action == "k":
                    patched.setattr(Seal, "write", _kill)
                    with suppress(KeyboardInterrupt):
                        compact(server.opened, server.base, log)
                    assert newest_tables(server.base, log) == before
                else:
                    compact(server.opened, server.base, log)
        for each in servers:
            assert each.content() == (sorted(nodes.items()), sorted(edges))
    for server in servers:
        server.intake.stop()


def _kill(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_damaged_compaction_is_left_out(graph, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checksums, "_BLOCK_BYTES", 4)  # so that files have a middle
    server = _Server(graph[0], str(tmp_path / "log"), tmp_path / "cache")
    rows = Entry.of({"n": [{"id": f"n{i}", "x": i} for i in range(9)]})
    EventLog.create(server.log).append([rows])
    made = compact(server.opened, server.base, server.log)
    files = sorted(Path(made.uri).iterdir())
    assert {"graph.yaml", "compacted.json", "keys.parquet"} < {path.name for path in files}
    for path in files:
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        assert newest_tables(server.base, server.log) == (server.base, 0, "")
        path.write_bytes(whole)
    assert newest_tables(server.base, server.log) == made
    assert capsys.readouterr().out.count("events-compacted-damaged") == len(files)


def _serve_until_killed(graph: Any, folder: Path, accepted: Any) -> None:
    intake = EventIntake(rows_of(graph), EventLog.create(str(folder)))
    for first in range(0, 10**9, 10):  # as a client that has seen no answer yet
        keys = [str(first + i) for i in range(10)]
        edge = {TO: [{"s": "a", "t": "b", "day": 20}]}
        for posted in [intake.post(Events(edges=edge, key=key)) for key in keys]:
            posted.result(60)
        os.write(accepted, "".join(f"{key}\n" for key in keys).encode())


def test_a_killed_server_loses_no_accepted_event_and_repeats_none(graph, tmp_path):
    reading, writing = os.pipe()
    for number in range(3):
        arguments = graph, tmp_path, writing
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_serve_until_killed, args=arguments)
        process.start()
        wait_until(lambda: len(list(tmp_path.glob("[0-9]*"))) > 3 * number)  # noqa: B023
        time.sleep(0.03 * number)
        process.kill()
        process.join()
    os.close(writing)
    with os.fdopen(reading) as file:
        accepted = file.read().splitlines()
    keys = [each.key for segment in EventLog(str(tmp_path)).read() for each in segment.entries]
    assert set(accepted) <= set(keys)
    assert len(keys) == len(set(keys)) >= 70
    addition = followed(graph, tmp_path).addition
    assert len(addition.edges["n", "to", "n"].sources) == len(keys)


def test_a_full_disk_refuses_events_and_loses_none(intake, graph, tmp_path, monkeypatch):
    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(filesystem.os, "fsync", fail)
        with pytest.raises(ResourceError, match="serve-events-failed"):
            post(intake, [{"id": "c", "x": 1}], [], "k")
    assert followed(graph, tmp_path).position == 0
    for _ in range(2):
        assert post(intake, [{"id": "c", "x": 1}], [], "k").position == 1


def test_the_route_answers_with_the_position(intake):
    async def ask(_: Any) -> Any: ...

    client = TestClient(build_app(ask, ask, events=intake))
    good = {"nodes": {"n": [{"id": "e", "x": 1}]}, "key": "e"}
    for _ in range(2):
        found = client.post("/events", json=good)
        assert (found.status_code, found.json()["position"]) == (200, 1)
    bad = client.post("/events", json={"edges": {TO: [{"s": "e", "t": "nobody", "day": 1}]}})
    assert (bad.status_code, bad.json()["refused"][0]["row"]) == (422, 0)
    long = {"nodes": {"x" * 300: [{"id": 1}], "n": [{"id": "f", "x": "x" * 300}]}}
    assert "x" * 101 not in client.post("/events", json=long).text
    for body in (b"[]", b'{"nodes": {"n": [{"x": {"a": 1}}]}}', b'{"key": 1}', b'{"new": {}}'):
        assert client.post("/events", content=body).status_code == 422
    assert "raygnn_log_position 1.0" in client.get("/metrics").text
