"""Ingest of the tables of a bucket by one node of a cluster, and by two, of one CPU each.

    python benchmarks/ingest_nodes.py --scale reference --clock cpu

Nodes are raylets of this machine, and the bucket is its disk, read as a bucket is. Each round
starts both clusters, and each case runs once before it is timed, so that workers have started.
With `--clock cpu` a case takes the processor time of its busiest node: that of its raylet and
workers, and of the process that ingests on the first. Memory is the highest sum of what all these
processes have of their own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import pyarrow as pa
import ray
from harness import SCALES, Row, Scale, parser, publish
from ingest import OwnMemory, write_edges
from pyarrow import csv
from ray._private.node import Node
from ray.cluster_utils import Cluster

import raygnn.runtime.ingest as on_cluster
from raygnn.data.ingest import pieces
from raygnn.data.ingest.build_bundle import ingest

_CASES = {"one node": 1, "two nodes": 2}
_NUM_FILES = 8
_ROUNDS = 3
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


def processes(node: Node) -> list[psutil.Process]:
    """A node's raylet and workers."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [raylet, *filter(_is_worker, raylet.children())]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return " ".join(process.cmdline()).startswith("ray::")
    except psutil.Error:  # it has ended
        return False


def busy_s(node: Node) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes(node))


def seconds_of(folder: Path, cache: Path, cluster: Cluster, clock: str) -> float:
    """Of one ingest into an empty cache."""
    nodes = [cluster.head_node, *cluster.worker_nodes]

    def times() -> np.ndarray:
        if clock == "wall":
            return np.array([time.perf_counter()])
        own = [time.process_time(), *[0.0] * (len(nodes) - 1)]
        return np.array(own) + [busy_s(node) for node in nodes]

    shutil.rmtree(cache, ignore_errors=True)
    began = times()
    ingest(folder, cache_dir=cache, schedule=on_cluster.on_ray)
    return float((times() - began).max())


def costs_on(
    num_nodes: int, folder: Path, kinds: Collection[str], clock: str
) -> dict[tuple[str, str], tuple[float, int]]:
    """Seconds and bytes of one ingest by each case and kind of tables."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(num_nodes - 1):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    costs = {}

    def pids() -> list[int]:
        nodes = [cluster.head_node, *cluster.worker_nodes]
        return [os.getpid(), *(each.pid for node in nodes for each in processes(node))]

    try:
        for case, number in _CASES.items():
            for kind in kinds if number == num_nodes else ():
                given = folder / kind, folder / "cache", cluster, clock
                with OwnMemory(pids) as memory:  # which takes time
                    seconds_of(*given)
                costs[case, kind] = seconds_of(*given), memory.peak_bytes
    finally:
        ray.shutdown()
        cluster.shutdown()
    return costs


def rows_of(
    amounts: Mapping[str, int], costs: Mapping[tuple[str, str], tuple[float, float]]
) -> list[Row]:
    """A row for each kind of tables and case.

    Args:
        costs: seconds and bytes by case and kind.
    """
    rows = []
    for kind, amount in amounts.items():
        one, _ = costs[next(iter(_CASES)), kind]
        for case in _CASES:
            seconds, peak = costs[case, kind]
            rate = amount / seconds / 1e6
            note = f"{peak / 1e9:.2f} GB"
            rows.append(Row(f"{kind}, {case}", rate, "M/s", one / seconds, "the first", note=note))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    given = parser(__doc__, in_rounds=True).parse_args(argv)
    scale = SCALES[given.scale]
    Path(given.work).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ingest-nodes-", dir=given.work))
    # Tables of this size are cut as large ones are, into as many pieces as two nodes can share.
    pieces.PIECE_BYTES = 16 << 20
    on_cluster.is_remote = lambda _: True
    try:
        rows, edges = folder / "rows of CSV files", folder / "edges with text ids"
        with ProcessPoolExecutor(1) as pool:  # this process keeps none of its memory
            amounts = {
                rows.name: pool.submit(write_rows, rows, scale).result(),
                edges.name: int(pool.submit(write_edges, edges, "strings", scale).result()),
            }
        rounds = [
            costs_on(1, folder, amounts, given.clock) | costs_on(2, folder, amounts, given.clock)
            for _ in range(given.rounds or _ROUNDS)
        ]
    finally:
        shutil.rmtree(folder)
    costs = {
        key: (median(found[key][0] for found in rounds), median(found[key][1] for found in rounds))
        for key in rounds[0]
    }
    publish("ingest_nodes", given, rows_of(amounts, costs))


if __name__ == "__main__":
    main()
