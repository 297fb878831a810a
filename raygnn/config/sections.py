"""The sections of a config and what follows from them; no rule between them is checked here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from raygnn.config.data_section import Data
from raygnn.config.loader_section import (
    BatchPlan,
    Loader,
    LoaderPlan,
    Sampling,
    plan_batches,
    plan_loader,
)
from raygnn.config.registry import SLOTS
from raygnn.config.run_section import Run, Scaling, Tune
from raygnn.config.section import Component, NonEmptyText, PositiveWhole, Section, Seed
from raygnn.config.tasks_section import TaskEntry, TaskName
from raygnn.config.training_section import (
    Checkpoint,
    EarlyStopping,
    LossTerm,
    Profiler,
    Scheduler,
    Training,
)
from raygnn.errors import Problem, RuleError


class Interaction(Section):
    """Crosses the features of each node before the encoder (DCN-v2)."""

    num_layers: PositiveWhole = Field(
        default=2, description="Cross layers; n of them give products of up to n + 1 features."
    )
    rank: PositiveWhole | None = Field(
        default=None,
        description="Rank of the matrix of a cross layer; null is a full one, of the square of the "
        "features' width.",
    )
    deep: list[PositiveWhole] = Field(
        default_factory=list,
        description="Widths of a perceptron's layers, behind or beside the cross layers.",
    )
    structure: Literal["stacked", "parallel"] = Field(
        default="stacked",
        description="Whether the perceptron reads what the cross layers give, or the features; the "
        "encoder then reads what both give.",
    )

    def broken_rules(self) -> Iterable[Problem]:
        if self.structure == "parallel" and not self.deep:
            yield Problem(
                ("structure",),
                "there is nothing beside the cross layers",
                "Set model.interaction.deep to the widths of a perceptron, or remove it",
                id="model-interaction-deep",
            )


class Model(Component):
    """The encoder, and what its input passes."""

    interaction: Interaction | None = Field(
        default=None,
        description="Cross layers between the features of each node type and the encoder; `{}` "
        "sets two. Null leaves features as they are.",
    )
    relative_time: bool | Literal["auto"] = Field(
        default="auto",
        description="Whether the model reads how long before the seed's time each node and edge "
        "is, and how many edges a node has by then; needs temporal sampling. `auto` is true for "
        "training tables.",
    )


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
        raise RuleError(
            "it is no dotted path of a function",
            "Set it as in my_pkg.my_module.my_function",
            id="component-path",
        )
    return name


DottedName = Annotated[NonEmptyText, AfterValidator(_check_dotted)]


class Sections(Section):
    """The keys of a config; `Config` adds the rules between them."""

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
        """The loader options of a split: train, val or test."""
        return plan_loader(self.loader, split, self.batch.batch_size)

    @property
    def evaluates_by_layers(self) -> bool:
        """Whether evaluation encodes the whole graph layer by layer.

        With times each seed has a graph of its own, so exact evaluation samples all neighbors.
        """
        return self.training.eval == "exact" and self.sampling.temporal is None

    @property
    def embedding_width(self) -> int:
        """The width of an encoder's output, for tasks that leave it to the config."""
        args = self.model.args
        return int(args.get("out_channels") or args.get("hidden_channels") or _DEFAULT_WIDTH)
