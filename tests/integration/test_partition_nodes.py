"""A partition by all nodes that see its folder, and by one where others do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raygnn.data.partition.build import Partitioning, partition
from tests.folders import contents
from tests.integration.ray_head import RayHead, end

pytestmark = [pytest.mark.ray, pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
_SCRIPT = """
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
                [sys.executable, "-c", _SCRIPT, small_tables, str(out), sight],
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
