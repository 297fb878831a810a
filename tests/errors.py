"""Expects an error by its stable id and the values that its message names, not by its prose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from raygnn.errors import RaygnnError, ids_of


@contextmanager
def raises(id: str, *values: object) -> Iterator[pytest.ExceptionInfo[RaygnnError]]:
    """A block that must raise an error of raygnn with an id.

    Args:
        values: what the message must name, as whole words or numbers.
    """
    with pytest.raises(RaygnnError) as raised:
        yield raised
    assert_reports(str(raised.value), id, *values)


def error_cases(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Reads a table of tests: inputs, each above an indented line with its error.

    Such a line has the id and the values that the message must name, between bars.
    """
    cases: list[tuple[str, tuple[str, ...]]] = []
    lines: list[str] = []
    for line in text.strip().splitlines():
        values = tuple(line.strip().split(" | "))
        if not line.startswith(" "):
            lines.append(line)
        elif lines:
            cases.append(("\n".join(lines), values))
            lines = []
        else:
            cases[-1] = (cases[-1][0], cases[-1][1] + values)
    assert not lines, lines
    return cases


def assert_reports(message: str, id: str, *values: object) -> None:
    """Asserts that one of the problems of a message, or of what a command prints, has an id.

    Args:
        values: what the message must name, as whole words or numbers.
    """
    assert id in ids_of(message), message
    absent = [value for value in map(str, values) if not _names(message, value)]
    assert not absent, f"{absent} not in: {message}"


def _names(message: str, value: str) -> bool:
    before = r"(?<![\w])" if value[:1].isalnum() else ""
    after = r"(?![\w])" if value[-1:].isalnum() else ""
    return re.search(f"{before}{re.escape(value)}{after}", message) is not None
