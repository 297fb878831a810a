"""Launching a run: data first, then checks, then workers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from raygnn.config import LoadedConfig
from raygnn.config.training_section import Training
from raygnn.console import say, warn
from raygnn.data.bundle import Bundle
from raygnn.errors import ConfigError, RunError
from raygnn.job import TrainJob
from raygnn.outputs.loggers import check_packages
from raygnn.outputs.run_folder import RunFolder
from raygnn.outputs.run_start import check_run_folder, check_writable, open_run_folder
from raygnn.outputs.worker_memory import needs_of
from raygnn.runtime import data_checks
from raygnn.runtime.connection import connect
from raygnn.runtime.data_source import check_source, open_training_tables, run_tables, tables_uri
from raygnn.runtime.sources import snapshot_records


@dataclass(frozen=True)
class Outcome:
    folder: RunFolder
    metrics: dict[str, Any]


def launch(loaded: LoadedConfig, *, data: Any = None, dry_run: bool = False) -> Outcome:
    """Runs a config from tables to results.

    With `scaling.num_workers: 0` everything happens in this process, without Ray (or in each of
    torchrun's processes); else in workers of Ray Train.

    Args:
        data: `GraphTables`, or a PyG `Data` or `HeteroData`, instead of the config's source.
        dry_run: a few batches of everything, in a temporary folder.
    """
    if dry_run:
        from raygnn.outputs.estimate import describe_estimate

        with tempfile.TemporaryDirectory(prefix="raygnn-dry-run-") as scratch:
            outcome = _launch(_shortened(loaded, scratch), data, loaded.config.training)
        say("dry run passed: training, validation, test, and a checkpoint written and restored")
        estimate = outcome.metrics.get("estimate")
        if estimate is not None:  # not of a loop of the user's own
            say(describe_estimate(estimate), "estimate", **estimate)
        return outcome
    return _launch(loaded, data)


def _launch(loaded: LoadedConfig, data: Any, tried: Training | None = None) -> Outcome:
    if loaded.config.tune is not None:
        raise ConfigError(
            "tune is invalid for one run. Run raygnn tune, or set --tune null. [sweep-as-run]"
        )
    check_packages(loaded.config.loggers, loaded.allow_modules)
    check_source(loaded, data)
    tables = None if data is None else tables_uri(loaded, data)
    loaded = data_checks.with_task_defaults(loaded, tables)
    name = loaded.config.run.name or default_name(loaded)
    check_writable(check_run_folder(loaded, name), loaded.config.run)
    if loaded.config.scaling.max_workers == 0:
        return _run_in_process(loaded, name, tables, tried)
    return _run_on_ray(loaded, name, tables, tried)


def _run_in_process(
    loaded: LoadedConfig, name: str, tables: str | None, tried: Training | None
) -> Outcome:
    from raygnn.loops.context import ProcessContext
    from raygnn.parallel.agreement import made_by_rank_0
    from raygnn.worker import run_worker

    loaded.check_arguments()
    scaling = loaded.config.scaling
    with (
        _training_job(loaded, name, tables, tried, on_ray=False) as (make_job, snapshots),
        closing(ProcessContext(use_gpu=scaling.use_gpu, timeout_s=scaling.timeout_s)) as context,
    ):
        folder = made_by_rank_0(
            lambda: open_run_folder(loaded, name, snapshots), "opening the run folder", RunError
        )
        with folder.stop_recorded() if context.rank == 0 else nullcontext():
            return Outcome(folder, run_worker(make_job(folder), context))


def _run_on_ray(
    loaded: LoadedConfig, name: str, tables: str | None, tried: Training | None
) -> Outcome:
    connect(loaded.check_arguments)
    from raygnn.runtime.preflight import plan_resources
    from raygnn.runtime.ray_train import train_on_ray

    resources = plan_resources(loaded.config)
    with _training_job(loaded, name, tables, tried, on_ray=True) as (make_job, snapshots):
        folder = open_run_folder(loaded, name, snapshots)
        warn_of_vanishing(folder)
        with folder.stop_recorded():
            return Outcome(folder, train_on_ray(make_job(folder), resources))


@contextmanager
def _training_job(
    loaded: LoadedConfig, name: str, tables: str | None, tried: Training | None, *, on_ray: bool
) -> Iterator[tuple[Callable[[RunFolder], TrainJob], dict[str, Any]]]:
    """Opens and checks the graph. Makes the job of a run folder, and the record of snapshots that
    it reads.
    """
    if tables is None and loaded.config.data.mode != "partitioned":
        tables = run_tables(loaded, check_run_folder(loaded, name))
    bundle = open_graph(loaded, tables, on_cluster=on_ray)
    spec, records = data_checks.find_spec(loaded, bundle), snapshot_records(tables)
    if spec is not None:
        spec = replace(spec, snapshots=records)
    samples = None
    if loaded.config.data.mode == "presampled":
        from raygnn.runtime.stored_samples import open_samples

        samples = open_samples(loaded, bundle, spec)
    needs = needs_of(loaded.config, bundle, spec)
    with data_checks.graph_parts(bundle, loaded.config, on_ray=on_ray) as parts:

        def make_job(folder: RunFolder) -> TrainJob:
            return TrainJob(loaded, folder, str(bundle.path), spec, tried, parts, samples, needs)

        yield make_job, {"graph": tables, "tables": records} if records else {}


def open_graph(loaded: LoadedConfig, tables: str | None, on_cluster: bool = False) -> Bundle:
    """The bundle of the configured graph (or of `tables`), or the outline of a partitioned one."""
    if tables is None and loaded.config.data.mode == "partitioned":
        return data_checks.open_outline(loaded)
    uri = tables or tables_uri(loaded, None)
    data_checks.check_schema(loaded, uri)
    return open_training_tables(loaded, uri, on_cluster)


def warn_of_vanishing(folder: RunFolder) -> None:
    """Warns if outputs go to a folder that Ray deletes at the end of the job."""
    if "/runtime_resources/working_dir_files/" in folder.uri:
        warn(
            "run.storage_path is in Ray's copy of the working directory, which Ray deletes after "
            f"the job: {folder.uri}. Set an absolute path or a bucket."
        )


def default_name(loaded: LoadedConfig) -> str:
    """With milliseconds, as scripts start runs in the same second."""
    now = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() // 1_000_000 % 1_000:03}"
    return f"{loaded.config.job_name or 'run'}-{now}"


def _shortened(loaded: LoadedConfig, scratch: str) -> LoadedConfig:
    """Copy of the config with a few batches of each split, and outputs in a scratch folder."""
    from raygnn.outputs.estimate import NUM_EVAL_BATCHES, NUM_STEPS

    config = loaded.config
    limits, num_batches = config.training, NUM_EVAL_BATCHES * max(config.scaling.max_workers, 1)
    training = {
        "max_steps": min(NUM_STEPS, limits.max_steps or NUM_STEPS),
        "num_val_batches": min(num_batches, limits.num_val_batches or num_batches),
        "num_test_batches": 1,
    }
    return replace(
        loaded,
        config=config.model_copy(
            update={
                "training": config.training.model_copy(update=training),
                "checkpoint": config.checkpoint.model_copy(
                    # Written and read back, regardless of the run's own policy and resume.
                    update={"policy": "best", "resume": "auto"}
                ),
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
