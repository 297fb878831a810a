"""Latency of a served model at 1, 10 and 100 requests per second, on the loopback.

    python benchmarks/serving.py
    python benchmarks/serving.py --only-log --turns 9

A two-layer GraphSAGE on an R-MAT graph, one replica of one core; the server is a process of its
own. Requests come at a steady rate, whether earlier ones have been answered or not, each for one
node at random; a latency counts from when its request was due. Sampled neighborhoods, then
precomputed embeddings. Then a server that follows a log: in turns, 100 requests/s alone, and
beside 1,000 events/s (new edges, ten portions a second), with the time until an answer sees them,
processor time and memory of the server and the replica, and their memory after a compaction.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np
import psutil
from harness import SCALES, Row, parser, publish
from rmat_graph import RmatGraph

import raygnn.train
from raygnn.data.edge_types import edge_type_name
from raygnn.data.manifest import Manifest

_RATES = (1, 10, 100)
_FANOUTS = [15, 10]
_SECONDS = {"smoke": 20.0, "reference": 60.0}
_WARM_UP_S = 3.0
_START_WITHIN_S = 180.0
_EVENTS_PER_S, _PORTIONS_PER_S = 1_000, 10
_REPLICA = "ServeReplica"


def train(graph: str, hidden_channels: int, work: Path) -> str:
    """A model of two steps: its figures do not matter here, its size does."""
    config = {
        "data": {"uri": graph, "cache_dir": str(work / "cache")},
        "sampling": {"fanouts": _FANOUTS},
        "model": {"type": "GraphSAGE", "args": {"hidden_channels": hidden_channels}},
        "training": {"max_steps": 2, "num_val_batches": 1, "num_test_batches": 1},
        "early_stopping": None,
        "scaling": {"num_workers": 0},
        "run": {"name": f"run-{time.time_ns()}", "storage_path": str(work / "serving")},
    }
    raygnn.train.fit(config)
    return str(work / "serving" / config["run"]["name"])


@dataclass(frozen=True)
class Server:
    """A server in a process of its own, with a Ray of its own."""

    url: str
    process: psutil.Process

    @property
    def replicas(self) -> list[psutil.Process]:
        return [p for p in self.process.children(recursive=True) if _REPLICA in p.name()]

    def processor_s(self) -> np.ndarray:
        """Seconds of the server and of the replicas so far."""
        times = [self.process.cpu_times(), *(p.cpu_times() for p in self.replicas)]
        own, *others = [each.user + each.system for each in times]
        return np.array([own, sum(others)])

    def memory_mib(self) -> tuple[float, float]:
        """Resident memory of the server and of the replicas, without what they share."""
        sizes = [p.memory_full_info().uss / 2**20 for p in (self.process, *self.replicas)]
        return sizes[0], sum(sizes[1:])


@contextmanager
def served(model: str, graph: str, port: int, *options: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "raygnn.serve", model, "--graph", graph, "--port", str(port)]
    with subprocess.Popen([*command, *options]) as process:
        try:
            server = Server(f"http://127.0.0.1:{port}", psutil.Process(process.pid))
            asyncio.run(_wait_until_healthy(server))
            yield server
        finally:
            process.terminate()


async def _wait_until_healthy(server: Server) -> None:
    end_s = time.monotonic() + _START_WITHIN_S
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"{server.url}/health", raise_for_status=True):
                    return
            except aiohttp.ClientError:
                if time.monotonic() > end_s or not server.process.is_running():
                    raise
            await asyncio.sleep(0.5)


async def latencies(url: str, rate: int, seconds: float, num_nodes: int) -> list[float]:
    """Seconds of each request, from when it was due.

    Raises:
        aiohttp.ClientResponseError: one was not answered.
    """
    nodes = np.random.default_rng(rate).integers(0, num_nodes, max(int(rate * seconds), 1))
    async with aiohttp.ClientSession(raise_for_status=True) as session:

        async def ask(node: int, due_s: float) -> float:
            async with session.post(f"{url}/predict", json={"nodes": [node]}) as response:
                await response.read()
            return time.perf_counter() - due_s

        began, asked = time.perf_counter() + 0.05, []
        for number, node in enumerate(nodes.tolist()):
            due_s = began + number / rate
            await asyncio.sleep(max(due_s - time.perf_counter(), 0.0))
            asked.append(asyncio.create_task(ask(node, due_s)))
        return list(await asyncio.gather(*asked))


async def with_events(
    url: str, rate: int, seconds: float, num_nodes: int, edge_type: str
) -> tuple[list[float], list[float]]:
    """Latencies of requests beside events, and seconds from sending events to an answer with them.

    Raises:
        aiohttp.ClientResponseError: a request or events were not answered.
    """
    rng, seen_s = np.random.default_rng(), list[float]()
    rows_each = _EVENTS_PER_S // _PORTIONS_PER_S
    async with aiohttp.ClientSession(raise_for_status=True) as session:

        async def append(number: int) -> None:
            ends = rng.integers(0, num_nodes, (rows_each, 2)).tolist()
            rows = [{"s": source, "t": target} for source, target in ends]
            began_s, body = time.perf_counter(), {"edges": {edge_type: rows}}
            async with session.post(f"{url}/events", json=body) as response:
                position = (await response.json())["position"]
            while number % _PORTIONS_PER_S == 0:  # one portion of a second is waited for
                async with session.post(f"{url}/predict", json={"nodes": [0]}) as response:
                    if int(response.headers["Raygnn-Position"]) >= position:
                        seen_s.append(time.perf_counter() - began_s)
                        return

        async def append_all() -> None:
            began, sent = time.perf_counter(), []
            for number in range(int(seconds * _PORTIONS_PER_S)):
                due_s = began + number / _PORTIONS_PER_S
                await asyncio.sleep(max(due_s - time.perf_counter(), 0.0))
                sent.append(asyncio.create_task(append(number)))
            await asyncio.gather(*sent)

        found, _ = await asyncio.gather(latencies(url, rate, seconds, num_nodes), append_all())
    return found, seen_s


@dataclass
class _Turns:
    """Figures of turns of one kind."""

    latencies: list[float] = field(default_factory=list)
    processor_s: np.ndarray = field(default_factory=lambda: np.zeros(2))

    def rows(self, mode: str, rate: int) -> list[Row]:
        made = rows_of(mode, rate, self.latencies)
        for who, value in zip(("server", "replica"), self.processor_s, strict=True):
            each_ms = float(value) / len(self.latencies) * 1e3
            made.append(Row(f"{mode}, processor time of the {who}", each_ms, "ms per request"))
        return made


def log_rows(server: Server, seconds: float, turns: int, num_nodes: int, edges: str) -> list[Row]:
    """In turns, requests alone and beside events; memory after each turn with events."""
    alone, beside, seen_s, rate = _Turns(), _Turns(), list[float](), max(_RATES)
    memories = [server.memory_mib()]
    for _ in range(turns):
        for kind in (alone, beside):
            before = server.processor_s()
            if kind is alone:
                kind.latencies += asyncio.run(latencies(server.url, rate, seconds, num_nodes))
            else:
                found, seen = asyncio.run(with_events(server.url, rate, seconds, num_nodes, edges))
                kind.latencies += found
                seen_s += seen
            kind.processor_s += server.processor_s() - before
        memories.append(server.memory_mib())
    rows = alone.rows("with a log", rate) + beside.rows(f"with {_EVENTS_PER_S:,} events/s", rate)
    note = f"{len(seen_s)} portions of {_EVENTS_PER_S // _PORTIONS_PER_S} events"
    for name, value in zip(("p50", "p99"), np.percentile(seen_s, (50, 99)), strict=True):
        rows.append(Row(f"time to visibility, {name}", float(value) * 1e3, "ms", note=note))
    for who, sizes in zip(("server", "replica"), zip(*memories, strict=True), strict=True):
        shown = ", ".join(f"{size:,.0f}" for size in sizes)
        rows.append(Row(f"memory of the {who}", sizes[-1], "MiB", note=f"after turns: {shown}"))
    return rows


def compacted_rows(server: Server, model: str, graph: str, log: str) -> list[Row]:
    """Compacts the log, and waits for the replica of the new tables."""
    before = {process.pid for process in server.replicas}
    began = time.perf_counter()
    command = [sys.executable, "-m", "raygnn.events", "compact", log, model, "--graph", graph]
    subprocess.run(command, check=True)
    while {process.pid for process in server.replicas} & before or not server.replicas:
        time.sleep(0.5)
    note = f"{time.perf_counter() - began:.0f} s after the compaction began"
    own, replica = server.memory_mib()
    return [
        Row("memory of the server, compacted", own, "MiB", note=note),
        Row("memory of the replica, compacted", replica, "MiB", note=note),
    ]


def rows_of(mode: str, rate: int, found: Sequence[float]) -> list[Row]:
    """p50 and p99 of one rate."""
    note = f"{len(found):,} requests"
    what, (p50, p99) = f"{mode}, {rate} requests/s", np.percentile(found, (50, 99)) * 1e3
    aim = "< 50 ms" if rate == max(_RATES) else ""
    return [
        Row(f"{what}, p50", float(p50), "ms", note=note),
        Row(f"{what}, p99", float(p99), "ms", aim=aim, note=note),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, serves, asks, and prints the latencies."""
    options = parser(__doc__)
    options.add_argument("--port", type=int, default=8123)
    options.add_argument("--seconds", type=float, metavar="N", help="at each rate")
    options.add_argument("--turns", type=int, default=1, metavar="N", help="with a log")
    options.add_argument("--only-log", action="store_true", help="only the server with a log")
    given = options.parse_args(argv)
    work, scale = Path(given.work).absolute(), SCALES[given.scale]
    seconds = given.seconds or _SECONDS[given.scale]
    rmat = RmatGraph(
        scale.num_nodes,
        scale.num_edges,
        num_features=scale.num_features,
        num_classes=scale.num_classes,
    )
    graph = str(rmat.tables(work).absolute())
    model = train(graph, scale.hidden_channels, work)
    rows = []
    for mode in () if given.only_log else ("sampled", "precomputed"):
        how = ["--precomputed"] if mode == "precomputed" else []
        with served(model, graph, given.port, *how) as server:
            asyncio.run(latencies(server.url, max(_RATES), _WARM_UP_S, scale.num_nodes))
            for rate in _RATES:
                found = asyncio.run(latencies(server.url, rate, seconds, scale.num_nodes))
                rows += rows_of(mode, rate, found)
    edge_type = edge_type_name(Manifest.load(graph).edge_types[0].type)
    log = str(work / "serving" / f"log-{time.time_ns()}")
    with served(model, graph, given.port, "--follow", log) as server:
        asyncio.run(latencies(server.url, max(_RATES), _WARM_UP_S, scale.num_nodes))
        rows += log_rows(server, seconds, given.turns, scale.num_nodes, edge_type)
        rows += compacted_rows(server, model, graph, log)
    publish("serving", given, rows)


if __name__ == "__main__":
    main()
