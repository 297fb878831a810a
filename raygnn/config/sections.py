"""The sections of a config and derived values; rules between them are not checked here."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from raygnn.config.data_section import Data, SplitRule
from raygnn.config.loader_section import (
    BatchPlan,
    FanoutsSetting,
    Loader,
    LoaderPlan,
    Sampling,
    plan_batches,
    plan_loader,
)
from raygnn.config.registry import SLOTS
from raygnn.config.run_section import Run, Scaling, Tune
from raygnn.config.section import (
    Component,
    NonEmptyText,
    NonNegativeNumber,
    PositiveWhole,
    Section,
    Seed,
)
from raygnn.config.training_section import (
    Checkpoint,
    EarlyStopping,
    LossTerm,
    Profiler,
    Scheduler,
    Training,
)
from raygnn.errors import RuleError

#: `task.type` of a run with `tasks`.
SEVERAL_TASKS = "several_tasks"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name == "loss":
        rule, remedy = "it begins names of metrics", "Set letters, digits, _ and -, and not loss"
        raise RuleError(rule, remedy, id="tasks-name")
    return name


TaskName = Annotated[str, AfterValidator(_check_name)]


class TaskSampling(Section):
    """Sampling options of one of several tasks. Null takes the value of `sampling`.

    Attributes:
        fanouts: Neighbors per hop, for as many hops as `sampling.fanouts`; a map overrides single
            edge types.
        weight: Edge column to draw neighbors in proportion to.
    """

    fanouts: FanoutsSetting | None = None
    weight: NonEmptyText | None = None


class TaskLoader(Section):
    """Batches of a task that differ; null uses `loader`.

    Attributes:
        batch_size: Seeds per micro-batch and worker; null is `loader.batch_size`, or less for a
            task with fewer seeds, so that an epoch is one pass over the seeds of each task.
        eval_batch_size: Seeds per batch in validation and test.
    """

    batch_size: PositiveWhole | None = None
    eval_batch_size: PositiveWhole | None = None


class TaskEntry(Component):
    """A task of a multi-task run.

    Attributes:
        weight: Factor of the task's loss in the sum; a task of weight 0 is not trained, only
            evaluated.
        losses: As the key `losses` of a run with one task.
        metrics: As the key `metrics` of a run with one task.
        sampling: How the task samples neighborhoods.
        loader: The batches of the task.
        splits: Splits of its nodes or links; null takes `data.splits`.
    """

    weight: NonNegativeNumber = 1.0
    losses: list[LossTerm] = Field(default_factory=list)
    metrics: list[Component] = Field(default_factory=list)
    sampling: TaskSampling = TaskSampling()
    loader: TaskLoader = TaskLoader()
    splits: SplitRule | None = None


class Interaction(Section):
    """Crosses the features of each node before the encoder (DCN-v2).

    Attributes:
        num_layers: Cross layers; n of them give products of up to n + 1 features.
        rank: Rank of the matrix of a cross layer; null is a full matrix, quadratic in the features'
            width.
    """

    num_layers: PositiveWhole = 2
    rank: PositiveWhole | None = None


class Model(Component):
    """The encoder, and layers before it.

    Attributes:
        interaction: Cross layers between the features of each node type and the encoder; `{}` sets
            two. Null leaves features as they are.
        relative_time: Whether the model reads how long before the seed's time each node and edge
            is, and how many edges a node has by then; needs temporal sampling. `auto` is true for
            training tables and for labelled edges with times.
    """

    interaction: Interaction | None = None
    relative_time: bool | Literal["auto"] = "auto"


def _callback_kind(value: Any) -> str:
    is_hooks = isinstance(value, dict) and not {"type", "args"} & set(value)
    return "hooks" if is_hooks else "component"


def _names(slot: str) -> str:
    return ", ".join(SLOTS[slot].names)


_DEFAULT_WIDTH = 256  # width of embeddings, unless the config sets it

Hooks = Annotated[dict[str, NonEmptyText], Field(min_length=1)]

CallbackSpec = Annotated[
    Annotated[Component, Tag("component")] | Annotated[Hooks, Tag("hooks")],
    Discriminator(_callback_kind),
]


def _check_dotted(name: str) -> str:
    if "." not in name:
        raise RuleError("it is not a dotted path", "Set my_pkg.my_module.name", id="component-path")
    return name


DottedName = Annotated[NonEmptyText, AfterValidator(_check_dotted)]


class Sections(Section):
    """The keys of a config; `Config` adds the rules between them.

    Attributes:
        job_name: Name of the job.
        seed: Seed of everything random.
        deterministic: Make runs bitwise reproducible, somewhat slower.
        init_env: Dotted path of a function that each worker calls before anything else.
        data: The graph.
        tasks: Several tasks with one encoder, by name, instead of `task`.
        sampling: The neighborhoods.
        loader: The batches.
        training: Limits, periods and arithmetic of training.
        early_stopping: When to stop early; null never stops.
        checkpoint: Saving, resuming and initial weights.
        callbacks: Callbacks: a component each, or a map of hooks to dotted functions.
        profiler: Which training steps are traced; null traces none.
        loop: Dotted path of a function `loop(task, context)` that replaces raygnn's training loop
            on each worker and returns the final metrics.
        scaling: Workers and their resources.
        run: Names and locations of outputs.
        tune: A sweep over this config, for `raygnn.tune`.
    """

    job_name: NonEmptyText | None = None
    seed: Seed = 0
    deterministic: bool = False
    init_env: DottedName | None = None
    data: Data = Data()
    task: Component = Field(
        default=Component(type="node_classification"), description=f"The task: {_names('task')}."
    )
    tasks: dict[TaskName, TaskEntry] = Field(default_factory=dict)
    sampling: Sampling = Sampling()
    loader: Loader = Loader()
    model: Model = Field(
        default=Model(type="GraphSAGE"),
        description=f"The encoder: {_names('model')}, or a torch.nn.Module.",
    )
    losses: list[LossTerm] = Field(
        default_factory=list,
        description=f"Terms of the loss: {_names('loss')}; the task chooses if empty.",
    )
    metrics: list[Component] = Field(
        default_factory=list,
        description=f"Metrics: {_names('metric')}, or of torchmetrics; the task chooses if empty.",
    )
    optimizer: Component = Field(
        default=Component(type="Adam", args={"lr": 0.005, "weight_decay": 1e-6}),
        description=f"The optimizer: {_names('optimizer')}.",
    )
    lr_scheduler: Scheduler = Field(
        default=Scheduler(type="ConstantLR", args={"factor": 1.0}),
        description=f"The learning rate over time: {_names('lr_scheduler')}.",
    )
    training: Training = Training()
    early_stopping: EarlyStopping | None = EarlyStopping()
    checkpoint: Checkpoint = Checkpoint()
    callbacks: list[CallbackSpec] = Field(default_factory=list)
    loggers: list[Component] = Field(
        default=[Component(type="tensorboard")],
        description=f"Destinations of metrics: {_names('logger')}.",
    )
    profiler: Profiler | None = None
    loop: DottedName | None = None
    scaling: Scaling = Scaling()
    run: Run = Run()
    tune: Tune | None = None

    @property
    def batch(self) -> BatchPlan:
        """The resolved batch arithmetic; on the whole graph a step is one micro-batch."""
        if self.sampling.is_full:
            return plan_batches(self.loader.batch_size or 1, 1, 1, None)
        return plan_batches(
            self.loader.batch_size,
            self.training.accumulate_grad_batches,
            self.scaling.world_size,
            self.training.global_batch_size,
        )

    def loader_plan(self, split: str) -> LoaderPlan:
        return plan_loader(self.loader, split, self.batch.batch_size)

    @property
    def evaluates_by_layers(self) -> bool:
        """Whether evaluation encodes the whole graph layer by layer.

        With times, each seed has its own graph, so exact evaluation samples all neighbors.
        """
        return self.training.eval == "exact" and self.sampling.temporal is None

    @property
    def embedding_width(self) -> int:
        args = self.model.args
        return int(args.get("out_channels") or args.get("hidden_channels") or _DEFAULT_WIDTH)
