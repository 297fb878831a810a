"""Traces of training steps by torch.profiler, one file per rank and cycle."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from raygnn.config.training_section import Profiler as ProfilerSettings
from raygnn.console import say
from raygnn.data.filesystem import join, open_fs
from raygnn.loops.callbacks import Callback

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine
    from raygnn.parallel.all_reduce import StepTotals

_STEPS = {"wait": 1, "warmup": 1, "active": 3, "repeat": 1}


class Profiler(Callback):
    """Traces the steps of the section `profiler`, on every rank.

    Traces are named as by `torch.profiler.tensorboard_trace_handler`, for TensorBoard's profiler
    plugin, chrome://tracing and https://ui.perfetto.dev.
    """

    def __init__(self, settings: ProfilerSettings, uri: str) -> None:
        self._settings, self._uri = settings, uri
        self._profile: profile | None = None
        self._num_traces = 0
        self._rank = 0

    def on_train_start(self, engine: Engine) -> None:
        self._rank = engine.context.rank
        if not self._settings.by_batch:
            self._start(engine)

    def on_train_step_start(self, engine: Engine) -> None:
        first, last = self._settings.begin_batch, self._settings.end_batch
        if first is None or last is None or self._profile is not None:
            return
        done = engine.position.batches
        if done + _batches_of_next_step(engine) >= first and done < last:
            self._start(engine)

    def on_train_step_end(self, engine: Engine, totals: StepTotals) -> None:
        if self._profile is None:
            return
        if self._settings.sync_timings and engine.context.device.type == "cuda":
            torch.cuda.synchronize(engine.context.device)
        last = self._settings.end_batch
        if last is not None and engine.position.batches >= last:
            self._stop()
        else:
            self._step()

    def on_train_end(self, engine: Engine) -> None:
        self._stop()
        if self._num_traces == 0 and engine.context.rank == 0:
            say("profiler: no step was traced, because the run had too few")

    def on_shutdown(self, engine: Engine) -> None:
        self._stop()

    def _start(self, engine: Engine) -> None:
        settings = self._settings
        activities = [ProfilerActivity.CPU]
        if engine.context.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            schedule=(lambda _: ProfilerAction.RECORD)
            if settings.by_batch
            else _schedule(settings),
            on_trace_ready=self._save,
            record_shapes=settings.record_shapes,
            profile_memory=settings.profile_memory,
            with_stack=settings.with_stack,
        )
        self._profile.start()

    def _step(self) -> None:
        running, self._profile = self._profile, None
        assert running is not None
        with warnings.catch_warnings():
            # A trace contains only the events of its cycle, as intended.
            warnings.filterwarnings("ignore", message=".*Profiler clears events")
            running.step()  # may write a trace; torch crashes when stopped after that failed
        self._profile = running

    def _stop(self) -> None:
        if self._profile is not None:
            running, self._profile = self._profile, None
            running.stop()

    def _save(self, finished: profile) -> None:
        name = f"rank-{self._rank}.{time.time_ns()}.pt.trace.json.gz"
        fs, folder = open_fs(self._uri)
        fs.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="raygnn-trace-") as scratch:
            local = str(Path(scratch) / name)
            finished.export_chrome_trace(local)
            fs.put_file(local, f"{folder.rstrip('/')}/{name}")
        self._num_traces += 1
        if self._rank == 0:
            say(f"profiler: traced to {join(self._uri, name)}")


def _batches_of_next_step(engine: Engine) -> int:
    loader = engine.task.loader("train")
    assert loader is not None
    per_step = engine.config.batch.num_micro_batches
    return min(per_step, loader.num_batches - engine.position.batch_in_epoch)


def _schedule(settings: ProfilerSettings) -> Callable[[int], ProfilerAction]:
    given = {name: getattr(settings, name) for name in _STEPS}
    return schedule(**_STEPS | {name: num for name, num in given.items() if num is not None})
