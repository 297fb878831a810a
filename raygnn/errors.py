"""Exceptions of raygnn. Each survives pickling (Ray pickles them) and carries its exit status."""

from __future__ import annotations

from collections.abc import Sequence

#: How code that a user wrote may fail. One that calls `sys.exit` on a rank has failed too: the
#: others would wait for that rank, and the run would end with its exit status and no model.
FAILURES = (Exception, SystemExit)


class RaygnnError(Exception):
    """Base of all errors that raygnn raises on purpose; the message is written for the user."""

    exit_status = 1


class ConfigError(RaygnnError):
    """The config is wrong. Carries every problem found, not the first one only."""

    exit_status = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (
            (problems,) if isinstance(problems, str) else tuple(problems)
        )
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

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.exit_status = 130 if cause == "SIGINT" else 143

    def __reduce__(self) -> tuple[type[PreemptedError], tuple[str, str]]:
        return (type(self), (str(self), self.cause))
