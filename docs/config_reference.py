"""Writes docs/config-reference.md from the schema: `python -m docs.config_reference`."""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from raygnn.config.registry import SLOTS
from raygnn.config.schema import Config
from raygnn.config.section import Component, Section, meanings, summary
from raygnn.config_schema import members, subsections

PATH = Path(__file__).with_name("config-reference.md")

_HEAD = """\
# Config reference

Every key of a config file with its type, default and meaning. `python -m docs.config_reference`
writes this page from the schema. `raygnn schema config` prints it as JSON Schema for editors and
programs (`raygnn schema graph` that of graph.yaml), and `raygnn train CONFIG --print-config` a
config with all of its defaults.

An override on the command line names a key by its dotted path: `--loader.batch_size 512`,
`--sampling.fanouts.0 5`, `--early_stopping null`; `--data.synthetic!` deletes a key of the file.
`${a.b}` takes the value of another key, `${env:X}` that of an environment variable. A component is
`{type: name, args: {...}}` or the name alone. A name is a short name or a dotted path.
[Arguments of components](arguments.md) lists the arguments of raygnn's own.
"""

_NAMES = {int: "integer", float: "number", bool: "true \\| false", str: "string", Any: "any"}


def reference() -> str:
    """The page as Markdown."""
    parts = [_HEAD, "## Top level", "", *_table(Config)]
    for path, section in subsections("", Config):
        parts += ["", f"## {path}", "", summary(section), "", *_table(section)]
    parts += ["", "## Short names", "", *_short_names(), ""]
    return "\n".join(parts)


def _table(section: type[Section]) -> list[str]:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    meaning = meanings(section)
    for name, field in section.model_fields.items():
        text = (field.description or meaning[name]).replace("|", "\\|")
        rows.append(f"| `{name}` | {_type(field.annotation)} | {_default(field)} | {text} |")
    return rows


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined
    if isinstance(value, Section) and not isinstance(value, Component):
        given = value.model_dump(mode="json", exclude_unset=True)
        return f"`{_yaml(given)}`" if given else "as below"
    return f"`{_yaml(_plain(value))}`"


def _plain(value: Any) -> Any:
    if isinstance(value, Component):
        return value.model_dump(mode="json", exclude_unset=True)
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_yaml(item) for item in value) + "]"
    return value if isinstance(value, str) else json.dumps(value)


def _type(annotation: Any) -> str:
    names = [_member_type(member) for member in members(annotation)]
    return " \\| ".join(dict.fromkeys(names))


def _member_type(member: Any) -> str:
    origin, arguments = typing.get_origin(member), typing.get_args(member)
    if member is type(None):
        return "null"
    if origin is Literal:
        return " \\| ".join(_yaml(choice) for choice in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"map of {_type(arguments[0])} to {_type(arguments[1])}"
    if isinstance(member, type) and issubclass(member, Section):
        return "component" if issubclass(member, Component) else "mapping"
    return _NAMES[member]


def _short_names() -> list[str]:
    rows = ["| slot | short names | any subclass of | set by raygnn |", "|---|---|---|---|"]
    for slot in SLOTS.values():
        if slot.functions_only:
            continue
        cells = (_code(slot.names), _code(slot.bases), _code(sorted(slot.injected)))
        rows.append(f"| `{slot.path}` | {' | '.join(cells)} |")
    return rows


def _code(names: Sequence[str] | Mapping[str, str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


def main() -> int:
    """Writes the page."""
    PATH.write_text(reference(), encoding="utf-8")
    print(f"wrote {PATH}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
