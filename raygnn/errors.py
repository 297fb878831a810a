"""Exceptions of raygnn. Each survives pickling (Ray pickles them) and carries its exit status.

A message ends with the stable id of its error, as in `... [edges-dangling]`; docs/errors.md lists
all ids. Ids stand in the message alone, so they survive pickling, joining and quoting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: How code that a user wrote may fail. One that calls `sys.exit` on a rank has failed too: the
#: others would wait for that rank, and the run would end with its exit status and no model.
FAILURES = (Exception, SystemExit)


_ID_OF_A_LINE = re.compile(r" \[([a-z0-9]+(?:-[a-z0-9]+)+)\]$", re.MULTILINE)


def with_id(message: str, id: str | None) -> str:
    """The message with its id at the end.

    A message that ends with an id already, as it quotes its cause, keeps that one.
    """
    ends = [match.end() for match in _ID_OF_A_LINE.finditer(message)]
    return message if id is None or len(message) in ends else f"{message} [{id}]"


def ids_of(message: str) -> tuple[str, ...]:
    """The ids at the ends of a message's lines, each once."""
    return tuple(dict.fromkeys(_ID_OF_A_LINE.findall(message)))


class RaygnnError(Exception):
    """Base of all errors that raygnn raises on purpose; the message is written for the user.

    Args:
        id: names the cause; user code that raises the error may leave it out.
    """

    exit_status = 1

    def __init__(self, message: str = "", *, id: str | None = None) -> None:
        super().__init__(with_id(message, id))

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all problems that the message reports."""
        return ids_of(str(self))

    @property
    def id(self) -> str | None:
        """The id of the first problem."""
        return next(iter(self.ids), None)


class ConfigError(RaygnnError):
    """The config is wrong. Carries every problem found, not the first one only."""

    exit_status = 2

    def __init__(self, problems: str | Sequence[str], *, id: str | None = None) -> None:
        given = (problems,) if isinstance(problems, str) else problems
        self.problems = tuple(with_id(problem, id) for problem in given)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        return (type(self), (self.problems,))


class DataError(RaygnnError):
    """The user's tables, or what was asked of them, are wrong."""

    exit_status = 2


class ResourceError(RaygnnError):
    """The cluster or the machine cannot give what the config asks for."""

    exit_status = 2


class RunError(RaygnnError):
    """The run folder cannot be used: another run's, finished, or not writable."""

    exit_status = 2


class CheckpointError(RaygnnError):
    """A checkpoint is missing, damaged or does not fit the model."""


class TrainingError(RaygnnError):
    """Training failed on some rank; the message names the rank and the cause."""


class LostRankError(TrainingError):
    """Another rank died or went silent, as a collective noticed; a second try may go through."""


class PreemptedError(RaygnnError):
    """A run was asked to stop before its end; started again, it goes on.

    Attributes:
        cause: `SIGTERM`, `SIGINT`, or what else asked for it.
        exit_status: as of a process that the signal ended: 130 for SIGINT, else 143.
    """

    def __init__(self, message: str, cause: str, *, id: str | None = None) -> None:
        super().__init__(message, id=id)
        self.cause = cause
        self.exit_status = 130 if cause == "SIGINT" else 143

    def __reduce__(self) -> tuple[type[PreemptedError], tuple[str, str]]:
        return (type(self), (str(self), self.cause))
