"""A Ray run that is told to go away saves, stops, and goes on; that is no failure."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import raygnn.loops.engine
import raygnn.train
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from tests.errors import raises
from tests.small_runs import assert_same_weights, run_rank, small_config

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


class GoAway(Callback):
    """First Ray's watcher finds that a node is drained, then the driver gets SIGTERM."""

    def __init__(self, folder: str, driver: int) -> None:
        self._drained, self._signalled = Path(folder) / "drained", Path(folder) / "signalled"
        self._driver = driver

    def on_train_start(self, engine: Engine) -> None:
        raygnn.loops.engine._ASK_HOST_EVERY_S = 0.0

    def on_train_step_start(self, engine: Engine) -> None:
        if engine.position.step == 2 and not self._drained.exists():
            self._drain()
        if engine.position.step == 3:
            self._drained.touch()
        if engine.position.step >= 5 and engine.context.rank == 1:
            if not self._signalled.exists():
                self._signalled.touch()
                os.kill(self._driver, signal.SIGTERM)
            time.sleep(0.2)  # the run shall not end before it hears of it

    def _drain(self) -> None:
        """What Ray's watcher does in a worker when a node is about to be taken away."""
        from ray.train import PreemptionInfo
        from ray.train.v2._internal.execution.context import get_train_context

        info = PreemptionInfo(deadline_ms=None, preempted_node_to_ranks={"node": [0, 1]})
        get_train_context().preemption_context.preemption_info = info


def test_notice_and_signal_stop_a_run_that_goes_on(ranks, small_tables, tmp_path, capfd):
    callback = {
        "type": f"{__name__}.GoAway",
        "args": {"folder": str(tmp_path), "driver": os.getpid()},
    }
    config = small_config(
        tmp_path / "ray",
        scaling={"num_workers": 2, "max_failures": 0},
        data__uri=small_tables,
        training__max_epochs=3,
        training__validate_every={"steps": 4},
        callbacks=[callback],
    )
    with raises("run-stopped", "SIGTERM") as stopped:
        raygnn.train.fit(config, allow_modules=["tests"])
    assert stopped.value.exit_status == 143
    told = capfd.readouterr().out
    assert "stopped by the preemption of a node after step 3, epoch 1" in told
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    result = raygnn.train.fit(config, allow_modules=["tests"])
    assert result.metrics["restarts"] == 2

    plain = small_config(
        tmp_path / "plain",
        scaling__num_workers=2,
        training__max_epochs=3,
        training__validate_every={"steps": 4},
    )
    bundle = ingest(small_tables, IngestOptions(), os.environ["RAYGNN_CACHE_DIR"])
    ranks.run(run_rank, 2, plain, str(bundle.path))
    assert_same_weights(config, plain)
