"""A run that a signal stops has a checkpoint, and ends with the bits of one that never stopped."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import raygnn.loops.signals
import raygnn.train
from raygnn.errors import PreemptedError
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from raygnn.loops.signals import Terminated, signals_as_notices
from tests.errors import raises
from tests.small_runs import assert_same_weights, read_history, run_rank, small_config


class SignalOnce(Callback):
    """One rank's process is given a signal after a step, while a file says so."""

    def __init__(self, step: int, rank: int, marker: str, name: str = "SIGTERM") -> None:
        self._step, self._rank, self._marker = step, rank, Path(marker)
        self._signal = signal.Signals[name]

    def on_train_step_start(self, engine: Engine) -> None:
        if engine.position.step == self._step and engine.context.rank == self._rank:
            try:
                self._marker.unlink()
            except FileNotFoundError:
                return
            os.kill(os.getpid(), self._signal)


def _config(folder: Path, world_size: int, *, step: int, rank: int = 0, **changes) -> dict:
    folder.mkdir(exist_ok=True)
    arguments = {"step": step, "rank": rank, "marker": str(folder / "kill")}
    return small_config(
        folder,
        scaling__num_workers=world_size,
        training__max_epochs=3,
        training__log_every={"steps": 3},
        # The stop falls between validations, and may not add one: patience counts them.
        training__validate_every={"steps": 4},
        early_stopping={"monitor": "val/loss", "patience": 20},
        lr_scheduler={"type": "StepLR", "args": {"step_size": 3}},
        callbacks=[{"type": f"{__name__}.SignalOnce", "args": arguments}],
        **changes,
    )


def _assert_same_bits(config: dict, straight: dict) -> None:
    assert_same_weights(config, straight)
    folders = (Path(c["run"]["storage_path"]) for c in (config, straight))
    one, other = (read_history(folder) for folder in folders)
    assert one == other


@pytest.mark.parametrize(("world_size", "rank"), [(2, 1), (3, 0)])
def test_a_signal_to_one_rank_stops_all_and_a_second_start_ends_alike(
    ranks, small_bundle_path, tmp_path, world_size, rank
):
    straight = _config(tmp_path / "straight", world_size, step=5)
    ranks.run(run_rank, world_size, straight, small_bundle_path)
    config = _config(tmp_path / "stopped", world_size, step=5, rank=rank)
    (tmp_path / "stopped" / "kill").touch()
    with pytest.raises(RuntimeError, match=r"PreemptedError: .* SIGTERM .*\[run-stopped\]"):
        ranks.run(run_rank, world_size, config, small_bundle_path)
    ranks.run(run_rank, world_size, config, small_bundle_path)
    _assert_same_bits(config, straight)
    (_, second) = json.loads((tmp_path / "stopped" / "run" / "run.json").read_text())["starts"]
    assert second["step"] == 6


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_the_command_ends_with_the_status_of_the_signal(
    small_bundle_path, small_tables, tmp_path, capsys, name, status
):
    config = _config(tmp_path / "stopped", 0, step=4)
    config["data"] = {"uri": small_tables}
    config["callbacks"][0]["args"]["name"] = name
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    (tmp_path / "stopped" / "kill").touch()
    command = [str(path), "--allow-module", "tests", "--json"]
    before = signal.getsignal(signal.SIGTERM)
    assert raygnn.train.main(command) == status
    printed = capsys.readouterr()
    assert f"was stopped by {name} after step 5" in printed.err
    last, result = map(json.loads, printed.out.splitlines()[-2:])
    assert (last["event"], last["reason"]) == ("stop", name)
    assert (result["event"], result["exit_status"]) == ("result", status)
    state = json.loads((tmp_path / "stopped" / "run" / "run.json").read_text())
    assert state["status"] == "stopped"
    assert signal.getsignal(signal.SIGTERM) == before
    assert raygnn.train.main(command) == 0
    straight = _config(tmp_path / "straight", 0, step=99)
    run_rank(straight, small_bundle_path)
    _assert_same_bits(config, straight)


def test_without_checkpoints_it_says_so(small_bundle_path, tmp_path):
    config = _config(tmp_path, 0, step=1, checkpoint={"policy": "none"})
    (tmp_path / "kill").touch()
    with raises("run-stopped", "checkpoint.policy: none"):
        run_rank(config, small_bundle_path)


def test_a_later_signal_ends_at_once(monkeypatch):
    told: list[str] = []
    with signals_as_notices(told.append):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)  # the same request, by another way
        monkeypatch.setattr(raygnn.loops.signals, "_ONE_REQUEST_S", 0.0)
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert told == ["SIGINT"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
@pytest.mark.parametrize(("line", "apart_s"), [("ingest: reading", 2.0), ("epoch ", 0.05)])
def test_ctrl_c_twice_is_130_without_a_traceback(small_tables, tmp_path, line, apart_s):
    """The second one arrives while the first is answered, or while Python exits."""
    config = small_config(tmp_path, scaling__num_workers=0, training__max_epochs=100_000)
    config["data"] = {"uri": small_tables, "cache_dir": str(tmp_path / "own")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "raygnn.train", str(tmp_path / "config.yaml")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert any(line in row for row in process.stdout)
            process.send_signal(signal.SIGINT)
            time.sleep(apart_s)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert "SIGINT" in err
    assert "Traceback" not in err


def test_the_error_survives_the_way_back_from_a_worker():
    again = pickle.loads(pickle.dumps(PreemptedError("stopped", "SIGINT")))
    assert (str(again), again.cause, again.exit_status) == ("stopped", "SIGINT", 130)
