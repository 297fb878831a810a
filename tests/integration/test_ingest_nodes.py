"""Tables are ingested and partitioned by all nodes that see them, with the bytes of one node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from raygnn.data.filesystem import join
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.partition.build import Partitioning, partition
from tests.folders import contents, upload
from tests.integration.ray_head import RayHead, end
from tests.varied_graph import TABLES, write_varied_graph

pytestmark = [pytest.mark.ray, pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
_SCRIPT = """
import sys
import ray
from ray.util.state import list_tasks
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.runtime import ingest as where

ray.init()
where.MIN_SCHEDULED_BYTES = 0
bundle = where.ingest_on_cluster(sys.argv[1], IngestOptions(on_error="drop"), sys.argv[2])
tasks = list_tasks(filters=[("name", "=", "MapBatches(_run_items)")], limit=1000)
open(sys.argv[3], "w").write(f"{bundle.path}\\n{len({task.node_id for task in tasks})}")
"""
# The process that waits for the first rows of another node, and kills that node.
_WITH_A_LOSS = """
import sys
import psutil
import raygnn.runtime.ray_tasks as module

nodes = [psutil.Process(int(sys.argv[4]))]

class KillAndWrite(module.RowWriter):
    def __call__(self, *rows):
        while nodes:
            node = nodes.pop()
            for process in [*node.children(recursive=True), node]:
                process.kill()
        super().__call__(*rows)

module.RowWriter = KillAndWrite
"""


def _ingest_on(
    head: RayHead, uri: str, folder: Path, script: str, *more: str
) -> tuple[Path, int, str]:
    """The bundle, how many nodes computed, and what was said."""
    there, found = folder / "there", folder / "found"
    command = [sys.executable, "-c", script, uri, str(there), str(found), *more]
    variables = {**os.environ, **head.driver_environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    path, num_nodes = found.read_text().splitlines()
    return Path(path), int(num_nodes), done.stdout


@pytest.mark.parametrize(("cpus_of_head", "bad"), [(0, ()), (1, TABLES)])
def test_all_nodes_ingest_the_tables_of_a_bucket(
    gcs_bucket: str, tmp_path: Path, cpus_of_head: int, bad: Sequence[str]
) -> None:
    graph = write_varied_graph(tmp_path / "graph", bad)
    uri = upload(graph, join(gcs_bucket, f"by-all-{cpus_of_head}"))
    with RayHead(num_cpus=cpus_of_head, environment={"PYTHONPATH": str(ROOT)}) as head:
        nodes = [head.add_node(1, {}) for _ in range(2)]
        try:
            path, num_nodes, said = _ingest_on(head, uri, tmp_path, _SCRIPT)
        finally:
            for node in nodes:
                end(node)
    assert num_nodes >= 2, said
    here = ingest(uri, IngestOptions(on_error="drop"), tmp_path / "here")
    assert contents(path) == contents(here.path)


def test_the_loss_of_a_node_costs_only_time(gcs_bucket: str, tmp_path: Path) -> None:
    uri = upload(write_varied_graph(tmp_path / "graph"), join(gcs_bucket, "by-all-and-a-loss"))
    with RayHead(num_cpus=1, environment={"PYTHONPATH": str(ROOT)}) as head:
        node = head.add_node(2, {})
        try:
            script = _WITH_A_LOSS + _SCRIPT
            path, _, said = _ingest_on(head, uri, tmp_path, script, str(node.pid))
        finally:
            end(node)
    here = ingest(uri, IngestOptions(on_error="drop"), tmp_path / "here")
    assert contents(path) == contents(here.path), said


_PARTITION = """
import json, sys, time
import ray
from ray.util.state import list_tasks
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.data.partition.build import Partitioning
from raygnn.runtime import ingest as where

ray.init()
where.MIN_SCHEDULED_BYTES = 0
here = ray.get_runtime_context().get_node_id()
if sys.argv[3] == "blind":  # as if the folder were of one disk: another node finds no such file
    where._see = lambda paths: ray.get_runtime_context().get_node_id() == here
where.partition_tables(sys.argv[1], sys.argv[2], Partitioning(3), IngestOptions())
known, tasks = None, []
while not tasks or len(tasks) != known:  # nodes tell of their tasks once a second
    known = len(tasks)
    time.sleep(3)
    filters = [("name", "=", "MapBatches(_run_items)"), ("state", "=", "FINISHED")]
    tasks = list_tasks(filters=filters, limit=1000)
print(json.dumps(["here" if task.node_id == here else "there" for task in tasks]))
"""


@pytest.mark.parametrize("sight", ["all", "blind"])
def test_nodes_that_see_the_folder_compute(small_tables: str, tmp_path: Path, sight: str) -> None:
    out = tmp_path / "out"
    environment = {"PYTHONPATH": str(ROOT)}
    with RayHead(num_cpus=1, environment=environment, takes_jobs=True) as head:
        node = head.add_node(1, {})
        try:
            done = subprocess.run(
                [sys.executable, "-c", _PARTITION, small_tables, str(out), sight],
                env={**os.environ, **head.driver_environment, **environment},
                capture_output=True,
                text=True,
                timeout=400,
            )
        finally:
            end(node)
    assert done.returncode == 0, done.stderr
    found = done.stdout + done.stderr
    nodes = set(json.loads(done.stdout.splitlines()[-1]))
    if sight == "all":
        assert "partition: on 2 nodes" in found
        assert nodes == {"here", "there"}
    else:
        assert "on this node, as 1 of 2 nodes do not see" in found
        assert nodes == {"here"}
    partition(small_tables, tmp_path / "here", Partitioning(3))
    assert contents(out) == contents(tmp_path / "here")
