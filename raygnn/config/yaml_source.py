"""YAML with line numbers, by the rules of YAML 1.2: `1e-3` is a number, `on` is a word."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from raygnn.config.problems import KeyPath, Problem, dotted

_MAX_NODES = 100_000  # far beyond any config; stops a file whose aliases multiply
_MAX_DEPTH = 64

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9](?:_?[0-9])*|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9](?:_?[0-9])*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_SCALARS = (("null", _NULL), ("bool", _BOOL), ("int", _INT), ("float", _FLOAT))


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 - PyYAML's own protocol


class _Dumper(yaml.SafeDumper):
    """Quotes what either version of YAML would take for something else than a string."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own protocol
        key: list(resolvers) for key, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node).replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


for _name, _pattern in _SCALARS:
    _tag = f"tag:yaml.org,2002:{_name}"
    _whole = re.compile(rf"(?:{_pattern.pattern})\Z")
    _Loader.add_implicit_resolver(_tag, _whole, None)
    _Dumper.add_implicit_resolver(_tag, _whole, None)
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<\Z"), ["<"])
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


@dataclass
class YamlDocument:
    """What a YAML text says, and on which line each key stands."""

    value: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class YamlError(Exception):
    """The text is no YAML: what is wrong, and on which line."""

    def __init__(self, rule: str, line: int) -> None:
        super().__init__(rule, line)
        self.rule, self.line = rule, line


def parse_yaml(text: str) -> YamlDocument:
    """Parses one document.

    Raises:
        YamlError: a syntax error, a tag of the unsafe kind, or several documents.
    """
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return YamlDocument(None)
        document = YamlDocument(None)
        _Walk(document).visit(node, (), 0)
        document.value = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(
            " ".join(part for part in (error.context, error.problem) if part),
            mark.line + 1 if mark else 1,
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise YamlError(f"character {error.character!r} is not allowed", line) from None
    finally:
        if loader is not None:
            loader.dispose()
    return document


def parse_scalar(text: str) -> Any:
    """The value of a short text, as of an override.

    Raises:
        YamlError: the text is no YAML.
    """
    document = parse_yaml(text)
    if document.problems:
        problem = document.problems[0]
        raise YamlError(f"{dotted(problem.path)}: {problem.rule}", problem.line or 1)
    return document.value


def dump_yaml(value: Any) -> str:
    """YAML in the order of the mapping, which `parse_yaml` reads back equal."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Walk:
    """Collects lines and duplicate keys from the nodes, before values are constructed."""

    def __init__(self, document: YamlDocument) -> None:
        self._document = document
        self._num_nodes = 0

    def visit(self, node: yaml.Node, path: KeyPath, depth: int) -> None:
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise YamlError(
                f"the text is nested deeper than {_MAX_DEPTH} levels or has more than "
                f"{_MAX_NODES} values once its aliases are followed",
                node.start_mark.line + 1,
            )
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, path, depth)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, (*path, index), depth + 1)

    def _visit_mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> None:
        first_lines: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise YamlError("a key must be a word", line)
            name = str(key.value)
            if name in first_lines:
                rule = f"the key stands here again, after line {first_lines[name]}"
                remedy = "Set it once"
                self._document.problems.append(Problem((*path, name), rule, remedy, line=line))
                continue
            first_lines[name] = line
            if key.tag != "tag:yaml.org,2002:str":
                # `1: x` and `null: x` have no place in a config; read them as words, so that the
                # error is about an unknown key.
                key.tag = "tag:yaml.org,2002:str"
            self._document.lines.setdefault((*path, name), line)
            self.visit(value, (*path, name), depth + 1)
        for other in merged:
            if isinstance(other, yaml.MappingNode):
                self._visit_mapping(other, path, depth + 1)
