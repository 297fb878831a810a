"""Arguments of components: read off their signatures, and validated."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from pydantic import ConfigDict, create_model

from raygnn.config.section import MISSING, Section, value_at
from raygnn.config.validation import broken_section
from raygnn.errors import ConfigError, KeyPath, Problem, choose_from, parse_path, shown
from raygnn.redaction import redact


class Arguments(Section):
    """The arguments of a component, some of which may be objects."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


class OpenArguments(Arguments):
    """Base of arguments of components that accept further ones."""

    model_config = ConfigDict(extra="allow")


A = TypeVar("A", bound=Section)

_RANGE, _TYPE, _CHOICE = "config-range", "config-type", "config-choice"
_OF_MODELS = {_CHOICE: "model-argument-choice", **dict.fromkeys((_RANGE, _TYPE), "model-argument")}
#: Error ids of component arguments, by slot and general id.
IDS_OF_SLOTS: Mapping[str, Mapping[str, str]] = {
    "task": {
        "config-unknown-key": "task-argument-unknown",
        _CHOICE: "task-argument-choice",
        _RANGE: "task-argument-range",
    },
    "model": _OF_MODELS,
    "decoder": _OF_MODELS,
    "loss": dict.fromkeys((_CHOICE, _RANGE, _TYPE), "loss-argument"),
    "metric": dict.fromkeys((_TYPE, _RANGE, "config-length"), "metric-ks"),
    "method": dict.fromkeys((_RANGE, _TYPE), "method-argument-range"),
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
    kind: type[Section],
    args: Mapping[str, Any],
    owner: str,
    place: str,
    slot: str = "",
    injected: Collection[str] = (),
) -> list[Problem]:
    """Problems of a component's arguments. `injected`: those that raygnn may add."""
    fields, later = kind.model_fields, {*injected}.difference(args)
    absent = {name for name in later & fields.keys() if fields[name].is_required()}
    if absent:
        more: dict[str, Any] = dict.fromkeys(absent, (Any, None))
        kind = create_model(kind.__name__, __base__=kind, **more)
    by_path: dict[KeyPath, list[Problem]] = {}
    for problem in broken_section(kind, args):
        by_path.setdefault(problem.path, []).append(problem)
    known = [name for name in fields if name not in later]
    return [
        _of_component(_either(same), known, args, owner, parse_path(place), slot)
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
    known: Sequence[str],
    args: Mapping[str, Any],
    owner: str,
    place: KeyPath,
    slot: str,
) -> Problem:
    path = problem.path
    ids = {**(_IDS if len(path) == 1 else {}), **IDS_OF_SLOTS.get(slot, {})}
    id = ids.get(problem.id, problem.id)
    if len(path) == 1:
        if problem.id == "config-unknown-key":
            remedy = choose_from(path[0], known, f"{owner} takes") if known else "Remove it"
            problem = replace(problem, rule=f"{owner} takes no such argument", remedy=remedy)
        elif problem.id == "config-required":
            problem = replace(problem, rule=f"{owner} needs this argument", remedy="Set it")
    value = value_at(args, path)
    text = None if value is MISSING else shown(redact(value, (), (*place, *path)))
    return replace(problem, path=(*place, *path), id=id, shown=text)


@cache
def section_of(component: Callable[..., Any]) -> type[Section]:
    """The section of a component's arguments: that of a class that declares `Options` and takes
    them as `**options`, else one of the parameters of its signature.
    """
    parameters = inspect.signature(component).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    is_open = len(named) < len(parameters)
    if is_open and (options := getattr(component, "Options", None)) is not None:
        declared: type[Section] = options
        return declared
    function: Any = component.__init__ if isinstance(component, type) else component  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except NameError:  # an import for type checkers only: the names are known, not the types
        hints = {}
    fields: dict[str, Any] = {
        p.name: (hints.get(p.name, Any), ... if p.default is p.empty else p.default) for p in named
    }
    base = OpenArguments if is_open else Arguments
    model: type[Section] = create_model(component.__name__, __base__=base, **fields)
    return model
