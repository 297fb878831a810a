"""Callback that says when the first training step is done; `startup.py` names it in a config."""

from __future__ import annotations

import sys
import time

from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from raygnn.parallel.all_reduce import StepTotals


class SayFirstStep(Callback):
    """Prints a line after the first step of the run."""

    def on_setup(self, engine: Engine) -> None:
        """Says that the worker has started."""
        if engine.context.rank == 0:
            busy = f"{time.process_time():.2f} s of processors"
            print(f"worker set up, {busy}", file=sys.stdout, flush=True)

    def on_train_step_end(self, engine: Engine, totals: StepTotals) -> None:
        """Says that a step is done, once."""
        if engine.position.step == 1 and engine.context.rank == 0:
            busy = f"{time.process_time():.2f} s of processors"
            print(f"first step, {busy}", file=sys.stdout, flush=True)
