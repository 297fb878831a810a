"""The sections about machines and outputs: scaling and run."""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from raygnn.config.problems import rule_error
from raygnn.config.section import (
    NonEmptyText,
    NonNegativeNumber,
    NonNegativeWhole,
    PositiveNumber,
    PositiveWhole,
    Section,
    Whole,
)


def _check_run_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=,+-]*", name):
        raise rule_error(
            "it names a folder", "Set letters, digits and any of ._=,+- that begin with a letter"
        )
    return name


def _check_range(bounds: list[int]) -> list[int]:
    if bounds[0] > bounds[1]:
        raise rule_error("the least number comes first", f"Set [{bounds[1]}, {bounds[0]}]")
    return bounds


WorkerRange = Annotated[
    list[PositiveWhole], Field(min_length=2, max_length=2), AfterValidator(_check_range)
]
NumWorkers = Annotated[
    Annotated[NonNegativeWhole, Tag("number")] | Annotated[WorkerRange, Tag("range")],
    Discriminator(lambda value: "range" if isinstance(value, list) else "number"),
]


class Scaling(Section):
    """How many workers, and what each of them needs."""

    num_workers: NumWorkers = Field(
        default=1,
        description="Ray Train workers; 0 trains in this process, without Ray; [least, most] takes "
        "as many as there are places for, also while it trains.",
    )
    use_gpu: Literal["auto", True, False] = Field(
        default="auto",
        description="Whether each worker takes a GPU; auto if the cluster has enough.",
    )
    cpus_per_worker: PositiveNumber | None = Field(default=None, description="CPUs of each worker.")
    resources_per_worker: dict[str, NonNegativeNumber] = Field(
        default_factory=dict, description="Further Ray resources of each worker."
    )
    accelerator_type: NonEmptyText | None = Field(
        default=None, description="Kind of GPU, as Ray names it (T4, A100, ...)."
    )
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        default="PACK", description="How Ray places workers on nodes."
    )
    label_selector: dict[str, NonEmptyText] = Field(
        default_factory=dict,
        description="Labels of the nodes that workers are placed on, as Ray selects by them: "
        "{ray.io/market-type: spot}.",
    )
    shard: Literal["none", "optimizer", "full"] = Field(
        default="none",
        description="What each worker holds a part of only: nothing; the optimizer's state; or "
        "weights too, between steps.",
    )
    max_failures: Annotated[Whole, Field(ge=-1)] = Field(
        default=2, description="Restarts after a failure; -1 is without limit."
    )
    max_preemptions: Annotated[Whole, Field(ge=-1)] = Field(
        default=100,
        description="Restarts after nodes were taken away, beside max_failures; -1 is without "
        "limit.",
    )
    wait_for_nodes_s: NonNegativeNumber = Field(
        default=0.0,
        description="Seconds to wait for an autoscaler to bring places for all workers; 0 takes "
        "the nodes that are there.",
    )
    timeout_s: PositiveNumber = Field(
        default=600.0, description="Seconds to wait for resources, and for a collective."
    )

    @property
    def world_size(self) -> int:
        """Workers of the run at most: Ray's, or torchrun's processes, or this process."""
        return self.max_workers or int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def is_elastic(self) -> bool:
        """Whether workers come and go while the run trains."""
        return isinstance(self.num_workers, list)

    @property
    def min_workers(self) -> int:
        """Workers that a run needs to start."""
        return self.num_workers[0] if isinstance(self.num_workers, list) else self.num_workers

    @property
    def max_workers(self) -> int:
        """Workers that a run takes at most; the batch arithmetic is made for so many."""
        return self.num_workers[1] if isinstance(self.num_workers, list) else self.num_workers


class Run(Section):
    """Where outputs go."""

    name: Annotated[NonEmptyText, AfterValidator(_check_run_name)] | None = Field(
        default=None,
        description="Name of the run and its folder; null makes one of job name and time.",
    )
    storage_path: NonEmptyText = Field(default="runs", description="Folder or URI of all runs.")
    overwrite: bool = Field(
        default=False, description="Remove an earlier run of the same name first."
    )
    model_uri: NonEmptyText | None = Field(
        default=None, description="Where the trained model goes; null is the run's folder."
    )
    logs_uri: NonEmptyText | None = Field(
        default=None, description="Where TensorBoard events go; null is the run's folder."
    )
