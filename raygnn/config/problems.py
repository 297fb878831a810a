"""Problems of a config, and the paths of keys at which they stand."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_core import PydanticCustomError

from raygnn.errors import with_id

#: Place in the config: keys of mappings and indices of lists.
KeyPath = tuple[str | int, ...]

# Of what a word is compared with: each comparison takes some microseconds.
_MAX_CHOICES, _MAX_WORD = 100, 100

#: `type` of the pydantic error that carries problems found by rules of ours.
RULES_ERROR = "raygnn_rules"


class BrokenRule(NamedTuple):
    """A rule that some value breaks, what to set instead, and the stable id of both."""

    rule: str
    remedy: str
    id: str


@dataclass(frozen=True)
class Problem:
    """One broken rule, at its place.

    Attributes:
        id: stable name of the rule.
        needs: top-level sections that the rule has read, of a rule between sections.
        line: line of the YAML, where the path alone does not give it.
    """

    path: KeyPath
    rule: str
    remedy: str
    id: str
    needs: frozenset[str] = frozenset()
    line: int | None = None

    def text(
        self, shown_value: str | None, origin: str | None = None, whole: str = "config"
    ) -> str:
        """The message.

        Args:
            shown_value: the value as text without secrets; None where unset.
            whole: what a problem without a path is about.
        """
        value = "" if shown_value is None else f"={shown_value}"
        where = f"{origin}: " if origin else ""
        subject = f"{dotted(self.path)}{value}" if self.path else whole
        return with_id(f"{where}{subject} is invalid: {self.rule}. {self.remedy}.", self.id)


def dotted(path: KeyPath) -> str:
    """`("losses", 0, "args")` as `losses.0.args`, which is also how an override names it."""
    return ".".join(str(part) for part in path)


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """`Did you mean x? ` where a choice is close to the word, else nothing."""
    some = itertools.islice(choices, _MAX_CHOICES)
    by_lower = {str(choice).lower(): str(choice) for choice in some}
    close = difflib.get_close_matches(str(word).lower()[:_MAX_WORD], by_lower, n=1)
    return f"Did you mean {by_lower[close[0]]}? " if close else ""


def choose_from(word: object, choices: Sequence[str], what: str = "Set one of") -> str:
    """A remedy that lists choices, with the closest one first."""
    return f"{did_you_mean(word, choices)}{what}: {', '.join(str(choice) for choice in choices)}"


def rules_error(problems: Sequence[Problem]) -> PydanticCustomError:
    """The pydantic error that carries problems; their paths are relative to where it is raised."""
    text = "; ".join(p.text(None) for p in problems)
    return PydanticCustomError(RULES_ERROR, "{text}", {"text": text, "problems": tuple(problems)})


def rule_error(rule: str, remedy: str, *, id: str) -> PydanticCustomError:
    """One broken rule of the value that is being validated."""
    return rules_error([Problem((), rule, remedy, id)])


_INDEX = re.compile(r"[0-9]{1,9}")

#: What `value_at` gives where there is nothing; None is a value.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()


def value_at(tree: Any, path: KeyPath) -> Any:
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


def set_value(tree: Any, path: KeyPath, value: Any) -> None:
    """Replaces the value at a path whose parent exists."""
    value_at(tree, path[:-1])[path[-1]] = value


def parse_path(text: str) -> KeyPath:
    """`sampling.fanouts.0` as `("sampling", "fanouts", 0)`."""
    return tuple(int(part) if _INDEX.fullmatch(part) else part for part in text.split("."))


def is_below(path: KeyPath, parent: KeyPath) -> bool:
    """Whether a path is the parent or under it."""
    return path[: len(parent)] == parent
