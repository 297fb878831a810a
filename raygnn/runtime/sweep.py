"""Running a sweep: the graph once, then trials, then a ranked table and the best config."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.exceptions import ActorDiedError
from ray.train import Checkpoint
from ray.tune.integration.ray_train import TuneReportCallback
from ray.util.placement_group import PlacementGroup, remove_placement_group

from raygnn import console
from raygnn.data.filesystem import arrow_filesystem, join, write_text
from raygnn.documents import dump_yaml
from raygnn.errors import PreemptedError, TrainingError
from raygnn.job import TrainJob
from raygnn.loops.signals import signals_as_notices
from raygnn.outputs.comparison import compare
from raygnn.outputs.run_folder import RunFolder, RunStatus
from raygnn.outputs.run_start import check_run_folder, check_writable, open_run_folder
from raygnn.runtime.connection import connect
from raygnn.runtime.data_checks import check_schema, find_spec, with_task_defaults
from raygnn.runtime.data_source import open_training_tables, open_trial_bundle, run_tables
from raygnn.runtime.launch import default_name, launch, warn_of_vanishing
from raygnn.runtime.preflight import count_fitting_runs, plan_resources
from raygnn.runtime.ray_internals import attribute, internal
from raygnn.runtime.ray_train import train_on_ray
from raygnn.runtime.ray_workers import stop_requests
from raygnn.runtime.sources import snapshot_records
from raygnn.runtime.sweep_plan import SweepPlan, scheduler, search_space, searcher
from raygnn.runtime.sweep_progress import (
    StopWithoutMetric,
    SweepProgress,
    as_json,
    rank,
    table,
    trial_name,
    trial_rows,
)
from raygnn.runtime.worker_lines import drain_worker_lines, show_held_lines

if TYPE_CHECKING:
    from ray.tune import ResultGrid, Tuner


#: Sections of a config that `find_spec` reads, besides the graph.
_READ_WITH_DATA = {"data", "task", "sampling", "model", "losses"}


def run_sweep(plan: SweepPlan, *, data: Any = None) -> ResultGrid:
    """Runs all trials, and writes `trials.json` and `best.yaml` into the sweep's folder. Raises a
    TrainingError if every trial failed, a PreemptedError at SIGTERM or Ctrl-C; starting again under
    the same name resumes.
    """
    name = plan.loaded.config.run.name or default_name(plan.loaded)
    run = plan.loaded.config.run
    check_writable(check_run_folder(plan.loaded, name), run)
    varied = {path.partition(".")[0] for path in plan.section.space}
    connect(lambda: plan.loaded.check_arguments(left_out=varied))  # each trial checks its own
    num_concurrent = _num_concurrent(plan)
    uri = run_tables(plan.loaded, check_run_folder(plan.loaded, name), data)
    snapshots = snapshot_records(uri)
    is_read_alike = not varied & _READ_WITH_DATA
    if is_read_alike:
        check_schema(plan.loaded, uri)
    bundle = open_training_tables(plan.loaded, uri, on_cluster=True)
    loaded = with_task_defaults(plan.loaded, uri)
    if is_read_alike:
        find_spec(loaded, bundle)
    plan = plan.with_space(loaded)
    if plan.first and (run.overwrite or not check_run_folder(plan.loaded, name).is_run()):
        _say_time(plan, data, num_concurrent)
    record = {"graph": uri, "tables": snapshots} if snapshots else None
    folder = open_run_folder(plan.loaded, name, record)
    warn_of_vanishing(folder)
    console.say(f"sweep {folder.uri}: {console.count(num_concurrent, 'trial')} at a time")
    trial = partial(
        run_trial,
        folder=folder.uri,
        bundle_path=str(bundle.path),
        given_tables=None if data is None else uri,
        snapshots=snapshots,
        num_concurrent=num_concurrent,
    )
    tuner = _tuner(plan, folder, trial, num_concurrent)
    folder.record_start(
        resumed_from=None, step=0, num_workers=plan.loaded.config.scaling.max_workers
    )
    causes: list[str] = []

    def stop(cause: str) -> None:
        causes.append(cause)
        console.say(f"{cause}: the trials are stopped; they keep their checkpoints")
        os.kill(os.getpid(), signal.SIGUSR1)  # Tune saves its state and stops

    held = held_places()
    with stop_requests() as requests:
        with signals_as_notices(stop):
            grid = tuner.fit()
        free_places_of_trials(held)
        drain_worker_lines(requests)  # the table comes last
    with folder.stop_recorded():
        _conclude(plan, folder, grid, causes)
    return grid


def _say_time(plan: SweepPlan, data: Any, num_concurrent: int) -> None:
    """States the time of all trials, from that of starting the first one and of a few steps."""
    run = plan.loaded.config.run
    first = plan.trial_config(plan.first, name=None, storage_path=run.storage_path)
    began_s = time.monotonic()
    with console.printing(console.print_nothing):  # the sweep has reported the graph
        estimate = launch(first, data=data, dry_run=True).metrics.get("estimate")
    if estimate is not None and estimate["time_s"] is not None:
        each_s = time.monotonic() - began_s + estimate["time_s"]
        most = "at most " if estimate["stops_early"] else ""
        time_ = console.show_duration(each_s * math.ceil(plan.num_trials / num_concurrent))
        console.say(f"{console.count(plan.num_trials, 'trial')} take {most}about {time_}")


def _num_concurrent(plan: SweepPlan) -> int:
    section = plan.section
    fitting = max(1, count_fitting_runs(plan.loaded.config))
    wanted = section.max_concurrent_trials or min(fitting, plan.num_trials)
    plan_resources(plan.loaded.config, wanted)
    return wanted


def _tuner(
    plan: SweepPlan, folder: RunFolder, trial: Callable[..., None], num_concurrent: int
) -> Tuner:
    # `StopWithoutMetric` checks the metric, and lists the existing ones.
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # `run_sweep` has its own
    # `SweepProgress` says why a trial failed; its traceback is in its folder.
    os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
    # Ray's new output prints a table and two links even with verbose=0.
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    # It would explain with Ray's API how to resume; `_conclude` says it with raygnn's.
    logging.getLogger("ray.tune.tune").setLevel(logging.ERROR)
    # Optuna warns for each resumed trial, because Tune counts its reports from 1 again.
    warnings.filterwarnings("ignore", "The reported value is ignored because this `step=")
    section, (metric, mode) = plan.section, plan.watched
    # Through the object store: what Tune pickles into the sweep's folder holds no secrets.
    trainable = tune.with_parameters(trial, plan=plan)
    # On the driver's node, which has the bundle; and without a CPU, since its workers need them.
    node = f"node:{ray.util.get_node_ip_address()}"
    trainable = tune.with_resources(trainable, {"CPU": 0, node: 1e-4})
    filesystem, path = arrow_filesystem(folder.uri)
    if tune.Tuner.can_restore(path, storage_filesystem=filesystem):
        console.say("resuming the sweep: finished trials stay, unfinished ones continue")
        return tune.Tuner.restore(path, trainable, storage_filesystem=filesystem)
    storage_path, _, name = path.rstrip("/").rpartition("/")
    return tune.Tuner(
        trainable,
        param_space=search_space(section),
        tune_config=tune.TuneConfig(
            metric=metric,
            mode=mode,
            num_samples=section.num_samples,
            scheduler=scheduler(section),
            search_alg=searcher(plan, num_concurrent),
            trial_name_creator=trial_name,
            trial_dirname_creator=trial_name,
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=storage_path,
            storage_filesystem=filesystem,
            verbose=0,
            stop=StopWithoutMetric(metric),
            callbacks=[SweepProgress(metric, mode, plan.num_trials, num_concurrent)],
        ),
    )


def _conclude(plan: SweepPlan, folder: RunFolder, grid: ResultGrid, causes: list[str]) -> None:
    metric, mode = plan.watched
    ranked = rank(trial_rows(grid, folder.uri, metric, mode), mode)
    write_text(join(folder.uri, "trials.json"), as_json(ranked, metric, mode))
    for line in table(ranked, metric):
        console.say(line)
    write_text(join(folder.uri, "report.html"), compare([folder.uri]).html())
    console.say(f"report      {join(folder.uri, 'report.html')}")
    if causes:
        again = f"Start it again with run.name {folder.name!r} to resume."
        text = f"The sweep was stopped by {causes[0]}. {again}"
        raise PreemptedError(text, causes[0], id="sweep-stopped")
    if ranked[0].best is None:
        show_held_lines()
        raise TrainingError(
            f"No trial has a finite {metric}. The first: {ranked[0].error or 'no error'}",
            id="sweep-no-result",
        )
    best_uri = join(folder.uri, "best.yaml")
    run = plan.loaded.config.run
    saved = plan.trial_config(ranked[0].values, name=None, storage_path=run.storage_path).saved
    write_text(best_uri, dump_yaml({key: value for key, value in saved.items() if key != "tune"}))
    folder.write_state(RunStatus.FINISHED, plan.loaded)
    console.say(f"best trial  {join(folder.uri, ranked[0].name)}")
    console.say(f"best config {best_uri}")
    best = {"trial": ranked[0].name, "values": ranked[0].values, metric: ranked[0].best}
    console.give_result(run=folder.uri, best_config=best_uri, best=best)


class ReportValidations(TuneReportCallback):
    """Reports validations to Ray Tune, and skips checkpoints without one."""

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        if not metrics[0]:
            return
        # A sweep that is stopped ends trials, and with each the queue that it owns, before the
        # controller that calls here, which Ray ends as well: nobody waits for this validation.
        with suppress(ActorDiedError):
            super().after_report(run_context, metrics, checkpoint)


def run_trial(
    values: dict[str, Any],
    *,
    plan: SweepPlan,
    folder: str,
    bundle_path: str,
    given_tables: str | None,
    snapshots: dict[str, Any],
    num_concurrent: int,
) -> None:
    """Trains one trial in its own workers, in a run folder named after it; an interrupted trial
    finds its folder unfinished, and resumes.

    Args:
        values: by dotted path, drawn by the searcher.
        folder, bundle_path: of the sweep.
        given_tables: tables passed to the sweep instead of the config's.
        snapshots: records of the snapshots that the sweep reads.
    """
    name = tune.get_context().get_trial_name()
    console.label_lines(name)
    connect()
    loaded = plan.trial_config(values, name=name, storage_path=folder)
    loaded = with_task_defaults(loaded, given_tables)
    loaded.check_arguments()
    resources = plan_resources(loaded.config, num_concurrent)
    bundle = open_trial_bundle(loaded, plan.loaded, bundle_path, given_tables)
    spec = find_spec(loaded, bundle)
    if spec is not None:
        spec = replace(spec, snapshots=snapshots)
    job = TrainJob(loaded, open_run_folder(loaded, name), str(bundle.path), spec)
    train_on_ray(job, resources, callbacks=[ReportValidations()], label=name)


#: Controllers end some seconds after their trials.
_WITHIN_S = 30.0


def held_places() -> dict[str, bool]:
    """Placement groups of actors of this job: id, and whether that actor is dead."""
    table = internal("ray.core.generated.gcs_pb2", "PlacementGroupTableData")
    state = internal("ray._private.state", "state")
    accessor = attribute(state, "_connect_and_get_accessor")()
    actor = attribute(state, "actor_table")
    job = ray.get_runtime_context().get_job_id()
    places: dict[str, Any] = {}
    for record in map(table.FromString, attribute(accessor, "get_placement_group_table")()):
        is_held = record.state != table.REMOVED and not record.is_detached
        if is_held and record.creator_actor_id and record.creator_job_id.hex() == job:
            # Ray does not mark a group that is registered after its actor died.
            creator = actor(record.creator_actor_id.hex())
            is_dead = record.creator_actor_dead or creator.get("State", "DEAD") == "DEAD"
            places[record.placement_group_id.hex()] = is_dead
    return places


def free_places_of_trials(before: dict[str, bool]) -> None:
    """Frees the placement groups that trials leave behind, as soon as their controllers are dead.

    Ray does so for started workers: Ray Train registers a placement group with its cleaner only
    then. One of a trial that the scheduler or a signal stopped earlier would stay until this
    process leaves the cluster, or longer. `before`: placement groups at the start of the sweep.
    """
    end_s = time.monotonic() + _WITHIN_S
    while time.monotonic() < end_s:
        held = {place: is_dead for place, is_dead in held_places().items() if place not in before}
        if not held:
            return
        for place, is_dead in held.items():
            if is_dead:
                remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(place)))
        time.sleep(0.2)
