from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from raygnn.outputs.loggers import EventWriter
from tests.event_files import shown_scalars
from tests.small_runs import run_rank, small_config


class KilledError(BaseException):
    """Stands for the death of the process."""


class KillAt(Callback):
    """Dies before a step as long as a file is there."""

    def __init__(self, step: int, marker: str) -> None:
        self._step, self._marker = step, Path(marker)

    def on_train_step_start(self, engine: Engine) -> None:
        if self._marker.exists() and engine.position.step == self._step:
            raise KilledError


def test_curves_have_the_names_of_their_metrics(tmp_path, caplog):
    writer = EventWriter(str(tmp_path), purge_step=0)
    with caplog.at_level("INFO"):
        writer.add_scalars({"val/full_recall@20": 0.5, "train/loss/a b": 2}, 3)
    writer.close()
    assert shown_scalars(str(tmp_path)) == {
        ("val/full_recall@20", 3): 0.5,
        ("train/loss/a b", 3): 2.0,
    }
    assert not caplog.records


@pytest.mark.parametrize("where", ["local", "memory"])
def test_a_resumed_run_has_the_steps_of_a_straight_one(small_bundle_path, tmp_path, where):
    def config(name: str, logs: str | None) -> dict:
        killer = {"type": f"{__name__}.KillAt", "args": {"step": 5, "marker": str(marker)}}
        return small_config(
            tmp_path,
            scaling__num_workers=0,
            loader={"batch_size": 40, "eval_batch_size": 100},
            training={
                "max_steps": 8,
                "log_every": {"steps": 1},
                "validate_every": {"steps": 4},
                "validate_at_start": True,
            },
            checkpoint={"every": {"steps": 3}, "policy": "last"},
            callbacks=[killer],
            loggers=["tensorboard"],
            run__name=name,
            run__logs_uri=logs,
        )

    marker = tmp_path / "kill"
    logs = "memory://event-logs" if where == "memory" else str(tmp_path / "logs")
    if where == "memory" and fsspec.filesystem("memory").exists("/event-logs"):
        fsspec.filesystem("memory").rm("/event-logs", recursive=True)
    run_rank(config("straight", None), small_bundle_path)
    marker.touch()
    for _ in range(2):  # the second goes on from a checkpoint, and dies again
        with pytest.raises(KilledError):
            run_rank(config("killed", logs), small_bundle_path)
    marker.unlink()
    metrics = run_rank(config("killed", logs), small_bundle_path)
    assert metrics["restarts"] == 2
    assert metrics["resumed_from"].startswith("step-0000000003-")

    straight, resumed = shown_scalars(str(tmp_path / "straight" / "logs")), shown_scalars(logs)
    assert set(resumed) == set(straight)
    assert {step for tag, step in resumed if tag == "train/grad_norm"} == set(range(1, 9))
    for key, value in resumed.items():
        if not key[0].startswith("perf/"):
            assert value == straight[key], key
