"""Latency of a served model at 1, 10 and 100 requests per second, on the loopback.

    python benchmarks/serving.py

A two-layer GraphSAGE on an R-MAT graph, one replica of one core. Requests come at a steady rate,
whether earlier ones have been answered or not, each for one node at random; a latency counts from
when its request was due. Sampled neighborhoods, then precomputed embeddings. Then 1,000 events/s
(new edges, ten portions a second) beside 100 requests/s, and the time until an answer sees them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import numpy as np
from harness import SCALES, Row, parser, publish
from rmat_graph import RmatGraph

import raygnn.serve
import raygnn.train
from raygnn.data.edge_types import edge_type_name
from raygnn.data.manifest import Manifest

_RATES = (1, 10, 100)
_FANOUTS = [15, 10]
_SECONDS = {"smoke": 20.0, "reference": 60.0}
_WARM_UP_S = 3.0
_EVENTS_PER_S, _PORTIONS_PER_S = 1_000, 10


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
    rng, seen_s = np.random.default_rng(0), list[float]()
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
    for mode in ("sampled", "precomputed"):
        is_precomputed = mode == "precomputed"
        with raygnn.serve.start(
            model, graph, precomputed=is_precomputed, port=given.port
        ) as server:
            asyncio.run(latencies(server.url, max(_RATES), _WARM_UP_S, scale.num_nodes))
            for rate in _RATES:
                found = asyncio.run(latencies(server.url, rate, seconds, scale.num_nodes))
                rows += rows_of(mode, rate, found)
    (edges,) = Manifest.load(graph).edge_types
    rate, log = max(_RATES), work / "serving" / f"log-{time.time_ns()}"
    with raygnn.serve.start(model, graph, follow=log, port=given.port) as server:
        asyncio.run(latencies(server.url, rate, _WARM_UP_S, scale.num_nodes))
        alone = asyncio.run(latencies(server.url, rate, seconds, scale.num_nodes))
        edge_type = edge_type_name(edges.type)
        events = with_events(server.url, rate, seconds, scale.num_nodes, edge_type)
        beside, seen_s = asyncio.run(events)
    rows += rows_of("with a log", rate, alone)
    rows += rows_of(f"with {_EVENTS_PER_S:,} events/s", rate, beside)
    note = f"{len(seen_s)} portions of {_EVENTS_PER_S // _PORTIONS_PER_S} events"
    for name, value in zip(("p50", "p99"), np.percentile(seen_s, (50, 99)), strict=True):
        rows.append(Row(f"time to visibility, {name}", float(value) * 1e3, "ms", note=note))
    publish("serving", given, rows)


if __name__ == "__main__":
    main()
