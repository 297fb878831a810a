"""Failures of one rank that all ranks raise, instead of waiting for it in a collective."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from raygnn.errors import FAILURES, RaygnnError, TrainingError
from raygnn.loops import collectives

Result = TypeVar("Result")


@contextmanager
def agreement(where: str, error: type[RaygnnError] = TrainingError) -> Iterator[None]:
    """A block that may fail on some ranks: at its end all of them raise, or none.

    Collective: all ranks must call. The block itself must not, or a rank that failed before
    would be waited for.

    Args:
        where: completes "Rank 0 failed in ...".
    """
    failure: BaseException | None = None
    try:
        yield
    except FAILURES as raised:  # told to all ranks, then raised below
        failure = raised
    raise_if_any_failed(failure, where, error)


def together(step: Callable[[], Result]) -> Result:
    """Runs a step that may find something wrong on some ranks only, as their disks differ.

    If one does, all raise the RaygnnError that it has raised. Collective: all ranks must call.
    """
    problem: RaygnnError | None = None
    try:
        result = step()
    except RaygnnError as error:
        problem = error
    for found in collectives.gather_objects(problem):
        if found is not None:
            raise found
    return result


def raise_if_any_failed(
    failure: BaseException | None, where: str, error: type[RaygnnError] = TrainingError
) -> None:
    """Raises on every rank if one failed. Collective: all ranks must call.

    Raises:
        TrainingError: or `error`; names the first failed rank and its cause.
    """
    texts = collectives.gather_objects(None if failure is None else describe(failure))
    for rank, text in enumerate(texts):
        if text is not None:
            raise error(f"Rank {rank} failed in {where}: {text}") from failure


def describe(error: BaseException) -> str:
    """An exception in one line, notes included."""
    notes = " ".join(getattr(error, "__notes__", ()))
    text = f"{type(error).__name__}: {error}"
    return f"{text} ({notes})" if notes else text
