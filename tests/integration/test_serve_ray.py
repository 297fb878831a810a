"""A model on Ray Serve answers as in memory, and loses no request when a replica is killed."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.serve")  # an extra
import ray
import requests
from ray.util.state import list_actors

import raygnn
import raygnn.events
import raygnn.registry
import raygnn.serve
import raygnn.train
from raygnn.data.added_rows import AddedRows
from raygnn.data.event_log import EventLog
from raygnn.serving.records import read_records
from tests.errors import raises
from tests.small_runs import small_bundle, small_config
from tests.wait_until import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.cluster, pytest.mark.usefixtures("ray_session")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    small_bundle(folder)
    uri = str(folder / "tables")
    raygnn.train.fit(small_config(folder, scaling__num_workers=0, data__uri=uri))
    return folder / "run"


@pytest.fixture(scope="module")
def url(run) -> Iterator[str]:
    options = {"port": _free_port(), "num_replicas": 2, "num_cpus": 0.5, "max_queued": 10}
    graph = run.with_name("tables")
    with raygnn.serve.start(run, graph, precomputed=True, **options) as server:
        yield server.url
    from ray import serve

    serve.shutdown()


def test_answers_over_http_are_those_in_memory(url, run):
    graph = raygnn.load(run).open(run.with_name("tables"))
    every = graph.predict().arrow.to_pylist()
    found = requests.post(f"{url}/predict", json={"nodes": [7, 1]}, timeout=60)
    assert found.json() == {"rows": [every[7], every[1]], "notes": []}
    found = requests.post(f"{url}/top_k", json={"anchors": [7], "k": 3}, timeout=60)
    assert found.json() == {"rows": graph.top_k([7], 3).arrow.to_pylist(), "notes": []}
    unknown = requests.post(f"{url}/predict", json={"nodes": [7, 100_000]}, timeout=60)
    assert unknown.status_code == 422
    assert "100000" in unknown.json()["detail"][0]["msg"]
    assert requests.get(f"{url}/health", timeout=60).json() == {"status": "ok"}
    assert requests.get(f"{url}/docs", timeout=60).status_code == 200
    assert 'status="200"' in requests.get(f"{url}/metrics", timeout=60).text


def test_many_requests_at_once_are_answered_soon(url, run):
    """Ray Serve's own queue hands out four a second once a replica was full."""
    every = raygnn.load(run).open(run.with_name("tables")).predict().arrow.to_pylist()
    seen: Counter[int] = Counter()

    def ask(node: int) -> None:
        status = 429
        while status == 429:
            found = requests.post(f"{url}/predict", json={"nodes": [node]}, timeout=60)
            status = found.status_code
            seen[status] += 1
        assert found.json() == {"rows": [every[node]], "notes": []}

    began = time.monotonic()
    with ThreadPoolExecutor(200) as clients:
        assert len(list(clients.map(ask, range(300)))) == 300
    assert time.monotonic() - began < 30
    assert seen.keys() == {200, 429}


def test_a_killed_replica_loses_no_request(url, run):
    every = raygnn.load(run).predict(run.with_name("tables")).arrow.to_pylist()
    enough = threading.Event()
    answered: Counter[int] = Counter()

    def keep_asking(first: int) -> None:
        number = 0
        while not enough.is_set():
            node = (first + number) % 300
            found = requests.post(f"{url}/predict", json={"nodes": [node]}, timeout=120)
            answered[found.status_code] += 1
            assert found.json() == {"rows": [every[node]], "notes": []}, found.text
            number += 1

    with ThreadPoolExecutor(8) as clients:
        asking = [clients.submit(keep_asking, 30 * number) for number in range(8)]
        try:
            for _ in range(2):
                before = answered[200]
                wait_until(lambda before=before: answered[200] > before + 50)
                killed = _replicas()[0]
                os.kill(killed, signal.SIGKILL)
                wait_until(lambda killed=killed: len(set(_replicas()) - {killed}) == 2)
        finally:
            enough.set()
        for done in asking:
            done.result()
    assert set(answered) == {200}


def test_events_reach_all_replicas_and_outlive_them(run, tmp_path):
    """Within a second. A new replica in place of a killed one reads the log again; replicas of a
    compaction read only what came after it.
    """
    tables, log = run.with_name("tables"), tmp_path / "log"
    options = {"port": _free_port(), "num_replicas": 2, "num_cpus": 0.5, "follow": log}
    rows = raygnn.load(run).open(tables).row_reader
    width = rows.read(AddedRows({})).column("node", "x").shape[1]
    node = {"node": [{"id": 1_000 + i, "x": [i / 10] * width} for i in range(3)]}
    edges = {"node__to__node": [{"source": 7, "target": 1_000}, {"source": 1_001, "target": 7}]}

    def ask() -> Any:
        asked = {"nodes": [7, 1_000, 1_002], "what": "probabilities"}
        return requests.post(f"{server.url}/predict", json=asked, timeout=120)

    with raygnn.serve.start(run, tables, **options) as server:
        posted = requests.post(f"{server.url}/events", json={"nodes": node, "edges": edges})
        assert posted.json() == {"position": 5, "accepted": 5, "refused": []}
        time.sleep(1)
        answers = [ask() for _ in range(16)]  # from both replicas with near certainty
        assert {each.headers["Raygnn-Position"] for each in answers} == {"5"}
        killed = _replicas()[-1]
        os.kill(killed, signal.SIGKILL)
        more = {"nodes": {"node": [{"id": 2_000, "x": [0.5] * width}]}, "key": "more"}
        for _ in range(2):
            posted = requests.post(f"{server.url}/events", json=more, timeout=60)
            assert posted.json()["position"] == 6
        wait_until(lambda: len(set(_replicas()) - {killed}) == 2)
        wait_until(lambda: {ask().headers["Raygnn-Position"] for _ in range(8)} == {"6"})
        answers += [ask() for _ in range(16)]
        raygnn.events.compact(log, run, tables)
        snapshot = answers[-1].headers["Raygnn-Snapshot"]
        wait_until(lambda: ask().headers["Raygnn-Snapshot"] != snapshot)
        last = {"nodes": {"node": [{"id": 3_000, "x": [0.5] * width}]}}
        posted = requests.post(f"{server.url}/events", json=last, timeout=60)
        assert posted.json()["position"] == 7
        posted = requests.post(f"{server.url}/events", json=more, timeout=60)  # known by its key
        assert posted.json()["position"] == 6
        wait_until(lambda: ask().headers["Raygnn-Position"] == "7")
        compacted = ask().json()["rows"]
    assert [row["probability"] for row in compacted] == [
        pytest.approx(row["probability"], rel=1e-4, abs=1e-5) for row in answers[-1].json()["rows"]
    ]
    for position, num in (("5", 16), ("6", 16)):
        found = [each.json() for each in answers if each.headers["Raygnn-Position"] == position]
        assert len(found) == num
        assert all(each == found[0] for each in found)
    with raygnn.load(run).extended(tables, node, edges) as graph:
        expected = graph.predict([7, 1_000, 1_002], what="probabilities")["probability"]
    probabilities = [row["probability"] for row in answers[0].json()["rows"]]
    assert np.array(probabilities) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_killed_server_has_what_it_accepted_once(run, tmp_path):
    tables, log, port = run.with_name("tables"), tmp_path / "log", _free_port()
    width = (
        raygnn.load(run).open(tables).row_reader.read(AddedRows({})).column("node", "x").shape[1]
    )
    command = [sys.executable, "-m", "raygnn.serve", str(run), "--graph", str(tables)]
    options = ["--port", str(port), "--follow", str(log), "--cpus", "0.5"]
    url, accepted = f"http://127.0.0.1:{port}", dict[int, int]()

    @contextmanager
    def server() -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(
            [*command, *options], env={**os.environ, "RAY_ADDRESS": "local"}
        ) as it:
            try:
                wait_until(is_healthy)
                yield it
            finally:
                it.kill()

    def is_healthy() -> bool:
        with suppress(requests.ConnectionError):
            return requests.get(f"{url}/health", timeout=60).status_code == 200
        return False

    def post(number: int) -> int:
        node = {"id": 1_000 + number, "x": [0.5] * width}
        events = {"nodes": {"node": [node]}, "key": f"event {number}"}
        found = requests.post(f"{url}/events", json=events, timeout=60).json()
        accepted.setdefault(number, found["position"])
        return int(found["position"])

    with server() as first:
        threading.Timer(2.0, first.kill).start()
        with suppress(requests.ConnectionError):
            for number in itertools.count():
                post(number)
    with server():
        before = dict(accepted)
        assert len(before) > 5
        for number in range(len(before) + 5):  # with the one that has no answer
            assert post(number) == before.get(number, accepted[number])
        asked = requests.post(f"{url}/predict", json={"nodes": [1_000 + len(before)]}, timeout=60)
        assert asked.status_code == 200
    rows = [row for segment in EventLog(str(log)).read() for row in segment.rows]
    assert sorted(json.loads(text)["id"] for _, text in rows) == [1_000 + n for n in accepted]


def test_an_alias_is_followed_without_a_failed_request(run, tmp_path):
    """To a better model, back by a rollback, and not to one that does not fit."""
    tables, name = run.with_name("tables"), f"{tmp_path}/orders"
    config = small_config(tmp_path, scaling__num_workers=0, data__uri=str(tables), seed=7)
    raygnn.train.fit(config)
    first = raygnn.registry.add(name, str(run), alias="champion")
    second = raygnn.registry.add(name, str(tmp_path / "run"))
    options = {"port": _free_port(), "num_cpus": 0.25, "record": tmp_path / "answers.jsonl"}
    enough, models = threading.Event(), list[str]()

    def keep_asking(node: int) -> None:
        asked = {"nodes": [node], "what": "probabilities"}
        while not enough.is_set():
            found = requests.post(f"{server.url}/predict", json=asked, timeout=120)
            assert found.status_code == 200, found.text
            models.append(found.headers["Raygnn-Model"])

    alias, shadow = f"{name}@champion", str(tmp_path / "run")
    with (
        raygnn.serve.start(alias, tables, shadow=shadow, **options) as server,
        ThreadPoolExecutor(4) as clients,
    ):
        asking = [clients.submit(keep_asking, node) for node in range(4)]
        try:
            wait_until(lambda: len(models) > 20)
            raygnn.registry.set_alias(alias, second)
            wait_until(lambda: models[-1] == second)
            raygnn.registry.rollback(alias)
            wait_until(lambda: models[-1] == first)
        finally:
            enough.set()
        for done in asking:
            done.result()
    records = read_records(str(tmp_path / "answers.jsonl"))
    assert Counter(record.version.model for record in records) == Counter(models)
    shadowed = {r.version.model for r in read_records(str(tmp_path / "answers.jsonl.shadow"))}
    assert shadowed == {second}


def test_more_than_waits_is_refused(url):
    with ThreadPoolExecutor(250) as clients:
        ask = {"anchors": list(range(300)), "k": 200}
        asked = [
            clients.submit(requests.post, f"{url}/top_k", json=ask, timeout=120) for _ in range(250)
        ]
        statuses = Counter(done.result().status_code for done in asked)
    assert set(statuses) == {200, 429}
    assert requests.get(f"{url}/health", timeout=60).status_code == 200


def test_the_python_example_of_the_page_runs(url, run, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(run.parent)
    (run.parent / "runs").mkdir()
    (run.parent / "runs" / "papers").symlink_to(run)
    (run.parent / "graph").symlink_to(run.with_name("tables"))
    answered = []
    post = requests.post
    monkeypatch.setattr(
        requests, "post", lambda *a, **k: answered.append(post(*a, **k)) or answered[-1]
    )
    exec(code.replace('"paper-7"', "7").replace('"graph",', f'"graph", port={_free_port()},'), {})
    assert answered[0].json()["rows"][0]["id"] == 7


def test_replicas_without_room_are_refused(run):
    with raises("serve-no-room", 64):
        raygnn.serve.start(run, run.with_name("tables"), num_replicas=64)


def test_a_port_that_is_taken_is_refused(url, run):
    port = int(url.rpartition(":")[2])
    with raises("serve-address", port):
        raygnn.serve.start(run, run.with_name("tables"), port=port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _replicas() -> list[int]:
    """Process ids of the model's replicas."""
    head = ray.get_runtime_context().gcs_address  # of this Ray, where a machine has several
    actors = list_actors(head, filters=[("state", "=", "ALIVE")], detail=True)
    return [actor.pid for actor in actors if "#Model#" in (actor.name or "")]
