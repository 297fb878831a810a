"""Paths into plain trees of mappings and lists."""

from __future__ import annotations

import re
from typing import Any

from raygnn.config.problems import KeyPath

_INDEX = re.compile(r"[0-9]{1,9}")

#: What `get` gives where there is nothing; None is a value.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()


def get(tree: Any, path: KeyPath) -> Any:
    """The value at a path, MISSING where there is none."""
    for part in path:
        if isinstance(tree, list):
            has_part = isinstance(part, int) and 0 <= part < len(tree)
        else:
            has_part = isinstance(tree, dict) and part in tree
        if not has_part:
            return MISSING
        tree = tree[part]
    return tree


def put(tree: Any, path: KeyPath, value: Any) -> None:
    """Replaces the value at a path whose parent exists."""
    get(tree, path[:-1])[path[-1]] = value


def parse_path(text: str) -> KeyPath:
    """`sampling.fanouts.0` as `("sampling", "fanouts", 0)`."""
    return tuple(int(part) if _INDEX.fullmatch(part) else part for part in text.split("."))


def is_below(path: KeyPath, parent: KeyPath) -> bool:
    """Whether a path is the parent or under it."""
    return path[: len(parent)] == parent
