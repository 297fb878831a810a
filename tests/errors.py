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
