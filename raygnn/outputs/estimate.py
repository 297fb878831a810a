"""Time and memory of a complete run, estimated from the few steps of a dry run."""

from __future__ import annotations

import math
import resource
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from raygnn.console import compact, count, show_duration
from raygnn.loops.callbacks import Callback
from raygnn.outputs.progress import steps_between_validations

if TYPE_CHECKING:
    from raygnn.config.training_section import Training
    from raygnn.loops.engine import Engine
    from raygnn.loops.task import EvalOutput
    from raygnn.parallel.all_reduce import StepTotals

#: Steps and evaluation batches of a worker in a dry run: the first is of code that warms up.
NUM_STEPS = 4
NUM_EVAL_BATCHES = 2


class Estimate(Callback):
    """Measures steps and validation batches to estimate a run with the limits `whole`."""

    def __init__(self, training: Training) -> None:
        self._whole = training
        self._steps_s: list[float] = []
        self._batches_s: list[float] = []
        self._began_s = self._validation_began_s = 0.0
        self._before_batches_s = 0.0

    def on_train_step_start(self, engine: Engine) -> None:
        self._began_s = time.monotonic()

    def on_train_step_end(self, engine: Engine, totals: StepTotals) -> None:
        self._steps_s.append(time.monotonic() - self._began_s)

    def on_validation_start(self, engine: Engine) -> None:
        self._batches_s = []
        self._validation_began_s = time.monotonic()

    def on_validation_step_start(self, engine: Engine, index: int) -> None:
        self._began_s = time.monotonic()
        if not self._batches_s:
            self._before_batches_s = self._began_s - self._validation_began_s

    def on_validation_step_end(self, engine: Engine, output: EvalOutput) -> None:
        if engine.context.device.type == "cuda":  # evaluation waits for a GPU at its end only
            torch.cuda.synchronize(engine.context.device)
        self._batches_s.append(time.monotonic() - self._began_s)

    def values(self, engine: Engine) -> dict[str, Any]:
        """The estimate, from this rank's figures.

        Returns `step_s`, `validation_s`, `test_s`; `steps` and `validations` at most, and `time_s`
        of all (None without a limit in steps or epochs); `memory_bytes`, the peak of this process,
        and `cuda_memory_bytes` of a GPU; `workers`.
        """
        step_s = statistics.median(self._steps_s[1:] or self._steps_s)
        validation_s = self._evaluation_s(engine, "val", self._whole.num_val_batches)
        test_s = self._evaluation_s(engine, "test", self._whole.num_test_batches)
        steps, validations, time_s = self._whole.planned_steps(engine.steps_per_epoch), None, None
        if steps is not None:
            validations = max(1, math.ceil(steps / max(steps_between_validations(engine), 1.0)))
            time_s = steps * step_s + validations * validation_s + test_s
            time_s = min(time_s, self._whole.max_time_s or time_s)
        device = engine.context.device
        has_gpu = device.type == "cuda"
        return {
            "step_s": step_s,
            "validation_s": validation_s,
            "test_s": test_s,
            "steps": steps,
            "validations": validations,
            "time_s": time_s,
            "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "cuda_memory_bytes": torch.cuda.max_memory_allocated(device) if has_gpu else None,
            "workers": engine.context.world_size,
            "stops_early": engine.early_stopper is not None,
        }

    def _evaluation_s(self, engine: Engine, split: str, limit: int | None) -> float:
        loader = engine.task.loader(split)
        if loader is None or not self._batches_s:
            return 0.0
        num_batches = loader.num_batches if limit is None else min(limit, loader.num_batches)
        num_own = -(-num_batches // engine.context.world_size)
        return self._before_batches_s + num_own * self._batches_s[-1]


def describe_estimate(values: dict[str, Any]) -> str:
    most = "at most " if values["stops_early"] else ""
    step = _duration(values["step_s"])
    if values["time_s"] is None:
        time_ = f"{step} a step"
    else:
        time_ = (
            f"{_duration(values['time_s'])} ({count(values['steps'], 'step')} of {step}, "
            f"{count(values['validations'], 'validation')} of {_duration(values['validation_s'])})"
        )
    memory = f"{compact(values['memory_bytes'])}B"
    if values["cuda_memory_bytes"]:
        memory += f" and {compact(values['cuda_memory_bytes'])}B of its GPU"
    where = "each worker" if values["workers"] > 1 else "this process"
    return f"the whole run takes {most}about {time_}, and {memory} of memory in {where}"


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else show_duration(seconds)
