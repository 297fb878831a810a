"""Tables of a bucket are read by all nodes, and make the bundle that one node makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raygnn.data.filesystem import join
from raygnn.data.ingest.build_bundle import ingest
from tests.integration.ray_head import RayHead, end
from tests.integration.test_ingest_ray import _contents, _graph
from tests.upload import upload

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
_SCRIPT = """
import sys
import ray
from ray.util.state import list_tasks
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.runtime.ingest import ingest_on_cluster

ray.init()
bundle = ingest_on_cluster(sys.argv[1], IngestOptions(), sys.argv[2], 0)
tasks = list_tasks(filters=[("name", "=", "_read")], limit=1000)
open(sys.argv[3], "w").write(f"{bundle.path}\\n{len({task.node_id for task in tasks})}")
"""


@pytest.mark.parametrize("cpus_of_head", [0, 1])
def test_all_nodes_read_the_tables_of_a_bucket(gcs_bucket, tmp_path, cpus_of_head):
    graph = _graph(tmp_path / "graph", num_nodes=3000)
    uri = upload(graph, join(gcs_bucket, f"read-by-all-{cpus_of_head}"))
    environment = {"PYTHONPATH": str(ROOT)}
    with RayHead(num_cpus=cpus_of_head, environment=environment) as head:
        nodes = [head.add_node(1, {}) for _ in range(2)]
        try:
            command = [
                sys.executable,
                "-c",
                _SCRIPT,
                uri,
                *map(str, (tmp_path / "there", tmp_path / "found")),
            ]
            variables = {**os.environ, **head.driver_environment, **environment}
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, timeout=300
            )
        finally:
            for node in nodes:
                end(node)
    assert done.returncode == 0, done.stderr
    path, num_nodes = (tmp_path / "found").read_text().splitlines()
    assert int(num_nodes) >= 2, done.stdout
    here = ingest(uri, cache_dir=tmp_path / "here")
    assert _contents(Path(path)) == _contents(here.path)
