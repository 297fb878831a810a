"""Writes docs/arguments.md from signatures and docstrings: `python -m docs.arguments`."""

from __future__ import annotations

import json
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from raygnn.config.arguments import section_of
from raygnn.config.section import Component, Section
from raygnn.config_schema import Argument, Described, describe
from raygnn.prepare.synthetic import GENERATORS

PAGE = Path(__file__).with_suffix(".md")

_HEAD = """\
# Arguments of components

Arguments (`args`) of each task, model, decoder, method, loss, metric and logger, and of the
generators of `data.synthetic`. Optimizers and learning rate schedules are those of
`torch.optim`, with its arguments. `python -m raygnn.train --print-schema` has the same lists, so
that an editor completes `model.args` by `model.type`.

An argument without a default must be set, unless raygnn derives it: `out_channels` in node
classification, and `num_layers`, which is the number of `sampling.fanouts`.
[Models](models.md#models-of-your-own) describes the arguments of your own modules.

`python -m docs.arguments` writes this page.
"""

_TITLES = {
    "task": "Tasks: `task.args`",
    "model": "Models: `model.args`",
    "decoder": "Decoders: `task.args.decoder.args`",
    "method": "Methods of self-supervised learning: `task.args.method.args`",
    "loss": "Losses: `losses[].args`",
    "metric": "Metrics: `metrics[].args`",
    "logger": "Loggers: `loggers[].args`",
}


def page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for slot, title in _TITLES.items():
        parts += [f"## {title}", "", *_components(list(describe(slot))), ""]
    parts += ["## Generators: `data.synthetic`", ""]
    for name, generator in GENERATORS.items():
        parts += [f"### {name}", "", *_generator(section_of(generator)), ""]
    return "\n".join(parts)


def _components(components: Sequence[Described]) -> Iterator[str]:
    yield from ("| type | description |", "|---|---|")
    yield from (f"| `{each.name}` | {_cell(each.summary)} |" for each in components)
    of: dict[tuple[str, str, str, str], list[str]] = {}
    for each in components:
        for argument in each.arguments:
            of.setdefault(_cells(argument), []).append(each.name)
    if of:
        yield from ("", "| argument | of | type | default | meaning |", "|---|---|---|---|---|")
    for (name, *cells), names in of.items():
        yield f"| {name} | {_names(names, components)} | {' | '.join(cells)} |"


def _cells(argument: Argument) -> tuple[str, str, str, str]:
    kind, default = _type(argument.annotation), _default(argument.default)
    return f"`{argument.name}`", kind, default, _cell(argument.meaning)


def _names(names: Sequence[str], components: Sequence[Described]) -> str:
    left_out = [each.name for each in components if each.name not in names]
    if not left_out:
        return "all"
    return f"all but {', '.join(left_out)}" if len(left_out) < 3 < len(names) else ", ".join(names)


def _generator(section: type[Section]) -> Iterator[str]:
    yield from ("| argument | type | default | meaning |", "|---|---|---|---|")
    for name, field in section.model_fields.items():
        cells = (_type(field.annotation), _default(field.default), _cell(field.description or ""))
        yield f"| `{name}` | {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return re.sub(r"\bNone\b", "null", text).replace("|", "\\|")


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "-"
    plain = value.type if isinstance(value, Component) else value
    return f"`{plain if isinstance(plain, str) else json.dumps(plain)}`"


_TYPES = {int: "integer", float: "number", bool: "true, false", str: "string", type(None): "null"}


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(member) for member in arguments))
    if origin is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"map to {_type(arguments[1])}"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list of {_type(arguments[0])}"
    return "component" if annotation is Component else _TYPES[annotation]


def main() -> int:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
