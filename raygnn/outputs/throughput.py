"""Seeds and edges per second, memory, and requests to parts, as logged metrics."""

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
    from raygnn.sampling.parts import Traffic


@dataclass
class Work:
    """Seeds and edges of all ranks, and this rank's seconds for them.

    Attributes:
        time_s: in training steps, without validation and checkpoints.
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


_OF_PARTS = ("perf/part_requests", "perf/part_bytes", "perf/cached_rows")


class Throughput(Callback):
    """Adds `perf/...` to logged metrics; must precede the loggers.

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
        """Means over the whole run, with all of its attempts, by name."""
        return self._total.rates()

    def state_dict(self) -> dict[str, Any]:
        return asdict(self._total)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._total = Work(**state)


class PartTraffic(Callback):
    """Adds this rank's requests to other nodes' parts to logged metrics, per step.

    Batches of an evaluation between two logs, and those made ahead, count too.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._before, self._num_steps = traffic.counts(), 0

    def on_train_step_end(self, engine: Engine, totals: StepTotals) -> None:
        self._num_steps += 1

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        counts, steps = self._traffic.counts(), max(1, self._num_steps)
        for name, now, before in zip(_OF_PARTS, counts, self._before, strict=True):
            metrics[name] = (now - before) / steps
        self._before, self._num_steps = counts, 0


def memory(device: torch.device) -> dict[str, float]:
    """Resident memory of this process, and the peak of tensors on its GPU."""
    values = {"perf/memory_bytes": float(psutil.Process().memory_info().rss)}
    if device.type == "cuda":
        values["perf/cuda_memory_bytes"] = float(torch.cuda.max_memory_allocated(device))
    return values
