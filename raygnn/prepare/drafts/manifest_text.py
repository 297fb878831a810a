"""The text of a drafted `graph.yaml`: roles, transforms, and lines with a question mark."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

import pyarrow.compute as pc

from raygnn.data.manifest import FORMAT
from raygnn.documents import dump_yaml
from raygnn.prepare.drafts.columns import NUMBER_FORMATS, Column, type_name, word_set, words_of
from raygnn.prepare.drafts.raw_tables import Table
from raygnn.prepare.drafts.roles import (
    Roles,
    Task,
    is_edges,
    is_order,
    is_start,
    is_training_rows,
    is_used,
    may_be_time,
    ordered_ends,
    roles_of,
)

# Words of columns whose whole numbers name classes, even if there are many.
_CLASSES = word_set("label target class category type kind topic group genre cluster code id y")
_SEPARATORS = (";", "|")  # of lists in a text; commas are in sentences and names too
_END_OF_KEY = re.compile(
    r"(?i:[-_ ]?(id|key|code|nr)|[-_ ](no|num|number))$|(?<=[a-z])(No|Num|Number)$"
)


def manifest_lines(tables: Sequence[Table], task: Task) -> Iterator[str]:
    yield (
        "# A draft: look at the lines with '?'. docs/graph-format.md has every key.\n"
        f"format: {FORMAT}\n"
    )
    for table in tables:
        if not is_used(table):
            yield f"# ? {table.pattern} is left out: {_why_unused(table)}\n"
            yield from (f"# ? {table.pattern}: {note}\n" for note in table.unsure)
    yield from (f"# ? {note}\n" for note in task.notes)
    yield "node_types:\n"
    edges: list[str] = []
    rows: list[str] = []
    for table in tables:
        label = task.column if task.table == table.name else None
        if table.key is not None:
            yield from _node_lines(table, label)
        elif is_training_rows(table):
            rows.extend(_training_lines(table, label))
        edges.extend(_edge_lines(table, label))
    if edges:
        yield "edge_types:\n"
        yield from edges
    if rows:
        yield "training_tables:\n"
        yield from rows


def _why_unused(table: Table) -> str:
    nearest = max(
        (
            column
            for column in table.columns.values()
            if column.kind in {"int", "text"} and not column.is_time
        ),
        key=lambda column: (bool(_END_OF_KEY.search(column.name)), len(column.distinct)),
        default=None,
    )
    if nearest is None:
        return "no column of it can hold ids"
    empty = int(nearest.ids.null_count)
    repeated = len(nearest.ids) - empty - len(nearest.distinct_ids)
    if nearest.is_unique:
        return (
            "it refers to no table that is taken, and none refers to it; "
            f"--ref TABLE.COLUMN={table.name}.{nearest.name} makes a reference"
        )
    return (
        "it refers to no table that is taken, and no column has an id of its own in each row "
        f"({nearest.name}: {repeated:,} rows repeat one, {empty:,} have none)"
    )


def _remarks(table: Table) -> Iterator[str]:
    if table.repairs:
        repairs = "; ".join(table.repairs)
        yield f"{table.pattern} is a repaired copy of {table.source}: {repairs}"
    yield from table.unsure
    if table.key is not None:
        key = table.columns[table.key]
        empty = int(key.ids.null_count)
        if repeated := len(key.ids) - empty - len(key.distinct_ids):
            rows = "row repeats" if repeated == 1 else "rows repeat"
            yield f"{table.key}: {repeated:,} {rows} an id; data.on_error: drop keeps the first"
        if empty:
            yield f"{table.key}: {empty:,} rows have none; data.on_error: drop leaves them out"
    time = roles_of(table).time
    if time is not None and (num_gaps := int(time.values.null_count)):
        yield f"{time.name}: {num_gaps:,} rows have none; data.on_error: drop leaves them out"
    for name, reference in table.references.items():
        column = table.columns[name]
        # Nodes without a reference have no edge; an edge without an end is an error.
        num_gaps = int(column.values.null_count) if table.key is None else 0
        errors = {
            f"have an id that {reference.table} does not list": reference.num_unknown,
            "have none": num_gaps,
        }
        if words := " and ".join(f"{num:,} {what}" for what, num in errors.items() if num):
            yield (
                f"{name}: of {len(column.values):,} rows {words}; data.on_error: drop leaves them "
                "out"
            )


def _node_lines(table: Table, label: str | None) -> Iterator[str]:
    yield f"  {_quoted(table.name)}:\n"
    yield from map("    # ? {}\n".format, _remarks(table))
    yield f"{_rows(table)}    id: {_quoted(table.key or '')}\n"
    roles = roles_of(table, label)
    starts = [column for column in roles.features if is_start(column)]
    start = roles.time or next(iter(starts), None)
    yield from _feature_lines(table, roles, "x", start)
    yield from _role_lines(roles, "label", "split", "time")
    dates = starts or [c for c in roles.features if table.references and may_be_time(c)]
    dates = [column for column in dates if column.name not in table.hindsight]
    if roles.time is None and dates:
        names = ", ".join(column.name for column in dates)
        advice = "if rows exist only from then on, make it their time, and that of their edges"
        yield f"    # ? {names}: a feature; {advice}\n"


def _training_lines(table: Table, label: str | None) -> Iterator[str]:
    (reference,) = table.references.values()
    yield f"  {_quoted(table.name)}:\n"
    yield from map("    # ? {}\n".format, _remarks(table))
    yield f"{_rows(table)}    node_type: {_quoted(reference.table)}\n"
    yield f"    node: {_quoted(reference.column)}\n"
    roles = roles_of(table, label)
    yield from _role_lines(roles, "time", "label", "split")
    if roles.features:
        names = ", ".join(column.name for column in roles.features)
        yield f"    # ? {names}: not read; only columns of nodes and edges are features\n"


def _role_lines(roles: Roles, *names: str) -> Iterator[str]:
    for name in names:
        column = getattr(roles, name)
        if name == "label" and column is not None:
            yield from _label_lines(column)
        elif column is not None:
            yield f"    {name}: {_time(column) if name == 'time' else _quoted(column.name)}\n"


def _label_lines(column: Column) -> Iterator[str]:
    label, formats, note = _quoted(column.name), column.formats, None
    if formats and formats[0] in NUMBER_FORMATS:
        label = f"{{column: {label}, format: {formats[0]}}}"
    elif is_order(column):
        label = f"{{column: {label}, kind: regression}}"
        note = "read as grades with an order"
        note += "; kind: class predicts classes" if len(column.distinct_ids) else ""
    elif (
        column.is_class and column.kind != "text" and (len(column.distinct) > 2 or column.is_whole)
    ):
        label = f"{{column: {label}, kind: class}}"
        note = "whole numbers are read as classes; kind: regression predicts them as numbers"
    elif column.kind == "int" and not column.is_class and not _CLASSES & {*words_of(column.name)}:
        label = f"{{column: {label}, kind: regression}}"
        note = "has many whole numbers, read as amounts; kind: class reads them as classes"
    yield f"    labels: {{{_quoted(label_name(column.name))}: {label}}}\n"
    if note:
        yield f"    # ? {column.name}: {note}\n"


def label_name(column: str) -> str:
    return "y" if type_name(column) in {"id", "split", "time", "weight"} else type_name(column)


def _time(column: Column) -> str:
    name, formats = _quoted(column.name), column.formats
    return f"{{column: {name}, format: {formats[0]}}}" if formats else name


def _feature_lines(table: Table, roles: Roles, name: str, time: Column | None) -> Iterator[str]:
    columns = roles.features
    reasons = {
        column.name: _why_no_feature(column, time) or table.hindsight.get(column.name)
        for column in columns
    }
    kept = [column for column in columns if reasons[column.name] is None]
    if kept:
        yield f"    features:\n      {name}:\n"
        for column in kept:
            text = table.comments.get(column.name)
            comment = "" if text is None else f"  # {text}"
            yield f"        - {{column: {_quoted(column.name)}, {_transform(column)}}}{comment}\n"
    for column in kept:
        if len(column.formats) > 1:
            chosen, other = column.formats
            yield (
                f"    # ? {column.name} is read with format: {chosen}; its numbers are others with "
                f"{other}\n"
            )
    if kept and roles.label is not None and roles.time is not None:
        names = ", ".join(column.name for column in kept)
        yield (
            f"    # ? {names}: read for {roles.label.name} of the same row; leave out what becomes "
            "known with it\n"
        )
    for reason in dict.fromkeys(filter(None, reasons.values())):
        left_out = [column_name for column_name, why in reasons.items() if why == reason]
        are, hold = ("is", "it holds") if len(left_out) == 1 else ("are", "they hold")
        yield f"    # ? {', '.join(left_out)} {are} left out: {hold} {reason}\n"


def _why_no_feature(column: Column, time: Column | None) -> str | None:
    """Why a column is not a feature of rows with a time. None if a transform reads it."""
    if column.kind == "other" or not column.num_given:
        return "nothing that becomes numbers"
    if len(column.distinct) == 1 and not column.values.null_count:
        return f"{column.distinct[0].as_py()!r} in all rows"
    formats = column.formats
    if formats and formats[0] in NUMBER_FORMATS:
        marks = _marks(column)
        return f"numbers of several units ({', '.join(marks)})" if len(marks) > 1 else None
    if len(formats) > 1:
        return (
            "dates as 05/06/2024, of May or of June: add it with format: day_first or month_first"
        )
    if time is not None and column.is_later_than(time):
        return (
            f"dates later than {time.name}, which may be unknown by then; add one that is known, "
            "such as the end of a contract"
        )
    if time is not None and column.follows(time):
        return f"a running number that grows with {time.name}, so later rows lie beyond all others"
    if formats or column.is_prose:
        return None
    if column.is_free_text:
        return "a different name in most rows"
    is_early_name = time is not None and column.begins_as_free_text(time)
    return "a different name in most of the first rows" if is_early_name else None


def _marks(column: Column) -> list[str]:
    marks = pc.replace_substring_regex(column.distinct, r"[^A-Z\p{Sc}%]", "").unique()
    return sorted(mark for mark in marks.to_pylist() if mark)


def _transform(column: Column) -> str:
    if column.formats:
        return f"transform: auto, format: {column.formats[0]}"
    if column.is_prose:
        return "transform: tfidf"
    for separator in _SEPARATORS if column.kind == "text" else ():
        parts = pc.split_pattern(column.distinct, separator)
        lengths = pc.list_value_length(parts)
        words = pc.list_flatten(parts).unique()
        if pc.max(lengths).as_py() > 1 and 2 * len(words) <= len(column.distinct):
            return f'transform: multi_hot, separator: "{separator}"'
    return "transform: auto"


def _edge_lines(table: Table, label: str | None) -> Iterator[str]:
    if table.key is not None:
        time = roles_of(table, label).time
        for reference in table.references.values():
            relation = type_name(_END_OF_KEY.sub("", reference.column) or reference.column)
            edge_type = (table.name, relation, reference.table)
            yield from _edge(table, edge_type, table.key, reference.column)
            if time is not None:  # temporal sampling finds the latest rows by the time of edges
                yield f"    time: {_time(time)}\n"
        return
    if not is_edges(table):
        return
    source, target = ordered_ends(table)
    roles = roles_of(table, label)
    is_directed = roles.time is not None or roles.label is not None
    edge_type = (source.table, table.name, target.table)
    yield from _edge(table, edge_type, source.column, target.column, directed=is_directed)
    yield from map("    # ? {}\n".format, _remarks(table))
    yield from _role_lines(roles, "time", "split")
    for each in roles.features:
        if each.is_unique:
            yield f"    # ? {each.name} is left out: each row has another value\n"
    features = [column for column in roles.features if not column.is_unique]
    yield from _feature_lines(table, roles._replace(features=features), "edge_attr", roles.time)
    yield from _role_lines(roles, "label")


def _edge(
    table: Table,
    edge_type: tuple[str, str, str],
    source: str,
    target: str,
    *,
    directed: bool = False,
) -> Iterator[str]:
    names = ", ".join(_quoted(name) for name in edge_type)
    yield f"  - type: [{names}]\n"
    yield _rows(table, table.edge_files.get(target))
    yield f"    source: {_quoted(source)}\n    target: {_quoted(target)}\n"
    if edge_type[0] == edge_type[2] and not directed:
        note = "messages go both ways; directed: true lets only the target learn of the source"
        yield f"    # ? {note}\n    directed: false\n"


def _rows(table: Table, pattern: str | None = None) -> str:
    rows = table.rows(pattern or table.pattern)
    if "files" in rows:
        return f"    files: {_quoted(rows['files'])}\n"
    return textwrap.indent(dump_yaml(rows, flow_leaves=True).rstrip() + "\n", "    ")


def _quoted(text: str) -> str:
    return dump_yaml([text], flow_leaves=True).strip()[1:-1]
