"""Overrides of the command line: `--a.b value`, `--a.b=value`, `--a.0 value`, `--a.b!`, `--a`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raygnn.config import tree
from raygnn.config.documents import MAX_DEPTH, DocumentError, broken_scalar, parse_scalar
from raygnn.config.problems import KeyPath, Problem, choose_from, dotted
from raygnn.config.slots import SLOTS

_COMPONENT_KEYS = ("type", "args")
_MAX_SHOWN = 120  # characters of a name in a message


@dataclass(frozen=True)
class Override:
    """One change of the config; `text` is its value as written, None of a deletion or a flag."""

    path: KeyPath
    value: Any = None
    text: str | None = None
    deletes: bool = False

    @property
    def origin(self) -> str:
        return f"--{dotted(self.path)}{'!' if self.deletes else ''}"


@dataclass
class Overridden:
    """A config after overrides, and which of them set what."""

    value: dict[str, Any]
    origins: dict[KeyPath, str] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def apply_overrides(
    raw: dict[str, Any], tokens: Sequence[str], defaults: Mapping[str, Any]
) -> Overridden:
    """Applies overrides in their order; the last one wins.

    Args:
        raw: the config, which is changed in place.
        defaults: lists that the config does not set are taken from here when one of their items
            is overridden.
    """
    result = Overridden(raw)
    for override in _parse(tokens, result.problems):
        if _apply(override, result, defaults):
            for known in [path for path in result.origins if tree.is_below(path, override.path)]:
                del result.origins[known]
                result.texts.pop(known, None)
            result.origins[override.path] = override.origin
            if override.text is not None:
                result.texts[override.path] = override.text
    return result


def _parse(tokens: Sequence[str], problems: list[Problem]) -> Iterator[Override]:
    position = 0
    while position < len(tokens):
        token = str(tokens[position])
        position += 1
        if not token.startswith("--") or not token.strip("-!"):
            problems.append(
                Problem(
                    (token,),
                    "it belongs to no override",
                    "Write overrides as --section.key value or --section.key=value",
                )
            )
            continue
        name, equals, text = token[2:].partition("=")
        if broken := _broken_name(name):
            problems.append(Problem((name[:_MAX_SHOWN],), *broken))
            continue
        if not equals and name.endswith("!"):
            yield Override(tree.parse_path(name[:-1]), deletes=True)
            continue
        has_value = position < len(tokens) and not str(tokens[position]).startswith("--")
        if not equals and not has_value:
            yield Override(tree.parse_path(name), True)
            continue
        if not equals:
            text = str(tokens[position])
            position += 1
        path = tree.parse_path(name)
        try:
            yield Override(path, parse_scalar(text), text)
        except DocumentError as error:
            rule = f"the override's value cannot be read: {error.rule}"
            problems.append(Problem(path, rule, "Correct or quote the value"))


def _broken_name(name: str) -> tuple[str, str] | None:
    if name.count(".") >= MAX_DEPTH:
        return f"it is nested deeper than {MAX_DEPTH} levels", "Name a key of the config"
    return broken_scalar(name)


def _apply(override: Override, result: Overridden, defaults: Mapping[str, Any]) -> bool:
    """Applies one override; False, with a problem, where it does not fit."""
    try:
        parent = _parent(override, result.value, defaults)
        key: Any = override.path[-1]
        if isinstance(parent, dict):
            key = str(key)
        elif not isinstance(key, int) or key >= len(parent):
            raise _MisfitError(*_bad_index(override.path, len(parent)))
        if override.deletes and isinstance(parent, dict) and key not in parent:
            raise _MisfitError(*_nothing_to_delete(key, parent))
    except _MisfitError as misfit:
        result.problems.append(Problem(override.path, misfit.rule, misfit.remedy))
        return False
    if override.deletes:
        del parent[key]
    else:
        parent[key] = override.value
    return True


class _MisfitError(Exception):
    """An override does not fit the config: the rule and the remedy."""

    def __init__(self, rule: str, remedy: str) -> None:
        super().__init__(rule, remedy)
        self.rule, self.remedy = rule, remedy


def _parent(override: Override, root: dict[str, Any], defaults: Mapping[str, Any]) -> Any:
    """The mapping or list that holds the overridden key; missing mappings are made."""
    node: Any = root
    for depth, part in enumerate(override.path[:-1], 1):
        here, follows = override.path[:depth], override.path[depth]
        key: Any = part if isinstance(node, list) else str(part)
        if isinstance(node, list) and (not isinstance(key, int) or key >= len(node)):
            raise _MisfitError(*_bad_index(here, len(node)))
        child = node[key] if isinstance(node, list) else node.get(key)
        if isinstance(child, str) and follows in _COMPONENT_KEYS and _is_component(here):
            child = {"type": child}
        if child is None:
            if override.deletes:
                raise _MisfitError(*_nothing_to_delete(key, node))
            default = tree.get(defaults, here) if isinstance(follows, int) else None
            child = list(default) if isinstance(default, list) else {}
        if not isinstance(child, dict | list):
            what = f"{dotted(here)} holds a value, not keys"
            raise _MisfitError(what, f"Override {dotted(here)} itself")
        node[key] = child
        node = child
    return node


def _nothing_to_delete(key: object, parent: Any) -> tuple[str, str]:
    present = [str(name) for name in parent] if isinstance(parent, dict) else []
    remedy = choose_from(key, present, "Set there") if present else "Nothing is set there"
    return (
        "it cannot be deleted, as the config does not set it",
        f"{remedy}. To switch off a default, set it to null",
    )


def _is_component(path: KeyPath) -> bool:
    return path[0] in {slot.path for slot in SLOTS.values()}


def _bad_index(path: KeyPath, length: int) -> tuple[str, str]:
    rule = f"{dotted(path[:-1])} is a list of {length}, which has no item {path[-1]}"
    remedy = f"Set an index from 0 to {length - 1}" if length else "The list is empty"
    return rule, f"{remedy}, or override the whole list as [a, b]"
