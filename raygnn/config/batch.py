"""Batch arithmetic: global_batch_size = batch_size x workers x accumulate_grad_batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raygnn.config.problems import Problem

_BATCH_SIZE = ("loader", "batch_size")
_GLOBAL = ("training", "global_batch_size")


@dataclass(frozen=True)
class BatchPlan:
    """How many seeds go into a step.

    Attributes:
        batch_size: seeds of one micro-batch on one worker.
        accumulate: micro-batches of each worker in one optimizer step.
        world_size: workers, at most.
        global_batch_size: seeds of one optimizer step.
    """

    batch_size: int
    accumulate: int
    world_size: int
    global_batch_size: int

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of one optimizer step, which are dealt to the workers that there are."""
        return self.accumulate * self.world_size


def plan_batches(
    batch_size: int | None,
    accumulate: int | None,
    workers: int,
    global_batch_size: int | None,
) -> BatchPlan:
    """Fills in what of the triple is not given; the triple is known to be consistent.

    Args:
        workers: of the run, at least one.
    """
    if global_batch_size is None:
        assert batch_size is not None
        accumulate = accumulate or 1
        return BatchPlan(batch_size, accumulate, workers, batch_size * workers * accumulate)
    if batch_size is None:
        accumulate = accumulate or 1
        batch_size = global_batch_size // (workers * accumulate)
    if accumulate is None:
        accumulate = global_batch_size // (workers * batch_size)
    return BatchPlan(batch_size, accumulate, workers, global_batch_size)


def broken_batch_rules(
    batch_size: int | None,
    accumulate: int | None,
    workers: int,
    global_batch_size: int | None,
) -> Iterable[Problem]:
    """What is inconsistent about the triple; the text prints the arithmetic."""
    if global_batch_size is None:
        if batch_size is None:
            yield Problem(
                _BATCH_SIZE,
                "it can only follow from training.global_batch_size, which is null too",
                "Set loader.batch_size or training.global_batch_size",
            )
        return
    if batch_size is None:
        per_seed = workers * (accumulate or 1)
        if global_batch_size % per_seed:
            yield Problem(
                _GLOBAL,
                f"{global_batch_size} / ({workers} workers x {accumulate or 1} accumulated "
                "batches) is not a whole number of seeds",
                f"Set a multiple of {per_seed}, as {_nearest(global_batch_size, per_seed)}",
            )
    elif accumulate is None:
        per_batch = batch_size * workers
        if global_batch_size % per_batch:
            yield Problem(
                _GLOBAL,
                f"{global_batch_size} / (batch_size {batch_size} x {workers} workers = "
                f"{per_batch}) is not a whole number of accumulated batches",
                f"Set a multiple of {per_batch}, as {_nearest(global_batch_size, per_batch)}, or "
                "loader.batch_size: null so that it follows",
            )
    elif batch_size * workers * accumulate != global_batch_size:
        product = batch_size * workers * accumulate
        yield Problem(
            _GLOBAL,
            f"batch_size {batch_size} x {workers} workers x accumulate_grad_batches {accumulate} "
            f"= {product}, not {global_batch_size}",
            f"Set it to {product}, or only two of the three so that the third follows",
        )


def _nearest(number: int, factor: int) -> int:
    return max(round(number / factor), 1) * factor
