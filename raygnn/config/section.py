"""The base of all config sections, and shared types."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from raygnn.errors import KeyPath, Problem, RuleError, parse_path

#: Result of `value_at` for a missing key, since None is a value.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()


def value_at(tree: Any, path: KeyPath) -> Any:
    for part in path:
        if isinstance(tree, list):
            has_part = isinstance(part, int) and 0 <= part < len(tree)
        else:
            has_part = isinstance(tree, dict) and part in tree
        if not has_part:
            return MISSING
        tree = tree[part]
    return tree


def set_value(tree: Any, path: KeyPath, value: Any) -> None:
    value_at(tree, path[:-1])[path[-1]] = value


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every value of a tree by path; lists of plain values are one value."""
    inner: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        inner = enumerate(value)
    if not inner:
        yield path, value
    for key, item in inner:
        yield from leaves(item, (*path, key))


def is_below(path: KeyPath, parent: KeyPath) -> bool:
    return path[: len(parent)] == parent


_ATTRIBUTES = re.compile(r"^(?:Args|Attributes):\n((?:    .*\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n     .*)*)", re.MULTILINE)


def meanings(*described: type) -> dict[str, str]:
    """The meaning of each argument or attribute, from the docstrings of classes and their bases."""
    found: dict[str, str] = {}
    for kind in (base for each in described for base in each.__mro__):
        for name, text in _entries(kind):
            found.setdefault(name, text)
    return found


def _entries(described: type) -> Iterator[tuple[str, str]]:
    docstring = inspect.cleandoc(vars(described).get("__doc__") or "")
    for block in _ATTRIBUTES.findall(f"{docstring}\n"):
        for names, text in _ENTRY.findall(block):
            yield from ((name, " ".join(text.split())) for name in names.split(", "))


def summary(described: type) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(described) or "").partition("\n\n")[0].split())


def _describe(schema: dict[str, Any], section: type) -> None:
    schema["description"] = summary(section)
    for name, meaning in meanings(section).items():
        if name in schema["properties"]:
            schema["properties"][name].setdefault("description", meaning)


class Rule(NamedTuple):
    """Keys that may not be set in a mode: a row of a table of what excludes what.

    Attributes:
        id: of the error.
        keys: dotted, separated by spaces. One is set if it is neither null, false nor its default.
        mode: whether the section is in the mode.
    """

    id: str
    keys: str
    mode: Callable[[Any], object]
    reason: str
    remedy: str


def broken(section: Section, rules: Iterable[Rule], read: Any = None) -> Iterator[Problem]:
    """A problem for each key that is set in a mode that excludes it. `read`: for the modes, in
    place of the section.
    """
    for rule in rules:
        for key in rule.keys.split() if rule.mode(read or section) else ():
            first, *rest = path = parse_path(key)
            default = type(section).model_fields[str(first)].get_default(call_default_factory=True)
            value = _inner(section, path)
            if value is not None and value is not False and value != _inner(default, rest):
                yield Problem(path, rule.reason, rule.remedy, id=rule.id)


def _inner(value: Any, path: Iterable[str | int]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else getattr(value, str(name), None)
    return value


class Section(BaseModel):
    """A frozen mapping of known keys, which checks the rules among its own keys.

    Its docstring lists the meaning of each key under `Attributes`.
    """

    rules: ClassVar[tuple[Rule, ...]] = ()

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        json_schema_extra=_describe,
    )

    def broken_rules(self) -> Iterable[Problem]:
        """Broken rules that are no row of `rules`; paths are relative to the section."""
        return ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        if problems := [*broken(self, self.rules), *self.broken_rules()]:
            raise RuleError.of(problems)
        return self


def sections_in(annotation: Any) -> list[type[Section]]:
    """The section classes in a type, including those of unions and of items of lists and maps."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [inner for arg in typing.get_args(annotation) for inner in sections_in(arg)]


def sections_along(
    path: KeyPath, root: type[BaseModel]
) -> Iterator[Sequence[type[BaseModel]] | None]:
    """For each key of a path, the sections that it may belong to, and lastly those at its end.

    Yields None for an index, and for a key of a map, which is the user's own.
    """
    sections: Sequence[type[BaseModel]] = [root]
    is_map = is_list = False
    for part in path:
        if isinstance(part, int) or is_map:
            yield None
            # A list in the place of a section is short for the one of its keys that is a list.
            is_short = not is_map and not is_list
            listed = [inner for s in sections for inner in _listed_in(s)] if is_short else []
            sections = listed or sections
            is_map = is_list = False
            continue
        yield sections
        fields = [s.model_fields[part] for s in sections if part in s.model_fields]
        sections = [inner for field in fields for inner in sections_in(field.annotation)]
        is_map = any(typing.get_origin(field.annotation) is dict for field in fields)
        is_list = any(typing.get_origin(field.annotation) in (list, tuple) for field in fields)
    yield sections


def sections_at(path: KeyPath, root: type[BaseModel]) -> Sequence[type[BaseModel]]:
    *_, sections = sections_along(path, root)
    return sections or []


def _listed_in(section: type[BaseModel]) -> list[type[Section]]:
    lists = [f for f in section.model_fields.values() if typing.get_origin(f.annotation) is tuple]
    return [inner for field in lists for inner in sections_in(field.annotation)]


def _whole(value: Any) -> Any:
    """`1e6` is a float in YAML, and a natural way to write a count."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
    return int(value) if is_whole else value


Whole = Annotated[int, BeforeValidator(_whole)]

PositiveWhole = Annotated[int, BeforeValidator(_whole), Field(gt=0)]

NonNegativeWhole = Annotated[int, BeforeValidator(_whole), Field(ge=0)]

Seed = Annotated[int, BeforeValidator(_whole), Field(ge=0, lt=2**63)]  # int64, as torch has it

PositiveNumber = Annotated[float, Field(gt=0)]

NonNegativeNumber = Annotated[float, Field(ge=0)]

NonEmptyText = Annotated[str, Field(min_length=1)]


class Component(Section):
    """`{type: name, args: {...}}`, or the name alone; a short name or a dotted path.

    Attributes:
        type: Short name, or dotted path of a class.
        args: Arguments of its constructor; nested with `__type`.
    """

    type: NonEmptyText
    args: dict[str, Any] = Field(default_factory=dict)
    # The class or object itself, where Python code gave it instead of its name.
    _given: Any = PrivateAttr(default=None)

    @property
    def given(self) -> Any:
        return self._given

    def give(self, thing: Any) -> None:
        self._given = thing

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_name(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        full = handler.resolve_ref_schema(handler(core_schema))
        return {"anyOf": [{"type": "string", "minLength": 1}, full]}


class Period(Section):
    """`{steps: 20}`, `{epochs: 1}` or several of them: due when any is.

    Attributes:
        steps: Optimizer steps.
        batches: Micro-batches, over all workers.
        epochs: Passes over the training seeds.
        samples: Training seeds, over all workers.
    """

    steps: PositiveWhole | None = None
    batches: PositiveWhole | None = None
    epochs: PositiveWhole | None = None
    samples: PositiveWhole | None = None

    def broken_rules(self) -> Iterable[Problem]:
        if (self.steps, self.batches, self.epochs, self.samples) == (None,) * 4:
            rule, remedy = "a period needs a unit", "Set it as in {epochs: 1} or {steps: 20}"
            yield Problem((), rule, remedy, id="config-period")
