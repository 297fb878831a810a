"""The sections about machines and outputs: scaling and run."""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from raygnn.config.problems import rule_error
from raygnn.config.section import (
    NonEmptyText,
    NonNegativeNumber,
    NonNegativeWhole,
    PositiveNumber,
    Section,
    Whole,
)


def _check_run_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=,+-]*", name):
        raise rule_error(
            "it names a folder", "Set letters, digits and any of ._=,+- that begin with a letter"
        )
    return name


class Scaling(Section):
    """How many workers, and what each of them needs."""

    num_workers: NonNegativeWhole = Field(
        default=1, description="Ray Train workers; 0 trains in this process, without Ray."
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
    max_failures: Annotated[Whole, Field(ge=-1)] = Field(
        default=2, description="Restarts after a failure; -1 is without limit."
    )
    timeout_s: PositiveNumber = Field(
        default=600.0, description="Seconds to wait for resources, and for a collective."
    )

    @property
    def world_size(self) -> int:
        """Workers of the run: Ray's, or the processes that torchrun started, or this one."""
        return self.num_workers or int(os.environ.get("WORLD_SIZE", "1"))


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
