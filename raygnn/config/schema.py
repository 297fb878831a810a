"""The whole config: sections, defaults that depend on other keys, rules between sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from raygnn.config.data_section import Data
from raygnn.config.loader_section import (
    BatchPlan,
    Loader,
    LoaderPlan,
    Sampling,
    TrainLoader,
    broken_batch_rules,
    num_hops,
    plan_batches,
    plan_loader,
)
from raygnn.config.model_section import Model
from raygnn.config.run_section import Run, Scaling, Tune, broken_space
from raygnn.config.section import (
    Component,
    NonEmptyText,
    Problem,
    Section,
    Seed,
    choose_from,
    rule_error,
    rules_error,
)
from raygnn.config.slots import SLOTS
from raygnn.config.tasks_section import SEVERAL_TASKS, TaskEntry, TaskName
from raygnn.config.training_section import (
    Checkpoint,
    EarlyStopping,
    LossTerm,
    Profiler,
    Scheduler,
    Training,
)

#: Validation context in which the rules between sections are left to the caller.
EACH_SECTION_ALONE = "each section alone"


def _callback_kind(value: Any) -> str:
    is_hooks = isinstance(value, dict) and not {"type", "args"} & set(value)
    return "hooks" if is_hooks else "component"


def _names(slot: str) -> str:
    return ", ".join(SLOTS[slot].names)


_DEFAULT_WIDTH = 256  # of embeddings, where the config says none

Hooks = Annotated[dict[str, NonEmptyText], Field(min_length=1)]

CallbackSpec = Annotated[
    Annotated[Component, Tag("component")] | Annotated[Hooks, Tag("hooks")],
    Discriminator(_callback_kind),
]


def _check_dotted(name: str) -> str:
    if "." not in name:
        raise rule_error(
            "it is no dotted path of a function",
            "Set it as in my_pkg.my_module.my_function",
            id="component-path",
        )
    return name


DottedName = Annotated[NonEmptyText, AfterValidator(_check_dotted)]


class Config(Section):
    """Everything that defines a training job."""

    job_name: NonEmptyText | None = Field(
        default=None, description="Name of the job, shown to people."
    )
    seed: Seed = Field(default=0, description="Seed of everything random.")
    deterministic: bool = Field(
        default=False, description="Same bits from run to run, somewhat slower."
    )
    init_env: DottedName | None = Field(
        default=None,
        description="Dotted path of a function that each worker calls before anything else.",
    )
    data: Data = Field(default=Data(), description="The graph.")
    task: Component = Field(
        default=Component(type="node_classification"),
        description=f"The task: {_names('task')}.",
    )
    tasks: dict[TaskName, TaskEntry] = Field(
        default_factory=dict,
        description="Several tasks of one encoder by name, in the place of `task`.",
    )
    sampling: Sampling = Field(default=Sampling(), description="The neighborhoods.")
    loader: Loader = Field(default=Loader(), description="The batches.")
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
    training: Training = Field(
        default=Training(), description="Limits, periods and arithmetic of training."
    )
    early_stopping: EarlyStopping | None = Field(
        default=EarlyStopping(), description="When to stop early; null never stops."
    )
    checkpoint: Checkpoint = Field(
        default=Checkpoint(), description="What a run saves, and what it resumes from."
    )
    callbacks: list[CallbackSpec] = Field(
        default_factory=list,
        description="Callbacks: a component each, or a map of hooks to dotted functions.",
    )
    loggers: list[Component] = Field(
        default=[Component(type="tensorboard")],
        description=f"Where metrics are logged: {_names('logger')}.",
    )
    profiler: Profiler | None = Field(
        default=None, description="Which training steps are traced; null traces none."
    )
    loop: DottedName | None = Field(
        default=None,
        description="Dotted path of a function `loop(task, context)` that replaces raygnn's "
        "training loop on each worker and returns the final metrics.",
    )
    scaling: Scaling = Field(default=Scaling(), description="Workers and their resources.")
    run: Run = Field(default=Run(), description="Names and locations of outputs.")
    tune: Tune | None = Field(
        default=None, description="A sweep over this config, for `raygnn.tune`."
    )

    @property
    def batch(self) -> BatchPlan:
        """The batch arithmetic, resolved; on the whole graph a step is one micro-batch."""
        if self.sampling.is_full:
            return plan_batches(self.loader.batch_size or 1, 1, 1, None)
        return plan_batches(
            self.loader.batch_size,
            self.training.accumulate_grad_batches,
            self.scaling.world_size,
            self.training.global_batch_size,
        )

    def loader_plan(self, split: str) -> LoaderPlan:
        """How the loader of a split is made: train, val or test."""
        return plan_loader(self.loader, split, self.batch.batch_size)

    @property
    def embedding_width(self) -> int:
        """The width of an encoder's output, for tasks that leave it to the config."""
        args = self.model.args
        return int(args.get("out_channels") or args.get("hidden_channels") or _DEFAULT_WIDTH)

    @property
    def task_configs(self) -> dict[str, Config]:
        """Of each of `tasks`, by name, the config of a run of that task alone.

        Its encoder has a width of its own and a head behind it, as all tasks share one. What is
        monitored of the task goes by its name there. Empty of a run with one task.
        """
        return {name: _alone(self, name, entry) for name, entry in self.tasks.items()}

    @property
    def single_tasks(self) -> list[Config]:
        """The configs of the tasks of a run, one or several."""
        return [*self.task_configs.values()] or [self]

    @model_validator(mode="after")
    def _check_between_sections(self, info: ValidationInfo) -> Self:
        if info.context != EACH_SECTION_ALONE and (problems := list(broken_cross_rules(self))):
            raise rules_error(problems)
        return self

    @model_validator(mode="before")
    @classmethod
    def _fill_dependent_defaults(cls, value: Any) -> Any:
        return fill_dependent_defaults(value) if isinstance(value, dict) else value


def _alone(config: Config, name: str, entry: TaskEntry) -> Config:
    """The config of a run of one of several tasks."""

    def monitored(section: Any) -> Any:
        if section is None or section.monitor is None:
            return section
        own = section.monitor.replace(f"/{name}/", "/", 1)
        return section.model_copy(update={"monitor": own})

    def differing(section: Section) -> dict[str, Any]:
        return {key: value for key, value in section if value is not None}

    loader, training = differing(entry.loader), config.training
    if (is_balanced := loader.pop("balanced_seeds", None)) is not None:
        train = config.loader.train or TrainLoader()
        loader["train"] = train.model_copy(update={"balanced_seeds": is_balanced})
    if "batch_size" in loader:  # a size of its own follows from no other
        alone = {"global_batch_size": None, "accumulate_grad_batches": None}
        training = training.model_copy(update=alone)
    data, model = config.data, config.model
    if entry.splits is not None:
        data = data.model_copy(update={"splits": entry.splits})
    args = {**model.args, "out_channels": config.embedding_width}
    return config.model_copy(
        update={
            "task": Component(type=entry.type, args={**config.task.args, **entry.args}),
            "tasks": {},
            "data": data,
            "sampling": config.sampling.model_copy(update=differing(entry.sampling)),
            "loader": config.loader.model_copy(update=loader),
            "model": model.model_copy(update={"args": args}),
            "losses": entry.losses,
            "metrics": entry.metrics,
            "training": training,
            "early_stopping": monitored(config.early_stopping),
            "checkpoint": monitored(config.checkpoint),
        }
    )


#: Components whose type may be left out: args given without a type join the default's.
DEFAULT_COMPONENTS: Mapping[str, Mapping[str, Any]] = {
    "task": {"type": "node_classification", "args": {}},
    "model": {"type": "GraphSAGE", "args": {}},
    "optimizer": {"type": "Adam", "args": {"lr": 0.005, "weight_decay": 1e-6}},
    "lr_scheduler": {"type": "ConstantLR", "args": {"factor": 1.0}},
}


def fill_dependent_defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config with the defaults that follow from what is given."""
    filled = dict(raw)
    if filled.get("tasks") and "task" not in filled:
        filled["task"] = {"type": SEVERAL_TASKS}
    elif filled.get("tasks") and isinstance(filled["task"], dict):
        filled["task"] = {"type": SEVERAL_TASKS, **filled["task"]}
    for key, default in DEFAULT_COMPONENTS.items():
        filled[key] = _fill_component(filled.get(key, dict(default)), default)
    _let_batch_size_follow(filled)
    return filled


def _fill_component(component: Any, default: Mapping[str, Any]) -> Any:
    if isinstance(component, str):
        return {"type": component, "args": {}}
    if not isinstance(component, dict) or "type" in component:
        return component
    args = component.get("args", {})
    if not isinstance(args, dict):
        return {**component, "type": default["type"]}
    return {**component, "type": default["type"], "args": {**default["args"], **args}}


def _let_batch_size_follow(filled: dict[str, Any]) -> None:
    """With the other two of the triple given, the default batch size gives way."""
    training, loader = filled.get("training"), filled.get("loader", {})
    if not isinstance(training, dict) or not isinstance(loader, dict) or "batch_size" in loader:
        return
    if training.get("global_batch_size") and training.get("accumulate_grad_batches"):
        filled["loader"] = {**loader, "batch_size": None}


Rule = Callable[["Config"], Iterable[Problem]]


def _batch_triple(config: Config) -> Iterable[Problem]:
    if config.sampling.is_full:
        yield from _full_batches(config)
        return
    yield from broken_batch_rules(
        config.loader.batch_size,
        config.training.accumulate_grad_batches,
        config.scaling.world_size,
        config.training.global_batch_size,
    )


def _full_batches(config: Config) -> Iterable[Problem]:
    for key in ("global_batch_size", "accumulate_grad_batches"):
        if getattr(config.training, key) not in (None, 1):
            yield Problem(
                ("training", key),
                "with sampling.type full each step takes all training seeds at once",
                "Remove it, or sampling.type",
                id="sampling-full-batches",
            )


def _layers_equal_hops(config: Config) -> Iterable[Problem]:
    num_layers = config.model.args.get("num_layers")
    is_built_in = config.model.type in SLOTS["model"].names
    if not is_built_in or not config.sampling.draws_neighbors or num_layers is None:
        return
    hops = config.sampling.num_hops
    if num_layers != hops:
        yield Problem(
            ("model", "args", "num_layers"),
            f"a layer goes one hop, and sampling.fanouts has {hops}: {config.sampling.fanouts}",
            f"Set it to {hops}, leave it out, or give {num_layers} fanouts",
            id="model-layers-hops",
        )


def _plateau_has_monitor(config: Config) -> Iterable[Problem]:
    scheduler, stopping, checkpoint = config.lr_scheduler, config.early_stopping, config.checkpoint
    is_plateau = scheduler.type.rpartition(".")[2] == "ReduceLROnPlateau"
    if not is_plateau:
        if scheduler.monitor is not None and scheduler.type in SLOTS["lr_scheduler"].names:
            yield Problem(
                ("lr_scheduler", "monitor"),
                f"{scheduler.type} looks at no metric",
                "Set lr_scheduler.type: ReduceLROnPlateau, or remove the monitor",
                id="scheduler-monitor-unread",
            )
        return
    if scheduler.frequency != 1:
        yield Problem(
            ("lr_scheduler", "frequency"),
            "ReduceLROnPlateau steps at each validation",
            "Remove it, and set training.validate_every",
            id="scheduler-frequency",
        )
    known = [(checkpoint.monitor, checkpoint.mode)]
    known += [(stopping.monitor, stopping.mode)] if stopping else []
    monitor = scheduler.monitor or next((name for name, _ in known if name), None)
    if monitor is None:
        yield Problem(
            ("lr_scheduler", "monitor"),
            "ReduceLROnPlateau needs a metric, and there is no early stopping to take it from",
            "Set the name of a logged metric, as in val/loss",
            id="scheduler-monitor-missing",
        )
        return
    mode = next((mode for name, mode in known if name == monitor and mode), "min")
    if scheduler.args.get("mode", "min") != mode and not monitor.endswith("/loss"):
        yield Problem(
            ("lr_scheduler", "args", "mode"),
            f"{monitor} is better when it is {_WORDS[mode]}, as said elsewhere in this config",
            f"Set lr_scheduler.args.mode: {mode}",
            id="scheduler-mode",
        )


def _exact_evaluation_has_no_times(config: Config) -> Iterable[Problem]:
    if config.sampling.temporal is not None and config.training.eval == "exact":
        yield Problem(
            ("training", "eval"),
            "it takes all neighbors, and sampling.temporal leaves later ones out",
            "Set it to sampled",
            id="sampling-temporal-exact",
        )


def _sharding_fits(config: Config) -> Iterable[Problem]:
    shard, optimizer = config.scaling.shard, config.optimizer.type.rpartition(".")[2]
    if shard != "none" and config.model.args.get("sparse_embeddings"):
        yield Problem(
            ("scaling", "shard"),
            "with model.args.sparse_embeddings only the rows that were read travel between workers",
            "Set it to none, or sparse_embeddings to false",
            id="shard-sparse-gradients",
        )
    if shard == "full" and optimizer in ("Adafactor", "Rprop"):
        yield Problem(
            ("scaling", "shard"),
            f"torch's {optimizer} does not work on parts of weights",
            "Set it to optimizer or none, or optimizer.type to Adam",
            id="shard-optimizer",
        )
    if shard == "full" and config.scaling.gradients == "ddp":
        yield Problem(
            ("scaling", "gradients"),
            "with scaling.shard: full the weights of a step are not those that have hooks",
            "Set it to flat, or scaling.shard to optimizer or none",
            id="shard-gradients",
        )


def _parts_suffice(config: Config) -> Iterable[Problem]:
    if config.data.mode != "partitioned":
        return
    rule, in_memory = "data.mode is partitioned, and {}", "data.mode to in_memory"
    if config.task.type not in _TASKS_OF_SAMPLER:
        yield Problem(
            ("task", "type"),
            rule.format(f"of tasks it trains {', '.join(_TASKS_OF_SAMPLER)}"),
            f"Set {in_memory}",
            id="partition-task",
        )
    if config.sampling.direction != "in":
        yield Problem(
            ("sampling", "direction"),
            rule.format("a part has the edges into its nodes only"),
            f"Set it to in, or {in_memory}",
            id="partition-direction",
        )
    if not config.sampling.draws_neighbors:
        yield Problem(
            ("sampling", "type"),
            rule.format("parts answer raygnn's own sampling only"),
            f"Remove it, or set {in_memory}",
            id="partition-sampler",
        )
    if config.sampling.ppr is not None:
        yield Problem(
            ("sampling", "ppr"),
            rule.format("no process has all edges, which walks go along"),
            f"Remove it, or set {in_memory}",
            id="partition-ppr",
        )
    if config.tune is not None:
        yield Problem(
            ("data", "mode"),
            "trials of a sweep train in memory",
            "Set it to in_memory, and data.uri to the tables of the graph",
            id="partition-sweep",
        )


def _tasks_fit(config: Config) -> Iterable[Problem]:
    is_several = config.task.type == SEVERAL_TASKS
    if not config.tasks:
        if is_several:
            yield Problem(
                ("tasks",),
                "it names no task",
                "Set it as in {topics: {type: node_classification}, links: {type: "
                "link_prediction}}, or task.type to one task",
                id="tasks-none",
            )
        return
    if not is_several:
        yield Problem(
            ("task", "type"),
            "a run has one task, or several under tasks",
            "Remove it, or tasks",
            id="tasks-and-task",
        )
    if not sum(entry.weight for entry in config.tasks.values()):
        yield Problem(
            ("tasks",),
            "the weights of all tasks are 0, so nothing is trained",
            "Set the weight of a task to more than 0",
            id="tasks-no-weight",
        )
    for key in ("losses", "metrics"):
        if getattr(config, key):
            yield Problem(
                (key,),
                "each task has its own",
                f"Move it to tasks.{next(iter(config.tasks))}.{key}",
                id="tasks-own-key",
            )
    if config.training.loss_reduction == "sum":
        yield Problem(
            ("training", "loss_reduction"),
            "the losses of several tasks are summed as means, so that their weights compare them",
            "Set it to mean",
            id="tasks-loss-reduction",
        )
    if config.sampling.is_full:
        yield Problem(
            ("sampling", "type"),
            "with tasks it would compute the whole graph once a task in each step",
            "Remove it, or train one task",
            id="tasks-full-graph",
        )
    for name, entry in config.tasks.items():
        yield from _task_fits(config, name, entry)


def _task_fits(config: Config, name: str, entry: TaskEntry) -> Iterable[Problem]:
    own = [other for other in SLOTS["task"].names if other != SEVERAL_TASKS]
    if entry.type == SEVERAL_TASKS or "." in entry.type:  # another name is of no component
        yield Problem(
            ("tasks", name, "type"),
            "tasks of one encoder are those of raygnn",
            choose_from(entry.type, own),
            id="tasks-type",
        )
    for key in INPUTS_OF_ENCODER & entry.args.keys():
        yield Problem(
            ("tasks", name, "args", key),
            "all tasks read what the encoder reads",
            f"Set task.args.{key} instead",
            id="tasks-input",
        )
    fanouts, place = entry.sampling.fanouts, ("tasks", name, "sampling", "fanouts")
    if fanouts is None:
        return
    hops = config.sampling.num_hops
    if num_hops(fanouts) != hops:
        yield Problem(
            place,
            f"a layer of the encoder goes one hop, and sampling.fanouts has {hops}",
            f"Set {hops} fanouts",
            id="tasks-hops",
        )
    given = config.sampling.fanouts
    if isinstance(given, dict):
        passing = {edge_type for edge_type, hops_ in given.items() if any(hops_)}
        asked = (
            {t for t, hops_ in fanouts.items() if any(hops_)} if isinstance(fanouts, dict) else None
        )
        if asked is None or not asked <= passing:
            yield Problem(
                place,
                f"the encoder has layers for the edge types {', '.join(sorted(passing))} of "
                "sampling.fanouts only",
                "Set fanouts of these",
                id="tasks-edge-types",
            )


def _samples_suffice(config: Config) -> Iterable[Problem]:
    if config.data.mode != "presampled":
        return
    in_memory = "data.mode to in_memory"
    if config.task.type not in _TASKS_OF_SAMPLER:
        yield Problem(
            ("task", "type"),
            f"data.mode is presampled, and of tasks it trains {', '.join(_TASKS_OF_SAMPLER)}",
            f"Set {in_memory}",
            id="samples-task",
        )
    if not config.sampling.draws_neighbors:
        yield Problem(
            ("sampling", "type"),
            "data.mode is presampled, and raygnn's own sampling alone is stored",
            f"Remove it, or set {in_memory}",
            id="samples-sampler",
        )
    if config.tune is not None:
        yield Problem(
            ("data", "mode"),
            "trials of a sweep sample live, as they may vary what is sampled",
            "Set it to in_memory, and data.samples to null",
            id="samples-sweep",
        )


def _space_exists(config: Config) -> Iterable[Problem]:
    return () if config.tune is None else broken_space(config.tune, Config)


def _trials_have_workers(config: Config) -> Iterable[Problem]:
    if config.tune is not None and config.scaling.max_workers == 0:
        yield Problem(
            ("scaling", "num_workers"),
            "each trial of a sweep trains in workers of Ray Train",
            "Set 1 or more",
            id="sweep-workers",
        )


#: Arguments of all tasks that say what the encoder reads; with `tasks` they are under `task`.
INPUTS_OF_ENCODER = frozenset({"feature", "edge_feature", "edge_weight"})

_TASKS_OF_SAMPLER = ("node_classification", "link_prediction", "edge_prediction")

_WORDS = {"min": "less", "max": "more"}

_RULES: tuple[tuple[Rule, frozenset[str]], ...] = (
    (_batch_triple, frozenset({"loader", "training", "scaling", "sampling"})),
    (_layers_equal_hops, frozenset({"model", "sampling"})),
    (_exact_evaluation_has_no_times, frozenset({"sampling", "training"})),
    (_sharding_fits, frozenset({"scaling", "model", "optimizer"})),
    (_plateau_has_monitor, frozenset({"lr_scheduler", "early_stopping", "checkpoint"})),
    (_parts_suffice, frozenset({"data", "task", "sampling", "training", "tune"})),
    (_tasks_fit, frozenset({"task", "tasks", "losses", "metrics", "sampling", "training"})),
    (_samples_suffice, frozenset({"data", "task", "sampling", "tune"})),
    (_space_exists, frozenset({"tune"})),
    (_trials_have_workers, frozenset({"tune", "scaling"})),
)

# Inference as of one moment is exact too; an evaluation in training has a time for each seed.
_OF_TRAINING = frozenset({_exact_evaluation_has_no_times})


def broken_cross_rules(config: Config, *, trains: bool = True) -> Iterable[Problem]:
    """Every rule between sections that does not hold, with the sections it has read.

    Args:
        trains: false for the config of inference, of which less is asked.
    """
    for rule, sections in _RULES:
        if not trains and rule in _OF_TRAINING:
            continue
        for problem in rule(config):
            yield replace(problem, needs=sections)
