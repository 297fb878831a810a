"""Memory of 1, 2 and 4 workers of one machine that train at the same time, beside PyG's.

    python benchmarks/memory.py --scale reference

The sum over workers of the proportional set size: pages that several processes map, such as the
bundle, count once. Each PyG worker holds the tensors of the graph itself, as it does under DDP.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import SCALES, Row, parser, publish
from memory_worker import graph_arrays
from rmat_graph import RmatGraph

_WORKERS = (1, 2, 4)
_OWN_BYTES = 700e6  # aim for what a worker needs beside the bundle


def total_bytes(kind: str, scale: str, bundle: Path, num_workers: int) -> int:
    """The sum of all workers' sizes, when all of them have trained."""
    script = Path(__file__).with_name("memory_worker.py")
    command = [sys.executable, str(script), kind, scale, str(bundle)]
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(num_workers)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            if worker.stdout.readline().strip() != "ready":
                raise RuntimeError(f"{' '.join(command)} failed, see above")
        return sum(_asked(worker) for worker in workers)
    finally:
        for worker in workers:
            worker.communicate()


def _asked(worker: subprocess.Popen[str]) -> int:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(file=worker.stdin, flush=True)
    return int(worker.stdout.readline())


def memory_rows(graph_bytes: int, ours: Mapping[int, float], pyg: Mapping[int, float]) -> list[Row]:
    """The rows, from bytes by number of workers."""
    rows = [Row("bundle, what an epoch reads", graph_bytes / 1e6, "MB")]
    for num_workers, total in ours.items():
        own = (total - graph_bytes) / num_workers
        limit = graph_bytes + num_workers * _OWN_BYTES
        note = f"{own / 1e6:,.0f} MB a worker beside the bundle"
        aim = f"<= {limit / 1e6:,.0f} MB"
        rows.append(
            Row(
                f"raygnn, {num_workers} workers",
                total / 1e6,
                "MB",
                total / limit,
                "the aim",
                aim,
                note,
            )
        )
        if num_workers in pyg:
            theirs = pyg[num_workers]
            label = f"PyG, {num_workers} workers"
            rows.append(Row(label, theirs / 1e6, "MB", theirs / total, "raygnn"))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__)
    options.add_argument("--workers", type=int, nargs="+", default=_WORKERS, metavar="N")
    given = options.parse_args(argv)
    scale = SCALES[given.scale]
    graph = RmatGraph(
        *(scale.num_nodes, scale.num_edges, scale.num_features, scale.num_classes),
        columns=("weight",),
    )
    bundle = graph.bundle(Path(given.work))
    ours, pyg = (
        {n: float(total_bytes(kind, scale.name, bundle.path, n)) for n in given.workers}
        for kind in ("raygnn", "pyg")
    )
    graph_bytes = sum(array.nbytes for array in graph_arrays(bundle))
    publish("memory", given, memory_rows(graph_bytes, ours, pyg))


if __name__ == "__main__":
    main()
