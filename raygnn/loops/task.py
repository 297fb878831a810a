"""The task: what is learned. The engine owns how."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol

import torch
from torch import Tensor, nn

from raygnn.config import LoadedConfig
from raygnn.data.bundle import Bundle
from raygnn.loops.baselines import Baselines
from raygnn.loops.signature import ModelSignature
from raygnn.losses import Candidates
from raygnn.sampling.batch import LinkBatch
from raygnn.sampling.batch_sequence import BatchSequence, BatchT


@dataclass(frozen=True)
class StepOutput:
    """What a task computes of one training micro-batch.

    Attributes:
        loss_sum: scalar with gradient: the loss summed over what it is on.
        weight: what the sum is divided by once it is summed over the global batch.
        metrics: further sums over the same weight, logged as weighted means.
    """

    loss_sum: Tensor
    weight: float
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EvalOutput:
    """What a task computes of one evaluation batch.

    Attributes:
        index: the batch's place in the fixed global sequence of evaluation batches.
        ids: int64 [num_seeds], dense ids: rows gathered from all ranks are ordered by them.
        prediction: [num_seeds, ...], what the metrics are given, with `target` beside it.
        metrics: further sums over the same weight; every batch gives the same names.
    """

    index: int
    ids: Tensor
    loss_sum: float
    weight: float
    prediction: Tensor
    target: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskEnvironment:
    """What a task is set up with, on one rank."""

    loaded: LoadedConfig
    bundle: Bundle
    rank: int
    world_size: int
    device: torch.device

    @property
    def scratch(self) -> Path:
        """A folder of the local disk for what is not kept."""
        return self.bundle.path.parent.parent / "scratch"


class JointLoss(Protocol):
    """What a task computes of a micro-batch when candidates come from all of the step."""

    def encode(self, batch: LinkBatch) -> dict[str, Tensor]:
        """Embeddings of the nodes of a batch, with gradient."""

    def offer(self, batch: LinkBatch, rows: dict[str, Tensor]) -> Candidates:
        """What the batch offers to the links of all batches of the step."""

    def loss_among(
        self, batch: LinkBatch, rows: dict[str, Tensor], offered: Candidates
    ) -> StepOutput:
        """Loss of the links of a batch among what all batches of the step offer."""


class Task(ABC, Generic[BatchT]):
    """What a user subclasses: loaders, model, and the loss of a batch.

    The engine sets `model` before any step runs, with equal weights on all ranks. Everything
    around the step, from gradient reduction to checkpoints, is the engine's and the same for all
    tasks.
    """

    model: nn.Module
    env: TaskEnvironment

    #: Set where the micro-batches of a step compete with each other; then `training_step` is not
    #: called.
    joint_loss: JointLoss | None = None

    #: Short names of the metrics without any under `metrics`, by problem.
    default_metrics: Mapping[str, Sequence[str]] = MappingProxyType({})

    #: Edge columns that the model reads, by column what it calls them.
    edge_columns: Mapping[str, str] = MappingProxyType({})

    #: What losses are of, where that is not the labels as they are; printed at the start.
    loss_unit: str | None = None

    #: Names of the sums in `StepOutput.metrics`; every batch gives all of them.
    step_metrics: Sequence[str] = ()

    def setup(self, env: TaskEnvironment) -> None:
        """Takes the environment; called once, before anything else."""
        self.env = env

    def setup_inference(self, env: TaskEnvironment, signature: ModelSignature) -> None:
        """Takes, instead of `setup`, a graph that may lack labels and splits.

        `build_model` then gives the model that the signature was saved with.
        """
        self.env = env

    def signature(self, model: nn.Module) -> ModelSignature | None:
        """What `setup_inference` needs besides the graph; None where there is no inference."""
        return None

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The module to train, on the CPU; the engine moves it to the device."""

    @abstractmethod
    def loader(self, split: str) -> BatchSequence[BatchT] | None:
        """The loader of `train`, `val` or `test`; None where the split was not declared.

        Raises:
            DataError: the split is declared and empty.
        """

    @abstractmethod
    def training_step(self, batch: BatchT) -> StepOutput:
        """Loss of one micro-batch, with gradient."""

    def prepare_evaluation(self, split: str) -> None:
        """Computes what an evaluation needs before its batches, ranks together.

        Runs without gradient and in evaluation mode, before each `evaluate`. Collective: all ranks
        must call.
        """

    @abstractmethod
    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        """This rank's share of the first `num_batches` evaluation batches of a split.

        Runs without gradient and in evaluation mode. Makes no collective call.
        """

    def num_samples(self, batch: BatchT) -> int:
        """How many seeds or anchors a training batch has."""
        return len(batch.input_id)

    def build_metrics(self) -> Sequence[Any]:
        """The metrics of evaluation (`raygnn.metrics`)."""
        return ()

    def baselines(
        self, split: str, num_batches: int | None, metrics: Sequence[Any]
    ) -> Baselines | None:
        """Guesses that any model must beat, on the evaluation batches of a split.

        Collective: all ranks must call.

        Args:
            num_batches: over all workers; None takes all.
            metrics: those that the model is judged by.
        Returns:
            None, where there is no such split, or the task knows no guesses.
        """
        return None

    def warnings(self) -> list[str]:
        """What of the data may make a model look better than it is, a sentence each."""
        return []

    def configure_optimizers(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """An optimizer of the task's own; None takes the one of the config."""
        return None

    def close(self) -> None:
        """Frees loaders and threads."""
