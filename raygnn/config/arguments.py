"""Arguments of components: read off their signatures, validated, and described in JSON Schema."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, TypeVar, Union

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, create_model
from pydantic_core import PydanticUndefined, to_jsonable_python

from raygnn.config.imports import import_dotted
from raygnn.config.redaction import redact
from raygnn.config.registry import SLOTS, TASK_TARGETS
from raygnn.config.schema import Config
from raygnn.config.section import (
    MISSING,
    Component,
    Section,
    meanings,
    sections_in,
    summary,
    value_at,
)
from raygnn.config.validation import broken_section
from raygnn.errors import ConfigError, KeyPath, Problem, choose_from, parse_path, shown


class Arguments(Section):
    """The arguments of a component, some of which may be objects."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


class OpenArguments(Arguments):
    """Base of arguments of components that accept further ones."""

    model_config = ConfigDict(extra="allow")


A = TypeVar("A", bound=Section)

_RANGE, _TYPE, _CHOICE = "config-range", "config-type", "config-choice"
_OF_MODELS = {
    _CHOICE: "model-argument-choice",
    **dict.fromkeys((_RANGE, _TYPE), "model-argument"),
}
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
    kind: type[Section], args: Mapping[str, Any], owner: str, place: str, slot: str = ""
) -> list[Problem]:
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
def arguments_of(
    target: Callable[..., Any], left_out: frozenset[str] = frozenset()
) -> type[Section]:
    """The arguments of a class or function, from its signature.

    A class may declare them in a section `Options`, whose rules also apply.
    """
    options = getattr(target, "Options", None)
    try:
        hints = typing.get_type_hints(_annotated(target), include_extras=True)
        typed = typing.get_type_hints(options, include_extras=True) if options else {}
    except NameError:  # an import for type checkers only: the names are known, not the types
        hints, typed = {}, {}
    parameters = inspect.signature(target).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    fields: dict[str, Any] = {
        p.name: (
            typed.get(p.name, hints.get(p.name, Any)),
            ... if p.default is p.empty else p.default,
        )
        for p in named
        if p.name not in left_out
    }
    base: type[Section] = OpenArguments if len(named) < len(parameters) else Arguments
    if options is not None and options.model_fields.keys() <= {p.name for p in named}:
        base = options
        required = (name for name in typed if name in left_out and name in options.model_fields)
        fields |= {n: (Any, None) for n in required if options.model_fields[n].is_required()}
    model: type[Section] = create_model(target.__name__, __base__=base, **fields)
    return model


def _annotated(target: Callable[..., Any]) -> Any:
    return target.__init__ if isinstance(target, type) else inspect.unwrap(target)  # type: ignore[misc]


#: Slots whose short names are classes of raygnn. Torch documents the other classes.
OWN_SLOTS = ("task", "model", "decoder", "method", "loss", "metric", "logger")

#: An object that raygnn builds, in the place of any value of `args`.
_NESTED = {"type": "object", "required": ["__type"]}


@dataclass(frozen=True)
class Argument:
    """One argument that a config may set.

    Attributes:
        annotation: its type; None if the code has none.
        meaning: from the docstring of its class, or of its options.
    """

    name: str
    annotation: Any
    default: Any
    meaning: str


@dataclass(frozen=True)
class Described:
    """A component by short name.

    Attributes:
        summary: the first paragraph of its docstring.
        is_open: whether it accepts further arguments.
    """

    name: str
    summary: str
    arguments: tuple[Argument, ...]
    is_open: bool


def describe(slot: str) -> Iterator[Described]:
    """The components of a slot of `OWN_SLOTS`. Imports their classes, and with them torch."""
    for name, path in SLOTS[slot].names.items():
        component = _import(path)
        target = _import(TASK_TARGETS[name]) if slot == "task" else component
        kind = getattr(target, "Arguments", None)
        record = kind or getattr(target, "Options", None)
        section = kind or arguments_of(component, SLOTS[slot].injected)
        hints = typing.get_type_hints(section, include_extras=True)
        meaning = meanings(component, *([record] if record else []))
        arguments = tuple(
            Argument(key, hints[key], field.default, meaning.get(key, ""))
            for key, field in section.model_fields.items()
        )
        is_open = slot == "logger" and section.model_config["extra"] == "allow"
        yield Described(name, summary(component), arguments, is_open)


def config_keys() -> list[str]:
    """Every key by dotted path, without the content of lists and components."""
    keys = list(Config.model_fields)
    for path, section in subsections("", Config):
        if "[]" not in path:
            keys += [f"{path.partition(' ')[0]}.{name}" for name in section.model_fields]
    return list(dict.fromkeys(keys))


def subsections(path: str, section: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    """The sections in a section, by dotted path; `[]` marks lists."""
    for name, field in section.model_fields.items():
        for inner in sections_in(field.annotation):
            if inner is Component:
                continue
            inner_path = f"{path}.{name}" if path else name
            if any(typing.get_origin(member) is list for member in members(field.annotation)):
                inner_path += "[]"
            kind = inner.model_fields.get("type")
            kinds = typing.get_args(kind.annotation) if kind else ()
            title = f"{inner_path} ({kinds[0]})" if len(kinds) == 1 else inner_path
            yield title, inner
            yield from subsections(inner_path, inner)


def members(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return members(typing.get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [m for arg in typing.get_args(annotation) for m in members(arg)]
    return [annotation]


def config_json_schema() -> dict[str, Any]:
    """JSON Schema of a config file with the arguments of components, whose classes it imports."""
    schema = Config.model_json_schema()
    for slot in ("task", "model", "metric", "logger"):
        place = schema["properties"][SLOTS[slot].path]
        _add_types(place.get("items", place), slot)
    _add_types(schema["$defs"]["LossTerm"], "loss")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "raygnn config",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _add_types(place: dict[str, Any], slot: str) -> None:
    place["allOf"] = [*place.get("allOf", []), *(_if_named(each) for each in describe(slot))]


def _if_named(component: Described) -> dict[str, Any]:
    args = {
        "properties": {argument.name: _schema_of(argument) for argument in component.arguments},
        "additionalProperties": component.is_open,
    }
    return {
        "if": {"type": "object", "properties": {"type": {"const": component.name}},
               "required": ["type"]},
        "then": {"properties": {"args": args}},
    }  # fmt: skip


def _schema_of(argument: Argument) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if argument.annotation is Component:  # its slot has the argument's name
        _add_types(schema, argument.name)
    elif kind := _schema_of_type(argument.annotation):
        schema["anyOf"] = [kind, _NESTED]
    if argument.meaning:
        schema["description"] = argument.meaning
    if argument.default is not PydanticUndefined:
        schema["default"] = to_jsonable_python(argument.default)
    return schema


def _schema_of_type(annotation: Any) -> dict[str, Any]:
    if annotation is None:
        return {}
    try:
        return TypeAdapter(annotation).json_schema()
    except PydanticUserError:  # no type of JSON
        return {}


def _import(path: str) -> Any:
    return import_dotted(path, ("raygnn",), takes_functions=False)
