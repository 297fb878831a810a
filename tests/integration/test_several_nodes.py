"""Two raylets: what is said where they do not share what they must."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.integration.ray_head import RayHead, end
from tests.small_runs import small_bundle, small_config

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("graph")
    small_bundle(folder)
    return str(folder / "tables")


@contextmanager
def _driver(head: RayHead, config: dict, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m raygnn.train` on a cluster; its output goes to a file."""
    path = log.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config))
    cache = str(log.parent / "cache-driver")
    environment = {**head.client_environment, "RAY_ADDRESS": head.address}
    environment |= {"PYTHONPATH": str(ROOT), "RAYGNN_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "raygnn.train", str(path)],
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            end(process)


def _config(folder: Path, graph: str, num_workers, **changes) -> dict:
    settings = {"data__uri": graph, "scaling__num_workers": num_workers}
    settings |= {"scaling__cpus_per_worker": 1, "scaling__placement_strategy": "SPREAD"}
    return small_config(folder, **{**settings, **changes})


def test_a_folder_that_nodes_do_not_share_is_told(graph, tmp_path):
    storage = tmp_path / "runs"
    storage.mkdir()
    hidden = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs none {storage} && exec "$@"', "sh")
    if subprocess.run([*hidden, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    log = tmp_path / "log"
    config = _config(storage, graph, 2, scaling__wait_for_nodes_s=60)
    with RayHead(num_cpus=1, environment={"PYTHONPATH": str(ROOT)}) as head:
        head.add_node(1, wrapper=hidden)
        with _driver(head, config, log) as driver:
            driver.wait(timeout=240)
    assert driver.returncode == 2, log.read_text()
    assert "does not see the run's folder" in log.read_text()
