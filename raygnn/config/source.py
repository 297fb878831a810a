"""The user's input: a config, and overrides of the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from raygnn import documents
from raygnn.config.registry import SLOTS
from raygnn.config.section import is_below, value_at
from raygnn.errors import ConfigError, KeyPath, Problem, RuleError, did_you_mean, dotted, parse_path
from raygnn.redaction import redact_text

_KEY_AND_VALUE = re.compile(r"\s*[\w\"']+:(\s|$)")


@dataclass
class Source:
    """A config as written, and its overrides.

    Attributes:
        name, lines: of the file, for messages.
        origins: the override that set a key, such as `--seed`.
        texts: values of overrides as written.
    """

    value: dict[str, Any]
    name: str | None = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set, repr=False)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)

    def origin(self, path: KeyPath) -> str | None:
        """The override that set a key, or the line of the key or of the nearest one above it."""
        at_or_above = [path[:length] for length in range(len(path), 0, -1)]
        origins = [self.origins[place] for place in at_or_above if place in self.origins]
        if path and path not in self.lines:  # an override may have made this section
            origins += [origin for known, origin in self.origins.items() if is_below(known, path)]
        lines = [self.lines[place] for place in at_or_above if place in self.lines]
        return next(iter([*origins, *map(self.at_line, lines)]), self.name)

    def at_line(self, line: int) -> str:
        return f"{self.name}:{line}" if self.name else f"line {line}"


def read_source(source: str | os.PathLike[str] | Mapping[str, Any] | BaseModel) -> Source:
    """Reads a config; a text with a newline, or `key: value`, is YAML. Raises a ConfigError."""
    if isinstance(source, Mapping | BaseModel):
        given = Source({})
        given.value = to_plain(source, given.problems, given.secrets)
        return given
    name = os.fspath(source)
    if not isinstance(name, str):
        raise ConfigError(
            "CONFIG is invalid: its path is made of bytes. Set a text. [config-unreadable]"
        )
    if isinstance(source, str) and _is_yaml(source):
        return parse_source(source, None)
    return parse_source(_read(name), redact_text(name))


def _is_yaml(text: str) -> bool:
    is_text = "\n" in text or text.lstrip().startswith("{")
    return is_text or _KEY_AND_VALUE.match(text) is not None


def _read(name: str) -> str:
    shown = f"CONFIG={redact_text(name)!r} is invalid"
    try:
        if "://" not in name:
            with Path(name).expanduser().open(encoding="utf-8") as file:
                return file.read(documents.MAX_CHARACTERS + 1)
        import fsspec  # imported late: most configs are local files

        with fsspec.open(name, "rt", encoding="utf-8") as file:
            return str(file.read(documents.MAX_CHARACTERS + 1))
    except FileNotFoundError:
        rule = "the file does not exist"
    except IsADirectoryError:
        rule = "it is a folder"
    except UnicodeDecodeError:
        rule = "it is not UTF-8 text"
    except Exception as error:  # noqa: BLE001 - each fsspec backend raises its own
        rule = f"it cannot be read: {redact_text(str(error))}"
    raise ConfigError(f"{shown}: {rule}. Set a path or URI of a YAML file. [config-unreadable]")


def parse_source(text: str, name: str | None) -> Source:
    """Parses a config from YAML; `name` is the file in messages. Raises a ConfigError."""
    try:
        document = documents.parse_yaml(text)
    except RuleError as error:
        raise ConfigError(error.text(name, "config")) from None
    value = {} if document.value is None else document.value
    source = Source(value, name, document.lines, document.problems)
    if not isinstance(value, dict):
        raise ConfigError(
            f"{source.at_line(1)}: config is invalid: it is a {type(value).__name__}, not a "
            "mapping. Set keys with values, as in seed: 0. [config-not-mapping]"
        )
    return source


def to_plain(value: Any, problems: list[Problem], secrets: set[str]) -> Any:
    """A deep copy of a Python caller's value, as mappings, lists and scalars.

    Args:
        problems: receives one for each other value.
        secrets: receives the values of every `SecretStr`.
    Raises:
        RuleError: it is beyond a limit, or contains itself.
    """
    return _Copier(problems, secrets).copy(value, ())


class _Copier:
    def __init__(self, problems: list[Problem], secrets: set[str]) -> None:
        self._problems, self._secrets, self._limits = problems, secrets, documents.Limits()

    def copy(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, BaseModel):
            value = value.model_dump()
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, SecretStr):
            value = value.get_secret_value()
            self._secrets.add(value)
        self._limits.check(value, len(path))
        if isinstance(value, Mapping):
            return {str(key): self._item(key, inner, path) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.copy(inner, (*path, i)) for i, inner in enumerate(value)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        item = getattr(value, "item", None)  # numpy's and torch's scalars
        if callable(item) and getattr(value, "ndim", None) == 0:
            return self.copy(item(), path)
        rule = f"a {type(value).__name__} cannot be saved with the run"
        remedy = "Set a plain value, list or mapping, or {__type: dotted.path.of.its.Class}"
        self._problems.append(Problem(path, rule, remedy, id="config-not-plain"))
        return None

    def _item(self, key: Any, value: Any, path: KeyPath) -> Any:
        if not isinstance(key, str):
            place, rule = (*path, str(key)), "a key must be a string"
            self._problems.append(Problem(place, rule, "Quote it", id="config-key-not-text"))
        self._limits.check(key, len(path))
        return self.copy(value, (*path, str(key)))


_COMPONENT_KEYS = ("type", "args", "interaction", "relative_time")

_MAX_SHOWN = 120  # characters of a name in a message


@dataclass(frozen=True)
class Override:
    """One change of the config; `text` is its value as written, None for a deletion or a flag."""

    path: KeyPath
    value: Any = None
    text: str | None = None
    deletes: bool = False

    @property
    def origin(self) -> str:
        return f"--{dotted(self.path)}{'!' if self.deletes else ''}"


def apply_overrides(
    source: Source, tokens: Sequence[str], defaults: Mapping[str, Any]
) -> list[Problem]:
    """Applies overrides to a source, in order; the last one wins. Returns their problems.

    Args:
        defaults: source of lists that the config does not set, when one of their items is
            overridden.
    """
    problems: list[Problem] = []
    for override in _parse(tokens, problems):
        try:
            _apply(override, source.value, defaults)
        except RuleError as misfit:
            problems.append(misfit.problem.at(override.path))
            continue
        for known in [path for path in source.origins if is_below(path, override.path)]:
            del source.origins[known]
            source.texts.pop(known, None)
        source.origins[override.path] = override.origin
        if override.text is not None:
            source.texts[override.path] = override.text
    return problems


def _parse(tokens: Sequence[str], problems: list[Problem]) -> Iterator[Override]:
    remaining = [str(token) for token in tokens]
    while remaining:
        token = remaining.pop(0)
        if not token.startswith("--") or not token.strip("-!"):
            rule, remedy = "it is not part of an override", "Write --section.key value"
            problems.append(Problem((token,), rule, remedy, id="override-form"))
            continue
        name, equals, text = token[2:].partition("=")
        if broken := _broken_name(name):
            problems.append(broken.at((name[:_MAX_SHOWN],)))
            continue
        if not equals and name.endswith("!"):
            yield Override(parse_path(name[:-1]), deletes=True)
            continue
        path = parse_path(name)
        if not equals:
            if not remaining or remaining[0].startswith("--"):
                yield Override(path, True)
                continue
            text = remaining.pop(0)
        try:
            yield Override(path, documents.parse_scalar(text), text)
        except RuleError as error:
            rule = f"the override's value cannot be read: {error.problem.rule}"
            problems.append(Problem(path, rule, "Correct or quote the value", id="override-value"))


def _broken_name(name: str) -> Problem | None:
    if name.count(".") >= documents.MAX_DEPTH:
        rule = f"it is nested deeper than {documents.MAX_DEPTH} levels"
        return Problem((), rule, "Name a key of the config", id="document-depth")
    return documents.broken_scalar(name)


def _apply(override: Override, root: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    parent = _parent(override, root, defaults)
    key: Any = override.path[-1]
    if isinstance(parent, dict):
        key = str(key)
    elif not isinstance(key, int) or key >= len(parent):
        raise _bad_index(override.path, len(parent))
    if not override.deletes:
        parent[key] = override.value
    elif isinstance(parent, dict) and key not in parent:
        raise _nothing_to_delete(key, parent)
    else:
        del parent[key]


def _parent(override: Override, root: dict[str, Any], defaults: Mapping[str, Any]) -> Any:
    node: Any = root
    for depth, part in enumerate(override.path[:-1], 1):
        here, follows = override.path[:depth], override.path[depth]
        key: Any = part if isinstance(node, list) else str(part)
        if isinstance(node, list) and (not isinstance(key, int) or key >= len(node)):
            raise _bad_index(here, len(node))
        child = node[key] if isinstance(node, list) else node.get(key)
        is_component = here[0] in {slot.path for slot in SLOTS.values()}
        is_task = here[0] == "tasks" and depth == 2
        is_named = is_task or (is_component and follows in _COMPONENT_KEYS)
        if isinstance(child, str) and is_named:
            child = {"type": child}
        if child is None:
            if override.deletes:
                raise _nothing_to_delete(key, node)
            default = value_at(defaults, here) if isinstance(follows, int) else None
            child = list(default) if isinstance(default, list) else {}
        if not isinstance(child, dict | list):
            what = f"{dotted(here)} is a value, not a mapping"
            raise RuleError(what, f"Override {dotted(here)} itself", id="override-place")
        node[key] = child
        node = child
    return node


def _nothing_to_delete(key: object, parent: Any) -> RuleError:
    present = [str(name) for name in parent] if isinstance(parent, dict) else []
    remedy = f"{did_you_mean(key, present)}To switch off a default, set it to null"
    return RuleError("the config does not set it", remedy, id="override-deletes-nothing")


def _bad_index(path: KeyPath, length: int) -> RuleError:
    rule = f"{dotted(path[:-1])} is a list of {length}, which has no item {path[-1]}"
    return RuleError(rule, "Override the whole list as [a, b]", id="override-index")
