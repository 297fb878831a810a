"""A callback that ends processes by SIGKILL at a chosen place of a run."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine

#: The operations on files, as Python's audit hooks name them, and which argument is the path.
_FILE_EVENTS = {"open": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0}


class Die(Callback):
    """Kills while the file `armed` is in a folder, and takes it away first.

    Args:
        folder: holds `armed`, and the `pids` of all ranks.
        rank: that gets there first and dies.
        everybody: all ranks die at once, as the workers of a driver that is killed do.
        driver: the process in `pids` dies, and this rank waits for its own end by Ray.
        batch: dies after so many training micro-batches of this rank.
        validation: dies in so manieth validation, between two of its batches.
        file: pattern of a path; dies when one that fits it is about to be opened for writing,
            renamed into place, or deleted.
        skip: how many such operations come through.
    """

    def __init__(
        self,
        folder: str,
        rank: int = 0,
        everybody: bool = False,
        driver: bool = False,
        batch: int | None = None,
        validation: int | None = None,
        file: str | None = None,
        operation: str = "os.rename",
        skip: int = 0,
    ) -> None:
        self._folder, self._rank = Path(folder), rank
        self._everybody, self._driver = everybody, driver
        self._batch, self._validation, self._skip = batch, validation, skip
        self._file, self._operation = file and re.compile(file), operation
        self._num_batches = self._num_validations = 0
        assert operation in _FILE_EVENTS

    def on_setup(self, engine: Engine) -> None:
        self._is_chosen = engine.context.rank == self._rank
        if self._is_chosen and self._file is not None:
            sys.addaudithook(self._watch)

    def on_train_batch_end(self, engine: Engine, batch: Any, output: Any) -> None:
        self._num_batches += 1
        if self._num_batches == self._batch:
            self._die()

    def on_validation_start(self, engine: Engine) -> None:
        self._num_validations += 1

    def on_validation_step_end(self, engine: Engine, output: Any) -> None:
        if self._num_validations == self._validation:
            self._die()

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != self._operation or self._file is None:
            return
        if self._file.search(str(arguments[_FILE_EVENTS[event]])):
            self._skip -= 1
            if self._skip < 0:
                self._die()

    def _die(self) -> None:
        armed = self._folder / "armed"
        if not self._is_chosen or not armed.exists():
            return
        armed.unlink()
        if self._everybody or self._driver:
            for pid in self._pids():
                if pid != os.getpid():
                    os.kill(pid, signal.SIGKILL)
        if self._driver:
            time.sleep(120)
        os.kill(os.getpid(), signal.SIGKILL)

    def _pids(self) -> list[int]:
        pids = self._folder / "pids"
        end_s = time.monotonic() + 60
        while not pids.exists() and time.monotonic() < end_s:
            time.sleep(0.01)
        return [int(line) for line in pids.read_text().split()]


class Sleep(Die):
    """Does nothing until the other ranks have lost this one, where `Die` would die."""

    def _die(self) -> None:
        logs = [log for log in self._folder.glob("rank-*.log") if str(self._rank) not in log.stem]
        if self._is_chosen:
            while not all("LostRankError" in log.read_text() for log in logs):
                time.sleep(0.1)


class Seen(Callback):
    """Writes down the seeds of every step that was done, one file per rank and process."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._ids: list[int] = []

    def on_train_batch_end(self, engine: Engine, batch: Any, output: Any) -> None:
        self._ids += batch.input_id.tolist()

    def on_train_step_start(self, engine: Engine) -> None:
        self._epoch = engine.position.epoch

    def on_train_step_end(self, engine: Engine, totals: Any) -> None:
        row = {"step": engine.position.step, "epoch": self._epoch, "ids": self._ids}
        with (self._folder / f"seen-{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._ids = []
