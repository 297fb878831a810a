"""Translates the predictive query language (PQL) of Kumo into questions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from raygnn.prepare.question import QUOTED, Text

_AGGREGATES = {
    "COUNT": "count",
    "COUNT_DISTINCT": "distinct",
    "SUM": "sum",
    "AVG": "avg",
    "MIN": "min",
    "MAX": "max",
    "FIRST": "first",
    "LAST": "last",
    "LIST_DISTINCT": "list",
}
_UNITS = {
    "seconds": "s",
    "minutes": "min",
    "hours": "h",
    "days": "d",
    "weeks": "w",
    "months": "mo",
    "years": "y",
}
_CALL = re.compile(r"([A-Za-z_]+)\s*\(")
_CLAUSES = re.compile(
    r"(PREDICT|FOR\s+EACH|FOR|WHERE|ASSUMING|RANK\s+TOP|CLASSIFY|FORECAST)\b", re.IGNORECASE
)
_TEXT_TESTS = (
    (r"(?i)\bIS\s+IN\b", "IN"),
    (r"(?i)\bCONTAINS\s+'((?:[^']|'')*)'", r"LIKE '%\1%'"),
    (r"(?i)\bSTARTS\s+WITH\s+'((?:[^']|'')*)'", r"LIKE '\1%'"),
    (r"(?i)\bENDS\s+WITH\s+'((?:[^']|'')*)'", r"LIKE '%\1'"),
)
#: A list that contains a value: an event has it.
_CONTAINS = re.compile(
    r"(?i)list\((?P<column>\S+?)(?P<where> where .+?)?\) (?P<window>over \w+(?: after \w+)?)"
    r"\s+(?P<no>NOT\s+)?CONTAINS\s+(?P<value>'(?:[^']|'')*'|[\w.]+)"
)
_DATE = re.compile(r"(?<![\w'-])\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?(?![\w'-])")
_EVER = 1_000  # years, which stand for a window without a beginning


@dataclass(frozen=True)
class Translation:
    """Options of `raygnn prepare labels`, and what they leave out."""

    predict: str
    entities: str
    active: str | None
    assuming: str | None
    horizons: int
    notes: tuple[str, ...]


def translate(pql: str, ids: Mapping[str, str] = MappingProxyType({})) -> Translation:
    """Translates `PREDICT AGGREGATE(TABLE.COLUMN WHERE ..., START, END, UNIT) FOR EACH TABLE.ID
    WHERE ...`. Raises a ConfigError that marks a part without a counterpart.

    `ids`: column of ids of each node type.
    """
    text = Text(_with_quotes(re.sub(r"\s+", " ", pql.strip().rstrip(";"))), "--pql")
    clauses = _split_clauses(text)
    if "CLASSIFY" in clauses:
        raise text.error(
            "raygnn ranks the items of a list",
            "Leave it out or, for probabilities of a few items, repeat --predict, such as "
            "\"exists(orders where product = 'tea') over 30d\"",
            at=clauses["CLASSIFY"][1],
        )
    for name in ("PREDICT", "FOR"):
        if name not in clauses:
            raise text.error(
                f"{name} is missing",
                "Write PREDICT COUNT(orders.*, 0, 30, days) FOR EACH users.user_id",
                at=0,
            )
    predict, start = clauses["PREDICT"]
    asked = _translated(text, predict, start, is_past=False)
    asked = _as_sql(asked) if asked == predict else asked  # a column
    notes = []
    entities, start = clauses["FOR"]
    found = re.fullmatch(r"([\w-]+)\.([\w-]+)(.*)", entities)
    if found is None:
        raise text.error("the column of ids is missing", "Write TABLE.COLUMN", at=start)
    for name, id in ids.items():
        if name.lower() == found[1].lower() and id.lower() != found[2].lower():
            raise text.error(f"{name} has its ids in {id}", f"Write {name}.{id}", at=start)
    if found[3].strip():
        notes.append(f"{entities!r} names entities to predict: raygnn infer --rows asks for them")
    if "RANK" in clauses:
        notes.append(f"RANK TOP {clauses['RANK'][0]}: raygnn infer --k returns as many")
    target = re.match(r"\w+\((\w+)", asked)
    kept, past = _filters(text, clauses.get("WHERE"))
    events = f"{target[1]}." if target else ""
    if kept and events != f"{found[1]}." and set(re.findall(r"\w+\.", kept)) == {events}:
        asked, kept = f"{asked} where {kept}", None  # of the events, not of the entities
    chosen = f"{found[1]} where {kept}" if kept else found[1]
    assumed = None
    if "ASSUMING" in clauses:
        body, start = clauses["ASSUMING"]
        assumed = _translated(text, body, start, is_past=False)
        if assumed == body:
            raise text.error(
                "raygnn assumes events of a window, not values of a column",
                "Leave it out",
                at=start,
            )
    horizons = _horizons(text, clauses)
    return Translation(asked, chosen, past, assumed, horizons, tuple(notes))


def _with_quotes(pql: str) -> str:
    """Texts and dates in single quotes, as in SQL."""
    parts = re.split(f"({QUOTED.pattern})", pql)
    parts[::2] = [_DATE.sub(lambda found: f"'{found[0]}'", part) for part in parts[::2]]
    for i in range(1, len(parts), 2):
        if parts[i].startswith('"'):
            parts[i] = "'" + parts[i][1:-1].replace("'", "''") + "'"
    return "".join(parts)


def _horizons(text: Text, clauses: Mapping[str, tuple[str, int]]) -> int:
    if "FORECAST" not in clauses:
        return 1
    body, start = clauses["FORECAST"]
    found = re.fullmatch(r"(?i)(\d+)\s+TIMEFRAMES", body)
    if found is None:
        raise text.error(
            "it is not a number of TIMEFRAMES", "Write FORECAST 4 TIMEFRAMES", at=start
        )
    return int(found[1])


def _split_clauses(text: Text) -> dict[str, tuple[str, int]]:
    """Clauses outside parentheses and quotes, by first word, with their places."""
    starts = []
    at = depth = 0
    while at < len(text.text):
        skipped = QUOTED.match(text.text, at)
        is_word = not depth and (at == 0 or not re.match(r"[\w.]", text.text[at - 1]))
        clause = _CLAUSES.match(text.text, at) if is_word else None
        if skipped or clause:
            if clause:
                starts.append((clause[1].split()[0].upper(), at, clause.end()))
            at = (skipped or clause).end()  # type: ignore[union-attr]
            continue
        depth += {"(": 1, ")": -1}.get(text.text[at], 0)
        at += 1
    if not starts or starts[0][1] > 0:
        raise text.error("it does not begin with PREDICT", "Write PREDICT ... FOR EACH ...", at=0)
    ends = [start for _, start, _ in starts[1:]] + [len(text.text)]
    clauses: dict[str, tuple[str, int]] = {}
    for (name, start, first), end in zip(starts, ends, strict=True):
        if name in clauses:
            raise text.error(f"{name} is repeated", "Leave one out", at=start)
        body = text.text[first:end]
        clauses[name] = body.strip(), first + len(body) - len(body.lstrip())
    return clauses


def _filters(text: Text, where: tuple[str, int] | None) -> tuple[str | None, str | None]:
    """The condition on an entity, and that on its past."""
    if where is None:
        return None, None
    kept, past = [], []
    for part, start in _split(*where, r"\s+AND\s+"):
        translated = _translated(text, part, start, is_past=True)
        if translated == part:
            kept.append(_as_sql(part))
            continue
        for other, at in _split(part, start, r"\s+OR\s+"):
            if _translated(text, other, at, is_past=True) == other:
                raise text.error(
                    "OR joins a column and a window", "Write SQL (--sql) for this filter", at=at
                )
        past.append(translated)
    joined = [
        " and ".join(f"({p})" if len(parts) > 1 else p for p in parts) or None
        for parts in (kept, past)
    ]
    return joined[0], joined[1]


def _split(body: str, start: int, pattern: str) -> list[tuple[str, int]]:
    """Parts between a word outside parentheses and quotes, with their places."""
    parts, at, first, depth = [], 0, 0, 0
    word = re.compile(pattern, re.IGNORECASE)
    while at < len(body):
        if skipped := QUOTED.match(body, at):
            at = skipped.end()
            continue
        is_bound = re.search(r"\bBETWEEN\s+\S+$", body[first:at], re.IGNORECASE) is not None
        if not depth and not is_bound and (found := word.match(body, at)):
            parts.append((body[first:at], start + first))
            first = at = found.end()
            continue
        depth += {"(": 1, ")": -1}.get(body[at], 0)
        at += 1
    return [*parts, (body[first:], start + first)]


def _translated(text: Text, body: str, start: int, *, is_past: bool) -> str:
    """An expression with its aggregates and their tests translated."""
    done, at = "", 0
    while at < len(body):
        if skipped := QUOTED.match(body, at):
            done += skipped[0]
            at = skipped.end()
            continue
        call = _CALL.match(body, at)
        if call is None or call[1].upper() not in _AGGREGATES or re.match(r"\w", body[at - 1 : at]):
            done += body[at]
            at += 1
            continue
        end, depth = call.end(), 1
        while end < len(body) and depth:
            skipped = QUOTED.match(body, end)
            depth += 0 if skipped else {"(": 1, ")": -1}.get(body[end], 0)
            end = skipped.end() if skipped else end + 1
        if depth:
            raise text.error("a parenthesis ')' is missing", "Close it", at=start + call.end() - 1)
        inside = body[call.end() : end - 1]
        name = _AGGREGATES[call[1].upper()]
        done += _aggregate(text, name, _split(inside, start + call.end(), r"\s*,\s*"), is_past)
        at = end
    return done if done == body else _as_sql(_CONTAINS.sub(_exists, done))


def _exists(found: re.Match[str]) -> str:
    table, column = found["column"].split(".", 1)
    where = f"{found['where']} and" if found["where"] else " where"
    negated = "not " if found["no"] else ""
    return f"{negated}exists({table}{where} {column} = {found['value']}) {found['window']}"


def _aggregate(text: Text, name: str, parts: list[tuple[str, int]], is_past: bool) -> str:
    (what, at), *ends = parts
    if len(ends) not in (2, 3):
        raise text.error(
            "a window is missing", "Write AGGREGATE(TABLE.COLUMN, START, END, UNIT)", at=at
        )
    numbers: list[int | None] = []
    for end, at_end in ends[:2]:
        if is_past and re.fullmatch(r"(?i)-INF(INITY)?", end.strip()):
            numbers.append(None)
            continue
        if re.fullmatch(r"[+-]?\d+", end.strip()) is None:
            raise text.error(
                f"{end.strip()!r} is not an end of a window that raygnn has",
                "Write a whole number, or SQL (--sql)",
                at=at_end,
            )
        numbers.append(int(end))
    unit = ends[2][0].strip().lower() if ends[2:] else "days"
    if unit.removesuffix("s") + "s" not in _UNITS:
        raise text.error("the unit is unknown", f"Write {', '.join(_UNITS)}", at=ends[2][1])
    first, last = numbers
    if last is None:
        raise text.error("the window has no end", "Write 0", at=ends[1][1])
    near = -last if is_past else first
    if (first is not None and last <= first) or near is None or near < 0:
        side = "ends at 0 or earlier" if is_past else "begins at 0 or later"
        raise text.error(f"the window is not one that {side}", "Write SQL (--sql)", at=ends[0][1])
    letter = _UNITS[unit.removesuffix("s") + "s"]
    table = re.sub(r"\.\*", "", _as_sql(what.strip()))
    table = re.sub(r"(?i)\s+where\s+", " where ", table)
    offset = f" after {near}{letter}" if near else ""
    length = f"{_EVER}y" if first is None else f"{last - first}{letter}"
    return f"{name}({table}) over {length}{offset}"


def _as_sql(condition: str) -> str:
    for pattern, instead in _TEXT_TESTS:
        condition = re.sub(pattern, instead, condition)
    return condition
