"""What a generator's arguments may be, read off its signature: one source for checks and CLI."""

from __future__ import annotations

import difflib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raygnn.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """`Annotated[int, Range("number of nodes", low=1)]`: what an argument means, and its bounds."""

    help: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Argument:
    """One argument of a generator; `kind` is int, float, bool or str."""

    name: str
    kind: type
    optional: bool
    default: Any
    range: Range


def generator_arguments(generator: Callable[..., Any]) -> dict[str, Argument]:
    """The arguments of a generator by name, in the order of its signature."""
    hints = typing.get_type_hints(inspect.unwrap(generator), include_extras=True)
    arguments = {}
    for name, parameter in inspect.signature(generator).parameters.items():
        annotated, limits = typing.get_args(hints[name])
        members = typing.get_args(annotated) if isinstance(annotated, types.UnionType) else ()
        kind = next((member for member in members if member is not type(None)), annotated)
        arguments[name] = Argument(name, kind, bool(members), parameter.default, limits)
    return arguments


def argument_problems(generator: Callable[..., Any], args: Mapping[str, Any]) -> list[str]:
    """Everything wrong with the arguments, in the words of the config section data.synthetic."""
    arguments = generator_arguments(generator)
    problems = []
    for name, value in args.items():
        if name not in arguments:
            problems.append(
                f"data.synthetic.{name}={value!r} is invalid: no such argument. "
                f"{did_you_mean(name, list(arguments))}"
            )
        elif rule := _broken_rule(arguments[name], value):
            problems.append(
                f"data.synthetic.{name}={value!r} is invalid: {rule}. "
                f"Set {arguments[name].range.help}, as in {name}: {_example(arguments[name])}."
            )
    return problems


def checked(generator: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a generator: its arguments are checked before it runs, and taken by name only."""

    @functools.wraps(generator)
    def checked_generator(**args: Any) -> Any:
        if problems := argument_problems(generator, args):
            raise ConfigError(problems)
        return generator(**args)

    return checked_generator


def did_you_mean(word: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(str(word), choices, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"{hint}Choose from: {', '.join(choices)}."


def _broken_rule(argument: Argument, value: Any) -> str | None:
    if value is None and argument.optional:
        return None
    accepted: tuple[type, ...] = (int, float) if argument.kind is float else (argument.kind,)
    is_stray_bool = isinstance(value, bool) and argument.kind is not bool
    if is_stray_bool or not isinstance(value, accepted):
        return f"must be of type {argument.kind.__name__}"
    low, high = argument.range.low, argument.range.high
    if isinstance(value, int | float):
        # written so that NaN breaks them
        if low is not None and not value >= low:
            return f"must be at least {low:g}"
        if high is not None and not value <= high:
            return f"must be at most {high:g}"
    return None


def _example(argument: Argument) -> str:
    return "null" if argument.default is None else str(argument.default).lower()
