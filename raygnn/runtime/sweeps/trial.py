"""One trial of a sweep: a whole distributed run that tells Ray Tune of each validation."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ray import tune
from ray.exceptions import ActorDiedError
from ray.train import Checkpoint
from ray.tune.integration.ray_train import TuneReportCallback

from raygnn.console import label_lines
from raygnn.job import TrainJob
from raygnn.outputs.run_start import open_run_folder
from raygnn.runtime.connection import connect
from raygnn.runtime.data_checks import find_spec
from raygnn.runtime.data_source import open_trial_bundle
from raygnn.runtime.preflight import plan_resources
from raygnn.runtime.ray_train import train_on_ray
from raygnn.runtime.sweeps.plan import SweepPlan


class ReportValidations(TuneReportCallback):
    """Hands validations on to Ray Tune, and leaves out checkpoints without one."""

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
    num_concurrent: int,
) -> None:
    """Trains one trial in workers of its own, in a run folder named after it.

    A trial that was interrupted finds its folder unfinished, and goes on.

    Args:
        values: by dotted path, drawn by the searcher.
        folder: of the sweep; trials lie in it.
        bundle_path: the graph that the sweep has ingested.
        given_tables: the tables of a graph that the sweep was given in place of the config's.
        num_concurrent: trials that share the cluster.
    """
    name = tune.get_context().get_trial_name()
    label_lines(name)
    connect()
    loaded = plan.trial_config(values, name=name, storage_path=folder)
    loaded.check_arguments()
    resources = plan_resources(loaded.config, num_concurrent)
    bundle = open_trial_bundle(loaded, plan.loaded, bundle_path, given_tables)
    spec = find_spec(loaded, bundle)
    job = TrainJob(loaded, open_run_folder(loaded, name), str(bundle.path), spec)
    train_on_ray(job, resources, callbacks=[ReportValidations()], label=name)
