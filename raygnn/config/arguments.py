"""Arguments of components: read from their signatures, and validated before building."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from pydantic import ConfigDict, create_model

from raygnn.config.redaction import redact
from raygnn.config.section import MISSING, Section, value_at
from raygnn.config.validation import broken_section
from raygnn.errors import ConfigError, KeyPath, Problem, choose_from, parse_path, shown


class Arguments(Section):
    """The arguments of a component, some of which may be objects."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


class OpenArguments(Arguments):
    """Base of arguments of components that accept further ones."""

    model_config = ConfigDict(extra="allow")


A = TypeVar("A", bound=Section)

#: What a mistake in the arguments of a component is called, where it is not as in other sections.
_OF_MODELS = {
    "config-choice": Problem(
        (), "unknown choice", "Set one of the choices", id="model-argument-choice"
    ),
    "config-range": Problem(
        (), "it is out of range", "Set a number in the range", id="model-argument"
    ),
    "config-type": Problem(
        (), "it has the wrong type", "Set a value of the right type", id="model-argument"
    ),
}
_NAMED = {
    "task": {
        "config-unknown-key": Problem(
            (), "the task takes no such argument", "Set one that it takes", "task-argument-unknown"
        ),
        "config-choice": Problem(
            (), "unknown choice", "Set one of the choices", id="task-argument-choice"
        ),
        "config-range": Problem(
            (), "it is out of range", "Set a number in the range", id="task-argument-range"
        ),
    },
    "model": _OF_MODELS,
    "decoder": _OF_MODELS,
    "loss": {
        "config-choice": Problem(
            (), "unknown choice", "Set one of the choices", id="loss-argument"
        ),
        "config-range": Problem(
            (), "it is out of range", "Set a number in the range", id="loss-argument"
        ),
        "config-type": Problem(
            (), "it has the wrong type", "Set a value of the right type", id="loss-argument"
        ),
    },
    "metric": {
        "config-type": Problem(
            (), "it is not a list of whole numbers", "Set a list as [1, 10, 50]", id="metric-ks"
        ),
    },
    "method": {
        "config-range": Problem(
            (), "it is out of range", "Set a number in the range", id="method-argument-range"
        ),
        "config-type": Problem(
            (), "it has the wrong type", "Set a value of the right type", id="method-argument-range"
        ),
    },
}
_IDS = {
    "config-unknown-key": "component-argument-unknown",
    "config-required": "component-argument-missing",
}


def validated_arguments(
    kind: type[A], args: Mapping[str, Any], owner: str, place: str, slot: str = ""
) -> A:
    """Validates a component's arguments as a section.

    Args:
        place: dotted path of the arguments in the config.
    Raises:
        ConfigError: arguments are unknown, missing, of another type or out of range; lists all.
    """
    if problems := argument_problems(kind, args, owner, place, slot):
        raise ConfigError(problems)
    return kind.model_validate(args)


def argument_problems(
    kind: type[Section], args: Mapping[str, Any], owner: str, place: str, slot: str = ""
) -> list[Problem]:
    """The problems that `validated_arguments` raises."""
    by_path: dict[KeyPath, list[Problem]] = {}
    for problem in broken_section(kind, args):
        by_path.setdefault(problem.path, []).append(problem)
    return [
        _of_component(_either(same), kind, args, owner, parse_path(place), slot)
        for same in by_path.values()
    ]


def _either(problems: Sequence[Problem]) -> Problem:
    first, *others = dict.fromkeys(problems)
    if not others:
        return first
    kinds = [
        problem.remedy.partition("Set ")[2]
        if problem.id == "config-choice"
        else problem.rule.removeprefix("it must be ")
        for problem in (first, *others)
    ]
    return replace(first, rule=f"it must be {' or '.join(dict.fromkeys(kinds))}")


def _of_component(
    problem: Problem,
    kind: type[Section],
    args: Mapping[str, Any],
    owner: str,
    place: KeyPath,
    slot: str,
) -> Problem:
    path, known = problem.path, list(kind.model_fields)
    named = _NAMED.get(slot, {}).get(problem.id)
    id = named.id if named else problem.id
    if len(path) == 1:
        id = named.id if named else _IDS.get(problem.id, problem.id)
        if problem.id == "config-unknown-key":
            remedy = choose_from(path[0], known, f"{owner} takes") if known else "Remove it"
            problem = replace(problem, rule=f"{owner} takes no such argument", remedy=remedy)
        elif problem.id == "config-required":
            problem = replace(problem, rule=f"{owner} needs this argument", remedy="Set it")
    value = value_at(args, path)
    text = None if value is MISSING else shown(redact(value, (), (*place, *path)))
    return replace(problem, path=(*place, *path), id=id, shown=text)


@cache
def arguments_of(
    target: Callable[..., Any], left_out: frozenset[str] = frozenset()
) -> type[Section]:
    """The arguments of a class or function, from its signature.

    A class may declare them in a section `Options`, whose rules also apply.
    """
    options = getattr(target, "Options", None)
    try:
        hints = typing.get_type_hints(_annotated(target), include_extras=True)
        own = typing.get_type_hints(options, include_extras=True) if options else {}
    except NameError:  # an import for type checkers only: the names are known, not the types
        hints, own = {}, {}
    parameters = inspect.signature(target).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    fields: dict[str, Any] = {
        p.name: (
            own.get(p.name, hints.get(p.name, Any)),
            ... if p.default is p.empty else p.default,
        )
        for p in named
        if p.name not in left_out
    }
    base: type[Section] = OpenArguments if len(named) < len(parameters) else Arguments
    if options is not None and options.model_fields.keys() <= {p.name for p in named}:
        base = options
        required = (name for name in own if name in left_out and name in options.model_fields)
        fields |= {n: (Any, None) for n in required if options.model_fields[n].is_required()}
    model: type[Section] = create_model(target.__name__, __base__=base, **fields)
    return model


def _annotated(target: Callable[..., Any]) -> Any:
    return target.__init__ if isinstance(target, type) else inspect.unwrap(target)  # type: ignore[misc]
