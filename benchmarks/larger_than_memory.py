"""Training over a bundle that is larger than memory: seeds/s, page faults, bytes read.

    systemd-run --scope -p MemoryMax=3G python benchmarks/larger_than_memory.py --nodes 13900000

The shape of ogbn-papers100M: 14.4 edges a node, 128 features, here drawn at random; `--nodes
111000000` is its size. A machine with less memory than the bundle, or a limit as above, is up to
the caller: the script says what it found. Each case trains GraphSAGE of two layers in a process of
its own, first over files that are mapped in the usual way ("as-mapped"; a step may take minutes, so
give it a small batch), then as raygnn maps what is larger than memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from harness import REFERENCE, Row, Scale, parser, publish
from rmat_graph import EDGE, RmatGraph
from training import Trainer, make_loader, raygnn_model

from raygnn.data import arrays
from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.loops.process import keep_freed_memory

_EDGES_PER_NODE = 14.4
_STEPS = 20
_HOW = ("as-mapped", "for-random-reads")


def scale_of(num_nodes: int, batch_size: int) -> Scale:
    """Graph, model and batches."""
    edges = int(_EDGES_PER_NODE * num_nodes)
    sizes = {"num_nodes": num_nodes, "num_edges": edges, "batch_size": batch_size}
    return replace(REFERENCE, **sizes, num_classes=172, fanouts=(15, 10))


def open_bundle(scale: Scale, work: Path) -> Bundle:
    """The bundle; made at the first call."""
    graph = RmatGraph(
        *(scale.num_nodes, scale.num_edges, scale.num_features, scale.num_classes),
        feature_dtype="float16",
    )
    options = IngestOptions(feature_dtype="float16")
    return ingest(graph.tables(work), options, work / "cache")


def train(scale: Scale, work: Path, how: str, max_s: float) -> dict[str, float]:
    """Figures of one case, of at most `_STEPS` steps after the first, in this process."""
    if how == "as-mapped":
        arrays.memory_bytes = lambda: 1 << 60
    bundle = open_bundle(scale, work)
    keep_freed_memory()
    trainer = Trainer(raygnn_model(scale), "cpu", "blocks")
    num_steps = 0
    with make_loader(scale, bundle, "cpu", None) as loader:
        epochs = itertools.chain.from_iterable(loader.iterate(epoch) for epoch in itertools.count())
        trainer.step(next(epochs))
        faults, read, began = _faults(), _bytes_read(), time.perf_counter()
        while num_steps < _STEPS and time.perf_counter() - began < max_s:
            trainer.step(next(epochs))
            num_steps += 1
        seconds = time.perf_counter() - began
        return {
            "seeds_per_s": num_steps * scale.batch_size / seconds,
            "faults": (_faults() - faults) / num_steps,
            "read_bytes": (_bytes_read() - read) / num_steps,
            "bundle_bytes": bundle.num_bytes,
            "memory_bytes": arrays.memory_bytes(),
            "edges": bundle.num_edges(EDGE),
        }


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark, or one case of it."""
    options = _options(argv)
    scale, work = scale_of(options.nodes, options.batch_size), Path(options.work)
    if options.case:
        torch.set_num_threads(1)
        print(json.dumps(train(scale, work, options.case, options.max_s)))
        return
    rows = []
    open_bundle(scale, work)
    for how in options.how:
        command = [sys.executable, *sys.argv, "--case", how]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        note = (
            f"{found['faults']:,.0f} major faults and {found['read_bytes'] / 1e6:,.0f} MB read "
            f"a step; bundle {found['bundle_bytes'] / 1e9:.1f} GB, memory "
            f"{found['memory_bytes'] / 1e9:.1f} GB"
        )
        rows.append(Row(how, found["seeds_per_s"], "seeds/s", note=note))
    publish("larger_than_memory", options, rows)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--nodes", type=int, default=20_000)
    options.add_argument("--max-s", type=float, default=120, help="of a case")
    options.add_argument("--batch-size", type=int, default=REFERENCE.batch_size)
    options.add_argument("--how", nargs="+", choices=_HOW, default=_HOW, help="which to measure")
    options.add_argument("--case", choices=_HOW, help=argparse.SUPPRESS)
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
