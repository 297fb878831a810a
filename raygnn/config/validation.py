"""Validates a plain tree against a schema, and rewords pydantic's errors."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from raygnn.config.cross_rules import broken_cross_rules
from raygnn.config.registry import SLOTS
from raygnn.config.schema import EACH_SECTION_ALONE, Config
from raygnn.config.section import MISSING, Section, sections_at, set_value, value_at
from raygnn.config.sections import SEVERAL_TASKS
from raygnn.documents import parse_yaml
from raygnn.errors import DataError, KeyPath, Problem, RuleError, choose_from, shown

S = TypeVar("S", bound=Section)

_KINDS = {
    "int_type": ("a whole number", "Set a whole number"),
    "float_type": ("a number", "Set a number"),
    "bool_type": ("true or false", "Set true or false"),
    "string_type": ("a text", "Set a text; quote what looks like a number, as '\"1\"'"),
    "string_too_short": ("a text that is not empty", "Set a text, or null where that is allowed"),
    "sequence_type": ("a list", "Set a list, as [a, b]"),
    "list_type": ("a list", "Set a list, as [a, b]"),
    "tuple_type": ("a list", "Set a list, as [a, b]"),
    "dict_type": ("a mapping", "Set a mapping, as {key: value}"),
    "model_type": ("a mapping", "Set a mapping of keys, as {key: value}"),
    "model_attributes_type": ("a mapping", "Set a mapping of keys, as {key: value}"),
    "finite_number": ("finite", "Set a finite number"),
    "greater_than": ("greater than %(gt)g", "Set a number greater than %(gt)g"),
    "greater_than_equal": ("at least %(ge)g", "Set a number of at least %(ge)g"),
    "less_than": ("less than %(lt)g", "Set a number less than %(lt)g"),
    "less_than_equal": ("at most %(le)g", "Set a number of at most %(le)g"),
}

_CLASSES = {"Sequence": "list_type", "Mapping": "dict_type"}

_RANGES = ("finite_number", "greater_than", "greater_than_equal", "less_than", "less_than_equal")


def validate(
    value: Mapping[str, Any], texts: Mapping[KeyPath, str], broken: Iterable[str] = ()
) -> tuple[Config, frozenset[str], list[Problem]]:
    """Validates each section, then the rules between valid ones.

    Args:
        value: the resolved tree.
        texts: original texts of scalars whose type was guessed (overrides, environment), so that
            `--run.name 2024` is a text.
        broken: top-level keys known to be wrong already.
    Returns:
        The config with broken sections at their defaults, their top-level keys, and all problems.
    """
    config, errors = _validated(Config, value, EACH_SECTION_ALONE)
    guessed = {
        path
        for error in errors
        if error["type"] == "string_type"
        and (path := _real_path(error["loc"], value, "string_type")) in texts
    }
    if guessed:
        value = deepcopy(value)
        for path in guessed:
            set_value(value, path, texts[path])
        config, errors = _validated(Config, value, EACH_SECTION_ALONE)
    problems = list(_translate(errors, value, Config))
    all_broken = frozenset(broken) | {str(p.path[0]) for p in problems if p.path}
    if config is None or all_broken:
        sound = {key: section for key, section in value.items() if key not in all_broken}
        config = Config.model_validate(sound, context=EACH_SECTION_ALONE)
    between = [p for p in broken_cross_rules(config) if not p.needs & all_broken]
    return config, all_broken, problems + between


def validate_file(root: type[S], text: str, name: str) -> S:
    """Reads a YAML file that describes data, in the version of its key `format`.

    Args:
        name: of the file, for messages.
    Raises:
        DataError: it is not YAML, or breaks rules; lists all with file, line, key and remedy.
    """
    (known,) = typing.get_args(root.model_fields["format"].annotation)
    try:
        document = parse_yaml(text)
    except RuleError as error:
        raise DataError(error.text(name, "the file")) from None
    if document.problems:
        problems = document.problems
    elif not isinstance(document.value, dict) or document.value.get("format") != known:
        file_format = document.value.get("format") if isinstance(document.value, dict) else None
        rule = f"this raygnn reads {known!r} only"
        remedy = f"Begin the file with 'format: {known}', or use the raygnn that wrote it"
        text = Problem(("format",), rule, remedy, "document-format", shown(file_format)).text(name)
        raise DataError(f"{text}\nSee docs/graph-format.md for the format.")
    else:
        model, errors = _validated(root, document.value)
        if model is not None:
            return model
        problems = list(_translate(errors, document.value, root))
    texts = [p.text(f"{name}:{p.line or document.line(p.path)}", "the file") for p in problems]
    raise DataError("\n".join(dict.fromkeys(texts)) + "\nSee docs/graph-format.md for the format.")


def broken_section(root: type[Section], value: Mapping[str, Any]) -> list[Problem]:
    return list(_translate(_validated(root, value)[1], value, root))


def _validated(
    root: type[S], value: Mapping[str, Any], context: str | None = None
) -> tuple[S | None, list[Any]]:
    try:
        return root.model_validate(value, context=context), []
    except ValidationError as error:
        return None, list(error.errors(include_url=False, include_input=False))


def _translate(
    errors: Iterable[Any], value: Mapping[str, Any], root: type[BaseModel]
) -> Iterator[Problem]:
    for error in errors:
        path = _real_path(error["loc"], value, error["type"])
        context = error.get("ctx", {})
        if isinstance(broken := context.get("error"), RuleError):
            yield from (p.at(path) for p in broken.records if isinstance(p, Problem))
        else:
            yield _problem(error, path, context, value, root)


def _problem(
    error: Mapping[str, Any],
    path: KeyPath,
    context: Mapping[str, Any],
    value: Mapping[str, Any],
    root: type[BaseModel],
) -> Problem:
    kind = error["type"]
    if kind == "extra_forbidden":
        keys = _keys_at(path[:-1], value, root)
        remedy = choose_from(path[-1], keys, "Keys here")
        return Problem(path, "unknown key", remedy, id="config-unknown-key")
    if kind == "missing":
        return Problem(path, "it is required", f"Set {path[-1]}", id="config-required")
    if kind in ("literal_error", "union_tag_invalid"):
        expected = str(context.get("expected", context.get("expected_tags", "")))
        choices = [_yaml_word(choice) for choice in expected.replace(" or ", ", ").split(", ")]
        field_path = path if kind == "literal_error" else (*path, "type")
        input_value = value_at(value, field_path)
        remedy = choose_from(input_value, choices)
        return Problem(field_path, "unknown value", remedy, id="config-choice")
    if kind == "union_tag_not_found":
        types = [choice for section in sections_at(path, root) for choice in _literals(section)]
        remedy = choose_from("", types)
        return Problem((*path, "type"), "it is required", remedy, id="config-required")
    if kind in ("too_short", "too_long"):
        limit = context.get("min_length", context.get("max_length"))
        bound, remedy = ("least", "Add some") if kind == "too_short" else ("most", "Remove some")
        rule = f"it needs at {bound} {limit}, and has {context.get('actual_length')}"
        return Problem(path, rule, remedy, id="config-length")
    if kind == "is_instance_of" and context.get("class") in _CLASSES:
        return type_rule({"type": _CLASSES[str(context["class"])]}).at(path)
    if kind in ("model_type", "model_attributes_type") and (names := _short_names(path)):
        remedy = f"{choose_from('', names)}, or a dotted path"
        rule = "it must be the name of a component, or a mapping with type and args"
        return Problem(path, rule, remedy, id="config-type")
    if kind in _KINDS:
        return type_rule(error).at(path)
    return Problem(path, str(error["msg"]).lower(), "Set another value", id="config-value")


def _short_names(path: KeyPath) -> list[str]:
    if path[:1] == ("tasks",) and len(path) == 2:
        return sorted(SLOTS["task"].names.keys() - {SEVERAL_TASKS})
    place = ".".join(key for key in path if isinstance(key, str))
    return [name for slot in SLOTS.values() if slot.path == place for name in sorted(slot.names)]


def type_rule(error: Mapping[str, Any]) -> Problem:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        key = error["loc"][-1]
        return Problem((), f"it must be a mapping with {key}", f"Set {key}", id="config-required")
    what, remedy = _KINDS.get(kind, ("something else", "Set another value"))
    rule = f"it must be {what % context}"
    if kind in _RANGES:
        return Problem((), rule, remedy % context, id="config-range")
    return Problem((), rule, remedy % context, id="config-type")


def _yaml_word(choice: str) -> str:
    word = choice.strip().strip("'")
    return word.lower() if word in ("True", "False") else word


def _real_path(loc: tuple[str | int, ...], value: Any, kind: str) -> KeyPath:
    path: list[str | int] = []
    for position, part in enumerate(loc):
        inner = value_at(value, (part,))
        is_last = position == len(loc) - 1
        if inner is not MISSING or (is_last and kind == "missing"):
            path.append(part)
            value = inner
    return tuple(path)


def _keys_at(path: KeyPath, value: Mapping[str, Any], root: type[BaseModel]) -> list[str]:
    sections = sections_at(path, root)
    kind = value_at(value, (*path, "type"))
    matching = [s for s in sections if kind in _literals(s)] or sections
    return list(dict.fromkeys(name for section in matching for name in section.model_fields))


def _literals(section: type[BaseModel]) -> tuple[Any, ...]:
    field = section.model_fields.get("type")
    return typing.get_args(field.annotation) if field is not None else ()
