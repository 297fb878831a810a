"""Reads YAML and JSON of users and strangers, within limits.

YAML follows the core schema of YAML 1.2: `on` is a text, `1e-3` a number, `010` is ten, `0o10`
eight, `2024-01-31` a text. Beyond it, `<<` merges mappings, and `1_000` is a number.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from raygnn.errors import KeyPath, Problem, RuleError, dotted

#: Far beyond any config, and read in seconds; aliases and references count where they lead to.
MAX_VALUES = 100_000
MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 64
MAX_JSON_BYTES = 64 << 20  # class names of a model may be many
_MAX_NUMBER = 400  # characters; the longest float64 that is written out has fewer
_INT64 = 2**63  # limit of integers in tables, tensors and kernels

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_SCALARS = {
    f"{_TAG}{name}": re.compile(rf"(?:{pattern})\Z")
    for name, pattern in (
        ("null", r"~|null|Null|NULL|"),
        ("bool", r"true|True|TRUE|false|False|FALSE"),
        ("int", r"[-+]?[0-9](?:_?[0-9])*|0o[0-7]+|0x[0-9a-fA-F]+"),
        (
            "float",
            r"[-+]?(?:\.[0-9]+|[0-9](?:_?[0-9])*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        ),
    )
}


class Limits:
    """Counts the values of one document, following aliases and references."""

    def __init__(self) -> None:
        self._num_values = self._num_characters = 0

    def check(self, value: Any, depth: int, line: int | None = None) -> None:
        """Counts a value and each value in it. Raises a RuleError beyond a limit."""
        self._num_values += 1
        self._num_characters += len(value) if isinstance(value, str) else 0
        broken: Problem | None
        if depth > MAX_DEPTH:
            rule = f"it is nested deeper than {MAX_DEPTH} levels"
            broken = Problem((), rule, "Flatten it", id="document-depth")
        elif self._num_values > MAX_VALUES or self._num_characters > MAX_CHARACTERS:
            rule = f"it has more than {MAX_VALUES:,} values or {MAX_CHARACTERS:,} characters"
            broken = Problem((), rule, "Shorten it", id="document-size")
        else:
            broken = broken_scalar(value)
        if broken:
            raise RuleError.of([replace(broken, line=line)])


def broken_scalar(value: Any) -> Problem | None:
    """The rule that a text or number breaks, if files or tensors cannot store it."""
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        shown = str(value) if abs(value).bit_length() <= 128 else "a number"
        rule = f"{shown} is beyond 64 bits"
        remedy = "Set a smaller number, or one with a fraction such as 1e30"
        return Problem((), rule, remedy, id="document-number-range")
    if isinstance(value, str) and not value.isascii() and not _is_encodable(value):
        rule = "a text contains half of a surrogate pair"
        return Problem((), rule, "Write the character itself, in UTF-8", id="document-character")
    if isinstance(value, str) and "\0" in value:
        return Problem((), "a text contains NUL", "Remove it", id="document-character")
    return None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- YAML -----------------------------------------------------------------------------------------


@dataclass
class YamlDocument:
    """A parsed YAML text with the line of each key and its duplicate keys."""

    value: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: KeyPath) -> int:
        """The line of a key, or of the nearest one above it."""
        lines = (self.lines.get(path[:length]) for length in range(len(path), -1, -1))
        return next((line for line in lines if line is not None), 1)


def parse_yaml(text: str) -> YamlDocument:
    """Parses one document into texts, numbers, lists and mappings only.

    Raises a RuleError if a syntax error, another tag, several documents, or a limit.
    """
    document = YamlDocument()
    try:
        if len(text) > MAX_CHARACTERS:
            rule = f"it has more than {MAX_CHARACTERS:,} characters"
            raise RuleError(rule, "Shorten it", id="document-size", line=1)
        node = _Composer(text).get_single_node()
        if node is not None:
            document.value = _Builder(document).build(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        rule = " ".join(part for part in (error.context, error.problem) if part)
        line = mark.line + 1 if mark else 1
        raise RuleError(f"it is not YAML: {rule}", id="document-syntax", line=line) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        rule = f"it is not YAML: character U+{error.character:04X} is not allowed"
        raise RuleError(rule, id="document-syntax", line=line) from None
    return document


def parse_scalar(text: str) -> Any:
    """The value of a short text, such as an override. Raises a RuleError unless it is YAML."""
    document = parse_yaml(text)
    for problem in document.problems:
        rule = f"{dotted(problem.path)}: {problem.rule}"
        raise RuleError.of([replace(problem, path=(), rule=rule)])
    return document.value


class _Composer(
    yaml.reader.Reader,
    yaml.scanner.Scanner,
    yaml.parser.Parser,
    yaml.composer.Composer,
    yaml.resolver.BaseResolver,
):
    def __init__(self, text: str) -> None:
        yaml.reader.Reader.__init__(self, text)
        yaml.scanner.Scanner.__init__(self)
        yaml.parser.Parser.__init__(self)
        yaml.composer.Composer.__init__(self)
        yaml.resolver.BaseResolver.__init__(self)
        self._limits, self._depth = Limits(), 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._limits.check(None, self._depth, self.line + 1)
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is not yaml.ScalarNode:
            return f"{_TAG}{'map' if kind is yaml.MappingNode else 'seq'}"
        if implicit[0] and value == "<<":
            return _MERGE
        tags = (tag for tag, pattern in _SCALARS.items() if implicit[0] and pattern.match(value))
        return next(tags, f"{_TAG}str")

    def scan_flow_scalar_non_spaces(self, double: bool, start_mark: yaml.Mark) -> list[str]:
        try:
            chunks: list[str] = super().scan_flow_scalar_non_spaces(double, start_mark)
        except (ValueError, OverflowError):  # raised by chr()
            rule = "no character has this number"
            raise RuleError(rule, id="document-character", line=start_mark.line + 1) from None
        return chunks


class _Builder:
    def __init__(self, document: YamlDocument) -> None:
        self._document, self._limits = document, Limits()

    def build(self, node: yaml.Node, path: KeyPath, depth: int = 0) -> Any:
        line = node.start_mark.line + 1
        self._document.lines.setdefault(path, line)
        if isinstance(node, yaml.ScalarNode):
            value = _scalar(node, line)
            self._limits.check(value, depth, line)
            return value
        self._limits.check(None, depth, line)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.build(item, (*path, i), depth + 1) for i, item in enumerate(node.value)]
        raise _bad_tag(node, line)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[str, Any]:
        first_lines: dict[str, int] = {}
        direct: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == _MERGE:
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise RuleError(
                    "a key must be a word", "Write it as key: value", id="document-key", line=line
                )
            # `1: x` and `null: x` are read as words, so that the error is about an unknown key.
            name = _text(str(key.value))
            self._limits.check(name, depth, line)
            if name in first_lines:
                rule = f"the key appears again, after line {first_lines[name]}"
                problem = Problem(
                    (*path, name), rule, "Set it once", line=line, id="document-key-twice"
                )
                self._document.problems.append(problem)
            first_lines.setdefault(name, line)
            self._document.lines.setdefault((*path, name), line)
            direct[name] = self.build(value, (*path, name), depth + 1)
        taken: dict[str, Any] = {}
        for other in merged:
            if not isinstance(other, yaml.MappingNode):
                line = other.start_mark.line + 1
                raise RuleError(
                    "<< takes a mapping, or a list of mappings", id="document-merge", line=line
                )
            self._limits.check(None, depth + 1, other.start_mark.line + 1)
            taken = self._mapping(other, path, depth + 1) | taken
        return taken | direct


def _scalar(node: yaml.ScalarNode, line: int) -> Any:
    text, kind = str(node.value), node.tag.removeprefix(_TAG)
    if kind in ("str", "merge"):
        return _text(text)
    pattern = _SCALARS.get(node.tag)
    if pattern is None:
        raise _bad_tag(node, line)
    if not pattern.match(text) or (kind in ("int", "float") and len(text) > _MAX_NUMBER):
        shown = repr(text) if len(text) <= _MAX_NUMBER else f"a text of {len(text):,} characters"
        rule = f"{shown} is not a number (!!{kind})"
        raise RuleError(rule, "Quote it if it is a text", id="document-number", line=line)
    text = text.replace("_", "").lower()
    if kind == "int":
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if kind == "float":
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))
    return None if kind == "null" else text == "true"


def _bad_tag(node: yaml.Node, line: int) -> RuleError:
    rule = f"the tag {node.tag[:80]!r} is not supported here"
    return RuleError(rule, "Remove the tag", id="document-tag", line=line)


def _text(text: str) -> str:
    if text.isascii() or _is_encodable(text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return text  # the limits refuse it


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own protocol
        key: list(resolvers) for key, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern in _SCALARS.items():
    _Dumper.add_implicit_resolver(_tag, _pattern, None)


def dump_yaml(value: Any, *, flow_leaves: bool = False) -> str:
    """YAML in the order of the mapping, which `parse_yaml` reads back. `flow_leaves` writes lists
    and mappings of scalars on one line.
    """
    style = None if flow_leaves else False
    return yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=style,
    )


# --- JSON -----------------------------------------------------------------------------------------


def parse_json(content: str | bytes, max_bytes: int | None = MAX_JSON_BYTES) -> Any:
    """Parses JSON without repeated keys and NaN. Raises a RuleError with the line."""
    if max_bytes is not None and len(content) > max_bytes:
        raise RuleError(f"it has more than {max_bytes >> 20} MiB", "Shorten it", id="document-size")
    try:
        value = json.loads(
            content,
            object_pairs_hook=_unique_keys,
            parse_int=_json_int,
            parse_constant=_no_constant,
        )
    except json.JSONDecodeError as error:
        raise RuleError(
            f"it is not JSON: {error.msg}", id="document-syntax", line=error.lineno
        ) from None
    except UnicodeDecodeError as error:
        raise RuleError(
            f"it is not text in UTF-8: {error.reason}", id="document-encoding"
        ) from None
    except RecursionError:
        raise _too_deep() from None
    _check_json(value)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in mapping if keys.count(key) > 1)
        raise RuleError(f"the key {twice!r} appears twice", "Set it once", id="document-key-twice")
    return mapping


def _json_int(text: str) -> int:
    if len(text) > _MAX_NUMBER:
        rule = f"a number has {len(text):,} characters"
        raise RuleError(rule, "Set a smaller one", id="document-number-range")
    return int(text)


def _no_constant(name: str) -> Any:
    raise RuleError(f"{name} is not JSON", "Set a finite number, or null", id="document-number")


def _too_deep() -> RuleError:
    return RuleError(
        f"it is nested deeper than {MAX_DEPTH} levels", "Flatten it", id="document-depth"
    )


def _check_json(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif broken := broken_scalar(item):
                raise RuleError.of([broken])
        level = inner
    if level:
        raise _too_deep()
