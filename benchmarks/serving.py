"""Latency of a served model at 1, 10 and 100 requests per second, on the loopback.

    python benchmarks/serving.py

A two-layer GraphSAGE on an R-MAT graph, one replica of one core. Requests come at a steady rate,
whether earlier ones have been answered or not, each for one node at random; a latency counts from
when its request was due. Sampled neighborhoods, then precomputed embeddings.
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

_RATES = (1, 10, 100)
_FANOUTS = [15, 10]
_SECONDS = {"smoke": 20.0, "reference": 60.0}
_WARM_UP_S = 3.0


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
    publish("serving", given, rows)


if __name__ == "__main__":
    main()
