"""Agreement of all ranks on failures and on the initial weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from raygnn.errors import FAILURES, RaygnnError, TrainingError, with_id
from raygnn.parallel import collectives
from raygnn.redaction import redact_text

Result = TypeVar("Result")


def run_and_sync_errors(step: Callable[[], Result], where: str = "setting up") -> Result:
    """Runs a step that each rank does alone and that may fail on some of them.

    A user's mistake keeps its exception type, and with it the exit status, on every rank.

    Collective: all ranks must call. The step itself must not.

    Args:
        where: completes "Rank 0 failed in ...".
    Raises:
        RaygnnError: raised by the step on the first rank that failed with one.
        TrainingError: the step failed otherwise, such as by an error in the user's code.
    """
    result: Result
    problem: BaseException | None = None
    try:
        result = step()
    except FAILURES as raised:  # reported to all ranks, then raised below
        problem = raised
    reported = problem
    if problem is not None and not isinstance(problem, RaygnnError):
        reported = TrainingError(
            f"Rank {collectives.rank()} failed in {where}: {describe(problem)}",
            id="run-rank-failed",
        )
    for rank_error in collectives.gather_objects(reported):
        if rank_error is not None and isinstance(problem, Exception) and reported is not problem:
            raise problem
        if rank_error is not None:
            raise rank_error
    return result


@contextmanager
def agreement(where: str, error: type[RaygnnError] = TrainingError) -> Iterator[None]:
    """A block that may fail on some ranks. At its end either all ranks raise, or none.

    Collective: all ranks must call. The block itself must not, because others would wait for a
    failed rank. `where`: completes "Rank 0 failed in ...".
    """
    failure: BaseException | None = None
    try:
        yield
    except FAILURES as raised:  # reported to all ranks, then raised below
        failure = raised
    raise_if_any_failed(failure, where, error)


def made_by_rank_0(
    make: Callable[[], Result], where: str, error: type[RaygnnError] = TrainingError
) -> Result:
    """Calls `make` on rank 0 and returns the result on all ranks. Collective: all ranks must call.

    `where`, `error`: see `agreement`.
    """
    with agreement(where, error):
        made = make() if collectives.rank() == 0 else None
    result: Result = collectives.broadcast_object(made)
    return result


def raise_if_any_failed(
    failure: BaseException | None, where: str, error: type[RaygnnError] = TrainingError
) -> None:
    """Raises on every rank if one failed. Collective: all ranks must call.

    Raises:
        TrainingError: or `error`; names the first failed rank and its cause, with its id.
    """
    texts = collectives.gather_objects(None if failure is None else describe(failure))
    for rank, text in enumerate(texts):
        if text is not None:
            text = f"Rank {rank} failed in {where}: {text}"
            raise error(text, id="run-rank-failed") from failure


def describe(error: BaseException) -> str:
    """An exception in one line, with notes and without secrets."""
    notes = " ".join(getattr(error, "__notes__", ()))
    text = f"{type(error).__name__}: {error}"
    if notes:
        id = error.id if isinstance(error, RaygnnError) else None
        text = with_id(f"{text.removesuffix(f' [{id}]')} ({notes})", id)
    return redact_text(text)


@torch.no_grad()
def broadcast_initial_weights(module: nn.Module, but: Collection[str] = ()) -> None:
    """Copies rank 0's parameters and buffers, but for some, to every rank.

    Raises a TrainingError on all ranks if a model has other names, shapes or dtypes. Collective:
    all ranks must call.
    """
    if collectives.world_size() == 1:
        return
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in but}
    _check_same(tensors)
    for tensor in tensors.values():
        tensor.copy_(collectives.broadcast(tensor))


def _check_same(tensors: dict[str, Tensor]) -> None:
    described = {n: f"{list(t.shape)} of {t.dtype}" for n, t in tensors.items()}
    first, *others = collectives.gather_objects(described)
    for rank, other in enumerate(others, start=1):
        for name in {**first, **other}:
            here, there = first.get(name, "missing"), other.get(name, "missing")
            if here != there:
                raise TrainingError(
                    f"the ranks have built different models: {name} is {there} on rank {rank}, "
                    f"{here} on rank 0. Build the model from the configuration and the graph "
                    "alone, so that all ranks build the same. [model-ranks-differ]"
                )
