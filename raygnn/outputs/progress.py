"""The progress lines of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raygnn.console import say
from raygnn.loops.callbacks import Callback

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine

_MAX_SHOWN = 6
_BARS = "▁▂▃▄▅▆▇█"


class Progress(Callback):
    """Prints on rank 0: a line per log period and one per validation, with the curve so far."""

    def on_train_start(self, engine: Engine) -> None:
        if engine.context.rank == 0:
            batch = engine.config.batch
            say(
                f"training on {engine.context.world_size} worker(s), {engine.context.device}: "
                f"{num_parameters(engine):,} parameters, global batch {batch.global_batch_size} = "
                f"{batch.batch_size} x {show_share(engine)}, {engine.steps_per_epoch:,} steps an "
                "epoch"
            )
            if engine.task.loss_unit is not None:
                say(f"losses are of {engine.task.loss_unit}")

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        if engine.context.rank == 0:
            say(f"{_where(engine)} | {_show(metrics)} | {show_performance(metrics)}")

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


def show_share(engine: Engine) -> str:
    """How the micro-batches of a step are dealt."""
    batch, num_workers = engine.config.batch, engine.context.world_size
    if batch.num_micro_batches == batch.accumulate * num_workers:
        return f"{num_workers} worker(s) x {batch.accumulate}"
    return f"{batch.num_micro_batches} micro-batches, dealt to {num_workers} worker(s)"


def num_parameters(engine: Engine) -> int:
    return sum(p.numel() for p in engine.optimization.module.parameters() if p.requires_grad)


def _where(engine: Engine) -> str:
    return f"epoch {engine.position.epoch:>3} step {engine.position.step:>5}"


def _show(metrics: dict[str, float], first: str | None = None) -> str:
    """The losses and the monitored metric, then others as far as a line has room."""
    names = [name for name in metrics if not name.startswith("perf/")]
    names.sort(key=lambda name: (not name.endswith("/loss"), name != first))  # a stable sort
    shown = {name: metrics[name] for name in names[:_MAX_SHOWN]}
    return "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
