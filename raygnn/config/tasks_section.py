"""The tasks that share an encoder: what each has of its own."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from raygnn.config.data_section import SplitRule
from raygnn.config.loader_section import FanoutsSetting
from raygnn.config.section import Component, NonEmptyText, NonNegativeNumber, PositiveWhole, Section
from raygnn.config.training_section import LossTerm
from raygnn.errors import RuleError

#: `task.type` of a run with `tasks`.
SEVERAL_TASKS = "several_tasks"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name == "loss":
        raise RuleError(
            "it begins the names of the task's metrics, as in val/NAME/loss",
            "Set letters, digits, _ and -, a letter first, and not loss",
            id="tasks-name",
        )
    return name


TaskName = Annotated[str, AfterValidator(_check_name)]


class TaskSampling(Section):
    """Sampling options of one of several tasks. Null takes the value of `sampling`."""

    fanouts: FanoutsSetting | None = Field(
        default=None,
        description="Neighbors per hop, of as many hops as `sampling.fanouts`; a map overrides "
        "single edge types of it.",
    )
    replace: bool | None = Field(default=None, description="Draw neighbors with replacement.")
    weight: NonEmptyText | None = Field(
        default=None, description="Edge column to draw neighbors in proportion to."
    )


class TaskLoader(Section):
    """The batches of a task where they differ; null takes that of `loader`."""

    batch_size: PositiveWhole | None = Field(
        default=None,
        description="Seeds per micro-batch and worker; null is at most `loader.batch_size`, and "
        "less of a task of fewer seeds, so that an epoch is one pass over the seeds of each task.",
    )
    eval_batch_size: PositiveWhole | None = Field(
        default=None, description="Seeds per batch in validation and test."
    )
    balanced_seeds: bool | None = Field(
        default=None, description="Draw seeds so that all classes come equally often in an epoch."
    )


class TaskEntry(Component):
    """One of several tasks: what it learns, and how much that counts."""

    weight: NonNegativeNumber = Field(
        default=1.0,
        description="Factor of the task's loss in the sum; a task of weight 0 is not trained, only "
        "evaluated.",
    )
    losses: list[LossTerm] = Field(
        default_factory=list, description="As the key `losses` of a run with one task."
    )
    metrics: list[Component] = Field(
        default_factory=list, description="As the key `metrics` of a run with one task."
    )
    sampling: TaskSampling = Field(
        default=TaskSampling(), description="How the task samples neighborhoods."
    )
    loader: TaskLoader = Field(default=TaskLoader(), description="The batches of the task.")
    splits: SplitRule | None = Field(
        default=None, description="Splits of its nodes or links; null takes `data.splits`."
    )
