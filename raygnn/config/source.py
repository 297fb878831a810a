"""Where a config comes from: a path, any fsspec URI, YAML text, or a mapping."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from raygnn.config.plain import to_plain
from raygnn.config.problems import KeyPath, Problem
from raygnn.config.redaction import redact_text
from raygnn.config.yaml_source import YamlError, parse_yaml
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
        return _parse(source, None)
    return _parse(_read(name), redact_text(name))


def _is_yaml(text: str) -> bool:
    is_text = "\n" in text or text.lstrip().startswith("{")
    return is_text or _KEY_AND_VALUE.match(text) is not None


def _read(name: str) -> str:
    if not name:
        raise ConfigError("CONFIG='' is invalid: it is empty. Set a path or URI of a YAML file.")
    shown = f"CONFIG={redact_text(name)!r} is invalid"
    try:
        if "://" not in name:
            return Path(name).expanduser().read_text(encoding="utf-8")
        import fsspec  # imported late: most configs are local files

        with fsspec.open(name, "rt", encoding="utf-8") as file:
            return str(file.read())
    except FileNotFoundError:
        rule = "there is no such file"
    except IsADirectoryError:
        rule = "it is a folder"
    except UnicodeDecodeError:
        rule = "it is no text in UTF-8"
    except Exception as error:  # noqa: BLE001 - each fsspec backend raises its own
        rule = f"it cannot be read: {redact_text(str(error))}"
    raise ConfigError(f"{shown}: {rule}. Set a path or URI of a YAML file.")


def _parse(text: str, name: str | None) -> Source:
    source = Source({}, name)
    try:
        document = parse_yaml(text)
    except YamlError as error:
        raise ConfigError(
            f"{source.at_line(error.line)}: config is invalid: it is no YAML: {error.rule}. "
            "Correct the line."
        ) from None
    source.lines = document.lines
    source.problems = document.problems
    value = {} if document.value is None else document.value
    if not isinstance(value, dict):
        raise ConfigError(
            f"{source.at_line(1)}: config is invalid: it is a {type(value).__name__}, not a "
            "mapping. Set keys with values, as in seed: 0."
        )
    source.value = to_plain(
        value, source.problems, source.secrets
    )  # what is aliased must not change together
    return source
