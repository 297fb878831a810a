"""Exceptions of raygnn. Each survives pickling and carries its exit status.

A message ends with the stable id of its error, as in `... [edges-dangling]`; docs/errors.md lists
all ids. The id is part of the message, so it survives pickling, joining and quoting.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

#: How code that a user wrote may fail. One that calls `sys.exit` on a rank has failed too: the
#: others would wait for that rank, and the run would end with its exit status and no model.
FAILURES = (Exception, SystemExit)


#: Position in a config or file: keys of mappings and indices of lists.
KeyPath = tuple[str | int, ...]

_INDEX = re.compile(r"[0-9]{1,9}")
_MAX_SHOWN = 120  # characters of a value in a message

# Limits of the search for similar words: each comparison takes a few microseconds.
_MAX_CHOICES, _MAX_WORD = 100, 100


def dotted(path: KeyPath) -> str:
    """`("losses", 0, "args")` as `losses.0.args`, which is also how an override names it."""
    return ".".join(str(part) for part in path)


def parse_path(text: str) -> KeyPath:
    """`sampling.fanouts.0` as `("sampling", "fanouts", 0)`."""
    return tuple(int(part) if _INDEX.fullmatch(part) else part for part in text.split("."))


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """`Did you mean x? ` if a choice is close to the word, else an empty text."""
    import difflib  # imported late: only messages need it

    some = itertools.islice(choices, _MAX_CHOICES)
    by_lower = {str(choice).lower(): str(choice) for choice in some}
    close = difflib.get_close_matches(str(word).lower()[:_MAX_WORD], by_lower, n=1)
    return f"Did you mean {by_lower[close[0]]}? " if close else ""


def choose_from(word: object, choices: Sequence[str], what: str = "Set one of") -> str:
    """A remedy that lists choices, with the closest one first."""
    return f"{did_you_mean(word, choices)}{what}: {', '.join(str(choice) for choice in choices)}"


def shown(value: object) -> str:
    """A value in a message: its `repr`, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


_ID_OF_A_LINE = re.compile(r" \[([a-z0-9]+(?:-[a-z0-9]+)+)\]$", re.MULTILINE)


def with_id(message: str, id: str | None) -> str:
    """Appends an id to a message, unless the message quotes a cause with an id."""
    ends = [match.end() for match in _ID_OF_A_LINE.finditer(message)]
    return message if id is None or len(message) in ends else f"{message} [{id}]"


def ids_of(message: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_ID_OF_A_LINE.findall(message)))


@dataclass(frozen=True)
class Problem:
    """One broken rule of a config or file.

    Attributes:
        path: the invalid key; empty for the whole config or file.
        shown: the value as text; None if it is unset or unknown.
        line: line of the file, if `path` does not determine it.
        needs: sections of the config that the rule also read.
    """

    path: KeyPath
    rule: str
    remedy: str
    id: str
    shown: str | None = None
    line: int | None = None
    needs: frozenset[str] = frozenset()

    def text(self, origin: str | None = None, whole: str = "the text") -> str:
        """`{key}={value} is invalid: {rule}. {remedy}. [id]`, after an origin such as
        `config.yaml:12`. `whole`: the subject of a problem without a path.
        """
        value = "" if self.shown is None else f"={self.shown}"
        where = f"{origin}: " if origin else ""
        subject = f"{dotted(self.path)}{value}" if self.path else whole
        return with_id(f"{where}{subject} is invalid: {self.rule}. {self.remedy}.", self.id)

    def __str__(self) -> str:
        return self.text(None if self.line is None else f"line {self.line}")

    def at(self, path: KeyPath, shown: str | None = None) -> Problem:
        return replace(self, path=(*path, *self.path), shown=self.shown if shown is None else shown)


class RaygnnError(Exception):
    """Base of all errors that raygnn raises on purpose; the message is written for the user.

    Args:
        id: names the cause; user code that raises the error may leave it out.
    """

    exit_status = 1

    def __init__(self, message: str = "", *, id: str | None = None) -> None:
        super().__init__(with_id(message, id))

    @classmethod
    def invalid(cls, key: str, value: object, rule: str, remedy: str, *, id: str) -> Self:
        return cls(Problem((key,), rule, remedy, id, shown(value)).text(), id=id)

    @classmethod
    def check_choice(
        cls, key: str, value: object, choices: Iterable[str], rule: str, *, id: str
    ) -> None:
        """Raises this error, with the choices as its remedy, unless the value is one of them."""
        if value not in (known := list(choices)):
            raise cls.invalid(key, value, rule, choose_from(value, known), id=id)

    @property
    def ids(self) -> tuple[str, ...]:
        return ids_of(str(self))

    @property
    def id(self) -> str | None:
        return next(iter(self.ids), None)


class ConfigError(RaygnnError):
    """The config is invalid. Lists every problem.

    Attributes:
        problems: a message for each problem.
        records: the same problems with their keys, or messages of problems without a record.
    """

    exit_status = 2

    def __init__(
        self, problems: str | Problem | Sequence[str | Problem], *, id: str | None = None
    ) -> None:
        listed = (problems,) if isinstance(problems, str | Problem) else problems
        self.records = tuple(p if isinstance(p, Problem) else with_id(p, id) for p in listed)
        self.problems = tuple(map(str, self.records))
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.records)

    @classmethod
    def invalid(cls, key: str, value: object, rule: str, remedy: str, *, id: str) -> Self:
        error = cls.__new__(cls)
        ConfigError.__init__(error, Problem(parse_path(key), rule, remedy, id, shown(value)))
        return error


def _restored(kind: type[ConfigError], records: tuple[str | Problem, ...]) -> ConfigError:
    error = kind.__new__(kind)
    ConfigError.__init__(error, records)
    return error


class RuleError(ConfigError, ValueError):
    """A broken rule of a value or text whose key or file the caller adds.

    A ValueError, so that pydantic's validators may raise it.
    """

    def __init__(
        self, rule: str, remedy: str = "Correct it", *, id: str, line: int | None = None
    ) -> None:
        super().__init__(Problem((), rule, remedy, id, line=line))

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> Self:
        error = cls.__new__(cls)
        ConfigError.__init__(error, problems)
        return error

    @property
    def problem(self) -> Problem:
        (problem,) = self.records
        assert isinstance(problem, Problem)
        return problem

    def text(self, name: str | None, whole: str) -> str:
        where, line = name, self.problem.line
        if line is not None:
            where = f"{name}:{line}" if name else f"line {line}"
        return self.problem.text(where, whole)


class DataError(RaygnnError):
    """The user's tables, or a request for their rows, are invalid."""

    exit_status = 2


class ResourceError(RaygnnError):
    """The cluster or the machine lacks resources that the config requests."""

    exit_status = 2


class RunError(RaygnnError):
    """The run folder belongs to another run, has a finished run, or is not writable."""

    exit_status = 2


class CheckpointError(RaygnnError):
    """A checkpoint is missing, damaged or does not fit the model."""


class TrainingError(RaygnnError):
    """Training failed on some rank; the message names the rank and the cause."""


class LostRankError(TrainingError):
    """Another rank died or stopped answering, as a collective noticed. A retry may succeed."""


class PreemptedError(RaygnnError):
    """The run was stopped before its end. Started again, it resumes.

    Attributes:
        cause: `SIGTERM`, `SIGINT`, or another reason.
        exit_status: 130 for SIGINT, else 143, as for a process that the signal ended.
    """

    exit_status = 143

    def __init__(self, message: str, cause: str, *, id: str | None = None) -> None:
        super().__init__(message, id=id)
        self.cause = cause
        if cause == "SIGINT":
            self.exit_status = 130

    def __reduce__(self) -> tuple[type[PreemptedError], tuple[str, str]]:
        return (type(self), (str(self), self.cause))
