"""Launching a run: data first, then checks, then workers."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from dataclasses import dataclass, replace
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any

from raygnn.config import LoadedConfig
from raygnn.data.bundle import Bundle
from raygnn.errors import PreemptedError, RaygnnError, TrainingError
from raygnn.loops.progress import say
from raygnn.loops.run_folder import RunFolder, check_run_folder, open_run_folder
from raygnn.runtime.data_checks import check_data
from raygnn.runtime.data_source import open_bundle

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.train.torch import TorchTrainer

    from raygnn.loops.job import TrainJob
    from raygnn.runtime.preflight import WorkerResources


@dataclass(frozen=True)
class Outcome:
    """What a finished run leaves: its folder and its final metrics."""

    folder: RunFolder
    metrics: dict[str, Any]


def launch(loaded: LoadedConfig, *, data: Any = None, dry_run: bool = False) -> Outcome:
    """Runs a config from tables to results.

    With `scaling.num_workers: 0` everything happens in this process, without Ray (or in each of
    torchrun's processes); else in workers of Ray Train.

    Args:
        data: a PyG `Data` or `HeteroData` in place of the config's source.
        dry_run: one batch of everything, in a temporary folder that is then deleted.
    """
    if dry_run:
        with tempfile.TemporaryDirectory(prefix="raygnn-dry-run-") as scratch:
            outcome = _launch(_shortened(loaded, scratch), data, dry_run=True)
        say("dry run: one batch each of training, validation and test, checkpoint restored: fine")
        return outcome
    return _launch(loaded, data, dry_run=False)


def _launch(loaded: LoadedConfig, data: Any, *, dry_run: bool) -> Outcome:
    name = loaded.config.run.name or _default_name(loaded)
    check_run_folder(loaded, name)
    if loaded.config.scaling.num_workers == 0:
        return _run_in_process(loaded, name, data, dry_run=dry_run)
    return _run_on_ray(loaded, name, data, dry_run=dry_run)


def _run_in_process(loaded: LoadedConfig, name: str, data: Any, *, dry_run: bool) -> Outcome:
    from raygnn.loops import collectives
    from raygnn.loops.context import ProcessContext
    from raygnn.loops.job import TrainJob
    from raygnn.loops.worker import run_worker

    scaling = loaded.config.scaling
    bundle = open_bundle(loaded, data)
    check_data(loaded.config, bundle)
    context = ProcessContext(use_gpu=scaling.use_gpu, timeout_s=scaling.timeout_s)
    try:
        folder = open_run_folder(loaded, name) if context.rank == 0 else None
        folder = collectives.broadcast_object(folder)
        metrics = run_worker(TrainJob(loaded, folder, str(bundle.path), dry_run), context)
        return Outcome(folder, metrics)
    finally:
        context.close()


def _run_on_ray(loaded: LoadedConfig, name: str, data: Any, *, dry_run: bool) -> Outcome:
    from raygnn.runtime.ingest import ray_data_schedule
    from raygnn.runtime.preflight import plan_resources

    connect()
    resources = plan_resources(loaded.config)
    bundle = open_bundle(loaded, data, schedule=ray_data_schedule)
    check_data(loaded.config, bundle)
    folder = open_run_folder(loaded, name)
    return _train_on_ray(loaded, folder, bundle, resources, dry_run=dry_run)


def _train_on_ray(
    loaded: LoadedConfig,
    folder: RunFolder,
    bundle: Bundle,
    resources: WorkerResources,
    *,
    dry_run: bool,
) -> Outcome:
    from ray.train.v2.api.exceptions import TrainingFailedError

    from raygnn.loops.job import TrainJob
    from raygnn.runtime.context import NODE_PREEMPTION
    from raygnn.runtime.stop_requests import fit_interruptibly, start_stop_requests

    job = TrainJob(loaded, folder, str(bundle.path), dry_run)
    requests = start_stop_requests()
    while True:
        trainer = _trainer(job, resources, requests)
        try:
            returned = fit_interruptibly(trainer, requests).return_value
        except TrainingFailedError as error:
            raise TrainingError(_explain_failure(error)) from error
        if isinstance(returned, PreemptedError) and returned.cause == NODE_PREEMPTION:
            say(f"{returned} Workers start again on other nodes.")
            continue
        if isinstance(returned, RaygnnError):
            raise returned
        return Outcome(folder, returned)


def _trainer(job: TrainJob, resources: WorkerResources, requests: ActorHandle) -> TorchTrainer:
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from raygnn.runtime.storage import arrow_filesystem

    scaling = job.loaded.config.scaling
    filesystem, path = arrow_filesystem(job.folder.uri)
    storage_path, _, name = path.rstrip("/").rpartition("/")
    _forget_snapshot(job.folder)
    return TorchTrainer(
        _train_worker,
        train_loop_config={"job": job, "stop_requests": requests},
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


def _train_worker(config: dict[str, Any]) -> dict[str, Any] | RaygnnError:
    """What Ray Train runs on each worker.

    Errors that a second try would only repeat come back as values, so that Ray restarts workers
    that died and not runs that are wrong.
    """
    from raygnn.loops.worker import run_worker
    from raygnn.runtime.context import RayWorkerContext

    logging.getLogger("ray.train").setLevel(logging.WARNING)  # a line per report and rank
    try:
        return run_worker(config["job"], RayWorkerContext(config["stop_requests"]))
    except RaygnnError as error:
        return error


def connect() -> None:
    """Joins the cluster of this job or notebook, or starts a local Ray and says so."""
    # The controller asks workers for reports at this interval; its default of 2 s would make
    # every validation wait. It is read when Ray Train starts.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")
    import ray

    if ray.is_initialized():
        return
    started = time.monotonic()
    # Ray's start is spent waiting for other processes, and what comes next needs torch.
    imports = Thread(target=import_module, args=("torch",), name="raygnn-imports")
    imports.start()
    try:
        ray.init()
    finally:
        imports.join()
    logging.getLogger("ray.data").setLevel(logging.WARNING)  # its plans bury the ingest's lines
    nodes = len(ray.nodes())
    cpus = ray.cluster_resources().get("CPU", 0)
    say(
        f"Ray {ray.__version__}: {nodes} node(s), {cpus:g} CPUs, {time.monotonic() - started:.1f} s"
    )


def _forget_snapshot(folder: RunFolder) -> None:
    """Removes Ray's own record of an earlier start: raygnn decides what to resume from."""
    from raygnn.data.filesystem import join, open_fs

    fs, path = open_fs(join(folder.uri, "checkpoint_manager_snapshot.json"))
    if fs.exists(path):
        fs.rm(path)


def _explain_failure(error: Any) -> str:
    failures = getattr(error, "worker_failures", {})
    lines = [
        f"rank {rank}: {str(cause).strip().splitlines()[-1]}" for rank, cause in failures.items()
    ]
    return "Training failed and was not restarted any more:\n" + "\n".join(lines or [str(error)])


def _default_name(loaded: LoadedConfig) -> str:
    return f"{loaded.config.job_name or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"


def _shortened(loaded: LoadedConfig, scratch: str) -> LoadedConfig:
    """The same config for one batch of everything, writing to a scratch folder only."""
    config = loaded.config
    training = {"max_steps": 1, "num_val_batches": 1, "num_test_batches": 1}
    return replace(
        loaded,
        config=config.model_copy(
            update={
                "training": config.training.model_copy(update=training),
                "profiler": None,
                "run": config.run.model_copy(
                    update={
                        "name": "dry-run",
                        "storage_path": scratch,
                        "model_uri": None,
                        "logs_uri": None,
                    }
                ),
            }
        ),
    )
