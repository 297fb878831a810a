"""One-line questions, such as `count(purchases) over 30d > 0`, as SQL that makes labels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from raygnn.data.manifest import EdgeTable, Manifest, NodeTable
from raygnn.errors import ConfigError

#: Column of the targets of links.
TARGET = "target"

#: Aggregations, as SQL over the events of an entity in a window.
_AGGREGATES = {
    "count": "count({column})",
    "sum": "sum({column})",
    "mean": "avg({column})",
    "min": "min({column})",
    "max": "max({column})",
    "exists": "1",
    "distinct": "count(DISTINCT {column})",
    "list": "list_sort(list(DISTINCT {column}))",
}
#: Aggregations that are 0 without events. The others have no value then, and make no row.
_ZERO_WITHOUT_EVENTS = frozenset({"count", "sum", "exists", "distinct"})
_ARE_CLASSES = frozenset({"exists", "list"})
_WITHOUT_COLUMN = frozenset({"count", "exists", "list"})

_QUESTION = re.compile(
    r"\s*(?P<aggregate>\w+)\s*\(\s*(?P<table>[\w-]+)(?:\.(?P<column>[\w.-]+|\"[^\"]+\"))?"
    r"(?:\s+where\s+(?P<inner>.+?))?\s*\)\s*over\s+(?P<window>\d+\s*\w+)\s*"
    r"(?:(?P<operator><=|>=|<>|!=|==|=|<|>)\s*(?P<value>-?\d+(?:\.\d+)?))?\s*"
    r"(?:where\s+(?P<outer>.+?))?\s*",
    re.IGNORECASE | re.DOTALL,
)
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


@dataclass(frozen=True)
class LabelQuery:
    """SQL that makes labels.

    Attributes:
        sql: reads `timestamps(timestamp)` and the tables of the graph; `{window}` is the window.
        window: as an SQL interval, such as `30 days`.
        node_type: type of the entities; None infers it from column names.
        target_type: type of the elements of a list, for links.
        option: where the query comes from.
    """

    sql: str
    window: str
    node_type: str | None = None
    target_type: str | None = None
    option: str = "--sql"


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
    return f"{int(match['number'])} {found[0]}"


def longest(window: str) -> str:
    """The SQL interval `30 days` as `30d`. Months have 31 days, and years 366."""
    number, unit = window.split()
    days = {"months": 31, "years": 366}.get(unit)
    return f"{number}{unit[0]}" if days is None else f"{int(number) * days}d"


def parse_question(
    question: str, node_type: str, graph: Manifest, active: str | None = None
) -> LabelQuery:
    """Translates a question about the entities of a type.

    Rows contain entities that exist at a time: from their own time on or, without one, from their
    first event in any table on.

    Args:
        question: `AGGREGATE(TABLE.COLUMN where CONDITION) over WINDOW > NUMBER`. Column, condition
            (also at the end) and comparison are optional.
        active: SQL interval before each time. Rows contain only entities with an event in it.
    Raises:
        ConfigError: it does not parse, or names unknown tables or columns.
    """
    match = _QUESTION.fullmatch(question)
    aggregate = match["aggregate"].lower() if match else ""
    if match is None or aggregate not in _AGGREGATES:
        raise _invalid(
            question,
            f"it is not AGGREGATE(TABLE.COLUMN) over WINDOW, with one of {', '.join(_AGGREGATES)}",
            "Write it as in --predict 'count(purchases) over 30d > 0', with double quotes around "
            "names of columns that contain blanks or signs",
        )
    if node_type not in graph.node_types:
        raise ConfigError(
            f"--for={node_type!r} is invalid: the graph has the node types "
            f"{', '.join(graph.node_types)}. Name one of these.",
            id="labels-node-type",
        )
    entity = graph.node_types[node_type]
    events = _events(question, match["table"], node_type, graph)
    column, target_type = match["column"], None
    if column is not None:
        column = column.strip('"')
    if aggregate == "list":
        column, target_type = _target(question, events, column)
    elif column is None and aggregate not in _WITHOUT_COLUMN:
        raise _invalid(question, f"{aggregate} needs a column", "Write TABLE.COLUMN")
    value = _AGGREGATES[aggregate].format(column="*" if column is None else f"x.{_quoted(column)}")
    label = "coalesce(e.label, 0)" if aggregate in _ZERO_WITHOUT_EVENTS else "e.label"
    if (operator := match["operator"]) is not None:
        if aggregate == "list":
            raise _invalid(question, "a list is not compared", "Leave out the comparison")
        label = f"CAST({label} {operator.replace('==', '=')} {match['value']} AS INTEGER)"
    elif aggregate not in _ARE_CLASSES:
        label = f"CAST({label} AS DOUBLE)"  # integers are classes
    conditions = [f"({text})" for text in (match["inner"], match["outer"]) if text]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    key, name, time = _quoted(entity.id), _quoted(events.view), _quoted(events.time)
    known = seen = " UNION ALL ".join(_times_of_events(node_type, graph))
    if entity.time is not None:
        known = (
            f"SELECT {key} AS id, {_quoted(entity.time.column)} AS first FROM {_quoted(node_type)}"
        )
        seen = " UNION ALL ".join(filter(None, (known, seen)))
    known = f"SELECT id, min(first) AS since FROM ({known}) WHERE id IS NOT NULL GROUP BY ALL"
    recent = joined = ""
    if active is not None:
        recent = (
            f"recent AS (\n"
            f"  SELECT DISTINCT t.timestamp, s.id FROM timestamps t JOIN ({seen}) s\n"
            f"  ON s.first <= t.timestamp AND s.first > t.timestamp - INTERVAL '{active}'),\n"
        )
        joined = "JOIN recent r ON r.timestamp = t.timestamp AND r.id = k.id\n"
    labelled = f"{label} AS {'label' if target_type is None else TARGET}"
    sql = (
        f"WITH known AS ({known}),\n"
        f"{recent}"
        f"events AS (\n"
        f"  SELECT t.timestamp, {events.entity} AS id, {value} AS label\n"
        f"  FROM timestamps t JOIN (SELECT * FROM {name}{where}) x\n"
        f"  ON x.{time} > t.timestamp AND x.{time} <= t.timestamp + INTERVAL '{{window}}'\n"
        f"{events.joined}"
        f"  GROUP BY ALL)\n"
        f"SELECT t.timestamp, k.id AS {key}, {labelled}\n"
        f"FROM timestamps t JOIN known k ON k.since <= t.timestamp\n"
        f"{joined}"
        f"LEFT JOIN events e ON e.timestamp = t.timestamp AND e.id = k.id"
    )
    window = parse_duration(match["window"], "over")
    return LabelQuery(sql, window, node_type, target_type, "--predict")


@dataclass(frozen=True)
class _Events:
    """A table whose rows refer to the entities, or to a table that does.

    Attributes:
        entity: SQL of the ids of entities.
        others: referenced node type by other column.
        joined: SQL that joins the table in between, if any.
    """

    view: str
    entity: str
    time: str
    others: dict[str, str]
    joined: str = ""


def _events(question: str, table: str, node_type: str, graph: Manifest) -> _Events:
    names = table_names(graph)
    if table not in names:
        raise _invalid(
            question,
            f"the graph has no table {table!r}, but {', '.join(names)}",
            "Name one of these",
        )
    time = names[table].time
    references = _references(table, names[table], graph)
    paths = [[column] for column, other in references.items() if other == node_type] or [
        [column, middle, next_column]
        for column, middle in references.items()
        for next_column, other in _references(middle, graph.node_types[middle], graph).items()
        if other == node_type
    ]
    if len(paths) != 1:
        rule = f"{table} refers to {node_type} in " + (
            " and ".join(".".join(path) for path in paths) or "no column"
        )
        raise _invalid(question, rule, "Write the question as SQL (--sql)")
    if time is None:
        raise _invalid(question, f"{table} has no time", "Declare its time in graph.yaml")
    column, *rest = paths[0]
    others = {name: other for name, other in references.items() if name != column}
    if not rest:
        return _Events(table, f"x.{_quoted(column)}", time.column, others)
    middle, next_column = rest
    key = _quoted(graph.node_types[middle].id)
    joined = f"  JOIN {_quoted(middle)} m ON m.{key} = x.{_quoted(column)}\n"
    return _Events(table, f"m.{_quoted(next_column)}", time.column, others, joined)


def _times_of_events(node_type: str, graph: Manifest) -> Iterator[str]:
    tables = {id(table): (name, table) for name, table in reversed(table_names(graph).items())}
    for name, table in reversed(tables.values()):
        for column, other in _references(name, table, graph).items():
            if other == node_type and table.time is not None:
                time = _quoted(table.time.column)
                yield f"SELECT {_quoted(column)} AS id, {time} AS first FROM {_quoted(name)}"


def _references(name: str, table: NodeTable | EdgeTable, graph: Manifest) -> dict[str, str]:
    if isinstance(table, EdgeTable):
        ends = {table.source: table.type[0], table.target: table.type[2]}
        return ends if len(ends) == 2 else {}
    return {edge.target: edge.type[2] for edge in graph.edge_types if edge.type[0] == name}


def _target(question: str, events: _Events, column: str | None) -> tuple[str, str]:
    columns = [column] if column is not None else list(events.others)
    if len(columns) != 1 or columns[0] not in events.others:
        others = ", ".join(events.others) or "no column refers to another table"
        rule = f"a list is of ids that {events.view} refers to ({others})"
        raise _invalid(question, rule, "Write TABLE.COLUMN with one of these")
    return columns[0], events.others[columns[0]]


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


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _invalid(question: str, rule: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"--predict={question!r} is invalid: {rule}. {remedy}.", id="labels-question"
    )
