"""Parses one-line questions, such as `count(purchases) over 30d > 0`, and names errors by place."""

from __future__ import annotations

import re
from dataclasses import dataclass

from raygnn.errors import ConfigError, did_you_mean

AGGREGATES = ("count", "sum", "mean", "min", "max", "exists", "distinct", "list")
_NAME = r'[\w-]+|"[^"]+"'
_CHAIN = rf"(?:{_NAME})(?:\.(?:{_NAME}))*"
_OPERATOR = r"<=|>=|<>|!=|==|=|<|>"
_SKIPPED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"")
_DURATION = re.compile(r"(?P<number>[1-9]\d*)\s*(?P<unit>[A-Za-z]+)")
_UNITS = {
    "s": "seconds",
    "min": "minutes",
    "h": "hours",
    "d": "days",
    "w": "weeks",
    "mo": "months",
    "y": "years",
}


class Text:
    """The text of an option, read from the left.

    Attributes:
        option: such as `--predict`.
        at: position of the next character.
    """

    def __init__(self, text: str, option: str) -> None:
        self.text, self.option, self.at = text, option, 0

    def read(self, pattern: str) -> str | None:
        """The text of a pattern if it is next, after blanks."""
        start = len(self.text) - len(self.text[self.at :].lstrip())
        found = re.compile(pattern, re.IGNORECASE).match(self.text, start)
        if found is None:
            return None
        self.at = found.end()
        return found[0]

    def word(self, *words: str) -> bool:
        return self.read(rf"(?:{'|'.join(words)})\b") is not None

    def expect(self, pattern: str, what: str) -> str:
        found = self.read(pattern)
        if found is None:
            self.read("")
            raise self.error(f"{what} is missing", "Write AGGREGATE(TABLE.COLUMN) over WINDOW")
        return found

    def condition(self) -> Condition:
        """SQL up to an unmatched parenthesis or the end."""
        self.read("")
        start, depth = self.at, 0
        while self.at < len(self.text):
            if skipped := _SKIPPED.match(self.text, self.at):
                self.at = skipped.end()
                continue
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            if depth < 0:
                break
            self.at += 1
        sql = self.text[start : self.at].rstrip()
        if not sql:
            raise self.error("a condition is missing", "Write one, such as amount > 5", at=start)
        return Condition(sql, self, start)

    def end(self) -> None:
        self.read("")
        if rest := self.text[self.at :].strip():
            raise self.error(f"{rest!r} is left over", "Write AGGREGATE(TABLE.COLUMN) over WINDOW")

    def error(self, rule: str, remedy: str, at: int | None = None) -> ConfigError:
        """An error with a mark below its place."""
        mark = " " * (self.at if at is None else at) + "^"
        question = self.text
        return ConfigError(
            f"{self.option}={question!r} is invalid: {rule}. {remedy}.\n    {question}\n    {mark}",
            id="labels-question",
        )


@dataclass(frozen=True)
class Condition:
    """SQL of a condition, and its place in a text."""

    sql: str
    text: Text
    start: int


@dataclass(frozen=True)
class Name:
    """A name such as `orders.amount`, in parts, and its place in a text."""

    parts: tuple[str, ...]
    text: Text
    start: int

    def __str__(self) -> str:
        return ".".join(self.parts)

    def error(self, rule: str, remedy: str) -> ConfigError:
        return self.text.error(rule, remedy, at=self.start)


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of events in a window.

    Attributes:
        function: one of `AGGREGATES`.
        name: table and, perhaps, column.
        by: the reference by which events belong to an entity; None takes all.
        window: as an SQL interval, such as `30 days`.
        offset: SQL interval between the time of a row and the window.
        comparison: such as `> 0`.
    """

    function: str
    name: Name
    by: Name | None
    conditions: tuple[Condition, ...]
    window: str
    offset: str | None = None
    comparison: str | None = None


def parse_duration(text: str, option: str) -> str:
    """`30d` as the SQL interval `30 days`. Raises a ConfigError for other forms."""
    match = _DURATION.fullmatch(text.strip())
    unit = match["unit"].lower() if match else ""
    found = [name for short, name in _UNITS.items() if unit in {short, name, name[:-1]}]
    if match is None or not found:
        raise ConfigError(
            f"{option}={text!r} is invalid: it is not a duration. Set a number and one of "
            f"{', '.join(_UNITS)}, such as 30d.",
            id="labels-duration",
        )
    number = int(match["number"])
    return f"{number} {found[0] if number > 1 else found[0][:-1]}"


def parse_aggregate(question: str, option: str = "--predict") -> Aggregate:
    """Parses a question, of the form in `parse_question`. An error names its place."""
    text = Text(question, option)
    text.read("")
    start, function = text.at, (text.read(r"\w+") or "").lower()
    if function not in AGGREGATES:
        rule = f"an aggregate is missing, one of {', '.join(AGGREGATES)}"
        near = did_you_mean(function, AGGREGATES) if function else ""
        raise text.error(
            rule,
            f"{near}Write it as in --predict 'count(purchases) over 30d > 0', with double quotes "
            "around names of columns that contain blanks or signs",
            at=start,
        )
    text.expect(r"\(", "a parenthesis '('")
    name = parse_name(text, "a table")
    by = parse_name(text, "a reference") if text.word("by") else None
    conditions = [text.condition()] if text.word("where") else []
    text.expect(r"\)", "a parenthesis ')'")
    text.expect(r"over\b", "over WINDOW")
    window = _parse_window(text, "over")
    offset = _parse_window(text, "after") if text.word("after") else None
    operator = text.read(_OPERATOR)
    comparison = None
    if operator is not None:
        number = text.expect(r"-?\d+(?:\.\d+)?", "a number to compare with")
        comparison = f"{operator.replace('==', '=')} {number}"
    conditions += [text.condition()] if text.word("where") else []
    text.end()
    return Aggregate(function, name, by, tuple(conditions), window, offset, comparison)


def parse_name(text: Text, what: str) -> Name:
    chain = text.expect(_CHAIN, what)
    parts = tuple(part.strip('"') for part in re.findall(_NAME, chain))
    return Name(parts, text, text.at - len(chain))


def _parse_window(text: Text, option: str) -> str:
    duration = text.expect(r"\d+\s*[A-Za-z]+", "a window such as 30d")
    return parse_duration(duration, option)


def parse_entities(text: str, option: str = "--for") -> tuple[Name, Condition | None]:
    """Parses `TYPE where CONDITION`."""
    read = Text(text, option)
    name = parse_name(read, "a node type")
    condition = read.condition() if read.word("where") else None
    read.end()
    return name, condition
