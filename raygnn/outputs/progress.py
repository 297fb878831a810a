"""The progress lines of a training run, and the speeds in them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psutil
import torch

from raygnn.console import count, say, show_duration
from raygnn.loops.callbacks import Callback

if TYPE_CHECKING:
    from raygnn.config.training_section import Training
    from raygnn.loops.engine import Engine
    from raygnn.parallel.all_reduce import StepTotals

_MAX_SHOWN = 6
_BARS = "▁▂▃▄▅▆▇█"


class Progress(Callback):
    """Prints on rank 0: a line per log period and one per validation, with the curve so far."""

    def on_train_start(self, engine: Engine) -> None:
        if engine.context.rank == 0:
            say(
                f"training on {engine.context.world_size} worker(s), {engine.context.device}: "
                f"{num_parameters(engine):,} parameters, {show_global_batch(engine)}, "
                f"{count(engine.steps_per_epoch, 'step')} an epoch"
            )
            if engine.task.loss_unit is not None:
                say(f"losses are of {engine.task.loss_unit}")

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        if engine.context.rank == 0:
            texts = [_show(metrics), show_performance(metrics), _left(engine)]
            say(" | ".join([_where(engine), *filter(None, texts)]))

    def on_validation_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        if engine.context.rank == 0:
            tracker = engine.best.tracker
            curve = [row[tracker.monitor] for row in engine.history if tracker.monitor in row]
            values = _show(metrics, tracker.monitor)
            say(f"{_where(engine)} | {values} | {tracker.monitor} {sparkline(curve)}")

    def on_train_end(self, engine: Engine) -> None:
        if engine.context.rank == 0:
            best = engine.best
            say(
                f"stopped by {engine.stop_reason}; best {best.tracker.monitor} "
                f"{best.tracker.best:.4f} at step {best.position.step}"
            )


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Draws the last values as a row of bars between their minimum and maximum."""
    shown = [value for value in values[-width:] if value == value]  # NaN is not drawn
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)


def show_performance(metrics: dict[str, float]) -> str:
    """The `perf/...` of a log window in a few words."""
    texts = {
        "perf/seeds_per_s": lambda value: f"{compact(value)} seeds/s",
        "perf/edges_per_s": lambda value: f"{compact(value)} edges/s",
        "perf/loader_wait_share": lambda value: f"loader wait {value:.0%}",
        "perf/memory_bytes": lambda value: f"{compact(value)}B",
        "perf/cuda_memory_bytes": lambda value: f"GPU {compact(value)}B",
    }
    return "  ".join(text(metrics[name]) for name, text in texts.items() if name in metrics)


def compact(value: float) -> str:
    """Three digits and a decimal prefix: 12345 is 12.3k."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * factor:  # what would round to 1000 of the prefix below
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"


def show_global_batch(engine: Engine) -> str:
    """The seeds of a step, and who computes them."""
    batch, num_workers = engine.config.batch, engine.context.world_size
    if engine.config.sampling.is_full:
        others = "" if num_workers == 1 else f", computed by one worker; {num_workers - 1} wait"
        return f"all training seeds on the whole graph in each step{others}"
    seeds = f"{batch.global_batch_size:,} = {batch.batch_size:,} x {show_share(engine)}"
    return f"global batch {seeds}"


def show_share(engine: Engine) -> str:
    """How the micro-batches of a step are dealt."""
    batch, num_workers = engine.config.batch, engine.context.world_size
    if batch.num_micro_batches == batch.accumulate * num_workers:
        return f"{num_workers} worker(s) x {batch.accumulate}"
    return f"{batch.num_micro_batches} micro-batches, dealt to {num_workers} worker(s)"


def num_parameters(engine: Engine) -> int:
    return sum(p.numel() for p in engine.optimization.module.parameters() if p.requires_grad)


def _where(engine: Engine) -> str:
    """The running epoch and the steps done, and of how many at most."""
    now = engine.position
    epoch = max(1, now.epoch + (now.batch_in_epoch > 0))
    steps = planned_steps(engine.config.training, engine.steps_per_epoch)
    epochs = None if steps is None else -(-steps // engine.steps_per_epoch)
    return f"epoch {_of(epoch, epochs)}, step {_of(now.step, steps)}"


def _of(number: int, total: int | None) -> str:
    return f"{number:,}" if total is None else f"{number:>{len(f'{total:,}')},}/{total:,}"


def planned_steps(limits: Training, steps_per_epoch: int) -> int | None:
    """The optimizer steps until a limit in steps or epochs; None where there is neither."""
    of_epochs = None if limits.max_epochs is None else limits.max_epochs * steps_per_epoch
    return min((x for x in (limits.max_steps, of_epochs) if x is not None), default=None)


def _left(engine: Engine) -> str:
    """How long the run takes from here, at the pace so far; early stopping may end it before."""
    done, limits = engine.position.step, engine.config.training
    steps = planned_steps(limits, engine.steps_per_epoch)
    if steps is None or done == 0:
        return ""
    left_s = engine.training_time_s / done * max(steps - done, 0)
    if limits.max_time_s is not None:
        left_s = min(left_s, max(limits.max_time_s - engine.training_time_s, 0.0))
    most = "" if engine.early_stopper is None else "at most "
    return f"{most}{show_duration(left_s)} left"


def _show(metrics: dict[str, float], first: str | None = None) -> str:
    """The losses and the monitored metric, then others as far as a line has room."""
    names = [name for name in metrics if not name.startswith("perf/")]
    names.sort(key=lambda name: (not name.endswith("/loss"), name != first))  # a stable sort
    shown = {name: metrics[name] for name in names[:_MAX_SHOWN]}
    return "  ".join(f"{name} {value:.4g}" for name, value in shown.items())


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
