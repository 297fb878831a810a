"""Turns problems into messages: with file and line or override, and without secrets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raygnn.config import tree
from raygnn.config.interpolation import Interpolated
from raygnn.config.overrides import Overridden
from raygnn.config.problems import KeyPath, Problem
from raygnn.config.redaction import redact, redact_text
from raygnn.config.source import Source

_MAX_SHOWN = 120  # characters of a value in a message
_MIN_HIDDEN = 8  # a shorter text of the environment would be hidden inside of other words


class Messages:
    """Knows where each key of a config was set."""

    def __init__(self, source: Source, overridden: Overridden, resolved: Interpolated) -> None:
        self._source, self._overridden, self._resolved = source, overridden, resolved

    def texts(self, problems: Iterable[Problem]) -> list[str]:
        """One message for each problem, none twice."""
        return list(dict.fromkeys(self._text(problem) for problem in problems))

    def placed(self, path: KeyPath, text: str) -> str:
        """A message that names its key itself, with the line where this was set."""
        origin = self._origin(Problem(path, "", ""))
        return self._without_secrets(f"{origin}: {text}" if origin else text)

    def _text(self, problem: Problem) -> str:
        value = tree.get(self._resolved.shown, problem.path)
        if value is tree.MISSING and problem.path[-1:] == ("type",):
            bare_name = tree.get(self._resolved.shown, problem.path[:-1])
            value = bare_name if isinstance(bare_name, str) else value
        text = problem.text(
            None if value is tree.MISSING else self._shown(value, problem.path),
            self._origin(problem),
        )
        return self._without_secrets(text)

    def _without_secrets(self, text: str) -> str:
        text = redact_text(text, self._source.secrets)
        for name, secret in self._resolved.environment.items():
            if len(secret) >= _MIN_HIDDEN:
                text = text.replace(secret, f"${{env:{name}}}")
        return text

    def _origin(self, problem: Problem) -> str | None:
        if problem.line is not None:
            return self._source.at_line(problem.line)
        for length in range(len(problem.path), 0, -1):
            if origin := self._overridden.origins.get(problem.path[:length]):
                return origin
        if problem.path and problem.path not in self._source.lines:
            for path, origin in self._overridden.origins.items():
                if tree.is_below(path, problem.path):  # the override has made this section
                    return origin
        return self._source.origin(problem.path)

    def _shown(self, value: Any, path: KeyPath) -> str:
        text = repr(redact(value, self._source.secrets, path))
        return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
