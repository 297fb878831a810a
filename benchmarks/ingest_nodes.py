"""Ingest of the tables of a bucket by one node of a cluster, and by two, of one CPU each.

    python benchmarks/ingest_nodes.py --scale reference

Nodes are raylets of this machine, and the bucket is its disk, read as a bucket is: by all nodes,
while the first one looks up ids, sorts and writes. Beside it stands what tables of a shared disk
take, all on the first node. Each case runs once before it is timed, so that workers have started.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import ray
from harness import SCALES, Row, Scale, parser, publish
from ingest import write_edges
from pyarrow import csv
from ray.cluster_utils import Cluster

from raygnn.data.ingest import pieces
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.ingest.schedule import Schedule
from raygnn.runtime.ingest import by_all_nodes, ray_data_schedule

_SCHEDULES: dict[str, Schedule] = {
    "first node alone": ray_data_schedule,
    "read by all": by_all_nodes,
}
_NUM_FILES = 8
_ROUNDS = 2
_MANIFEST = """
format: raygnn/graph-v1
node_types: {n: {files: nodes/*.csv, id: id, features: {x: {columns: [%s]}}}}
edge_types: []
"""


def write_rows(folder: Path, scale: Scale) -> int:
    """Writes CSV files of nodes with columns of numbers; returns how many rows."""
    num_rows, width = scale.num_nodes, 16
    rng = np.random.default_rng(0)
    (folder / "nodes").mkdir(parents=True)
    for i in range(_NUM_FILES):
        ids = np.arange(i, num_rows, _NUM_FILES)
        columns = {f"c{k}": rng.random(len(ids), np.float32) for k in range(width)}
        csv.write_csv(pa.table({"id": ids, **columns}), folder / "nodes" / f"{i}.csv")
    names = ", ".join(f"c{k}" for k in range(width))
    (folder / "graph.yaml").write_text(_MANIFEST % names)
    return num_rows


def seconds_of(folder: Path, cache: Path, schedule: Schedule) -> float:
    """Of one ingest into an empty cache."""
    shutil.rmtree(cache, ignore_errors=True)
    began = time.perf_counter()
    ingest(folder, cache_dir=cache, schedule=schedule)
    return time.perf_counter() - began


def rows_of(amounts: dict[str, int], folder: Path, num_nodes: int) -> list[Row]:
    """A row for each kind of tables and each schedule, on so many nodes."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(num_nodes - 1):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    rows = []
    try:
        for kind, amount in amounts.items():
            for name, schedule in _SCHEDULES.items():
                times = [
                    seconds_of(folder / kind, folder / "cache", schedule)
                    for _ in range(1 + _ROUNDS)
                ]
                found = float(np.median(times[1:]))
                what = f"{kind}, {num_nodes} node(s), {name}"
                rows.append(Row(what, amount / found / 1e6, "M/s"))
    finally:
        ray.shutdown()
        cluster.shutdown()
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    given = parser(__doc__).parse_args(argv)
    scale = SCALES[given.scale]
    scale = replace(scale, num_nodes=scale.num_nodes // 4, num_edges=scale.num_edges // 4)
    Path(given.work).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ingest-nodes-", dir=given.work))
    # Tables of this size are cut as large ones are, into as many pieces as two nodes can share.
    pieces.PIECE_BYTES = 16 << 20
    try:
        edges = folder / "edges with text ids"
        amounts = {
            "rows of CSV files": write_rows(folder / "rows of CSV files", scale),
            edges.name: int(write_edges(edges, "strings", scale)),
        }
        rows = [row for num_nodes in (1, 2) for row in rows_of(amounts, folder, num_nodes)]
    finally:
        shutil.rmtree(folder)
    publish("ingest_nodes", given, rows)


if __name__ == "__main__":
    main()
