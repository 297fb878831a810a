"""Parses one-line questions, such as `count(purchases) over 30d > 0`, and names errors by place."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from raygnn.errors import ConfigError, did_you_mean

AGGREGATES = (
    *("count", "sum", "mean", "avg", "min", "max"),
    *("exists", "distinct", "first", "last", "list"),
)
_NUMBER = r"-?\d+(?:\.\d+)?"
_NAME = r'[\w-]+|"[^"]+"'
_CHAIN = rf"(?:{_NAME})(?:\.(?:{_NAME}))*"
_OPERATOR = r"<=|>=|<>|!=|==|=|<|>"
_VALUE = rf"(?:'(?:[^']|'')*'|{_NUMBER})"
#: Comparisons that SQL reads as they are, of a value or of a text such as `last(visits.status)`.
_TEST = (
    rf"(?:{_OPERATOR})\s*'(?:[^']|'')*'|is\s+(?:not\s+)?null\b|(?:not\s+)?(?:"
    rf"i?like\s+'(?:[^']|'')*'|between\s+{_VALUE}\s+and\s+{_VALUE}|"
    rf"in\s*\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\))"
)
#: Texts and names in quotes.
QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"")
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
_PER_YEAR = {"s": 31_557_600, "min": 525_960, "h": 8_766, "d": 366, "w": 53, "mo": 12, "y": 1}
_MOST_YEARS = 1_000


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
            if skipped := QUOTED.match(self.text, self.at):
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
        num_skipped: windows between the offset and the window.
    """

    function: str
    name: Name
    by: Name | None
    conditions: tuple[Condition, ...]
    window: str
    offset: str | None = None
    num_skipped: int = 0

    def windows(self, num: int) -> str:
        """SQL interval of so many windows."""
        length, unit = self.window.split()
        return f"{int(length) * num} {unit}"

    @property
    def reach(self) -> str:
        """SQL intervals from the time of a row to the end of the window, in this order."""
        windows = self.windows(self.num_skipped + 1)
        return windows if self.offset is None else f"{self.offset} {windows}"


@dataclass(frozen=True)
class Question:
    """Aggregates, and the expression that makes a label of them.

    Attributes:
        sql: with `{0}`, `{1}`, ... for the values of the aggregates.
        is_true_or_false: the expression compares; else its value is a number.
    """

    aggregates: tuple[Aggregate, ...]
    sql: str
    is_true_or_false: bool

    @property
    def is_aggregate(self) -> bool:
        """Whether the label is the value of an aggregate."""
        return self.sql == "{0}"


def parse_duration(text: str, option: str) -> str:
    """`30d` as the SQL interval `30 days`. Raises a ConfigError for other forms."""
    match = _DURATION.fullmatch(text.strip())
    unit = match["unit"].lower() if match else ""
    found = [each for each, name in _UNITS.items() if unit in {each, name, name[:-1]}]
    number = int(match["number"]) if match and found else 0
    if not 0 < number <= _MOST_YEARS * _PER_YEAR[found[0] if found else "y"]:
        raise ConfigError(
            f"{option}={text!r} is invalid: it is not a duration of up to {_MOST_YEARS:,} years. "
            f"Set a number and one of {', '.join(_UNITS)}, such as 30d. [labels-duration]"
        )
    name = _UNITS[found[0]]
    return f"{number} {name if number > 1 else name[:-1]}"


def parse_column(question: str) -> Condition | None:
    """The SQL of a question about a column, such as `users.age > 40`; None for other questions."""
    text = Text(question, "--predict")
    is_column = re.match(rf"\s*(?:{_NAME})\.{_CHAIN}(?!\s*\(|[\w.])", question) is not None
    return text.condition() if is_column else None


def parse_expression(question: str, option: str = "--predict") -> Question:
    """Parses aggregates with arithmetic, comparisons, AND, OR and NOT. An error names its place."""
    parser = _Parser(Text(question, option))
    sql, kind = parser.alternatives()
    if len(parser.aggregates) == 1 and parser.text.word("where"):
        condition = parser.text.condition()
        (asked,) = parser.aggregates
        parser.aggregates = [replace(asked, conditions=(*asked.conditions, condition))]
    parser.text.end()
    if not parser.aggregates:
        raise parser.text.error(*_NO_AGGREGATE, at=0)
    if any(each.function == "list" for each in parser.aggregates) and sql != "{0}":
        raise parser.text.error(
            "a list is not compared", "Leave out the comparison", at=parser.places[0]
        )
    return Question(tuple(parser.aggregates), sql, kind == "test")


_NO_AGGREGATE = (
    f"an aggregate is missing, one of {', '.join(AGGREGATES)}",
    "Write it as in --predict 'count(purchases) over 30d > 0', with double quotes around names of "
    "columns that contain blanks or signs",
)


class _Parser:
    """Reads expressions as SQL and their kind: number, test, or either for `exists`.

    Attributes:
        places: where the aggregates begin.
    """

    def __init__(self, text: Text) -> None:
        self.text = text
        self.aggregates: list[Aggregate] = []
        self.places: list[int] = []

    def alternatives(self) -> tuple[str, str]:
        return self._joined("or", self._conjunction)

    def _conjunction(self) -> tuple[str, str]:
        return self._joined("and", self._negation)

    def _joined(self, word: str, read: Callable[[], tuple[str, str]]) -> tuple[str, str]:
        start = self._start()
        sql, kind = read()
        while self.text.word(word):
            sql = self._test(sql, kind, start)
            start = self._start()
            sql, kind = f"({sql} {word.upper()} {self._test(*read(), start)})", "test"
        return sql, kind

    def _negation(self) -> tuple[str, str]:
        if not self.text.word("not"):
            return self._comparison()
        start = self._start()
        return f"(NOT {self._test(*self._negation(), start)})", "test"

    def _comparison(self) -> tuple[str, str]:
        start = self._start()
        sql, kind = self._sum()
        if (test := self.text.read(_TEST)) is not None:
            test = re.sub(r"^==", "=", test.strip()).replace("{", "{{").replace("}", "}}")
            return f"({self._number(sql, kind, start)} {test})", "test"
        operator = self.text.read(_OPERATOR)
        if operator is None:
            return sql, kind
        left = self._number(sql, kind, start)
        start = self._start()
        right = self._number(*self._sum(), start)
        return f"({left} {operator.replace('==', '=')} {right})", "test"

    def _sum(self) -> tuple[str, str]:
        return self._calculated(r"[+-]", self._product)

    def _product(self) -> tuple[str, str]:
        return self._calculated(r"[*/]", self._term)

    def _calculated(self, signs: str, read: Callable[[], tuple[str, str]]) -> tuple[str, str]:
        start = self._start()
        sql, kind = read()
        while (sign := self.text.read(signs)) is not None:
            left = self._number(sql, kind, start)
            start = self._start()
            right = self._number(*read(), start)
            right = f"nullif({right}, 0)" if sign == "/" else right
            sql, kind = f"({left} {sign} {right})", "number"
        return sql, kind

    def _term(self) -> tuple[str, str]:
        if self.text.read(r"\("):
            found = self.alternatives()
            self.text.expect(r"\)", "a parenthesis ')'")
            return found
        if (number := self.text.read(_NUMBER)) is not None:
            return number, "number"
        start = self._start()
        aggregate = self._aggregate(after_sign=bool(self.aggregates))
        self.aggregates.append(aggregate)
        self.places.append(start)
        kind = "either" if aggregate.function == "exists" else "number"
        return f"{{{len(self.aggregates) - 1}}}", kind

    def _aggregate(self, *, after_sign: bool) -> Aggregate:
        text, start = self.text, self._start()
        function = (text.read(r"[^\W\d]\w*") or "").lower()
        if function not in AGGREGATES:
            rule, remedy = _NO_AGGREGATE
            if after_sign:
                rule, remedy = "a number or an aggregate is missing", "Write one, such as 0"
            near = did_you_mean(function, AGGREGATES) if function else ""
            raise text.error(rule, f"{near}{remedy}", at=start)
        text.expect(r"\(", "a parenthesis '('")
        name = parse_name(text, "a table")
        by = parse_name(text, "a reference") if text.word("by") else None
        conditions = [text.condition()] if text.word("where") else []
        text.expect(r"\)", "a parenthesis ')'")
        text.expect(r"over\b", "over WINDOW")
        window = _parse_window(text, "over")
        offset = _parse_window(text, "after") if text.word("after") else None
        function = "mean" if function == "avg" else function
        return Aggregate(function, name, by, tuple(conditions), window, offset)

    def _start(self) -> int:
        self.text.read("")
        return self.text.at

    def _test(self, sql: str, kind: str, start: int) -> str:
        if kind == "number":
            raise self.text.error("a comparison is missing", "Write one, such as > 0", at=start)
        return f"({sql} = 1)" if kind == "either" else sql

    def _number(self, sql: str, kind: str, start: int) -> str:
        if kind == "test":
            raise self.text.error(
                "a comparison is not a number", "Compare numbers, and join by AND or OR", at=start
            )
        return sql


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
