"""Training in workers of Ray Train: started, stopped on request, and moved off leaving nodes."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raygnn.console import say
from raygnn.data.filesystem import delete, join, redact
from raygnn.errors import PreemptedError, RunError, TrainingError
from raygnn.job import TrainJob
from raygnn.outputs.run_folder import RunFolder
from raygnn.runtime.context import NODE_PREEMPTION
from raygnn.runtime.preflight import WorkerResources
from raygnn.runtime.ray_workers import Work, run_on_workers, stop_requests
from raygnn.runtime.worker_lines import drain_worker_lines

if TYPE_CHECKING:
    from ray.train import UserCallback

    from raygnn.loops.context import WorkerContext

#: A file system of several machines may show a new file to another one so much later.
_SEEN_WITHIN_S = 10.0

_REMEDY = "Start the same run again to resume from its last checkpoint, if there is one."


def train_on_ray(
    job: TrainJob,
    resources: WorkerResources,
    *,
    callbacks: Sequence[UserCallback] = (),
    label: str = "",
) -> dict[str, Any]:
    """Trains in workers of Ray Train, when data and folder are ready. Returns the final metrics.

    Args:
        callbacks: of Ray Train, called in its controller.
        label: prefix of the workers' lines, such as the name of a trial.
    Raises:
        RunError: the run's folder was removed.
        TrainingError: training failed, or lost its nodes, and was not restarted.
        PreemptedError: the run was asked to stop, and can resume.
    """
    folder, config, scaling = job.folder, job.loaded.config, job.loaded.config.scaling
    num_workers: int | tuple[int, int] = scaling.max_workers
    if scaling.is_elastic:
        num_workers = scaling.min_workers, scaling.max_workers
    limit, num_preemptions = scaling.max_preemptions, 0
    with stop_requests() as requests:
        while True:
            # Ray fails if a checkpoint that its snapshot names is gone.
            delete(join(folder.uri, "checkpoint_manager_snapshot.json"))
            try:
                metrics: dict[str, Any] = run_on_workers(
                    Work(_train_worker, job, "Training", label, requests, _REMEDY),
                    config,
                    resources,
                    folder.uri,
                    num_workers=num_workers,
                    callbacks=callbacks,
                    check=folder.check_is_held,
                )
            except PreemptedError as error:
                if error.cause != NODE_PREEMPTION:
                    raise
                num_preemptions += 1
                if 0 <= limit < num_preemptions:
                    raise TrainingError(
                        f"Nodes of the run were taken away {num_preemptions} times. Start it again "
                        f"to resume, with scaling.max_preemptions above {limit}. [run-preempted]"
                    ) from error
                stopped = str(error).partition(". ")[0]
                say(f"{stopped}. Its workers start again on other nodes, and resume")
            else:
                return metrics
            finally:
                drain_worker_lines(requests)


def _train_worker(job: TrainJob, context: WorkerContext) -> dict[str, Any]:
    from raygnn.parallel.agreement import run_and_sync_errors
    from raygnn.runtime.context import DashboardMetrics
    from raygnn.runtime.part_actors import with_parts_of_this_node
    from raygnn.worker import run_worker

    storage_path = job.loaded.config.run.storage_path
    run_and_sync_errors(
        lambda: check_folder_is_seen(job.folder, storage_path), "opening the run's folder"
    )
    return run_worker(with_parts_of_this_node(job), context, [DashboardMetrics(job.folder.name)])


def check_folder_is_seen(folder: RunFolder, storage_path: str) -> None:
    """Raises a RunError if a worker does not see the files that the driver wrote."""
    end_s = time.monotonic() + _SEEN_WITHIN_S
    while not folder.is_this_start():
        if time.monotonic() > end_s:
            raise RunError(
                f"run.storage_path={redact(storage_path)!r} is invalid: {socket.gethostname()} "
                "does not see the run's folder. Set a bucket or shared folder. "
                "[run-storage-not-shared]"
            )
        time.sleep(0.5)
