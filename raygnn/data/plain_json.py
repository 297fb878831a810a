"""JSON of requests and events: numbers, texts, and lists of them, within limits."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from pydantic_core import from_json

from raygnn.errors import DataError

#: Ids, pairs or new rows in one request, and elements of a value of a new row.
MAX_ELEMENTS = 10_000
#: Columns of a new row, and types of new rows.
MAX_COLUMNS = 1_000
#: Letters of an id, a name or another text.
MAX_TEXT = 1_000
# The deepest values are lists in the columns of new rows: body, new, nodes, type, row, column.
_MAX_OBJECT_DEPTH = 5
_MAX_LIST_DEPTH = 6
_INT64 = -(2**63), 2**63 - 1


def read_json(body: bytes | str, depth: int = 0) -> Any:
    """Parses a request's body. Raises a DataError unless it is JSON within the limits.

    `depth`: levels of a body around the text; 4 for a row of a table.
    """
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        refuse(f"it is not JSON ({error})", "Send an object")
    _check([content], depth)
    return content


def _check(value: list[Any] | dict[str, Any], depth: int) -> None:
    if isinstance(value, dict):
        if depth > _MAX_OBJECT_DEPTH:
            refuse("a value of a row is an object", "Give numbers, texts, or lists of them")
        if len(value) > MAX_COLUMNS:
            refuse(f"an object has {len(value):,} keys", f"Send at most {MAX_COLUMNS:,}")
        _check_text(max(value, key=len, default=""))
        elements = list(value.values())
    else:
        if depth > _MAX_LIST_DEPTH:
            refuse("lists are nested", "Give numbers, texts, or lists of them")
        if len(value) > MAX_ELEMENTS:
            refuse(f"a list has {len(value):,} elements", f"Send at most {MAX_ELEMENTS:,}")
        elements = value
    for element in elements:
        kind = type(element)
        if kind is float:
            if not math.isfinite(element):
                refuse("a number is not finite", "Send finite numbers, or null for a gap")
        elif kind is int:
            if not _INT64[0] <= element <= _INT64[1]:
                refuse("an integer has more than 64 bits", "Send smaller ones")
        elif kind is str:
            _check_text(element)
        elif kind is list or kind is dict:
            _check(element, depth + 1)


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT:
        refuse(f"a text has {len(text):,} characters", f"Send at most {MAX_TEXT:,}")


def refuse(problem: str, remedy: str) -> NoReturn:
    raise DataError(f"the request is invalid: {problem}. {remedy}. [serve-request]")
