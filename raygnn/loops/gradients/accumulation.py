"""What a rank adds to an optimizer step: the gradients and sums of its micro-batches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from raygnn.config import Config
from raygnn.errors import FAILURES, TrainingError
from raygnn.loops.callback_list import CallbackList
from raygnn.loops.gradients.reduction import GradReduction
from raygnn.loops.optimization import Optimization
from raygnn.loops.process import seed_micro_batch
from raygnn.loops.task import StepOutput, Task
from raygnn.parallel.all_reduce import GradientReducer, LocalTotals
from raygnn.parallel.sharded_tables import node_ids
from raygnn.sampling.batch import Batch


class Accumulation:
    """Takes each micro-batch by itself: forward, backward, next.

    Attributes:
        wait_s: seconds in which this rank waited for batches.
    """

    def __init__(
        self,
        task: Task,
        config: Config,
        optimization: Optimization,
        reduction: GradReduction,
        device: torch.device,
        callbacks: CallbackList,
        reducer: GradientReducer,
    ) -> None:
        self._task = task
        self._config = config
        self._optimization = optimization
        self._reduction = reduction
        self._device = device
        self._callbacks = callbacks
        self._reducer = reducer
        self.wait_s = 0.0

    def run(
        self, batches: Iterator[Batch], epoch: int, indices: Sequence[int], local: LocalTotals
    ) -> BaseException | None:
        """Leaves summed gradients in every `.grad`.

        Args:
            batches: this rank's, those of the indices next.
            local: is added to; its `failed` flag is set where something failed.
        Returns:
            What failed, for the engine to tell all ranks; None if nothing did.
        """
        try:
            for index, batch in self._batches(batches, epoch, indices):
                with self._optimization.autocast():
                    output = self._task.training_step(batch)
                if index == indices[-1]:
                    self._reducer.begin_last_backward()
                divisor = self._backward(output)
                self._count(batch, output, divisor, local)
        except FAILURES as error:  # flagged to all ranks, which then raise
            local.failed = True
            return error
        return None

    def _batches(
        self, batches: Iterator[Batch], epoch: int, indices: Sequence[int]
    ) -> Iterator[tuple[int, Batch]]:
        """This rank's micro-batches on the device, the generators seeded for each in its turn.

        Where learned rows are sharded, all of them are sampled before the first, and their rows
        are fetched at once. Collective there: all ranks must iterate, one without indices too.
        """
        waiting: Iterator[Batch] = (self._next(batches) for _ in indices)
        if self._optimization.tables:
            waiting = iter(self._with_rows(waiting))
        for index, batch in zip(indices, waiting, strict=True):
            seed_micro_batch(self._config.seed, epoch, index)
            batch = batch.to(self._device, non_blocking=True)
            self._callbacks.call("on_train_batch_start", batch)
            yield index, batch

    def _next(self, batches: Iterator[Batch]) -> Batch:
        began = time.monotonic()
        batch = next(batches)
        self.wait_s += time.monotonic() - began
        return batch

    def _with_rows(self, waiting: Iterator[Batch]) -> list[Batch]:
        """The micro-batches, when their learned rows are here. Collective: all ranks must call."""
        found: list[Batch] = []
        failure: BaseException | None = None
        try:
            found = list(waiting)
        except FAILURES as error:  # the others wait for what this rank asks for
            failure = error
        self._optimization.tables.fetch([node_ids(batch) for batch in found])
        if failure is not None:
            raise failure
        return found

    def _backward(self, output: StepOutput) -> float:
        """Adds the gradients of one micro-batch; returns its share of the step's divisor."""
        factor, divisor = self._reduction.factor_and_divisor(output)
        self._optimization.scaler.scale(output.loss_sum * factor).backward()
        return divisor

    def _count(self, batch: Batch, output: StepOutput, divisor: float, local: LocalTotals) -> None:
        local.add(
            weight=output.weight,
            divisor=divisor,
            loss_sum=output.loss_sum.detach().double(),
            num_samples=self._task.num_samples(batch),
            num_edges=batch.num_edges,
        )
        self._check_step_metrics(output)
        local.add_metrics(output.metrics)
        self._callbacks.call("on_train_batch_end", batch, output)

    def _check_step_metrics(self, output: StepOutput) -> None:
        declared = sorted(self._task.step_metrics)
        if sorted(output.metrics) != declared:
            raise TrainingError(
                f"task.type={self._config.task.type!r} is invalid: training_step gave the "
                f"metrics {sorted(output.metrics)}, its step_metrics are {declared}. Give all of "
                "them for every batch; those of `losses` are in the output of Task.objective.",
                id="task-step-metrics",
            )
