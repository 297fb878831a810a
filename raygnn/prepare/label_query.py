"""SQL that makes the labels of questions such as `count(purchases) over 30d > 0`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import PurePosixPath

from raygnn.data.manifest import EdgeTable, Manifest, NodeTable
from raygnn.errors import ConfigError, choose_from
from raygnn.prepare.question import (
    QUOTED,
    Aggregate,
    Condition,
    Name,
    Question,
    Text,
    parse_column,
    parse_duration,
    parse_entities,
    parse_expression,
)

#: Columns of the targets of links, and of weights.
TARGET, WEIGHT = "target", "weight"

_TIMED_VALUE = "CASE WHEN x.value IS NOT NULL THEN {'time': x.time, 'value': x.value} END"
#: Aggregations, as SQL over the events of an entity in a window.
_AGGREGATES = {
    "count": "count(*)",
    "sum": "sum(x.value)",
    "mean": "avg(x.value)",
    "min": "min(x.value)",
    "max": "max(x.value)",
    "exists": "1",
    "distinct": "count(DISTINCT x.value)",
    # Of events at one time, the one with the least or greatest value.
    "first": f"struct_extract(min({_TIMED_VALUE}), 'value')",
    "last": f"struct_extract(max({_TIMED_VALUE}), 'value')",
    "list": "list_sort(list(DISTINCT x.value))",
}
#: Aggregations that are 0 without events. The others have no value then, and make no row.
_ZERO_WITHOUT_EVENTS = frozenset({"count", "sum", "exists", "distinct"})
_AS_THEY_ARE = frozenset({"list", "first", "last"})  # integers are classes
_WITHOUT_COLUMN = frozenset({"count", "exists", "list"})
_DEEPEST = 3  # references between an event and an entity, or a column of a condition
_CHAIN = r'(?:[^\W\d]\w*|"(?:[^"]|"")+")'
_TOKEN = re.compile(rf"'(?:[^']|'')*'|(?P<chain>{_CHAIN}(?:\s*\.\s*{_CHAIN})*)|.", re.DOTALL)
_CALL = re.compile(r"\s*[(']")  # follows functions, and types such as DATE '2024-01-01'
_EQUALS_NULL = (
    (r"(?i)(<>|!=)\s*null\b", "IS NOT NULL"),
    (r"(?i)(?<![<>!=])==?\s*null\b", "IS NULL"),
)
_SQL_WORDS = frozenset(
    (
        *("and", "or", "not", "in", "is", "null", "like", "ilike", "similar", "between", "escape"),
        *("true", "false", "case", "when", "then", "else", "end", "as", "distinct", "interval"),
        *("second", "minute", "hour", "day", "week", "month", "year", "date", "timestamp"),
        *("seconds", "minutes", "hours", "days", "weeks", "months", "years"),
    )
)


@dataclass(frozen=True)
class LabelQuery:
    """SQL that makes labels.

    Attributes:
        sql: reads `timestamps(timestamp)` and the tables of the graph; `{window}` is the window.
        window: as an SQL interval, such as `30 days`; empty if the label is a column.
        node_type: type of the entities; None infers it from column names.
        target_type: type of the elements of a list, for links.
        option: where the query comes from.
        weight: column of the result with the weights of rows.
        joined: columns of several questions or windows, which are one label with as many outputs.
        events: tables that a question is about.
        answers: node types and columns that make the label, which may not be features.
    """

    sql: str
    window: str
    node_type: str | None = None
    target_type: str | None = None
    option: str = "--sql"
    weight: str | None = None
    joined: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    answers: tuple[tuple[str, str], ...] = ()


def longest(window: str) -> str:
    """The SQL interval `30 days` as `30d`. Months have 31 days, and years 366."""
    words, total = window.split(), _length(window)
    units = {"w": timedelta(7), "d": timedelta(1), "h": timedelta(hours=1)}
    units |= {"m": timedelta(minutes=1), "s": timedelta(seconds=1)}
    unit = words[1][0] if len(words) == 2 and words[1][0] in units and "mo" not in words[1] else "d"
    for letter in (unit, "d", "h", "m", "s"):
        if total % units[letter] == timedelta():
            return f"{total // units[letter]}{letter}"
    raise AssertionError(window)


def _length(window: str) -> timedelta:
    words, total = window.split(), timedelta()
    for number, unit in zip(words[::2], words[1::2], strict=True):
        name = unit.removesuffix("s") + "s"
        days = {"months": 31, "years": 366}.get(name)
        total += int(number) * (timedelta(days) if days else timedelta(**{name: 1}))
    return total


def _joint_window(aggregates: Sequence[Aggregate]) -> str:
    """The SQL interval that contains the windows of all aggregates."""
    windows = [each.reach for each in aggregates]
    found = max(windows, key=_length)
    # In months and days, the sum depends on the order, and the longest on the date.
    if len({word.removesuffix("s") for window in windows for word in window.split()[1::2]}) == 1:
        return found
    if _length(found) % timedelta(1):
        return f"{int(_length(found).total_seconds())} seconds"
    return f"{_length(found).days} days"


def _successive(asked: Question, question: str, number: int) -> list[Question]:
    """The question in so many windows, each of which begins where the one before it ends."""
    lengths = {each.window for each in asked.aggregates}
    if number < 1 or len(lengths) > 1 or (number > 1 and _kind(asked) == "value"):
        raise ConfigError(
            f"--horizons={number} is invalid: {question!r} is asked in successive windows, which "
            "are at least 1, for numbers and comparisons of aggregates over one window. Change the "
            "question, or leave it out. [labels-horizons]"
        )
    found = []
    for done in range(number):
        aggregates = tuple(replace(each, num_skipped=done) for each in asked.aggregates)
        found.append(replace(asked, aggregates=aggregates))
    return found


def _check_joined(asked: Sequence[Question], questions: Sequence[str]) -> None:
    kinds = {_kind(each) for each in asked}
    if len(asked) > 1 and (len(kinds) > 1 or "value" in kinds):
        raise ConfigError(
            f"--predict={[*questions]} is invalid: one model predicts several numbers, or several "
            "comparisons, and no columns or lists. Ask for one kind, or make a table for each. "
            "[labels-joined]"
        )


def _kind(asked: Question) -> str:
    """`comparison`, `number`, or `value` of a column or list."""
    functions = {each.function for each in asked.aggregates}
    if asked.is_true_or_false or (asked.is_aggregate and functions == {"exists"}):
        return "comparison"
    return "value" if asked.is_aggregate and functions & _AS_THEY_ARE else "number"


@dataclass(frozen=True)
class _Reference:
    """A column of a table that contains ids of another one."""

    column: str
    name: str  # of the relation
    other: str

    def is_called(self, name: str) -> bool:
        return name.lower() in {self.column.lower(), self.name.lower(), _stem(self.column).lower()}


class QueryTables:
    """The tables of a graph by SQL name, their columns, and their references."""

    def __init__(self, graph: Manifest, columns: Mapping[str, Sequence[str]]) -> None:
        self.graph, self.columns = graph, columns
        self.tables = table_names(graph)

    def references(self, name: str) -> list[_Reference]:
        table = self.tables[name]
        if isinstance(table, EdgeTable):
            source, _, target = table.type
            if table.source == table.target:
                return []
            return [
                _Reference(table.source, _stem(table.source), source),
                _Reference(table.target, _stem(table.target), target),
            ]
        node_type = next(key for key, each in self.graph.node_types.items() if each is table)
        return [
            _Reference(edge.target, edge.type[1], edge.type[2])
            for edge in self.graph.edge_types
            if edge.type[0] == node_type
            and edge.source == table.id
            and edge.reverse_of is None
            # A draft writes the edges of a reference with gaps as a table of their own.
            and edge.target in self.columns[name]
        ]

    def paths(self, name: str, node_type: str) -> list[list[_Reference]]:
        """The shortest ways from a table to a node type."""
        ways: list[list[_Reference]] = [[]]
        for _ in range(_DEEPEST):
            ways = [
                [*way, reference]
                for way in ways
                for reference in self.references(way[-1].other if way else name)
            ]
            if found := [way for way in ways if way[-1].other == node_type]:
                return found
        return []

    def named(self, name: str, among: Collection[str] | None = None) -> str | None:
        """The table with a name or, if no name is equal, the only one with other capitals."""
        names = self.tables if among is None else among
        found = [each for each in names if each.lower() == name.lower()]
        return name if name in names else found[0] if len(found) == 1 else None

    def is_called(self, node_type: str, name: str) -> bool:
        found = self.named(name)
        return found is not None and self.tables[found] is self.graph.node_types[node_type]


@dataclass
class _JoinedRows:
    """Rows of a table `x`, joined with the tables that they refer to.

    Attributes:
        joined: alias and needed columns by way.
        found: tables and columns that conditions name.
    """

    tables: QueryTables
    table: str
    joined: dict[tuple[_Reference, ...], tuple[str, dict[str, None]]] = field(default_factory=dict)
    found: dict[tuple[str, str], None] = field(default_factory=dict)

    def column(self, way: Sequence[_Reference], column: str) -> str:
        """SQL of a column at the end of a way of references."""
        if not way:
            return f"x.{_quoted(column)}"
        if (key := tuple(way)) not in self.joined:
            self.column(way[:-1], way[-1].column)
            self.joined[key] = (f"r{len(self.joined) + 1}", {})
        alias, columns = self.joined[key]
        if column == self.tables.graph.node_types[way[-1].other].id:
            return f"{alias}.id"
        columns[column] = None
        return f"{alias}.{_quoted(column)}"

    @property
    def sql(self) -> str:
        text = f"{_quoted(self.table)} x"
        for way, (alias, columns) in self.joined.items():
            key = _quoted(self.tables.graph.node_types[way[-1].other].id)
            # Ids may repeat by error: each row refers to one row.
            selected = "".join(f", min({_quoted(each)}) AS {_quoted(each)}" for each in columns)
            rows = f"SELECT {key} AS id{selected} FROM {_quoted(way[-1].other)} GROUP BY ALL"
            referring = self.column(way[:-1], way[-1].column)
            text += f"\n  LEFT JOIN ({rows}) {alias} ON {alias}.id = {referring}"
        return text

    def find(self, name: Name) -> str:
        """SQL of a column that is named by itself or through references."""
        way: list[_Reference] = []
        parts = list(name.parts)
        named = self.tables.named(parts[0]) if len(parts) > 1 else None
        if named is not None and self.tables.tables[named] is self.tables.tables[self.table]:
            parts.pop(0)
        while True:
            table = way[-1].other if way else self.table
            columns = {each.lower(): each for each in self.tables.columns[table]}
            if (column := columns.get(".".join(parts).lower())) is not None:
                self.found[table, column] = None
                return self.column(way, column)
            ways = self._ways(table, parts)
            if not ways:
                raise self._unknown(name, table, parts)
            if len(ways) > 1:
                shown = " and ".join(".".join(ref.name for ref in each) for each in ways)
                raise name.error(
                    f"{table} refers to it in {shown}",
                    f"Write {'.'.join([ways[0][0].name, *parts[1:]])} or "
                    f"{'.'.join([ways[1][0].name, *parts[1:]])}",
                )
            way += ways[0]
            parts = parts[1:] if len(parts) > 1 else parts

    def _ways(self, table: str, parts: Sequence[str]) -> list[list[_Reference]]:
        """The shortest ways to what the first part names: a reference, a table, or a column."""
        tables = self.tables
        references = tables.references(table) if len(parts) > 1 else []
        if called := [[ref] for ref in references if ref.is_called(parts[0])]:
            return called
        ways: list[list[_Reference]] = [[]]
        for _ in range(_DEEPEST):
            ways = [
                [*way, reference]
                for way in ways
                for reference in tables.references(way[-1].other if way else table)
            ]
            found = [
                way
                for way in ways
                if (
                    tables.is_called(way[-1].other, parts[0]) or way[-1].is_called(parts[0])
                    if len(parts) > 1
                    else _has(tables.columns[way[-1].other], parts[0])
                )
            ]
            if found:
                return found
        return []

    def _unknown(self, name: Name, table: str, parts: Sequence[str]) -> ConfigError:
        names = list(self.tables.columns[table])
        names += [
            f"{reference.other}.{column}"
            for reference in self.tables.references(table)
            for column in self.tables.columns[reference.other]
        ]
        return name.error(
            f"{table} has no column {'.'.join(parts)!r}, nor has a table that it refers to",
            choose_from(".".join(parts), names),
        )

    def condition(self, condition: Condition) -> str:
        """SQL of a condition, in which each column is named with its table."""
        if re.search(r"(?i)(?<![\w.])select\b", QUOTED.sub("", condition.sql)):
            return f"({condition.sql})"
        text, is_kind = "", False
        for token in _TOKEN.finditer(condition.sql):
            chain = token["chain"]
            is_call = _CALL.match(condition.sql, token.end()) is not None
            if chain is None or is_call or is_kind:
                text += token[0]
                is_kind = is_kind and token[0].isspace()
                continue
            parts = tuple(part.strip('"') for part in re.findall(_CHAIN, chain))
            name = Name(parts, condition.text, condition.start + token.start())
            is_word = len(parts) == 1 and chain.lower() in _SQL_WORDS
            if is_word and not _has(self.tables.columns[self.table], chain):
                text += token[0]
                is_kind = chain.lower() == "as"
                continue
            text += self.find(name)
        for pattern, instead in _EQUALS_NULL:
            text = re.sub(pattern, instead, text)
        return f"({text})"


def parse_questions(
    questions: Sequence[str],
    entities: str,
    tables: QueryTables,
    active: str | None = None,
    weight: str | None = None,
    horizons: int = 1,
    assuming: str | None = None,
) -> LabelQuery:
    """Translates questions about entities. Several are the outputs of one label.

    Rows contain entities that exist at a time: from their own time on or, without one, from their
    first event in any table on.

    Args:
        questions: a column of the entities, such as `users.plan`, or its comparison; or questions
            about events, each `AGGREGATE(TABLE.COLUMN by REFERENCE where CONDITION) over WINDOW
            after OFFSET > NUMBER`. Column, reference, condition (also at the end), offset and
            comparison are optional. Aggregates are joined by `+ - * /`, comparisons, `and`, `or`
            and `not`.
        entities: a node type, with an optional condition: `users where country = 'DE'`.
        active: duration before each time, or a comparison such as `count(orders) over 90d > 2`.
            Rows contain only entities with an event in it, or for which it holds.
        weight: SQL of a number, over columns of the entities and of tables that they refer to.
        horizons: number of successive windows of each question.
        assuming: a comparison such as `count(coupons) over 7d > 0`, after each time. Rows contain
            only entities for which it holds.
    Raises:
        ConfigError: it does not parse, or names unknown tables or columns.
    """
    if (column := parse_column(questions[0])) is not None and not questions[1:]:
        return _column_query(column, entities, tables, weight)
    parsed = [parse_expression(question) for question in questions]
    _check_joined(parsed, questions)
    asked = parsed
    if horizons != 1:
        pairs = zip(parsed, questions, strict=True)
        asked = [each for pair in pairs for each in _successive(*pair, horizons)]
    node_type, condition = _find_entities(entities, tables)
    entity = tables.graph.node_types[node_type]
    made, labels = list[_Events](), dict[str, str]()
    for number, each in enumerate(asked, start=1):
        events_of = [
            _events(aggregate, f"e{len(made) + i}", node_type, tables)
            for i, aggregate in enumerate(each.aggregates)
        ]
        label = each.sql.format(*(event.value for event in events_of))
        if (kind := _kind(each)) != "value":
            label = f"CAST({label} AS {'INTEGER' if kind == 'comparison' else 'DOUBLE'})"
        labels[f"label_{number}" if asked[1:] else "label"] = label
        made += events_of
    target_type = made[0].target_type
    labels = labels if target_type is None else {TARGET: made[0].value}
    key = _quoted(entity.id)
    known = seen = "\n  UNION ALL ".join(_times_of_events(node_type, tables))
    if entity.time is not None:
        known = (
            f"SELECT {key} AS id, {_quoted(entity.time.column)} AS first FROM {_quoted(node_type)}"
        )
        seen = "\n  UNION ALL ".join(filter(None, (known, seen)))
    chosen = ""
    if condition is not None:
        rows = _JoinedRows(tables, node_type)
        sql = rows.condition(condition)
        chosen = f" AND id IN (SELECT x.{key} FROM {rows.sql} WHERE {sql})"
    known = (
        f"SELECT id, min(first) AS since FROM ({known}) WHERE id IS NOT NULL{chosen} GROUP BY ALL"
    )
    recent = joined = ""
    if active is not None and re.fullmatch(r"\s*\d+\s*\w+\s*", active):
        recent = (
            f"recent AS (\n"
            f"  SELECT DISTINCT t.timestamp, s.id FROM timestamps t JOIN ({seen}) s\n"
            f"  ON s.first <= t.timestamp AND s.first > t.timestamp - "
            f"INTERVAL '{parse_duration(active, '--active')}'),\n"
        )
        joined = "JOIN recent r ON r.timestamp = t.timestamp AND r.id = k.id\n"
        active = None
    conditions = {"--active": active, "--assuming": assuming}
    kept = [
        _kept_rows(text, option, node_type, tables)
        for option, text in conditions.items()
        if text is not None
    ]
    recent += "".join(each.cte for rows in kept for each in rows.events)
    joined += "".join(each.join for rows in kept for each in rows.events)
    holds = f"\nWHERE {' AND '.join(rows.test for rows in kept)}" if kept else ""
    weighs = ""
    if weight is not None:
        if target_type is not None:
            raise links_have_no_weights(weight)
        rows = _JoinedRows(tables, node_type)
        value = rows.condition(Text(weight, "--weight").condition())
        values = f"SELECT x.{key} AS id, min({value}) AS value FROM {rows.sql} GROUP BY ALL"
        joined += f"LEFT JOIN ({values}) w ON w.id = k.id\n"
        weighs = f", w.value AS {WEIGHT}"
    sql = (
        f"WITH {recent}{''.join(each.cte for each in made)}"
        f"known AS ({known})\n"
        f"SELECT t.timestamp, k.id AS {key}, "
        f"{', '.join(f'{sql} AS {name}' for name, sql in labels.items())}{weighs}\n"
        f"FROM timestamps t JOIN known k ON k.since <= t.timestamp\n"
        f"{joined}{''.join(each.join for each in made)}".rstrip()
        + holds
    )
    read = [each for question in asked for each in question.aggregates]
    read += [each for rows in kept for each in rows.later]
    window, events = _joint_window(read), dict.fromkeys(each.name.parts[0] for each in read)
    weights = WEIGHT if weighs else None
    outputs = tuple(labels) if asked[1:] else ()
    named = tuple(filter(None, map(tables.named, events)))
    return LabelQuery(sql, window, node_type, target_type, "--predict", weights, outputs, named)


def _find_entities(entities: str, tables: QueryTables) -> tuple[str, Condition | None]:
    """The node type of `--for`, and its condition."""
    name, condition = parse_entities(entities)
    node_types = tables.graph.node_types
    node_type = tables.named(str(name), node_types)
    if node_type is None:
        raise ConfigError(
            f"--for={entities!r} is invalid: the graph has no node type {str(name)!r}. "
            f"{choose_from(str(name), list(node_types), 'Name one of')}. [labels-node-type]"
        )
    return node_type, condition


def _column_query(
    column: Condition, entities: str, tables: QueryTables, weight: str | None
) -> LabelQuery:
    """Rows of the entities for which a column, or a comparison of it, has a value."""
    node_type, condition = _find_entities(entities, tables)
    rows = _JoinedRows(tables, node_type)
    value = rows.condition(column)
    if not (answers := tuple(rows.found)):
        raise column.text.error("it contains SELECT", "Compare columns by name", at=column.start)
    weighs = ""
    if weight is not None:
        weighs = f", {rows.condition(Text(weight, '--weight').condition())} AS {WEIGHT}"
    kept = "" if condition is None else f" AND {rows.condition(condition)}"
    key = _quoted(tables.graph.node_types[node_type].id)
    sql = (
        f"SELECT x.{key} AS {key}, {value} AS label{weighs}\n"
        f"FROM {rows.sql}\nWHERE {value} IS NOT NULL{kept}"
    )
    weights = WEIGHT if weighs else None
    return LabelQuery(sql, "", node_type, None, "--predict", weights, answers=answers)


@dataclass(frozen=True)
class _KeptRows:
    """A condition on rows as SQL.

    Attributes:
        later: its aggregates if they are of events after a time.
    """

    events: list[_Events]
    test: str
    later: tuple[Aggregate, ...]


def _kept_rows(text: str, option: str, node_type: str, tables: QueryTables) -> _KeptRows:
    asked = parse_expression(text, option)
    if _kind(asked) != "comparison":
        raise asked.aggregates[0].name.text.error(
            "a comparison is missing", "Write one, such as > 0"
        )
    is_past = option == "--active"
    events = [
        _events(each, f"{'p' if is_past else 'f'}{i}", node_type, tables, is_past)
        for i, each in enumerate(asked.aggregates)
    ]
    test = asked.sql.format(*(each.value for each in events))
    test = test if asked.is_true_or_false else f"{test} = 1"
    return _KeptRows(events, test, () if is_past else asked.aggregates)


def links_have_no_weights(weight: str) -> ConfigError:
    return ConfigError(
        f"--weight={weight!r} is invalid: links have no weights. Leave it out. "
        "[prepare-options-clash]"
    )


@dataclass(frozen=True)
class _Events:
    """An aggregate as SQL.

    Attributes:
        cte: rows of (timestamp, id, value).
        join: adds them to the entities.
        value: of an entity.
        target_type: of the elements of a list.
    """

    cte: str
    join: str
    value: str
    target_type: str | None


def _events(
    asked: Aggregate, alias: str, node_type: str, tables: QueryTables, is_past: bool = False
) -> _Events:
    name, *column = asked.name.parts
    view = tables.named(name)
    if view is None:
        raise asked.name.error(
            f"the graph has no table {name!r}",
            choose_from(name, list(tables.tables), "Name one of"),
        )
    time = tables.tables[view].time
    if time is None:
        raise asked.name.error(f"{view} has no time", "Declare its time in graph.yaml")
    ways = _ways_to_entity(asked, view, node_type, tables)
    rows = _JoinedRows(tables, view)
    target_type, value = None, "NULL"
    if asked.function == "list":
        others = [ref for ref in tables.references(view) if all(ref is not way[0] for way in ways)]
        others = [ref for ref in others if not column or ref.column == ".".join(column)]
        if len(others) != 1:
            every = [ref.column for ref in tables.references(view)] or [
                "no column refers to another"
            ]
            raise asked.name.error(
                f"a list is of ids that {view} refers to ({', '.join(every)})",
                "Write TABLE.COLUMN with one of these",
            )
        value, target_type = rows.column([], others[0].column), others[0].other
    elif column:
        value = rows.find(Name((view, *column), asked.name.text, asked.name.start))
    elif asked.function not in _WITHOUT_COLUMN:
        raise asked.name.error(f"{asked.function} needs a column", "Write TABLE.COLUMN")
    conditions = [rows.condition(condition) for condition in asked.conditions]
    if asked.function == "count" and column:
        conditions.append(f"{value} IS NOT NULL")
    where = f"\n  WHERE {' AND '.join(conditions)}" if conditions else ""
    ids = [rows.column(way[:-1], way[-1].column) for way in ways]
    # An event whose references name one entity twice counts once.
    ids_of_event = ids[0] if len(ids) == 1 else f"unnest(list_distinct([{', '.join(ids)}]))"
    when, sign = f"x.{_quoted(time.column)}", "-" if is_past else "+"
    offset = f" {sign} INTERVAL '{asked.offset}'" if asked.offset else ""
    bounds = [f"t.timestamp{offset}"] * 2
    for i, num in enumerate((asked.num_skipped, asked.num_skipped + 1)):
        bounds[i] += f" {sign} INTERVAL '{asked.windows(num)}'" if num else ""
    start, end = reversed(bounds) if is_past else bounds
    cte = (
        f"{alias} AS (\n  SELECT t.timestamp, x.id, {_AGGREGATES[asked.function]} AS value\n"
        f"  FROM timestamps t JOIN (\n"
        f"  SELECT {ids_of_event} AS id, {when} AS time, {value} AS value\n"
        f"  FROM {rows.sql}{where}) x\n"
        f"  ON x.time > {start} AND x.time <= {end}\n"
        f"  GROUP BY ALL),\n"
    )
    join = f"LEFT JOIN {alias} ON {alias}.timestamp = t.timestamp AND {alias}.id = k.id\n"
    found = f"{alias}.value"
    if asked.function in _ZERO_WITHOUT_EVENTS:
        found = f"coalesce({found}, 0)"
    return _Events(cte, join, found, target_type)


def _ways_to_entity(
    asked: Aggregate, view: str, node_type: str, tables: QueryTables
) -> list[list[_Reference]]:
    """The references that name the entities of an event: several columns of its table, or one."""
    ways = tables.paths(view, node_type)
    shown = [".".join(ref.name for ref in way) for way in ways]
    if asked.by is not None:
        named = [way for way in ways if _is_called(way, asked.by.parts)]
        if not named:
            raise asked.by.error(
                f"{view} does not refer to {node_type} by this name",
                choose_from(str(asked.by), shown, "Name one of") if shown else "Leave it out",
            )
        ways = named
    if not ways:
        raise asked.name.error(f"{view} refers to {node_type} in no column", "Write SQL (--sql)")
    if len(ways) > 1 and len(ways[0]) > 1:
        raise asked.name.error(
            f"{view} refers to {node_type} in {' and '.join(shown)}",
            f"Name one of these, as in {view} by {shown[0]}",
        )
    return ways


def _is_called(way: Sequence[_Reference], names: Sequence[str]) -> bool:
    """Whether names are those of the first or the last references of a way."""
    ends = (way[: len(names)], way[len(way) - len(names) :])
    return len(names) <= len(way) and any(
        all(ref.is_called(name) for ref, name in zip(end, names, strict=True)) for end in ends
    )


def _times_of_events(node_type: str, tables: QueryTables) -> Iterator[str]:
    distinct = {id(table): name for name, table in reversed(tables.tables.items())}
    for name in reversed(distinct.values()):
        time = tables.tables[name].time
        if time is None or tables.tables[name] is tables.graph.node_types[node_type]:
            continue
        for way in tables.paths(name, node_type):
            rows = _JoinedRows(tables, name)
            entity = rows.column(way[:-1], way[-1].column)
            yield f"SELECT {entity} AS id, x.{_quoted(time.column)} AS first FROM {rows.sql}"


def table_names(graph: Manifest) -> dict[str, NodeTable | EdgeTable]:
    """The tables of a graph by SQL name: node types, relations, and file names.

    A relation whose name is taken has that of its edge type, such as `user__bought__item`. Edges
    that are columns of a node table have no separate name.
    """
    names: dict[str, NodeTable | EdgeTable] = dict(graph.node_types)
    of_nodes = {table.files for table in graph.node_types.values()}
    relations = [edge.type[1] for edge in graph.edge_types]
    for edge in graph.edge_types:
        if edge.files in of_nodes:
            continue
        source, relation, target = edge.type
        is_taken = relation in graph.node_types or relations.count(relation) > 1
        names[f"{source}__{relation}__{target}" if is_taken else relation] = edge
    for table in list(names.values()):
        path = PurePosixPath(table.files[0])
        stem = path.name.partition(".")[0]
        names.setdefault(path.parent.name if "*" in stem else stem, table)
    return {name: table for name, table in names.items() if name}


def _has(columns: Sequence[str], name: str) -> bool:
    return name.lower() in {column.lower() for column in columns}


def _stem(column: str) -> str:
    """`winner_id` as winner."""
    return re.sub(r"(?i)[-_ ]?(id|key|code|nr|no)$", "", column) or column


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
