"""Running a function on every worker of a Ray cluster, in one process group."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raygnn.config.run_section import Scaling
from raygnn.errors import RaygnnError, TrainingError

if TYPE_CHECKING:
    from raygnn.runtime.preflight import WorkerResources


def run_on_workers(
    function: Callable[[Any, Any], Any],
    job: Any,
    scaling: Scaling,
    resources: WorkerResources,
    storage_uri: str,
    what: str,
) -> Any:
    """Calls `function(job, context)` on every worker, and gives what rank 0 returns.

    Workers that die are started again, `scaling.max_failures` times.

    Args:
        function: can be pickled.
        storage_uri: folder where Ray Train keeps its own records.
        what: names the work in messages.
    Raises:
        RaygnnError: what a worker raised.
        TrainingError: workers died too often.
    """
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    from raygnn.runtime.storage import arrow_filesystem

    filesystem, path = arrow_filesystem(storage_uri)
    storage_path, _, name = path.rstrip("/").rpartition("/")
    trainer = TorchTrainer(
        _run_worker,
        train_loop_config={"function": function, "job": job},
        torch_config=TorchConfig(timeout_s=int(scaling.timeout_s)),
        scaling_config=ScalingConfig(
            num_workers=scaling.num_workers,
            use_gpu=resources.use_gpu,
            resources_per_worker=resources.as_ray(),
            placement_strategy=scaling.placement_strategy,
            accelerator_type=scaling.accelerator_type,
        ),
        run_config=RunConfig(
            name=name,
            storage_path=storage_path,
            storage_filesystem=filesystem,
            failure_config=FailureConfig(
                max_failures=scaling.max_failures, controller_failure_limit=2
            ),
            logging_config=LoggingConfig(log_level="WARNING"),
        ),
    )
    try:
        returned = trainer.fit().return_value
    except TrainingFailedError as error:
        raise TrainingError(_explain_failure(error, what)) from error
    if isinstance(returned, RaygnnError):
        raise returned
    return returned


def _run_worker(config: dict[str, Any]) -> Any:
    """What Ray Train runs on each worker.

    Errors that a second try would only repeat come back as values, so that Ray restarts workers
    that died and not runs that are wrong.
    """
    from raygnn.runtime.context import RayWorkerContext

    logging.getLogger("ray.train").setLevel(logging.WARNING)  # a line per report and rank
    try:
        return config["function"](config["job"], RayWorkerContext())
    except RaygnnError as error:
        return error


def _explain_failure(error: Any, what: str) -> str:
    failures = getattr(error, "worker_failures", {})
    lines = [
        f"rank {rank}: {str(cause).strip().splitlines()[-1]}" for rank, cause in failures.items()
    ]
    return f"{what} failed and was not restarted any more:\n" + "\n".join(lines or [str(error)])
