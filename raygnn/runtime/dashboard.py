"""Metrics of a run in Ray's dashboard, and for whoever scrapes the nodes with Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.util.metrics import Gauge

from raygnn.loops.callbacks import Callback

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine

#: Name at Ray, which puts `ray_` before it, by the name in raygnn's logs.
GAUGES = {
    "perf/seeds_per_s": ("raygnn_seeds_per_s", "Seeds per second of all ranks."),
    "perf/edges_per_s": ("raygnn_edges_per_s", "Sampled edges per second of all ranks."),
    "perf/loader_wait_share": (
        "raygnn_loader_wait_share",
        "Part of the time of training steps in which rank 0 waited for batches.",
    ),
    "train/loss": ("raygnn_train_loss", "Mean training loss of the log window."),
    "val/loss": ("raygnn_val_loss", "Validation loss."),
    "step": ("raygnn_step", "Optimizer steps."),
    "epoch": ("raygnn_epoch", "Finished epochs."),
}


class DashboardMetrics(Callback):
    """Sets gauges on rank 0 at each log and validation; comes after `Throughput`."""

    def __init__(self, run_name: str) -> None:
        self._run_name = run_name
        self._gauges: dict[str, Gauge] = {}

    def on_train_start(self, engine: Engine) -> None:
        if engine.context.rank == 0:
            self._gauges = {
                name: Gauge(gauge, description, tag_keys=("run",))
                for name, (gauge, description) in GAUGES.items()
            }

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        self._set(engine, metrics)

    def on_validation_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        self._set(engine, metrics)

    def _set(self, engine: Engine, metrics: dict[str, float]) -> None:
        where = {"step": float(engine.position.step), "epoch": float(engine.position.epoch)}
        values = {**metrics, **where}
        for name, gauge in self._gauges.items():
            if name in values:
                gauge.set(values[name], tags={"run": self._run_name})
