"""Ctrl-C twice ends each command with status 130, within bounded time and without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml

import raygnn.train
from tests.small_runs import small_bundle, small_config
from tests.wait_until import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.cluster, pytest.mark.timeout(900)]

#: From the second Ctrl-C to the end; an idle machine needs some ten seconds of it.
_ENDS_WITHIN_S = 180


class _Command:
    """A running command, and all that it has printed."""

    def __init__(self, module: str, arguments: Sequence[str], temporary: str) -> None:
        environment = {**os.environ, "RAY_ADDRESS": "local", "RAY_TMPDIR": temporary}
        self.ray = Path(temporary)
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._printed: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._readers = [
            threading.Thread(target=self._read, args=(name,), daemon=True) for name in self._printed
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        with getattr(self.process, name) as stream:
            for line in stream:
                self._printed[name].append(line)

    def text(self, *names: str) -> str:
        return "".join(line for name in names or self._printed for line in self._printed[name])

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.text(), self.process, self.text)

    def end(self) -> int:
        status = self.process.wait(_ENDS_WITHIN_S)
        for reader in self._readers:
            reader.join(_ENDS_WITHIN_S)
        return status


@pytest.fixture
def start() -> Iterator[Callable[..., _Command]]:
    commands: list[_Command] = []
    # Sockets of Ray lie in it, and their paths may not be long.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as ray:

        def start(module: str, *arguments: object) -> _Command:
            commands.append(_Command(module, [str(argument) for argument in arguments], ray))
            return commands[-1]

        yield start
        for command in commands:
            command.process.kill()
            command.end()


def _interrupt_twice(command: _Command) -> None:
    """The second one comes as soon as the first is answered: while it stops, or Python exits."""
    command.process.send_signal(signal.SIGINT)
    wait_until(
        lambda: "SIGINT" in command.text() or command.process.poll() is not None, None, command.text
    )
    command.process.send_signal(signal.SIGINT)
    assert command.end() == 130, command.text()
    err = command.text("stderr")
    assert "Traceback" not in command.text(), command.text()
    assert "SIGINT" in err


def _config(folder: Path, **changes: object) -> Path:
    small_bundle(folder)
    config = small_config(folder / "runs", training__max_epochs=100_000, **changes)
    config["data"] = {"uri": str(folder / "tables"), "cache_dir": str(folder / "own")}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("line", ["ingest: reading", "epoch "])
def test_training_on_ray(tmp_path, start, line):
    command = start("raygnn.train", _config(tmp_path, scaling__num_workers=1))
    command.wait_for(line)
    _interrupt_twice(command)


def test_the_start_of_ray(tmp_path, start):
    command = start("raygnn.train", _config(tmp_path, scaling__num_workers=1))
    # A session's folder is the first that `ray.init` makes.
    wait_until(lambda: any(command.ray.glob("ray/session_*/logs")), command.process, command.text)
    _interrupt_twice(command)
    assert "stopping as soon as Ray has started" in command.text("stdout")


def test_a_sweep(tmp_path, start):
    space = {"optimizer.args.lr": {"grid": [0.01, 0.1]}}
    tune = {"metric": "val/loss", "mode": "min", "space": space}
    command = start("raygnn.tune", _config(tmp_path, scaling__num_workers=1, tune=tune))
    command.wait_for("epoch ")
    _interrupt_twice(command)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_inference(tmp_path, start, num_workers):
    small_bundle(tmp_path)
    config = small_config(tmp_path / "runs", scaling__num_workers=0, training__max_epochs=1)
    config["data"] = {"uri": str(tmp_path / "tables")}
    raygnn.train.fit(config)
    (tmp_path / "large").mkdir()
    small_bundle(tmp_path / "large", num_nodes=100_000)
    data = ["--data.uri", tmp_path / "large" / "tables", "--data.cache_dir", tmp_path / "own"]
    slowly = ["--loader.eval_batch_size", 1, "--scaling.num_workers", num_workers]
    model, out = tmp_path / "runs" / "run", tmp_path / "out"
    command = start("raygnn.infer", model, "--out", out, *data, *slowly)
    command.wait_for("encoding ")
    _interrupt_twice(command)
    assert not out.exists()
