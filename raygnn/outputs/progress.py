"""Progress of a training run: its lines, speed and history."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from raygnn.console import count, say, show_left, show_performance
from raygnn.loops.callbacks import Callback
from raygnn.loops.precision import matmul_precision
from raygnn.sampling.batch_sequence import JointBatches

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine
    from raygnn.parallel.all_reduce import StepTotals


_BARS = "▁▂▃▄▅▆▇█"
_PACE_STEPS = 50  # the time left follows from so many recent steps


class Progress(Callback):
    """Prints the progress of training: an event per log period and one per validation."""

    only_on_rank_0 = True

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque(maxlen=_PACE_STEPS + 1)
        self._validations_left = 0  # until early stopping, if the metric no longer improves

    def on_train_start(self, engine: Engine) -> None:
        if engine.early_stopper is not None:
            stopper = engine.early_stopper
            self._validations_left = stopper.patience - stopper.num_without_improvement
        where = f"{count(engine.context.world_size, 'worker')}, {engine.context.device}"
        if chosen := matmul_precision(engine.config, engine.context.device):
            where += f", matmul_precision {chosen}"
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
            **self._position(engine),
        )
        if engine.task.loss_unit is not None:
            say(f"unit of the loss: {engine.task.loss_unit}")

    def on_train_step_end(self, engine: Engine, totals: StepTotals) -> None:
        self._recent.append((engine.position.step, engine.training_time_s))

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        losses = [name for name in metrics if name.endswith("/loss")]
        self._say(engine, "step", losses, metrics, show_performance(metrics))

    def on_validation_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        stopper = engine.early_stopper
        if stopper is not None and stopper.tracker.monitor in metrics:
            self._validations_left = stopper.left_after(metrics[stopper.tracker.monitor])
        monitor = engine.best.tracker.monitor
        curve = [row[monitor] for row in engine.history if monitor in row]
        names = _of_validation(metrics, monitor, list(engine.task.parts))
        self._say(engine, "validation", names, metrics, sparkline(curve))

    def _say(
        self,
        engine: Engine,
        kind: str,
        names: Iterable[str],
        metrics: dict[str, float],
        addition: str,
    ) -> None:
        at = self._position(engine)
        where = f"epoch {_of(at['epoch'], at['epochs'])}, step {_of(at['step'], at['steps'])}"
        shown = "  ".join(f"{name} {metrics[name]:.4g}" for name in names)
        left = show_left(at["left_s"], at["stop_s"])
        text = " | ".join(filter(None, [where, shown, addition, left]))
        say(text, kind, **at, metrics=metrics)

    def on_train_end(self, engine: Engine) -> None:
        best = engine.best
        say(
            f"stopped by {engine.stop_reason}; best {best.tracker.monitor} "
            f"{best.tracker.best:.4f} in epoch {best.position.current_epoch}, step "
            f"{best.position.step}",
            "end",
            **self._position(engine),
            reason=engine.stop_reason,
            best_epoch=best.position.current_epoch,
            best_step=best.position.step,
        )

    def _position(self, engine: Engine) -> dict[str, Any]:
        """The values of all events on the position of training.

        Returns `epoch` (from 1) and `step`, `epochs` and `steps` (at most; None without a limit),
        `epoch_step` (finished steps of the epoch), `time_s` (of training), `left_s` (None without a
        limit), and `stop_s` (None without early stopping).
        """
        now, per_epoch = engine.position, engine.steps_per_epoch
        steps = engine.config.training.planned_steps(per_epoch)
        return {
            "epoch": now.current_epoch,
            "epochs": None if steps is None else -(-steps // per_epoch),
            "step": now.step,
            "steps": steps,
            "epoch_step": now.step - (now.current_epoch - 1) * per_epoch,
            "time_s": round(engine.training_time_s, 3),
            "left_s": self._left_s(engine, steps),
            "stop_s": self._stop_s(engine),
        }

    def _pace_s(self) -> float | None:
        if len(self._recent) < 2:
            return None
        (first, began_s), (last, ended_s) = self._recent[0], self._recent[-1]
        return (ended_s - began_s) / (last - first)

    def _stop_s(self, engine: Engine) -> float | None:
        pace_s = self._pace_s()
        if engine.early_stopper is None or pace_s is None:
            return None
        validated = engine.history[-1]["step"] if engine.history else 0
        steps = validated + steps_between_validations(engine) * self._validations_left
        return round(pace_s * max(steps - engine.position.step, 0), 1)

    def _left_s(self, engine: Engine, steps: int | None) -> float | None:
        pace_s = self._pace_s()
        if steps is None or pace_s is None:
            return None
        left_s = pace_s * max(steps - engine.position.step, 0)
        limit_s = engine.config.training.max_time_s
        if limit_s is not None:
            left_s = min(left_s, max(limit_s - engine.training_time_s, 0.0))
        return round(left_s, 1)


def steps_between_validations(engine: Engine) -> float:
    every, batch = engine.validate_every, engine.config.batch
    in_steps = (
        (every.steps, 1),
        (every.batches, batch.num_micro_batches),
        (every.epochs, 1 / engine.steps_per_epoch),
        (every.samples, batch.global_batch_size),
    )
    return min(period / per_step for period, per_step in in_steps if period is not None)


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Draws the last values as a row of bars between their minimum and maximum."""
    shown = [value for value in values[-width:] if value == value]  # NaN is not drawn
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)


def show_global_batch(engine: Engine) -> str:
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
    batch, num_workers = engine.config.batch, engine.context.world_size
    if batch.num_micro_batches == batch.accumulate * num_workers:
        return f"{count(num_workers, 'worker')} x {batch.accumulate}"
    return f"{batch.num_micro_batches} micro-batches, dealt to {count(num_workers, 'worker')}"


def num_parameters(engine: Engine) -> int:
    parts = engine.optimization
    num_local = sum(p.numel() for p in parts.module.parameters() if p.requires_grad)
    return num_local + parts.tables.num_elsewhere


def _of(number: int, total: int | None) -> str:
    return f"{number:,}" if total is None else f"{number:>{len(f'{total:,}')},}/{total:,}"


def headline(names: Iterable[str]) -> list[str]:
    """One metric of each kind, such as of all `hits@k`: the one at 10, else the first.

    If links are ranked among all targets, metrics over sampled candidates are left out.
    """
    names = list(names)
    full = {name.partition("/full_")[0] for name in names if "/full_" in name}
    kinds: dict[str, str] = {}
    for name in names:
        task, _, metric = name.rpartition("/")
        if task in full and metric != "loss" and not metric.startswith("full_"):
            continue
        kind, _, k = name.partition("@")
        if kind not in kinds or k == "10":
            kinds[kind] = name
    return list(kinds.values())


def _of_validation(metrics: dict[str, float], monitor: str, parts: list[str]) -> list[str]:
    names = [name for name in metrics if name.startswith("val/")]
    first = [monitor] if monitor in metrics else []
    if "val/average_precision" in metrics:  # of a rare class, which accuracy hardly counts
        first.append("val/average_precision")
    if not parts:
        return list(dict.fromkeys([*first, *headline(names)]))[:3]
    for part in parts:
        monitored = headline(name for name in names if name.startswith(f"val/{part}/"))
        is_loss = [name for name in monitored if name.endswith("/loss")]
        first += is_loss + [name for name in monitored if name not in is_loss][:1]
    return list(dict.fromkeys(first))
