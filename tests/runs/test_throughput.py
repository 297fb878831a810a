from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raygnn.loops.callbacks import Callback
from raygnn.outputs.throughput import Throughput, Work, memory
from raygnn.parallel.all_reduce import LocalTotals
from tests.small_runs import run_rank, small_config

LOGGED: list[dict[str, float]] = []


class KeepLogs(Callback):
    """Comes after the throughput callback, as loggers do."""

    def on_log(self, engine: Any, metrics: dict[str, float]) -> None:
        LOGGED.append(dict(metrics))


def _step(throughput: Throughput, engine: Any, *, num_seeds: int, wait_s: float) -> None:
    throughput.on_train_step_start(engine)
    time.sleep(wait_s)
    engine.loader_wait_s += wait_s
    throughput.on_train_step_end(
        engine, LocalTotals(num_samples=num_seeds, num_edges=10 * num_seeds)
    )


def test_rates_are_of_steps_and_start_anew_with_each_log():
    engine = SimpleNamespace(loader_wait_s=0.0, context=SimpleNamespace(device=torch.device("cpu")))
    throughput = Throughput()
    _step(throughput, engine, num_seeds=5, wait_s=0.02)
    time.sleep(0.05)  # between steps: validation, checkpoints
    first: dict[str, float] = {}
    throughput.on_log(engine, first)
    assert 0 < first["perf/seeds_per_s"] <= 5 / 0.02
    assert first["perf/edges_per_s"] == pytest.approx(10 * first["perf/seeds_per_s"])
    assert 0 < first["perf/loader_wait_share"] <= 1
    assert first["perf/memory_bytes"] > 1e6
    empty: dict[str, float] = {}
    throughput.on_log(engine, empty)
    assert set(empty) == {"perf/memory_bytes"}
    assert throughput.totals()["perf/seeds_per_s"] == first["perf/seeds_per_s"]


def test_totals_go_on_after_a_resume():
    throughput = Throughput()
    assert throughput.totals() == {}
    throughput.load_state_dict({"num_seeds": 6, "num_edges": 60, "time_s": 2.0, "wait_s": 0.5})
    assert throughput.totals() == {
        "perf/seeds_per_s": 3.0,
        "perf/edges_per_s": 30.0,
        "perf/loader_wait_share": 0.25,
    }
    assert Work(**throughput.state_dict()).num_seeds == 6


def test_a_run_logs_its_throughput_and_leaves_the_totals(small_bundle_path, tmp_path):
    LOGGED.clear()
    config = small_config(
        tmp_path,
        scaling__num_workers=0,
        training={"max_epochs": 1, "log_every": {"steps": 4}},
        callbacks=[f"{__name__}.KeepLogs"],
    )
    metrics = run_rank(config, small_bundle_path)
    assert all(row["perf/seeds_per_s"] > 0 for row in LOGGED)
    written = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert written["perf/seeds_per_s"] == metrics["perf/seeds_per_s"] > 0
    assert 0 <= written["perf/loader_wait_share"] < 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_memory_of_a_gpu_is_told():
    torch.ones(1000, device="cuda")
    assert memory(torch.device("cuda"))["perf/cuda_memory_bytes"] >= 4000
