"""The progress lines of a training run, and the speeds in them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psutil
import torch

from raygnn.console import count, prints_lines, say, show_duration, show_performance
from raygnn.loops.callbacks import Callback
from raygnn.sampling.joint_batches import JointBatches

if TYPE_CHECKING:
    from raygnn.config.training_section import Training
    from raygnn.loops.engine import Engine
    from raygnn.parallel.all_reduce import StepTotals
    from raygnn.sampling.hot_rows import Traffic

_MAX_SHOWN = 6
_BARS = "▁▂▃▄▅▆▇█"


#: Between two pictures of how far training is, which only a live view shows.
_SHOW_EVERY_S = 0.5


class Progress(Callback):
    """Says on rank 0 how training goes: an event per log period and one per validation.

    Where nobody reads lines but a live view, it also says how far it is, twice a second.
    """

    def __init__(self) -> None:
        self._shown_s = 0.0

    def on_train_start(self, engine: Engine) -> None:
        if engine.context.rank == 0:
            where = f"{engine.context.world_size} worker(s), {engine.context.device}"
            say(
                f"training on {where}: {num_parameters(engine):,} parameters, "
                f"{show_global_batch(engine)}, {count(engine.steps_per_epoch, 'step')} an epoch",
                "start",
                workers=engine.context.world_size,
                device=str(engine.context.device),
                parameters=num_parameters(engine),
                steps_per_epoch=engine.steps_per_epoch,
                monitor=engine.best.tracker.monitor,
                mode=engine.best.tracker.mode,
                **_position(engine),
            )
            if engine.task.loss_unit is not None:
                say(f"losses are of {engine.task.loss_unit}")

    def on_train_step_end(self, engine: Engine, totals: StepTotals) -> None:
        if engine.context.rank == 0 and not prints_lines():
            self._show(engine)

    def on_validation_start(self, engine: Engine) -> None:
        if engine.context.rank == 0 and not prints_lines():
            say("", "progress", phase="validation", **_position(engine))

    def _show(self, engine: Engine) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s >= _SHOW_EVERY_S:
            self._shown_s = now_s
            say("", "progress", phase="training", **_position(engine))

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        if engine.context.rank == 0:
            texts = [_show(engine, metrics), show_performance(metrics), _left(engine)]
            text = " | ".join([_where(engine), *filter(None, texts)])
            say(text, "step", **_position(engine), metrics=metrics)

    def on_validation_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        if engine.context.rank == 0:
            monitor = engine.best.tracker.monitor
            curve = [row[monitor] for row in engine.history if monitor in row]
            text = f"{_where(engine)} | {_show(engine, metrics)} | {monitor} {sparkline(curve)}"
            say(text, "validation", **_position(engine), metrics=metrics)

    def on_train_end(self, engine: Engine) -> None:
        if engine.context.rank == 0:
            best = engine.best
            say(
                f"stopped by {engine.stop_reason}; best {best.tracker.monitor} "
                f"{best.tracker.best:.4f} in epoch {best.position.current_epoch}, step "
                f"{best.position.step}",
                "end",
                **_position(engine),
                reason=engine.stop_reason,
                best_epoch=best.position.current_epoch,
                best_step=best.position.step,
            )


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Draws the last values as a row of bars between their minimum and maximum."""
    shown = [value for value in values[-width:] if value == value]  # NaN is not drawn
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)


def show_global_batch(engine: Engine) -> str:
    """The seeds of a step, and who computes them."""
    batch, num_workers = engine.config.batch, engine.context.world_size
    if engine.config.sampling.is_full:
        others = "" if num_workers == 1 else f", computed by one worker; {num_workers - 1} wait"
        return f"all training seeds on the whole graph in each step{others}"
    loader = engine.task.loader("train")
    if isinstance(loader, JointBatches):
        sizes = {name: each.batch_size for name, each in loader.sequences.items()}
        seeds = ", ".join(f"{size:,} of {name}" for name, size in sizes.items())
        return f"global batch ({seeds}) x {show_share(engine)}"
    seeds = f"{batch.global_batch_size:,} = {batch.batch_size:,} x {show_share(engine)}"
    return f"global batch {seeds}"


def show_share(engine: Engine) -> str:
    """How the micro-batches of a step are dealt."""
    batch, num_workers = engine.config.batch, engine.context.world_size
    if batch.num_micro_batches == batch.accumulate * num_workers:
        return f"{num_workers} worker(s) x {batch.accumulate}"
    return f"{batch.num_micro_batches} micro-batches, dealt to {num_workers} worker(s)"


def num_parameters(engine: Engine) -> int:
    parts = engine.optimization
    own = sum(p.numel() for p in parts.module.parameters() if p.requires_grad)
    return own + parts.tables.num_elsewhere


def _position(engine: Engine) -> dict[str, Any]:
    """Where training is: what events on it have in common.

    Returns:
        `epoch` (from 1) and `step`, `epochs` and `steps` (at most; None without a limit),
        `epoch_step` (steps done of the epoch), `time_s` (of training), and `left_s` (None without
        a limit).
    """
    now, per_epoch = engine.position, engine.steps_per_epoch
    steps = planned_steps(engine.config.training, per_epoch)
    return {
        "epoch": now.current_epoch,
        "epochs": None if steps is None else -(-steps // per_epoch),
        "step": now.step,
        "steps": steps,
        "epoch_step": now.step - (now.current_epoch - 1) * per_epoch,
        "time_s": round(engine.training_time_s, 3),
        "left_s": _left_s(engine),
    }


def _where(engine: Engine) -> str:
    """The running epoch and the steps done, and of how many at most."""
    at = _position(engine)
    return f"epoch {_of(at['epoch'], at['epochs'])}, step {_of(at['step'], at['steps'])}"


def _of(number: int, total: int | None) -> str:
    return f"{number:,}" if total is None else f"{number:>{len(f'{total:,}')},}/{total:,}"


def planned_steps(limits: Training, steps_per_epoch: int) -> int | None:
    """The optimizer steps until a limit in steps or epochs; None where there is neither."""
    of_epochs = None if limits.max_epochs is None else limits.max_epochs * steps_per_epoch
    return min((x for x in (limits.max_steps, of_epochs) if x is not None), default=None)


def _left_s(engine: Engine) -> float | None:
    """How long the run takes from here, at the pace so far; early stopping may end it before."""
    done, limits = engine.position.step, engine.config.training
    steps = planned_steps(limits, engine.steps_per_epoch)
    if steps is None or done == 0:
        return None
    left_s = engine.training_time_s / done * max(steps - done, 0)
    if limits.max_time_s is not None:
        left_s = min(left_s, max(limits.max_time_s - engine.training_time_s, 0.0))
    return round(left_s, 1)


def _left(engine: Engine) -> str:
    left_s = _left_s(engine)
    most = "" if engine.early_stopper is None else "at most "
    return "" if left_s is None else f"{most}{show_duration(left_s)} left"


def _show(engine: Engine, metrics: dict[str, float]) -> str:
    """The losses and the monitored metric, then others as far as a line has room.

    Of several tasks, the loss of each, and of a validation its first metric.
    """
    monitor, parts = engine.best.tracker.monitor, list(engine.task.parts)
    names = [name for name in metrics if not name.startswith("perf/")]
    of_parts = [[name for name in names if name.split("/")[1:2] == [part]] for part in parts]
    names = [name for name in names if not any(name in own for own in of_parts)]
    names.sort(key=lambda name: (not name.endswith("/loss"), name != monitor))  # a stable sort
    names = names[:_MAX_SHOWN]
    for own in of_parts:
        validated = [name for name in own if name.startswith("val/")]
        of_part = [name for name in validated if not name.endswith("/loss")][:1]
        names += [name for name in validated or own if name.endswith("/loss")][:1] + of_part
        names += [name for name in own if name == monitor and name not in names]
    return "  ".join(f"{name} {metrics[name]:.4g}" for name in names)


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


_OF_PARTS = ("perf/part_requests", "perf/part_bytes", "perf/cached_rows")


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


class PartTraffic(Callback):
    """Adds what this rank has asked of other nodes' parts to what is logged, by step.

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
    """Resident memory of this process, and the largest that tensors took of its GPU."""
    values = {"perf/memory_bytes": float(psutil.Process().memory_info().rss)}
    if device.type == "cuda":
        values["perf/cuda_memory_bytes"] = float(torch.cuda.max_memory_allocated(device))
    return values
