"""The sections about workers, outputs and sweeps."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from raygnn.config.section import (
    NonEmptyText,
    NonNegativeNumber,
    NonNegativeWhole,
    PositiveNumber,
    PositiveWhole,
    Section,
    Whole,
    sections_along,
)
from raygnn.errors import KeyPath, Problem, RuleError, choose_from, dotted, parse_path


def _check_run_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=,+-]*", name):
        rule, remedy = "it names a folder", "Set letters, digits and ._=,+-, a letter first"
        raise RuleError(rule, remedy, id="run-name")
    return name


def _check_range(bounds: list[int]) -> list[int]:
    if bounds[0] > bounds[1]:
        raise RuleError("the minimum comes first", "Exchange the two", id="scaling-range")
    return bounds


WorkerRange = Annotated[
    list[PositiveWhole], Field(min_length=2, max_length=2), AfterValidator(_check_range)
]

NumWorkers = Annotated[
    Annotated[NonNegativeWhole, Tag("number")] | Annotated[WorkerRange, Tag("range")],
    Discriminator(lambda value: "range" if isinstance(value, list) else "number"),
]


class Scaling(Section):
    """The number of workers and the resources of each.

    Attributes:
        num_workers: Ray Train workers; 0 trains in this process, without Ray; [min, max] uses as
            many as fit on the cluster, and adapts during training.
        use_gpu: Whether each worker takes a GPU; auto if the cluster has enough.
        cpus_per_worker: CPUs of each worker.
        resources_per_worker: Further Ray resources of each worker.
        accelerator_type: Kind of GPU, as Ray names it (T4, A100, ...).
        placement_strategy: How Ray places workers on nodes.
        label_selector: Node labels that workers require, in Ray's syntax: {ray.io/market-type:
            spot}.
        shard: State to shard over the workers: nothing, the optimizer's state, or also the weights
            between steps; or only the learned rows of nodes without features, with their optimizer
            state.
        max_failures: Restarts after a failure; -1 is without limit.
        max_preemptions: Restarts after nodes were removed with notice; they do not count as
            failures; -1 is without limit.
        wait_for_nodes_s: Seconds to wait until an autoscaler has added nodes for all workers; 0
            uses the present nodes.
        timeout_s: Seconds to wait in a collective, and for actors with parts of a graph. Ray waits
            three times 60 s for free resources.
    """

    num_workers: NumWorkers = 1
    use_gpu: Literal["auto", True, False] = "auto"
    cpus_per_worker: PositiveNumber | None = None
    resources_per_worker: dict[str, NonNegativeNumber] = Field(default_factory=dict)
    accelerator_type: NonEmptyText | None = None
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    label_selector: dict[str, NonEmptyText] = Field(default_factory=dict)
    shard: Literal["none", "optimizer", "full", "embeddings"] = "none"
    max_failures: Annotated[Whole, Field(ge=-1)] = 2
    max_preemptions: Annotated[Whole, Field(ge=-1)] = 100
    wait_for_nodes_s: NonNegativeNumber = 0.0
    timeout_s: PositiveNumber = 600.0

    @property
    def world_size(self) -> int:
        return self.max_workers or int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def is_elastic(self) -> bool:
        return isinstance(self.num_workers, list)

    @property
    def min_workers(self) -> int:
        return self.num_workers[0] if isinstance(self.num_workers, list) else self.num_workers

    @property
    def max_workers(self) -> int:
        """Maximum number of workers, which the batch arithmetic uses."""
        return self.num_workers[1] if isinstance(self.num_workers, list) else self.num_workers


class Promotion(Section):
    """When a challenger replaces the champion, for `raygnn retrain`.

    Attributes:
        metric: A test metric, such as test/auroc; null takes the first of the run's metrics.
        min_gain: Least gain by the metric on the newest test rows; below 0, a challenger may be
            that much worse.
        num_errors: Standard errors of the difference on these rows by which the gain must exceed
            `min_gain`. Of equal models, 1 promotes one in six, 2 one in forty.
    """

    metric: NonEmptyText | None = None
    min_gain: float = 0.0
    num_errors: NonNegativeNumber = 2.0


class Run(Section):
    """Output folder, loggers and report of a run.

    Attributes:
        name: Name of the run and its folder; null makes one from job name and time.
        storage_path: Folder or URI of all runs.
        overwrite: Remove an earlier run of the same name first.
        model_uri: Folder for the trained model; null is the run's folder.
        logs_uri: Folder for TensorBoard events; null is the run's folder.
        promotion: When `raygnn retrain` replaces the champion.
    """

    name: Annotated[NonEmptyText, AfterValidator(_check_run_name)] | None = None
    storage_path: NonEmptyText = "runs"
    overwrite: bool = False
    model_uri: NonEmptyText | None = None
    logs_uri: NonEmptyText | None = None

    promotion: Promotion = Promotion()


Values = Annotated[list[Any], Field(min_length=1)]

Bounds = Annotated[list[float], Field(min_length=2, max_length=2)]

WholeBounds = Annotated[list[Whole], Field(min_length=2, max_length=2)]


class Parameter(Section):
    """The search space of one key. Exactly one field is set.

    Attributes:
        choice: One of these values, at random.
        grid: Each of these values, combined with each value of the other grids.
        uniform: A number between two bounds.
        loguniform: A number between two bounds, uniform in its logarithm.
        randint: An integer from the first bound up to, but excluding, the second.
    """

    choice: Values | None = None
    grid: Values | None = None
    uniform: Bounds | None = None
    loguniform: Bounds | None = None
    randint: WholeBounds | None = None

    @property
    def kind(self) -> str:
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def values(self) -> list[Any]:
        values: list[Any] = getattr(self, self.kind)
        return values

    def broken_rules(self) -> Iterable[Problem]:
        kinds = list(type(self).model_fields)
        choices = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(choices) != 1:
            rule = f"it takes exactly one of {', '.join(kinds)}, and has {len(choices)}"
            yield Problem((), rule, "Set one, as in {choice: [32, 64]}", id="sweep-distribution")
            return
        kind = choices[0]
        if kind in ("choice", "grid"):
            return
        low, high = getattr(self, kind)
        if low >= high:
            rule = f"{low:g} is not less than {high:g}"
            yield Problem((kind,), rule, "Set the smaller bound first", id="sweep-bounds-order")
        elif kind == "loguniform" and low <= 0:
            rule, remedy = "zero and less have no logarithm", "Set a bound above 0, or uniform"
            yield Problem((kind,), rule, remedy, id="sweep-bounds-log")


class FIFO(Section):
    """Every trial runs to its end.

    Attributes:
        type: No trial is stopped early.
    """

    type: Literal["fifo"]


class ASHA(Section):
    """Asynchronous successive halving (arXiv:1810.05934); times are numbers of validations.

    Attributes:
        type: Asynchronous successive halving.
        grace_period: Validations before a trial may be stopped.
        reduction_factor: At each rung, one trial in this number continues.
        max_t: Validations after which a trial ends; null sets no limit.
    """

    type: Literal["asha"]
    grace_period: PositiveWhole = 1
    reduction_factor: Annotated[float, Field(gt=1)] = 4.0
    max_t: PositiveWhole | None = None

    def broken_rules(self) -> Iterable[Problem]:
        if self.max_t is not None and self.max_t < self.grace_period:
            rule, remedy = f"it is less than grace_period={self.grace_period}", "Set it to more"
            yield Problem(("max_t",), rule, remedy, id="sweep-grace-period")


class MedianStopping(Section):
    """Stops a trial whose best value is worse than the median of the means of the other trials.

    Attributes:
        type: Google Vizier's median stopping rule.
        grace_period: Validations before a trial may be stopped.
    """

    type: Literal["median_stopping"]
    grace_period: NonNegativeWhole = 3


def _scheduler(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else value
    if isinstance(kind, str) and kind.lower() in ("pbt", "population_based_training"):
        rule = "trials of Ray Train cannot copy checkpoints of each other"
        raise RuleError(rule, "Set asha, median_stopping or fifo", id="sweep-scheduler")
    return {"type": value} if isinstance(value, str) else value


class Tune(Section):
    """A sweep over this config: `raygnn tune CONFIG`.

    Attributes:
        space: Keys that vary: dotted paths of the config, and how to draw their values. Empty: the
            learning rate, width, dropout and hops, around the values of the config, which optuna
            tries first; 8 trials with optuna and median_stopping, unless set.
        metric: Metric that ranks trials; null is the one that early stopping or checkpoints watch,
            else val/loss.
        mode: Whether lower (min) or higher (max) is better.
        num_samples: Number of trials; with `grid`, how often to run the grid.
        scheduler: Which trials to stop early, by their validations.
        searcher: How values are drawn; optuna (TPE) needs the package `optuna`.
        max_concurrent_trials: Trials at a time; null is as many as the cluster has room for.
    """

    space: dict[str, Parameter] = Field(default_factory=dict)
    metric: NonEmptyText | None = None
    mode: Literal["min", "max"] = "min"
    num_samples: PositiveWhole = 1
    scheduler: Annotated[
        Annotated[FIFO | ASHA | MedianStopping, Field(discriminator="type")],
        BeforeValidator(_scheduler),
    ] = FIFO(type="fifo")
    searcher: Literal["random", "optuna"] = "random"
    max_concurrent_trials: PositiveWhole | None = None

    def broken_rules(self) -> Iterable[Problem]:
        for path, parameter in self.space.items():
            if self.searcher == "optuna" and parameter.grid is not None:
                rule, remedy = "optuna draws values, and has no grid", "Set choice instead"
                yield Problem(("space", path, "grid"), rule, remedy, id="sweep-grid")


_FIXED = ("run", "tune", "job_name", "loggers", "profiler")


def broken_space(tune: Tune, root: type[Section]) -> Iterable[Problem]:
    """Paths of the space that are missing in `root`, or that must be equal in all trials."""
    for name in tune.space:
        place, path = ("tune", "space", name), parse_path(name)
        if path[0] in _FIXED:
            rule = f"{path[0]} belongs to the sweep, not to its trials"
            yield Problem(place, rule, "Take it out of the space", id="sweep-space-section")
        elif wrong := _unknown_key(path, root):
            where, keys = wrong
            remedy = choose_from(where.rpartition(".")[2], keys, "Keys there")
            yield Problem(place, f"there is no key {where}", remedy, id="sweep-space-unknown")


def _unknown_key(path: KeyPath, root: type[Section]) -> tuple[str, list[str]] | None:
    for depth, sections in enumerate(sections_along(path, root)):
        known = [name for section in sections or () for name in section.model_fields]
        # Without known keys, all is free: an index, or arguments of a component.
        if depth < len(path) and known and path[depth] not in known:
            return dotted(path[: depth + 1]), list(dict.fromkeys(known))
    return None
