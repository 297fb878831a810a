"""A callback that holds a run up, for tests that do something to it meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from raygnn.parallel.all_reduce import StepTotals


class Linger(Callback):
    """Takes its time over each step while a file exists, and says in it that it does."""

    def __init__(self, marker: str, step_s: float = 0.5) -> None:
        self._marker, self._step_s = Path(marker), step_s

    @classmethod
    def entry(cls, marker: Path, step_s: float = 0.5) -> dict[str, Any]:
        """The callback as a config names it."""
        arguments = {"marker": str(marker), "step_s": step_s}
        return {"type": f"{cls.__module__}.{cls.__name__}", "args": arguments}

    def on_train_step_end(self, engine: Engine, totals: StepTotals) -> None:
        if engine.position.step < 2:
            return
        try:
            with self._marker.open("r+") as file:
                file.write("training")
        except FileNotFoundError:
            return
        time.sleep(self._step_s)
