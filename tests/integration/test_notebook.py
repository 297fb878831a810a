"""The example notebook runs, and the stop button stops a run that another cell can go on with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from nbclient import NotebookClient

from tests.integration.ray_head import RayHead
from tests.linger import Linger
from tests.small_runs import small_config
from tests.wait_until import wait_until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    # Of sockets that jupyter_client leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    environment = {"PYTHONPATH": str(ROOT)}
    with RayHead(num_cpus=2, environment=environment, takes_jobs=False) as started:
        yield started


@pytest.fixture(autouse=True)
def _environment(
    num_workers: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels find raygnn, and the cluster where the run has workers."""
    if num_workers:
        for name, value in request.getfixturevalue("head").driver_environment.items():
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_example_runs(tmp_path, num_workers):
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # kept without outputs
    if num_workers == 0:  # all but Ray, in a third of the time
        notebook.cells = [cell for cell in notebook.cells if "ray.init(ign" not in cell.source]
        for cell in notebook.cells:
            cell.source = cell.source.replace('"num_workers": 2', '"num_workers": 0')
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    shown = [out["data"] for out in outputs if out.get("data")]
    assert sum("image/png" in data for data in shown) == 2
    texts = "\n".join(data.get("text/plain", "") for data in shown)
    assert "test/accuracy" in texts
    assert "'GCN': " in texts
    assert "(2000, 32)" in texts
    runs = list((tmp_path / "build" / "notebook").glob("*/metrics.json"))
    assert [json.loads(run.read_text())["num_workers"] for run in runs] == [max(num_workers, 1)] * 2


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager, client = start_new_kernel(cwd=str(tmp_path), env={**os.environ})
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_interrupting_a_cell_stops_the_run_and_the_next_cell_goes_on(kernel, tmp_path, num_workers):
    manager, client = kernel
    marker = tmp_path / "marker"
    marker.touch()  # while it is there, no run is through before it is interrupted
    config = small_config(
        tmp_path,
        data__synthetic={"type": "planted_partition", "num_nodes": 300, "num_classes": 3},
        scaling__num_workers=num_workers,
        training__max_epochs=40,
        callbacks=[Linger.entry(marker)],
    )
    fit = f"raygnn.train.fit({config!r}, allow_modules=['tests'])"
    request = client.execute(f"import raygnn.train\nresult = {fit}")
    history = tmp_path / "run" / "history.jsonl"
    wait_until(lambda: history.exists() and len(history.read_text().splitlines()) >= 3)
    manager.interrupt_kernel()
    stopped, _ = _reply(client, request)
    assert (stopped["status"], stopped["ename"]) == ("error", "PreemptedError")
    assert "Start the same run again" in stopped["evalue"]
    done = len(history.read_text().splitlines())
    assert done < 40
    marker.unlink()
    if num_workers:
        looked, printed = _reply(client, client.execute(_LOOK))
        assert looked["status"] == "ok"
        assert "2.0 CPUs are free, of the run are []" in printed

    code = f"result = {fit}\nprint(result.metrics['resumed_from'])"
    again, printed = _reply(client, client.execute(code))
    assert again["status"] == "ok", again
    assert "step-" in printed
    assert len(history.read_text().splitlines()) == 40


#: Run in the kernel: what the cluster still holds, as soon as that is nothing, or after 300 s.
_LOOK = """
import time
import ray
from ray.util.state import list_actors
names = ("RayTrainWorker", "TrainController", "_StopRequests")
end_s = time.monotonic() + 300
while True:
    actors = list_actors(filters=[("state", "!=", "DEAD")])
    left = [actor.class_name for actor in actors if actor.class_name in names]
    free = ray.available_resources().get("CPU", 0.0)
    if (free == 2 and not left) or time.monotonic() > end_s:
        break
    time.sleep(0.5)
print(f"{free} CPUs are free, of the run are {left}")
"""


def _reply(client: BlockingKernelClient, request: str) -> tuple[dict[str, Any], str]:
    """The reply to one request, and what its cell has printed.

    A kernel that starts slowly still answers whether it is ready: other replies are passed over.
    """

    def of_request(message: dict[str, Any]) -> bool:
        return bool(message["parent_header"].get("msg_id") == request)

    while True:
        reply = client.get_shell_msg(timeout=400)
        if of_request(reply):
            break
    texts = []
    while True:
        message = client.get_iopub_msg(timeout=400)
        if of_request(message) and message["msg_type"] == "stream":
            texts.append(message["content"]["text"])
        if of_request(message) and message["content"].get("execution_state") == "idle":
            return reply["content"], "".join(texts)
