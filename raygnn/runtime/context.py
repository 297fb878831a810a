"""A worker of Ray Train for the loops, and its metrics in Ray's dashboard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

import ray
import ray.exceptions
import ray.train
import ray.train.torch
from ray.train import Checkpoint, CheckpointUploadMode
from ray.util.metrics import Gauge

from raygnn.loops.callbacks import Callback

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from raygnn.loops.engine import Engine

#: The cause of an interruption after which Ray restarts the workers on other nodes.
NODE_PREEMPTION = "the preemption of a node"

#: Interval at which rank 0 checks for a stop request. A check takes about 0.1 ms.
_CHECK_EVERY_S = 0.2

#: Ray ends the workers of a controller that has died within this time.
_ENDED_WITHIN_S = 30.0


class RayWorkerContext:
    """`WorkerContext` over Ray Train, with the actor of `ray_workers.stop_requests`, if any."""

    def __init__(self, stop_requests: ActorHandle | None = None) -> None:
        context = ray.train.get_context()
        self.rank: int = context.get_world_rank()
        self.world_size: int = context.get_world_size()
        self.device = ray.train.torch.get_device()
        self._storage = context.get_storage().storage_filesystem
        self._interruption: str | None = None
        # Only rank 0 checks: its result reaches the other ranks with the gradients.
        self._request = None
        if self.rank == 0 and stop_requests is not None:
            self._request = stop_requests.wait.remote()
        self._next_check_s = 0.0

    def report(self, metrics: Mapping[str, float], checkpoint_path: str | None) -> None:
        """Reports metrics, and a stored checkpoint, to Ray's controller. Collective."""
        plain = {name: float(value) for name, value in metrics.items()}
        checkpoint = None
        if checkpoint_path is not None and self.rank == 0:
            checkpoint = Checkpoint(checkpoint_path, filesystem=self._storage)
        try:
            ray.train.report(
                plain, checkpoint=checkpoint, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD
            )
        except ray.exceptions.ActorDiedError:
            # The controller died, as when Ray Tune stops a trial. Ray ends this worker next, and
            # would print a traceback if the worker failed first.
            time.sleep(_ENDED_WITHIN_S)
            raise

    def interruptible(self) -> AbstractContextManager[None]:
        """Does nothing: the driver receives the signals and passes them on."""
        return nullcontext()

    def interruption(self) -> str | None:
        now_s = time.monotonic()
        if self._request is None or now_s < self._next_check_s:
            return self._interruption
        self._next_check_s = now_s + _CHECK_EVERY_S
        done, _ = ray.wait([self._request], timeout=0)
        if done:
            self._request = None
            with suppress(ray.exceptions.RayActorError):  # the driver has ended
                self._interruption = ray.get(done[0])
        return self._interruption

    def host_interruption(self) -> str | None:
        """Whether a worker's node will be removed soon. Collective: all ranks must call."""
        return None if ray.train.get_preemption_info() is None else NODE_PREEMPTION


#: Ray's name, which Ray prefixes with `ray_`, and description of each metric in raygnn's logs.
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
    """Sets gauges at each log and validation; must follow `Throughput`."""

    only_on_rank_0 = True

    def __init__(self, run_name: str) -> None:
        self._run_name = run_name
        self._gauges: dict[str, Gauge] = {}

    def on_train_start(self, engine: Engine) -> None:
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
