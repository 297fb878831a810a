"""The whole config: one frozen tree."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from raygnn.config.batch import BatchPlan, plan_batches
from raygnn.config.component import Component
from raygnn.config.cross_rules import broken_cross_rules
from raygnn.config.data_section import Data
from raygnn.config.dependent_defaults import fill_dependent_defaults
from raygnn.config.loader_section import Loader, LoaderPlan, Sampling, plan_loader
from raygnn.config.problems import rule_error, rules_error
from raygnn.config.profiler_section import Profiler
from raygnn.config.run_section import Run, Scaling
from raygnn.config.section import NonEmptyText, Section, Seed
from raygnn.config.slots import SLOTS
from raygnn.config.training_section import (
    Checkpoint,
    EarlyStopping,
    LossTerm,
    Scheduler,
    Training,
)
from raygnn.config.tune_section import Tune

#: Validation context in which the rules between sections are left to the caller.
EACH_SECTION_ALONE = "each section alone"


def _callback_kind(value: Any) -> str:
    is_hooks = isinstance(value, dict) and not {"type", "args"} & set(value)
    return "hooks" if is_hooks else "component"


def _names(slot: str) -> str:
    return ", ".join(SLOTS[slot].names)


Hooks = Annotated[dict[str, NonEmptyText], Field(min_length=1)]
CallbackSpec = Annotated[
    Annotated[Component, Tag("component")] | Annotated[Hooks, Tag("hooks")],
    Discriminator(_callback_kind),
]


def _check_dotted(name: str) -> str:
    if "." not in name:
        raise rule_error(
            "it is no dotted path of a function", "Set it as in my_pkg.my_module.my_function"
        )
    return name


DottedName = Annotated[NonEmptyText, AfterValidator(_check_dotted)]


class Config(Section):
    """Everything that a training job is told."""

    job_name: NonEmptyText | None = Field(default=None, description="Name of the job, for people.")
    seed: Seed = Field(default=0, description="Seed of everything random.")
    deterministic: bool = Field(
        default=False, description="Same bits from run to run, at the price of some speed."
    )
    init_env: DottedName | None = Field(
        default=None,
        description="Dotted path of a function called in each worker before anything else.",
    )
    data: Data = Field(default=Data(), description="The graph.")
    task: Component = Field(
        default=Component(type="node_classification"),
        description=f"What is learned: {_names('task')}.",
    )
    sampling: Sampling = Field(default=Sampling(), description="The neighborhoods.")
    loader: Loader = Field(default=Loader(), description="The batches.")
    model: Component = Field(
        default=Component(type="GraphSAGE"),
        description=f"The encoder: {_names('model')}, or a torch.nn.Module.",
    )
    losses: list[LossTerm] = Field(
        default_factory=list,
        description=f"Terms of the loss: {_names('loss')}; empty: the task chooses.",
    )
    metrics: list[Component] = Field(
        default_factory=list,
        description=f"Metrics: {_names('metric')}, or of torchmetrics; empty: the task chooses.",
    )
    optimizer: Component = Field(
        default=Component(type="Adam", args={"lr": 0.005, "weight_decay": 1e-6}),
        description=f"The optimizer: {_names('optimizer')}.",
    )
    lr_scheduler: Scheduler = Field(
        default=Scheduler(type="ConstantLR", args={"factor": 1.0}),
        description=f"The learning rate over time: {_names('lr_scheduler')}.",
    )
    training: Training = Field(default=Training(), description="The course of training.")
    early_stopping: EarlyStopping | None = Field(
        default=EarlyStopping(), description="When to stop early; null never."
    )
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="What is kept to go on from.")
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
        description="Dotted path of a function `loop(task, context)` that takes the place of "
        "raygnn's training loop on each worker and gives the final metrics.",
    )
    scaling: Scaling = Field(default=Scaling(), description="Workers and their resources.")
    run: Run = Field(default=Run(), description="Names and places of outputs.")
    tune: Tune | None = Field(
        default=None, description="A sweep over this config, of `raygnn.tune`; null of one run."
    )

    @property
    def batch(self) -> BatchPlan:
        """The batch arithmetic, resolved."""
        return plan_batches(
            self.loader.batch_size,
            self.training.accumulate_grad_batches,
            self.scaling.world_size,
            self.training.global_batch_size,
        )

    def loader_plan(self, split: str) -> LoaderPlan:
        """How the loader of a split is made: train, val or test."""
        return plan_loader(self.loader, split, self.batch.batch_size)

    @model_validator(mode="after")
    def _check_between_sections(self, info: ValidationInfo) -> Self:
        if info.context != EACH_SECTION_ALONE and (problems := list(broken_cross_rules(self))):
            raise rules_error(problems)
        return self

    @model_validator(mode="before")
    @classmethod
    def _fill_dependent_defaults(cls, value: Any) -> Any:
        return fill_dependent_defaults(value) if isinstance(value, dict) else value
