"""Arguments of a generator, read from its signature for checks and CLI."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from raygnn.config.arguments import arguments_of
from raygnn.config.validation import broken_section
from raygnn.errors import ConfigError, Problem, shown


def field(description: str, low: float | None = None, high: float | None = None) -> Any:
    """`Annotated[int, field("number of nodes", low=1)]`: what an argument means, and its bounds."""
    return Field(description=description, ge=low, le=high)


def argument_problems(generator: Callable[..., Any], args: Mapping[str, Any]) -> list[Problem]:
    """Everything wrong with the arguments, in the words of the config section data.synthetic."""
    section = arguments_of(generator)
    found = []
    for problem in broken_section(section, args):
        name = str(problem.path[0])
        remedy = problem.remedy
        if known := section.model_fields.get(name):
            example = "null" if known.default is None else str(known.default).lower()
            remedy = f"Set {known.description}, as in {name}: {example}"
        place = ("data", "synthetic", name)
        found.append(replace(problem, path=place, remedy=remedy, shown=shown(args[name])))
    return found


def checked(generator: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a generator: its arguments are checked before it runs, and taken by name only."""

    @functools.wraps(generator)
    def checked_generator(**args: Any) -> Any:
        if problems := argument_problems(generator, args):
            raise ConfigError(problems)
        return generator(**args)

    return checked_generator
