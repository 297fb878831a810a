"""What a rank adds to an optimizer step: the gradients and sums of its micro-batches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from raygnn.errors import FAILURES, TrainingError
from raygnn.loops.randomness import seed_micro_batch
from raygnn.loops.task import StepOutput
from raygnn.parallel.all_reduce import LocalTotals

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine


class Accumulation:
    """Takes each micro-batch by itself: forward, backward, next."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(
        self, batches: Iterator[Any], epoch: int, indices: Sequence[int], local: LocalTotals
    ) -> BaseException | None:
        """Leaves summed gradients in every `.grad`.

        Args:
            batches: this rank's, those of the indices next.
            local: is added to; its `failed` flag is set where something failed.
        Returns:
            What failed, for the engine to tell all ranks; None if nothing did.
        """
        engine = self._engine
        try:
            for index in indices:
                batch = self._next(batches, epoch, index)
                with engine.optimization.autocast():
                    output = engine.task.training_step(batch)
                divisor = self._backward(output)
                self._count(batch, output, divisor, local)
        except FAILURES as error:  # flagged to all ranks, which then raise
            local.failed = True
            return error
        return None

    def _next(self, batches: Iterator[Any], epoch: int, index: int) -> Any:
        """The next batch on the device, with the generators seeded for it."""
        engine = self._engine
        began = time.monotonic()
        batch = next(batches)
        engine.loader_wait_s += time.monotonic() - began
        seed_micro_batch(engine.config.seed, epoch, index)
        batch = batch.to(engine.context.device, non_blocking=True)
        engine.callbacks.call("on_train_batch_start", engine, batch)
        return batch

    def _backward(self, output: StepOutput) -> float:
        """Adds the gradients of one micro-batch; returns its share of the step's divisor."""
        engine = self._engine
        factor, divisor = engine.grad_reduction.factor_and_divisor(output)
        engine.optimization.scaler.scale(output.loss_sum * factor).backward()
        return divisor

    def _count(self, batch: Any, output: StepOutput, divisor: float, local: LocalTotals) -> None:
        engine = self._engine
        local.add(
            weight=output.weight,
            divisor=divisor,
            loss_sum=output.loss_sum.detach().double(),
            num_samples=engine.task.num_samples(batch),
            num_edges=int(batch.num_edges),
        )
        self._check_step_metrics(output)
        local.add_metrics(output.metrics)
        engine.callbacks.call("on_train_batch_end", engine, batch, output)

    def _check_step_metrics(self, output: StepOutput) -> None:
        task = self._engine.task
        declared = sorted(task.step_metrics)
        if sorted(output.metrics) != declared:
            raise TrainingError(
                f"task.type={self._engine.config.task.type!r} is invalid: training_step gave the "
                f"metrics {sorted(output.metrics)}, its step_metrics are {declared}. Give all of "
                "them for every batch; those of `losses` are in the output of Task.objective."
            )
