"""Where a config comes from: a path, any fsspec URI, YAML text, or a mapping."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from raygnn.config.documents import MAX_CHARACTERS, DocumentError, Limits, parse_yaml
from raygnn.config.problems import KeyPath, Problem
from raygnn.config.redaction import redact_text
from raygnn.errors import ConfigError

_KEY_AND_VALUE = re.compile(r"\s*[\w\"']+:(\s|$)")


@dataclass
class Source:
    """A config as written; `name` and `lines` say where, for messages."""

    value: dict[str, Any]
    name: str | None = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set, repr=False)

    def origin(self, path: KeyPath) -> str | None:
        """`config.yaml:12`, the line of the key or of the nearest one above it."""
        for length in range(len(path), 0, -1):
            if line := self.lines.get(path[:length]):
                return self.at_line(line)
        return self.name

    def at_line(self, line: int) -> str:
        return f"{self.name}:{line}" if self.name else f"line {line}"


def read_source(source: str | os.PathLike[str] | Mapping[str, Any] | BaseModel) -> Source:
    """Reads a config; a text that has a newline, or `key: value`, is YAML itself.

    Raises:
        ConfigError: nothing can be read there, or it is no YAML mapping.
    """
    if isinstance(source, Mapping | BaseModel):
        given = Source({})
        given.value = to_plain(source, given.problems, given.secrets)
        return given
    name = os.fspath(source)
    if not isinstance(name, str):
        raise ConfigError("CONFIG is invalid: its path is made of bytes. Set a text.")
    if isinstance(source, str) and _is_yaml(source):
        return parse_source(source, None)
    return parse_source(_read(name), redact_text(name))


def _is_yaml(text: str) -> bool:
    is_text = "\n" in text or text.lstrip().startswith("{")
    return is_text or _KEY_AND_VALUE.match(text) is not None


def _read(name: str) -> str:
    if not name:
        raise ConfigError("CONFIG='' is invalid: it is empty. Set a path or URI of a YAML file.")
    shown = f"CONFIG={redact_text(name)!r} is invalid"
    try:
        if "://" not in name:
            with Path(name).expanduser().open(encoding="utf-8") as file:
                return file.read(MAX_CHARACTERS + 1)
        import fsspec  # imported late: most configs are local files

        with fsspec.open(name, "rt", encoding="utf-8") as file:
            return str(file.read(MAX_CHARACTERS + 1))
    except FileNotFoundError:
        rule = "there is no such file"
    except IsADirectoryError:
        rule = "it is a folder"
    except UnicodeDecodeError:
        rule = "it is no text in UTF-8"
    except Exception as error:  # noqa: BLE001 - each fsspec backend raises its own
        rule = f"it cannot be read: {redact_text(str(error))}"
    raise ConfigError(f"{shown}: {rule}. Set a path or URI of a YAML file.")


def parse_source(text: str, name: str | None) -> Source:
    """Reads a config from its YAML text.

    Args:
        name: of the file, for messages.
    Raises:
        ConfigError: it is not a YAML mapping.
    """
    try:
        document = parse_yaml(text)
    except DocumentError as error:
        raise ConfigError(error.text(name, "config")) from None
    value = {} if document.value is None else document.value
    source = Source(value, name, document.lines, document.problems)
    if not isinstance(value, dict):
        raise ConfigError(
            f"{source.at_line(1)}: config is invalid: it is a {type(value).__name__}, not a "
            "mapping. Set keys with values, as in seed: 0."
        )
    return source


def to_plain(value: Any, problems: list[Problem], secrets: set[str]) -> Any:
    """A deep copy of what a Python caller gives, as mappings, lists and scalars.

    Args:
        problems: gets one for whatever else is met.
        secrets: gets the values of every `SecretStr`.
    Raises:
        DocumentError: it is beyond a limit, or holds itself.
    """
    return _Copier(problems, secrets).copy(value, ())


class _Copier:
    def __init__(self, problems: list[Problem], secrets: set[str]) -> None:
        self._problems, self._secrets, self._limits = problems, secrets, Limits()

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
        remedy = (
            "Set null, a bool, a number, a string, a list or a mapping; an object is written "
            "as {__type: dotted.path.of.its.Class, argument: value}"
        )
        self._problems.append(Problem(path, rule, remedy))
        return None

    def _item(self, key: Any, value: Any, path: KeyPath) -> Any:
        if not isinstance(key, str):
            self._problems.append(Problem((*path, str(key)), "a key must be a text", "Quote it"))
        self._limits.check(key, len(path))
        return self.copy(value, (*path, str(key)))
