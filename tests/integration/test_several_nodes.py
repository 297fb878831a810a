"""Several raylets on one machine: results, nodes and drivers that die, what is not shared.

Each node is a `ray start` with a cache folder of its own; the head lends no CPUs, as in cluster/.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import torch
import yaml

from raygnn.data.bundle_record import RECORD_NAME
from raygnn.data.filesystem import join
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import open_partitioned
from tests.folders import upload
from tests.integration.ray_head import RayHead, end, kill, num_sent
from tests.linger import Linger
from tests.rank_pool import RankPool
from tests.small_runs import assert_same_weights, run_rank, small_config, trained_weights
from tests.wait_until import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.cluster, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
#: Of actors that a run starts.
OF_A_RUN = ("RayTrainWorker", "TrainController", "_StopRequests")


@dataclass
class Node:
    """A raylet, and the folder in which it keeps graphs."""

    process: subprocess.Popen[bytes]
    cache: Path

    @property
    def bundles(self) -> int:
        return len(list(self.cache.glob(f"bundles/*/{RECORD_NAME}")))

    @property
    def fetched_parts(self) -> list[str]:
        """Names of the parts that it has fetched from a bucket."""
        return sorted(f"part-{path.name[-5:]}" for path in self.cache.glob("bundles/*-fetched-*/"))

    @property
    def has_rows_of_others(self) -> bool:
        """Whether it keeps rows of parts of other nodes."""
        return any(self.cache.glob("bundles/*-hot/*/rows/*/*/rows.npy"))


class Nodes:
    """Adds nodes to a head."""

    def __init__(self, head: RayHead, folder: Path) -> None:
        self._head, self._folder = head, folder
        self._nodes: list[Node] = []

    def add(self, num_cpus: int) -> Node:
        cache = self._folder / f"cache-{len(self._nodes)}"
        process = self._head.add_node(num_cpus, {"RAYGNN_CACHE_DIR": str(cache)})
        self._nodes.append(Node(process, cache))
        return self._nodes[-1]

    def end(self) -> None:
        for node in self._nodes:
            end(node.process)


@pytest.fixture(scope="module")
def head(gcs_bucket: str) -> Iterator[RayHead]:  # its nodes find the bucket in their environment
    environment = {"PYTHONPATH": str(ROOT), "RAY_metrics_report_interval_ms": "500"}
    with RayHead(num_cpus=0, environment=environment, takes_jobs=False) as started:
        yield started


@pytest.fixture
def nodes(head: RayHead, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(head, tmp_path)
    yield made
    made.end()


@contextmanager
def _driver(head: RayHead, config: dict[str, Any], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m raygnn.train` on a cluster; its output is added to a file."""
    path = log.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config))
    environment = {**os.environ, **head.driver_environment, "RAY_DEDUP_LOGS": "0"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= {"RAYGNN_CACHE_DIR": str(log.parent / "cache-driver")}
    command = [sys.executable, "-m", "raygnn.train", str(path), "--allow-module", "tests"]
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        end(process)


def _config(folder: Path, graph: str, num_workers: Any, **changes: Any) -> dict[str, Any]:
    settings = {"data__uri": graph, "scaling__num_workers": num_workers}
    settings |= {"scaling__cpus_per_worker": 1, "scaling__wait_for_nodes_s": 60}
    # Lingering, they take longer than all that happens to a run meanwhile.
    settings |= {"training__max_epochs": 40}
    return small_config(folder, **{**settings, **changes})


def _num_rows(folder: Path) -> int:
    history = folder / "run" / "history.jsonl"
    return len(history.read_text().splitlines()) if history.exists() else 0


def _starts(folder: Path) -> list[int]:
    """The number of workers of each start of the run's workers."""
    state = json.loads((folder / "run" / "run.json").read_text())
    return [start["num_workers"] for start in state["starts"]]


def _plain_weights(
    ranks: RankPool, world_size: int, folder: Path, graph: str
) -> dict[str, torch.Tensor]:
    """What processes train that see one bundle, and that nobody disturbs."""
    plain = _config(folder, graph, world_size)
    bundle = ingest(graph, IngestOptions(), os.environ["RAYGNN_CACHE_DIR"])
    ranks.run(run_rank, world_size, plain, str(bundle.path))
    return trained_weights(plain)


def test_a_node_that_dies_changes_nothing_of_the_result(head, nodes, ranks, small_tables, tmp_path):
    marker, log = tmp_path / "marker", tmp_path / "log"
    marker.touch()
    config = _config(tmp_path / "ray", small_tables, 3, callbacks=[Linger.entry(marker, step_s=1)])
    two, one = nodes.add(2), nodes.add(1)
    with _driver(head, config, log) as driver:
        wait_until(lambda: _num_rows(tmp_path / "ray") >= 2, driver, log.read_text)
        # The graph is sent once to each node, however many workers it has.
        wait_until(lambda: num_sent(log.read_text()) >= 2, driver, log.read_text)
        assert (two.bundles, one.bundles) == (1, 1)
        wait_until(lambda: _are_shown(head), driver, log.read_text)
        kill(one.process)
        marker.unlink()
        missing = "has room for 2 of the 3 workers that are needed. The run continues when"
        wait_until(lambda: missing in log.read_text(), driver, log.read_text)
        spare = nodes.add(1)
        assert driver.wait(timeout=400) == 0, log.read_text()
    assert _starts(tmp_path / "ray") == [3, 3]
    # The new node is sent the graph, the one that stayed has it.
    assert num_sent(log.read_text()) == 3
    assert (two.bundles, spare.bundles) == (1, 1)
    expected = _plain_weights(ranks, 3, tmp_path / "plain", small_tables)
    for name, tensor in trained_weights(config).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_parts_are_on_all_nodes_and_outlive_one(
    head, nodes, ranks, small_tables, gcs_bucket, tmp_path, place
):
    marker, log, folder = tmp_path / "marker", tmp_path / "log", tmp_path / "ray"
    marker.touch()
    parts = tmp_path / "parts"
    partition(small_tables, parts, Partitioning(2))
    uri = str(parts) if place == "folder" else upload(parts, join(gcs_bucket, "parts"))
    changes = {"data": {"mode": "partitioned", "uri": uri}, "training__max_epochs": 10}
    callbacks = [Linger.entry(marker, step_s=1)]
    config = _config(folder, small_tables, 1, callbacks=callbacks, **changes)
    both = [nodes.add(1), nodes.add(1)]
    with _driver(head, config, log) as driver:
        wait_until(lambda: _num_rows(folder) >= 2, driver, log.read_text)
        assert "2 parts, one actor each, on 2 nodes" in log.read_text()
        (idle,) = [node for node in both if not _has(node, "RayTrainWorker")]
        assert _has(idle, "PartActor")
        (other,) = [node for node in both if node is not idle]
        assert (other.has_rows_of_others, idle.has_rows_of_others) == (True, False)
        if place == "bucket":  # each node has fetched its own part, and no more
            assert [len(node.fetched_parts) for node in both] == [1, 1]
        kill(idle.process)
        marker.unlink()
        assert driver.wait(timeout=400) == 0, log.read_text()
    if place == "bucket":
        assert other.fetched_parts == ["part-00000", "part-00001"]
    assert _starts(folder) == [1]
    plain = _config(tmp_path / "plain", small_tables, 1, **changes)
    ranks.run(run_rank, 1, plain, str(open_partitioned(parts).path))
    assert_same_weights(config, plain)


def _has(node: Node, actor: str) -> bool:
    """Whether a node runs an actor of this class."""
    processes = psutil.Process(node.process.pid).children(recursive=True)
    return any(actor in process.name() + " ".join(process.cmdline()) for process in processes)


def _are_shown(head: RayHead) -> bool:
    """Whether nodes show the run's metrics to Prometheus, and so to Ray's dashboard."""
    try:
        shown = head.metrics()
    except requests.RequestException:  # an agent that is still starting
        return False
    names = ("raygnn_seeds_per_s", "raygnn_train_loss", "raygnn_loader_wait_share")
    return all(f"ray_{name}{{" in shown for name in names) and 'run="run"' in shown


def test_workers_come_and_go_at_the_same_global_batch(head, nodes, ranks, small_tables, tmp_path):
    marker, log, folder = tmp_path / "marker", tmp_path / "log", tmp_path / "ray"
    marker.touch()
    config = _config(folder, small_tables, [1, 2], callbacks=[Linger.entry(marker, step_s=2)])
    nodes.add(1)
    with _driver(head, config, log) as driver:
        wait_until(lambda: _num_rows(folder) >= 1, driver, log.read_text)
        second = nodes.add(1)
        # Ray looks once a minute.
        wait_until(lambda: _starts(folder) == [1, 2], driver, log.read_text)
        before = _num_rows(folder)
        wait_until(lambda: _num_rows(folder) > before, driver, log.read_text)
        kill(second.process)
        marker.unlink()
        assert driver.wait(timeout=400) == 0, log.read_text()
    assert _starts(folder) == [1, 2, 1]
    told = log.read_text()
    assert "training on 1 worker," in told
    assert "training on 2 workers" in told
    assert told.count("global batch 32 ") == told.count("global batch ") > 0
    expected = _plain_weights(ranks, 2, tmp_path / "plain", small_tables)
    for name, tensor in trained_weights(config).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4)
    metrics = [
        json.loads((path / "run" / "metrics.json").read_text())
        for path in (folder, tmp_path / "plain")
    ]
    assert metrics[0]["samples"] == metrics[1]["samples"]
    assert metrics[0]["step"] == metrics[1]["step"]


def test_a_driver_that_disappears_takes_its_workers_along(
    head, nodes, ranks, small_tables, tmp_path
):
    marker, log, folder = tmp_path / "marker", tmp_path / "log", tmp_path / "ray"
    marker.touch()
    config = _config(folder, small_tables, 2, callbacks=[Linger.entry(marker)])
    nodes.add(2)
    with _driver(head, config, log) as driver:
        wait_until(lambda: _num_rows(folder) >= 2, driver, log.read_text)
        assert all(head.has_process(name) for name in OF_A_RUN)
        driver.kill()
        driver.wait()
    marker.unlink()
    wait_until(lambda: not any(head.has_process(name) for name in OF_A_RUN))
    with _driver(head, config, log) as driver:
        assert driver.wait(timeout=400) == 0, log.read_text()
    told = log.read_text()
    assert "resumed from step-" in told
    assert "other work uses" not in told
    expected = _plain_weights(ranks, 2, tmp_path / "plain", small_tables)
    for name, tensor in trained_weights(config).items():
        assert torch.equal(tensor, expected[name]), name


def test_a_folder_that_nodes_do_not_share_is_told(small_tables, tmp_path):
    storage = tmp_path / "runs"
    storage.mkdir()
    hidden = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs none {storage} && exec "$@"', "sh")
    if subprocess.run([*hidden, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    log = tmp_path / "log"
    config = _config(storage, small_tables, 2, scaling__placement_strategy="SPREAD")
    with RayHead(num_cpus=1, environment={"PYTHONPATH": str(ROOT)}, takes_jobs=False) as head:
        head.add_node(1, wrapper=hidden)
        with _driver(head, config, log) as driver:
            assert driver.wait(timeout=400) == 2, log.read_text()
    assert "[run-storage-not-shared]" in log.read_text()
