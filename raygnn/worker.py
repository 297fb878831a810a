"""One worker of a run, from an open bundle to the written results."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch import Tensor

from raygnn.config import build, resolve
from raygnn.console import say, warn
from raygnn.data.bundle import Bundle
from raygnn.data.filesystem import absolute, join
from raygnn.data.pagerank_graph import neighborhood_graph
from raygnn.data.partition.part import Outline
from raygnn.data.storage_retry import is_storage_error
from raygnn.errors import CheckpointError, ConfigError, PreemptedError, ResourceError, RunError
from raygnn.job import TrainJob
from raygnn.loops.callbacks import Callback, FunctionCallback
from raygnn.loops.context import WorkerContext
from raygnn.loops.engine import Engine
from raygnn.loops.process import prepare_process, process_restored
from raygnn.loops.refit import refit
from raygnn.loops.task import Task, TaskEnvironment
from raygnn.outputs.checkpoints.checkpointer import Checkpointer
from raygnn.outputs.checkpoints.warm_start import warm_start
from raygnn.outputs.estimate import Estimate
from raygnn.outputs.history import HistoryWriter, LogRows
from raygnn.outputs.ladder import verdicts
from raygnn.outputs.model_export import write_model
from raygnn.outputs.profiler import Profiler
from raygnn.outputs.progress import Progress, headline, num_parameters
from raygnn.outputs.report import build_report
from raygnn.outputs.report_advice import Advice, say_baselines, say_warmth
from raygnn.outputs.run_folder import RunFolder, RunStatus
from raygnn.outputs.saved_model import command, usage
from raygnn.outputs.throughput import PartTraffic, Throughput
from raygnn.outputs.worker_memory import check_needs, say_needs
from raygnn.parallel import collectives
from raygnn.parallel.agreement import agreement, describe, run_and_sync_errors
from raygnn.parallel.sharding import own_part


def run_worker(
    job: TrainJob, context: WorkerContext, callbacks: Sequence[Callback] = ()
) -> dict[str, Any]:
    """Trains, tests with the best weights, and writes the outputs. Returns the final metrics.

    Collective: all ranks must call. The result is equal on all ranks.

    Args:
        callbacks: called before the configured ones.
    """
    with collectives.group_held(), process_restored():
        return _run(job, context, callbacks)


def _run(job: TrainJob, context: WorkerContext, callbacks: Sequence[Callback]) -> dict[str, Any]:
    loaded, config = job.loaded, job.loaded.config
    prepare_process(loaded)
    _check_needs(job, context)
    task = run_and_sync_errors(lambda: _set_up_task(job, context), "setting up the task")
    try:
        if config.loop is not None:
            return _run_own_loop(job, task, context)
        checkpointer = Checkpointer(job.folder, context, config.checkpoint)
        saver = None if config.checkpoint.policy == "none" else checkpointer
        throughput, logged, advice = Throughput(), LogRows(), Advice()
        traffic = [] if job.parts is None else [PartTraffic(job.parts.traffic)]
        estimate = None if job.tried is None else Estimate(job.tried)
        watching = [throughput, *traffic, logged, *callbacks, *_callbacks(job)]
        watching += [checkpointer, advice, *([] if estimate is None else [estimate])]
        start, folder = config.checkpoint.init_from, loaded.folder
        initialize = None if start is None else partial(warm_start, settings=start, folder=folder)
        engine = Engine(task, loaded, context, watching, saver, initialize)
        try:
            resume = loaded.config.checkpoint.resume
            checkpointer.restore(
                engine, absolute(resume, loaded.folder) if "/" in resume else resume
            )
            _record_start(job, context, engine.resumed_from, engine.position.step)
            engine.train()
            if job.tried is not None:
                _check_restore(engine, checkpointer)
            engine.conclude()
            refitted: dict[str, int] = {}
            if config.training.refit:
                refitted = refit(engine, [Progress(), *_configured_callbacks(job)], initialize)
            test = engine.test()
            # From rank 0, since clocks differ between ranks, and it is the one that reads files.
            metrics = {}
            with agreement("gathering the final metrics"):
                if context.rank == 0:
                    measured = {**test, **throughput.totals(), **advice.metrics(), **refitted}
                    metrics = _final_metrics(job, engine, measured)
                    if estimate is not None:
                        metrics["estimate"] = estimate.values(engine)
            metrics = collectives.broadcast_object(metrics)
        except PreemptedError:
            raise
        except Exception as error:
            if context.rank == 0:
                _write_failure(job, engine, logged, advice, error)
            raise
        finally:
            engine.callbacks.call("on_shutdown")
        weights = engine.optimization.whole_weights(task.env.scratch)
        with agreement("writing the outputs"):
            engine.callbacks.raise_failure()
            if context.rank == 0:
                with job.folder.held():
                    _write_outputs(job, engine, weights, metrics, logged)
        return metrics
    finally:
        task.close()


def _check_needs(job: TrainJob, context: WorkerContext) -> None:
    if job.needs is None:
        return
    here = socket.gethostname()
    hosts = collectives.gather_objects(here)
    with agreement("looking for memory", ResourceError):
        check_needs(job.needs, hosts.count(here))
        if context.rank == 0:
            say_needs(job.needs)


def _set_up_task(job: TrainJob, context: WorkerContext) -> Task:
    loaded = job.loaded
    task: Task = build(loaded.config.task, "task", loaded.allow_modules)
    full_graph = (Bundle if job.parts is None else Outline).open(job.bundle_path)
    bundle = neighborhood_graph(loaded.config, full_graph)
    worker_context = (bundle, context.rank, context.world_size, context.device)
    task.setup(TaskEnvironment(loaded, *worker_context, job.spec, job.parts, job.samples))
    return task


def _record_start(
    job: TrainJob, context: WorkerContext, resumed_from: str | None = None, step: int = 0
) -> None:
    with agreement("writing run.json"):
        if context.rank == 0:
            with job.folder.held():
                job.folder.forget_failure()
                if resumed_from is None and job.folder.read_starts():
                    say("no checkpoint to resume from: training starts from the beginning")
                job.folder.record_start(
                    resumed_from=resumed_from, step=step, num_workers=context.world_size
                )


def _run_own_loop(job: TrainJob, task: Task, context: WorkerContext) -> dict[str, Any]:
    name = job.loaded.config.loop
    assert name is not None
    loop: Any = resolve(name, "loop", job.loaded.allow_modules)
    _record_start(job, context)
    metrics: Any = loop(task, context)
    if not isinstance(metrics, dict):
        raise ConfigError(
            f"loop={name!r} returned {type(metrics).__name__}. Return a dictionary. [run-own-loop]"
        )
    with agreement("writing the outputs"):
        if context.rank == 0:
            with job.folder.held():
                job.folder.write_metrics(metrics)
                job.folder.write_state(RunStatus.FINISHED, job.loaded)
    return metrics


def _callbacks(job: TrainJob) -> list[Callback]:
    loaded, folder = job.loaded, job.folder
    injected = {"logs_uri": folder.logs_uri, "run_name": folder.name}
    callbacks: list[Callback] = [HistoryWriter(folder), Progress()]
    callbacks += [
        build(logger, "logger", loaded.allow_modules, **injected)
        for logger in loaded.config.loggers
    ]
    profiler = loaded.config.profiler
    if profiler is not None:
        callbacks.append(Profiler(profiler, profiler.logs_uri or join(folder.logs_uri, "profiler")))
    return [*callbacks, *_configured_callbacks(job)]


def _configured_callbacks(job: TrainJob) -> list[Callback]:
    loaded, callbacks = job.loaded, list[Callback]()
    for entry in loaded.config.callbacks:
        if isinstance(entry, dict):
            hooks = {h: resolve(f, "hook", loaded.allow_modules) for h, f in entry.items()}
            callbacks.append(FunctionCallback(hooks))
        else:
            callbacks.append(build(entry, "callback", loaded.allow_modules))
    return callbacks


def _final_metrics(job: TrainJob, engine: Engine, measured: dict[str, float]) -> dict[str, Any]:
    best, position = engine.best, engine.position
    starts = job.folder.read_starts()
    began = datetime.fromisoformat(starts[0]["time"])
    wall_time_s = (datetime.now(UTC) - began).total_seconds()  # a clock may be set back
    return {
        **{name: value for name, value in best.metrics.items() if not name.startswith("train/")},
        **measured,
        **engine.diagnostics,
        "intervals": engine.intervals,
        "best_step": best.position.step,
        "best_epoch": best.position.current_epoch,
        "step": position.step,
        "epoch": position.epoch,
        "samples": position.samples,
        "num_parameters": num_parameters(engine),
        "num_workers": engine.context.world_size,
        "training_time_s": round(engine.training_time_s, 3),
        "wall_time_s": round(max(wall_time_s, engine.training_time_s), 3),
        "stop_reason": engine.stop_reason,
        "resumed_from": starts[-1]["resumed_from"],
        "restarts": len(starts) - 1,
    }


def _write_outputs(
    job: TrainJob,
    engine: Engine,
    weights: Mapping[str, Tensor],
    metrics: dict[str, Any],
    logged: LogRows,
) -> None:
    folder, loaded = job.folder, job.loaded
    spec = engine.task.spec
    text = None if spec is None else spec.to_json()
    model_uri = write_model(
        weights, folder.model_uri, loaded.saved_yaml(), text, folder.write, engine.task.trees_text
    )
    how_to_use = "" if spec is None else usage(folder.uri, loaded, spec)
    note = f"Stopped by {engine.stop_reason}."
    if (num_rows := metrics.get("refit_rows")) is not None:
        note += f" Then trained again on {num_rows:,} training and validation rows."
    _write_report(folder, engine, logged, metrics, note, how_to_use)
    folder.write_state(RunStatus.FINISHED, loaded, engine.stop_reason)
    if job.tried is not None:  # a trial of few steps, whose files are deleted
        return
    shown = {k: v for k, v in metrics.items() if k.startswith("test/")}
    if shown:
        text = "  ".join(f"{name} {shown[name]:.4f}" for name in headline(shown))
        say(f"test: {text}", "test", metrics=shown)
    say_warmth(metrics)
    say_baselines(metrics, "test", engine.best.tracker.monitor)
    if text := metrics.get("verdict"):
        say(text, "verdict", weights=metrics["blend"])
    for line in verdicts(metrics):
        warn(line)
    to_predict = None if spec is None else command(folder.uri, loaded, spec)
    _say_outputs(folder, model_uri, how_to_use, to_predict)


def _write_report(
    folder: RunFolder,
    engine: Engine,
    logged: LogRows,
    metrics: Mapping[str, Any],
    note: str,
    how_to_use: str = "",
) -> None:
    lost = {n for n, v in metrics.items() if isinstance(v, float) and not math.isfinite(v)}
    finite = {name: None if name in lost else value for name, value in metrics.items()}
    folder.write_metrics(finite)
    report = build_report(engine, logged, folder.name, finite, folder.read_starts(), note)
    folder.write(folder.report_uri, replace(report, usage=how_to_use).html())


def _say_outputs(folder: RunFolder, model_uri: str, usage: str, command: str | None) -> None:
    outputs = {
        "model": model_uri,
        "metrics": folder.metrics_uri,
        "history": folder.history_uri,
        "report": folder.report_uri,
        "logs": folder.logs_uri,
        "checkpoints": folder.checkpoints_uri,
    }
    is_in_folder = all(str(uri).startswith(f"{folder.uri}/") for uri in outputs.values())
    for what, uri in outputs.items():
        # People need one line, since all files are in one folder; programs get each path.
        text = f"{what:<12}{uri}" if what == "report" or not is_in_folder else ""
        say(text, "output", what=what, uri=uri)
    if usage:
        say(f"use it      {command or usage.splitlines()[-1]}", "usage", python=usage)


def _write_failure(
    job: TrainJob, engine: Engine, logged: LogRows, advice: Advice, error: Exception
) -> None:
    folder, what = job.folder, describe(error)
    try:
        with folder.lock():
            if not folder.is_this_start() or not folder.read_starts():
                return  # another start has the folder, or there was no training to report on
            measured = _final_metrics(job, engine, advice.metrics())
            metrics = {**measured, "stop_reason": f"failed: {what}"}
            _write_report(folder, engine, logged, metrics, f"Failed: {what}")
            folder.write_state(RunStatus.FAILED, job.loaded)
    except Exception as second:
        if not isinstance(second, RunError) and not is_storage_error(second):
            raise
        warn(f"could not write the failure into the run folder: {describe(second)}")


def _check_restore(engine: Engine, checkpointer: Checkpointer) -> None:
    module = engine.optimization.module
    before = {name: own_part(tensor).clone() for name, tensor in module.state_dict().items()}
    if not checkpointer.restore(engine, "must"):
        raise CheckpointError(
            "The dry run wrote no checkpoint. Set policy to best. [run-dry-no-checkpoint]"
        )
    with agreement("comparing restored weights", CheckpointError):
        for name, tensor in module.state_dict().items():
            if not torch.equal(before[name], own_part(tensor)):
                raise CheckpointError(
                    f"The dry run restored other weights than it saved: {name}. [run-dry-restore]"
                )
