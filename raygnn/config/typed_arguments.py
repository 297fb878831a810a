"""Arguments of a built-in task, held to the types of the dataclass that takes them."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from raygnn.config.problems import Problem, did_you_mean
from raygnn.config.redaction import redact
from raygnn.config.validation import type_rule
from raygnn.errors import ConfigError

T = TypeVar("T")


def typed_arguments(kind: type[T], args: Mapping[str, Any], owner: str) -> T:
    """Makes the dataclass of `task.args`.

    Args:
        owner: whose arguments messages say they are.
    Raises:
        ConfigError: an argument is unknown or of another type; lists all such.
    """
    types = typing.get_type_hints(kind)
    known = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    problems, values = [], {}
    for name, value in args.items():
        path = ("task", "args", name)
        if name not in known:
            remedy = f"{did_you_mean(name, known)}Set one of: {', '.join(known)}"
            problems.append(Problem(path, f"{owner} has no such argument", remedy).text(None))
            continue
        try:
            values[name] = TypeAdapter(types[name]).validate_python(value, strict=True)
        except ValidationError as error:
            rules = dict.fromkeys(type_rule(found) for found in error.errors())
            rule, remedy = " or ".join(rule for rule, _ in rules), next(iter(rules))[1]
            problem = Problem(path, f"it must be {rule}", remedy)
            problems.append(problem.text(repr(redact(value, (), path))))
    if problems:
        raise ConfigError("\n".join(problems))
    return kind(**values)
