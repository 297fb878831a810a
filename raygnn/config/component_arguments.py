"""The arguments of raygnn's own components, and the JSON Schema of a config that knows them."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from pydantic import PydanticUserError, TypeAdapter
from pydantic_core import PydanticUndefined, to_jsonable_python

from raygnn.config.components import import_dotted
from raygnn.config.schema import Config
from raygnn.config.section import Component, Section
from raygnn.config.slots import SLOTS, TASK_TARGETS

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
        annotation: its type, None where the code gives none.
        default: `PydanticUndefined` where it is required.
        meaning: from the docstring of its class, or of the record that holds it.
    """

    name: str
    annotation: Any
    default: Any
    meaning: str


@dataclass(frozen=True)
class Described:
    """A component by its short name.

    Attributes:
        summary: the first paragraph of its docstring.
        is_open: whether it takes arguments beside those that it names.
    """

    name: str
    summary: str
    arguments: tuple[Argument, ...]
    is_open: bool


def describe(slot: str) -> Iterator[Described]:
    """The components of a slot of `OWN_SLOTS`. Imports their classes, and with them torch."""
    for name, path in SLOTS[slot].names.items():
        component = _import(path)
        record = _record_of(name, component)
        parameters = inspect.signature(component).parameters.values()
        hints = _hints(component.__init__) | (_hints(record) if record else {})
        meanings = _meanings(component, record)
        if slot == "task" and record is not None and issubclass(record, Section):
            given = [(key, field.default) for key, field in record.model_fields.items()]
        else:
            kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            given = [
                (p.name, PydanticUndefined if p.default is p.empty else p.default)
                for p in parameters
                if p.kind not in kinds and p.name not in SLOTS[slot].injected
            ]
        arguments = tuple(
            Argument(key, hints.get(key), default, meanings.get(key, "")) for key, default in given
        )
        is_open = slot == "logger" and any(p.kind is p.VAR_KEYWORD for p in parameters)
        summary = " ".join((inspect.getdoc(component) or "").partition("\n\n")[0].split())
        yield Described(name, summary, arguments, is_open)


def config_json_schema() -> dict[str, Any]:
    """The schema of a config file, in the dialect that pydantic writes.

    It knows the arguments of raygnn's own components, whose classes it imports.
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


def _record_of(name: str, component: Any) -> type | None:
    """The class of a component's arguments, where it keeps them in one."""
    if name in TASK_TARGETS:
        component = _import(TASK_TARGETS[name])
    record = getattr(component, "Arguments", None) or getattr(component, "Options", None)
    is_record = isinstance(record, type) and (is_dataclass(record) or issubclass(record, Section))
    return record if is_record else None


def _hints(annotated: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(annotated, include_extras=True)
    except NameError:  # of what is imported for type checkers only
        return {}


def _meanings(component: type, record: type | None) -> Mapping[str, str]:
    """By argument, from the class that is most derived."""
    found: dict[str, str] = {}
    for described in (*component.__mro__, *(record.__mro__ if record else ())):
        for name, text in _entries(described):
            found.setdefault(name, text)
    return found


def _entries(described: type) -> Iterator[tuple[str, str]]:
    """The entries of the sections Args and Attributes of a class's own docstring."""
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
