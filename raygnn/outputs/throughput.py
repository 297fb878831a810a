"""How fast a run trains, what it waits for, and the memory that it takes."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psutil
import torch

from raygnn.loops.callbacks import Callback

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine
    from raygnn.parallel.all_reduce import StepTotals


@dataclass
class Work:
    """Seeds and edges of all ranks, and this rank's seconds for them.

    Attributes:
        time_s: inside of training steps: validation and checkpoints are not counted.
        wait_s: the part of it in which the training thread waited for a batch.
    """

    num_seeds: int = 0
    num_edges: int = 0
    time_s: float = 0.0
    wait_s: float = 0.0

    def add(self, num_seeds: int, num_edges: int, time_s: float, wait_s: float) -> None:
        self.num_seeds += num_seeds
        self.num_edges += num_edges
        self.time_s += time_s
        self.wait_s += wait_s

    def rates(self) -> dict[str, float]:
        """`perf/...` by name; empty before the first step."""
        if self.time_s <= 0:
            return {}
        return {
            "perf/seeds_per_s": self.num_seeds / self.time_s,
            "perf/edges_per_s": self.num_edges / self.time_s,
            "perf/loader_wait_share": self.wait_s / self.time_s,
        }


class Throughput(Callback):
    """Adds `perf/...` to what is logged; comes before the loggers, so that they get it.

    Rates are over all ranks, by this rank's clock; waiting and memory are this rank's.
    """

    def __init__(self) -> None:
        self._window, self._total = Work(), Work()
        self._began_s = self._waited_before_s = 0.0

    def on_train_step_start(self, engine: Engine) -> None:
        self._began_s, self._waited_before_s = time.monotonic(), engine.loader_wait_s

    def on_train_step_end(self, engine: Engine, totals: StepTotals) -> None:
        took_s = time.monotonic() - self._began_s
        waited_s = engine.loader_wait_s - self._waited_before_s
        for work in (self._window, self._total):
            work.add(totals.num_samples, totals.num_edges, took_s, waited_s)

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        metrics.update(self._window.rates())
        metrics.update(memory(engine.context.device))
        self._window = Work()

    def totals(self) -> dict[str, float]:
        """Means over the whole run, all of its attempts, by name."""
        return self._total.rates()

    def state_dict(self) -> dict[str, Any]:
        return asdict(self._total)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._total = Work(**state)


def memory(device: torch.device) -> dict[str, float]:
    """Resident memory of this process, and the largest that tensors took of its GPU."""
    values = {"perf/memory_bytes": float(psutil.Process().memory_info().rss)}
    if device.type == "cuda":
        values["perf/cuda_memory_bytes"] = float(torch.cuda.max_memory_allocated(device))
    return values
