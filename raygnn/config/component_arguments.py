"""Config keys, arguments of raygnn's components, and the JSON Schema of both."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union

from pydantic import PydanticUserError, TypeAdapter
from pydantic_core import PydanticUndefined, to_jsonable_python

from raygnn.config.arguments import arguments_of
from raygnn.config.imports import import_dotted
from raygnn.config.registry import SLOTS, TASK_TARGETS
from raygnn.config.schema import Config
from raygnn.config.section import Component, Section, sections_in

#: The slots whose short names are classes of raygnn; those of others are documented by torch.
OWN_SLOTS = ("task", "model", "decoder", "method", "loss", "metric", "logger")

_SECTION = re.compile(r"^(Args|Attributes):$")
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*)$")

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
        meanings = _meanings(component, record)
        arguments = tuple(
            Argument(key, hints[key], field.default, meanings.get(key, ""))
            for key, field in section.model_fields.items()
        )
        is_open = slot == "logger" and section.model_config["extra"] == "allow"
        summary = " ".join((inspect.getdoc(component) or "").partition("\n\n")[0].split())
        yield Described(name, summary, arguments, is_open)


def config_keys() -> list[str]:
    """Every key by dotted path, without the content of lists and components."""
    found = list(Config.model_fields)
    for path, section in subsections("", Config):
        if "[]" not in path:
            found += [f"{path.partition(' ')[0]}.{name}" for name in section.model_fields]
    return list(dict.fromkeys(found))


def subsections(path: str, section: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    """The sections in a section, by dotted path; `[]` marks lists."""
    for name, field in section.model_fields.items():
        for inner in sections_in(field.annotation):
            if inner is Component:
                continue
            inner_path = f"{path}.{name}" if path else name
            if any(typing.get_origin(member) is list for member in members(field.annotation)):
                inner_path += "[]"
            kinds = typing.get_args(_annotation_of(inner, "type"))
            title = f"{inner_path} ({kinds[0]})" if len(kinds) == 1 else inner_path
            yield title, inner
            yield from subsections(inner_path, inner)


def _annotation_of(section: type[Section], name: str) -> Any:
    field = section.model_fields.get(name)
    return field.annotation if field else None


def members(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return members(typing.get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [m for arg in typing.get_args(annotation) for m in members(arg)]
    return [annotation]


def config_json_schema() -> dict[str, Any]:
    """The JSON Schema of a config file, in pydantic's dialect, including arguments of raygnn's
    components. Imports their classes.
    """
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
    found: dict[str, Any] = {}
    if argument.annotation is Component:  # its slot has the argument's name
        _add_types(found, argument.name)
    elif kind := _schema_of_type(argument.annotation):
        found["anyOf"] = [kind, _NESTED]
    if argument.meaning:
        found["description"] = argument.meaning
    if argument.default is not PydanticUndefined:
        found["default"] = to_jsonable_python(argument.default)
    return found


def _schema_of_type(annotation: Any) -> dict[str, Any]:
    if annotation is None:
        return {}
    try:
        return TypeAdapter(annotation).json_schema()
    except PydanticUserError:  # no type of JSON
        return {}


def _import(path: str) -> Any:
    return import_dotted(path, ("raygnn",), takes_functions=False)


def _meanings(component: type, record: type | None) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for described in (*component.__mro__, *(record.__mro__ if record else ())):
        for name, text in _entries(described):
            found.setdefault(name, text)
    return found


def _entries(described: type) -> Iterator[tuple[str, str]]:
    lines = inspect.cleandoc(vars(described).get("__doc__") or "").splitlines()
    names: list[str] = []
    texts: list[str] = []
    is_inside = False
    for line in [*lines, "End:"]:
        entry = _ENTRY.match(line) if is_inside else None
        if entry or not line.startswith("     "):
            text = " ".join(texts)
            yield from ((name, text) for name in names)
            names, texts = [], []
        if entry:
            names, texts = entry[1].split(", "), [entry[2]]
        elif names:
            texts.append(line.strip())
        if not line.startswith(" ") and line:
            is_inside = _SECTION.match(line) is not None
