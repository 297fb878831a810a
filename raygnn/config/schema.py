"""The whole config: sections, defaults that depend on other keys, rules between sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from raygnn.config.cross_rules import broken_cross_rules
from raygnn.config.data_section import Data
from raygnn.config.loader_section import (
    BatchPlan,
    Loader,
    LoaderPlan,
    Sampling,
    TrainLoader,
    plan_batches,
    plan_loader,
)
from raygnn.config.model_section import Model
from raygnn.config.run_section import Run, Scaling, Tune
from raygnn.config.section import (
    Component,
    NonEmptyText,
    Section,
    Seed,
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
