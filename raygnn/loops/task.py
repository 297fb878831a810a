"""A task defines what is learned. The engine trains it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.config import LoadedConfig
from raygnn.data.bundle import Bundle
from raygnn.data.extended_bundle import ExtendedBundle
from raygnn.loops.baselines import Baselines, BaselinesOfParts
from raygnn.loops.early_stopping import Watched
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.split_rows import SplitRows
from raygnn.losses import Candidates
from raygnn.metrics import Described
from raygnn.sampling.batch_sequence import BatchSequence, BatchT
from raygnn.sampling.parts import PartitionedGraph
from raygnn.sampling.stored_samples import StoredSamples


@dataclass(frozen=True)
class StepOutput:
    """Result of one training micro-batch.

    Attributes:
        loss_sum: scalar with gradient, the summed loss.
        weight: divisor of the loss, summed over the global batch.
        metrics: further sums over the same weight, logged as weighted means.
    """

    loss_sum: Tensor
    weight: float
    metrics: Mapping[str, Tensor | float] = field(default_factory=dict)


@dataclass(frozen=True)
class EvalOutput:
    """Result of one evaluation batch.

    Attributes:
        index: position in the fixed global sequence of evaluation batches.
        ids: int64 [num_seeds], dense ids that order rows gathered from all ranks.
        loss_sum: the summed loss, a number or a scalar on the device.
        prediction: [num_seeds, ...], the metrics' input next to `target`.
        metrics: further sums over the same weight; every batch has the same names.
        row_weights: float64 [num_seeds] for metrics, of rows with weights.
    """

    index: int
    ids: Tensor
    loss_sum: Tensor | float
    weight: float
    prediction: Tensor
    target: Tensor
    metrics: Mapping[str, Tensor | float] = field(default_factory=dict)
    row_weights: Tensor | None = None


@dataclass(frozen=True)
class TaskEnvironment:
    """Graph, config and rank of a task.

    Attributes:
        spec: inputs and outputs of the model, from the driver or `model.json`. None for a user's
            own task, which the driver does not import.
        parts: edges and features of a partitioned graph, whose outline is the bundle.
        samples: stored neighborhoods, read instead of sampling.
    """

    loaded: LoadedConfig
    bundle: Bundle
    rank: int
    world_size: int
    device: torch.device
    spec: ModelSpec | None = None
    parts: PartitionedGraph | None = None
    samples: StoredSamples | None = None

    @property
    def scratch(self) -> Path:
        """Folder on the local disk for temporary files."""
        return self.bundle.path.parent.parent / "scratch"


@dataclass(frozen=True)
class NodeRows:
    """Nodes to predict.

    Attributes:
        nodes: int64 [num_rows], dense ids.
        times: [num_rows], the latest times that rows may see; None without times.
    """

    nodes: np.ndarray
    times: np.ndarray | None


class JointLoss(Protocol):
    """A task's result for a micro-batch if the loss spans all micro-batches of the step."""

    def encode(self, batch: Any) -> dict[str, Tensor]: ...

    def offer(self, batch: Any, rows: dict[str, Tensor]) -> Candidates:
        """The batch's contribution to the joint loss: candidates, or a row of sums."""

    def loss_among(self, batch: Any, rows: dict[str, Tensor], offered: Candidates) -> StepOutput:
        """Loss of a batch among the contributions of all batches of the step, in any order."""


class Task(ABC, Generic[BatchT]):
    """Base class of tasks: loaders, model, and the loss of a batch.

    The engine sets `model` before any step, with equal weights on all ranks. Everything around the
    step, from gradient reduction to checkpoints, belongs to the engine and is the same for all
    tasks.
    """

    model: nn.Module
    env: TaskEnvironment

    #: Names of cached properties that depend on the graph.
    of_graph: ClassVar[tuple[str, ...]] = ()

    #: Set where the micro-batches of a step compete with each other; then `training_step` is not
    #: called.
    joint_loss: JointLoss | None = None

    #: Whether training batches are padded to few shapes, for passes that `StepGraphs` records. Set
    #: before the first loader is made, where the task `can_pad`.
    pads: bool = False

    #: By name, the tasks that this one is made of: each is evaluated by itself, with metrics that
    #: have its name. Their losses are summed with these factors.
    parts: Mapping[str, Task[Any]] = MappingProxyType({})
    weights: Mapping[str, float] = MappingProxyType({})

    @property
    def can_pad(self) -> bool:
        """Whether all full training batches have the same shapes, but for their neighborhoods."""
        return False

    def score_weights(self) -> tuple[float, float] | None:
        """Weights of the encoder and of the linear recommender; None without a recommender."""
        return None

    @property
    def learns(self) -> bool:
        """Whether steps of the optimizer change the model. Otherwise it is only validated."""
        return True

    @property
    def watched(self) -> Watched:
        """The default metric of early stopping and best checkpoint."""
        return Watched()

    #: Unit of the losses if it is not the labels' unit. Printed at the start.
    loss_unit: str | None = None

    #: Names of the sums in `StepOutput.metrics`; every batch gives all of them.
    step_metrics: Sequence[str] = ()

    #: The model's inputs and outputs. None for a task without inference.
    spec: ModelSpec | None = None

    def setup(self, env: TaskEnvironment) -> None:
        """Receives the environment. Called once, before anything else, in training and inference.

        The graph of an inference may lack labels and splits: `loader` and later methods may read
        them, `setup` and `build_model` may not.
        """
        self.env = env
        self.spec = env.spec or self.find_spec(env.loaded, env.bundle)

    def find_spec(self, loaded: LoadedConfig, bundle: Bundle) -> ModelSpec | None:
        """The model's inputs and outputs, determined from the training graph."""
        return None

    def conclude(self) -> bool:
        """Chooses what the trained model predicts, and records it in `spec`; returns whether that
        differs from the outputs of `model`.

        Runs without gradient, in evaluation mode, with the best weights, before the test.
        Collective: all ranks must call.
        """
        return False

    def refit(self) -> None:
        """Learns from the validation rows too, if a test follows. Runs after `conclude` and the
        last evaluation of validation. Collective: all ranks must call.
        """

    @property
    def trees_text(self) -> str | None:
        """Text of LightGBM, if it is part of what predicts."""
        return None

    def output_columns(self, what: str, outputs: Tensor) -> Mapping[str, Any]:
        """A table of predictions by column: [num_nodes] or [num_nodes, width], or Arrow arrays.

        Args:
            what: one of `spec.output.predictions`.
            outputs: [num_nodes, num_outputs] on the CPU, the model's `readout`.
        """
        raise NotImplementedError(f"{type(self).__name__}.output_columns")

    def extended(self, bundle: ExtendedBundle) -> Self:
        """The task on its graph with added nodes and edges."""
        task = copy(self)
        task.env = replace(self.env, bundle=bundle)
        for name in self.of_graph:
            vars(task).pop(name, None)
        return task

    def missing(self, model: nn.Module) -> list[str]:
        """Inputs that the model was judged with and that the graph lacks, for messages."""
        return []

    def completed(self, model: nn.Module, outputs: Tensor, rows: Any) -> Tensor:
        """The model's `readout` of rows, completed with inputs that belong to no neighborhood.

        Args:
            outputs: [num_rows, num_outputs].
            rows: `NodeRows`, or what else the task predicts.
        """
        return outputs

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The module to train, on the CPU; the engine moves it to the device."""

    @abstractmethod
    def loader(self, split: str) -> BatchSequence[BatchT] | None:
        """The loader of `train`, `val` or `test`; None if the split is not declared.

        Raises:
            DataError: the split is declared but empty.
        """

    @abstractmethod
    def training_step(self, batch: BatchT) -> StepOutput: ...

    def prepare_evaluation(self, split: str) -> None:
        """Computes what an evaluation needs before its batches, on all ranks together.

        Runs without gradient, in evaluation mode. Collective: all ranks must call.
        """

    @abstractmethod
    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        """This rank's share of the first `num_batches` evaluation batches of a split.

        Runs without gradient, in evaluation mode, and makes no collective call.
        """

    def num_samples(self, batch: BatchT) -> int:
        """Number of seeds or anchors in a training batch."""
        return len(batch.input_id)

    def build_metrics(self) -> Sequence[Any]:
        return ()

    def diagnostics(self) -> Sequence[Described]:
        return ()

    def baselines(
        self, split: str, num_batches: int | None, metrics: Sequence[Any]
    ) -> Baselines | BaselinesOfParts | None:
        """Baselines on the evaluation batches of a split, if the task has any.

        Collective: all ranks must call.

        Args:
            num_batches: over all workers; None takes all.
            metrics: the model's metrics.
        """
        return None

    def split_rows(self, split: str, num_batches: int | None) -> SplitRows | None:
        """Rows that the metrics of a split are computed on; None if unknown.

        `num_batches`: as for `baselines`.
        """
        return None

    def precision(self, split: str) -> Baselines | None:
        """Baselines without predictions, which know standard errors of metrics of a split."""
        return None

    def left_out(self) -> list[str]:
        """Names what the model does not try by default, with the reason."""
        return []

    def warnings(self) -> list[str]:
        """Sentences about data that may make a model look better than it is."""
        return []

    def configure_optimizers(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """The task's own optimizer; None takes the config's."""
        return None

    def close(self) -> None: ...
