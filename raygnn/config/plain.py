"""Turns what a Python caller gives into plain values, such as YAML has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, SecretStr

from raygnn.config.problems import KeyPath, Problem


def to_plain(value: Any, problems: list[Problem], secrets: set[str], path: KeyPath = ()) -> Any:
    """A deep copy of mappings, lists and scalars.

    Args:
        problems: gets one for whatever else is met.
        secrets: gets the values of every `SecretStr`.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        problems.extend(
            Problem((*path, str(key)), "a key must be a text", "Quote it")
            for key in value
            if not isinstance(key, str)
        )
        return {
            str(key): to_plain(inner, problems, secrets, (*path, str(key)))
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [to_plain(inner, problems, secrets, (*path, i)) for i, inner in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, SecretStr):
        secrets.add(value.get_secret_value())
        return value.get_secret_value()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    item = getattr(value, "item", None)  # numpy's and torch's scalars
    if callable(item) and getattr(value, "ndim", None) == 0:
        return to_plain(item(), problems, secrets, path)
    problems.append(
        Problem(
            path,
            f"a {type(value).__name__} cannot be saved with the run",
            "Set null, a bool, a number, a string, a list or a mapping; an object is written "
            "as {__type: dotted.path.of.its.Class, argument: value}",
        )
    )
    return None
