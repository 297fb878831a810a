"""How cost grows with the graph and with the fanout: a table, a plot, and one large run.

    python benchmarks/scaling.py --scale reference          # 10^5 to 10^8 edges
    python benchmarks/scaling.py --edges 1000000000         # one size, with float16 features

Each size runs in a process of its own: tables drawn and written, ingested, opened again, then
batches sampled and trained on. 20 edges a node; 32 features, 16 of float16 from 10^9 edges on.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import SCALES, Row, Scale, parser, publish
from matplotlib.figure import Figure
from rmat_graph import EDGE, NODE, RmatGraph
from training import Trainer, make_loader, raygnn_model

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import ingest
from raygnn.loops.process import keep_freed_memory
from raygnn.sampling import LocalGraphStore, NeighborSampler
from raygnn.sampling.rng import batch_key

_EDGES_PER_NODE = 20
_SIZES = {"smoke": (20_000, 200_000), "reference": (10**5, 10**6, 10**7, 10**8)}
_FANOUTS = ((5, 5, 5), (15, 10, 5), (25, 15, 10))
_LARGE = 10**9
_STEPS = {"smoke": 5, "reference": 20}


def graph_of(num_edges: int) -> RmatGraph:
    """The graph of a size."""
    is_large = num_edges >= _LARGE
    return RmatGraph(
        num_edges // _EDGES_PER_NODE,
        num_edges,
        num_features=16 if is_large else 32,
        num_classes=16,
        feature_dtype="float16" if is_large else "float32",
    )


def measure(num_edges: int, scale: Scale, work: Path, *, keeps_tables: bool) -> dict[str, Any]:
    """All figures of one size, in this process."""
    graph = graph_of(num_edges)
    began = time.perf_counter()
    tables = graph.tables(work)
    written, busy = time.perf_counter(), time.process_time()
    ingest(tables, cache_dir=work / "cache")
    built, ingest_cpu_s = time.perf_counter(), time.process_time() - busy
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    bundle = ingest(tables, cache_dir=work / "cache")
    opened = time.perf_counter()
    found: dict[str, Any] = {
        "num_edges": num_edges,
        "num_nodes": graph.num_nodes,
        "tables_s": written - began,
        "ingest_s": built - written,
        "ingest_cpu_s": ingest_cpu_s,
        "ingest_peak_bytes": peak_bytes,
        "bundle_bytes": sum(p.stat().st_size for p in bundle.path.rglob("*") if p.is_file()),
        "open_s": opened - built,
    }
    of_graph = replace(scale, num_features=graph.num_features, num_classes=graph.num_classes)
    found |= _train(of_graph, bundle)
    found["fanouts"] = {str(list(f)): _sample(of_graph, bundle, f) for f in _FANOUTS}
    found["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    shutil.rmtree(bundle.path)
    if not keeps_tables:
        shutil.rmtree(tables)
    return found


def _train(scale: Scale, bundle: Bundle) -> dict[str, float]:
    """Milliseconds of live training steps, and edges of a batch."""
    trainer = Trainer(raygnn_model(scale), "cpu", "blocks")
    loader = make_loader(scale, bundle, "cpu", None)
    steps: list[tuple[float, float]] = []
    num_edges = []
    epochs = itertools.chain.from_iterable(loader.iterate(epoch) for epoch in itertools.count())
    began, busy = time.perf_counter(), time.process_time()
    with loader:
        for batch in itertools.islice(epochs, _STEPS[scale.name] + 1):
            trainer.step(batch)
            num_edges.append(batch.num_edges)
            now, busy_now = time.perf_counter(), time.process_time()
            steps.append((now - began, busy_now - busy))
            began, busy = now, busy_now
    wall, cpu = zip(*steps[1:], strict=True)
    return {
        "step_ms": 1e3 * statistics.median(wall),
        "step_cpu_ms": 1e3 * statistics.median(cpu),
        "batch_edges": float(np.mean(num_edges)),
    }


def _sample(scale: Scale, bundle: Bundle, fanouts: Sequence[int]) -> dict[str, float]:
    """Milliseconds to sample a batch, and its edges; processor time, of one thread."""
    sampler = NeighborSampler(LocalGraphStore(bundle), list(fanouts))
    num_nodes = bundle.num_nodes(NODE)
    took, num_edges = [], []
    for number in range(_STEPS[scale.name] + 1):
        rng = np.random.default_rng(number)
        seeds = rng.integers(0, num_nodes, scale.batch_size)
        began = time.thread_time()
        subgraph = sampler.sample({NODE: seeds}, batch_key(0, "benchmark", 0, number))
        took.append(time.thread_time() - began)
        num_edges.append(len(subgraph.edge[EDGE]))
    return {"ms": 1e3 * statistics.median(took[1:]), "edges": float(np.mean(num_edges))}


def scaling_rows(found: Sequence[dict[str, Any]]) -> list[Row]:
    """The rows, from the figures of each size."""
    rows = []
    for size in found:
        edges = f"{size['num_edges']:,} edges"
        rate = size["num_edges"] / size["ingest_s"] / 1e6
        memory = f"{size['ingest_peak_bytes'] / 1e9:.2f} GB of memory at its peak"
        cpu = f"{size['ingest_cpu_s']:.2f} s of processors"
        bundle = f"for a bundle of {size['bundle_bytes'] / 1e9:.2f} GB"
        note = f"{rate:.1f} M edges/s, {cpu}, {memory} {bundle}"
        rows.append(Row(f"{edges}: ingest", size["ingest_s"], "s", note=note))
        rows.append(Row(f"{edges}: second start", size["open_s"], "s"))
        for fanouts, sampled in size["fanouts"].items():
            per_edge = 1e6 * sampled["ms"] / max(sampled["edges"], 1)
            note = f"{sampled['edges']:,.0f} edges a batch, {per_edge:.0f} ns an edge"
            rows.append(Row(f"{edges}: sample {fanouts}", sampled["ms"], "ms", note=note))
        per_edge = 1e6 * size["step_cpu_ms"] / max(size["batch_edges"], 1)
        cpu = f"{size['step_cpu_ms']:.0f} ms of processors"
        memory = f"{size['peak_bytes'] / 1e9:.2f} GB of memory at its peak, mapped pages included"
        note = (
            f"{size['batch_edges']:,.0f} edges a batch, {cpu}, {per_edge:,.0f} ns an edge, {memory}"
        )
        rows.append(Row(f"{edges}: step", size["step_ms"], "ms", note=note))
    return rows


def plot(found: Sequence[dict[str, Any]]) -> str:
    """SVG: nanoseconds of processors per edge against the size of the graph."""
    sizes = [size["num_edges"] for size in found]
    sampled = [size["fanouts"][str(list(_FANOUTS[1]))] for size in found]
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(sizes, [1e6 * s["ms"] / max(s["edges"], 1) for s in sampled], "o-", label="sample")
    ingest_ns = [1e9 * size["ingest_cpu_s"] / size["num_edges"] for size in found]
    axes.plot(sizes, ingest_ns, "s--", label="ingest")
    axes.set(
        xscale="log", xlabel="edges of the graph", ylabel="ns of processors an edge", ylim=(0, None)
    )
    axes.legend()
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg")
    return drawing.getvalue()


def main(argv: Sequence[str] | None = None) -> None:
    """Runs each size in a process of its own, or as such a process."""
    options = _options(argv)
    scale, work = SCALES[options.scale], Path(options.work)
    sizes = options.edges or _SIZES[options.scale]
    if options.here:
        keep_freed_memory()
        torch.set_num_threads(options.threads)
        print(json.dumps(measure(sizes[0], scale, work, keeps_tables=options.keep_tables)))
        return
    found = []
    for num_edges in sizes:
        command = [sys.executable, __file__, "--here", "--edges", str(num_edges)]
        command += ["--scale", options.scale, "--work", options.work]
        command += ["--threads", str(options.threads)]
        command += ["--keep-tables"] if options.keep_tables else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    publish("scaling", options, scaling_rows(found), sizes=found)
    if options.plot is not None:
        Path(options.plot).write_text(plot(found) + "\n")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--edges", type=_whole, nargs="+", metavar="N", help="instead of all")
    options.add_argument("--threads", type=int, default=2, help="of torch")
    options.add_argument("--plot", metavar="FILE", help="an SVG")
    options.add_argument("--keep-tables", action="store_true", help="for another run")
    options.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return options.parse_args(argv)


def _whole(text: str) -> int:
    return int(float(text))


if __name__ == "__main__":
    main()
