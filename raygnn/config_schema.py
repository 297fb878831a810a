"""The config described: its keys, arguments of components, and JSON Schema."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Union

from pydantic import PydanticUserError, TypeAdapter
from pydantic_core import PydanticUndefined, to_jsonable_python

from raygnn.config import Component, Config
from raygnn.config.arguments import section_of
from raygnn.config.imports import import_dotted
from raygnn.config.registry import SLOTS
from raygnn.config.section import Section, meanings, sections_in, summary

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
        component: Any = import_dotted(path, ("raygnn",), takes_functions=False)
        section = section_of(component)
        hints = typing.get_type_hints(section, include_extras=True)
        meaning = meanings(component, section)
        arguments = tuple(
            Argument(key, hints[key], field.default, meaning.get(key, ""))
            for key, field in section.model_fields.items()
            if key not in SLOTS[slot].injected
        )
        is_open = slot == "logger" and section.model_config["extra"] == "allow"
        yield Described(name, summary(component), arguments, is_open)


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
