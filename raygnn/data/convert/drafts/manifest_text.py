"""The text of a drafted `graph.yaml`: roles, transforms, and lines with a question mark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from raygnn.config.documents import dump_yaml
from raygnn.data.convert.drafts.raw_tables import (
    DATE_FORMATS,
    ENDS,
    FEW_CLASSES,
    KEYS,
    NUMBER_FORMATS,
    Column,
    Table,
    node_name,
    plain,
    type_name,
)
from raygnn.data.manifest import FORMAT

_TIMES = ("time", "timestamp", "date", "day", "created", "created_at", "updated_at")
_LABELS = ("label", "labels", "target", "class", "y")
_MOST_CLASSES = 100
_MOST_EXAMPLES = 4  # of columns that are named as examples of labels
_SEPARATORS = (";", "|")  # of lists in a text; commas are in sentences and names too


def manifest_lines(tables: Sequence[Table]) -> Iterator[str]:
    """The text in parts, once the keys and references of all tables are found."""
    yield (
        "# A draft: look at the lines with '?'. docs/graph-format.md has every key.\n"
        f"format: {FORMAT}\n"
    )
    for table in tables:
        if table.key is None and len(table.references) < 2:
            yield f"# ? {table.pattern} is left out: {_why_unused(table)}\n"
            yield from (f"# ? {table.pattern}: {note}\n" for note in table.unsure)
    if (note := _label_note(tables)) is not None:
        yield f"# ? {note}\n"
    yield "node_types:\n"
    edges: list[str] = []
    for table in tables:
        if table.key is not None:
            yield from _node_lines(table, tables)
        edges.extend(_edge_lines(table, tables))
    if edges:
        yield "edge_types:\n"
        yield from edges


def _why_unused(table: Table) -> str:
    nearest = max(
        (column for column in table.columns.values() if column.kind in {"int", "text"}),
        key=lambda column: (plain(column.name).endswith(KEYS), len(column.distinct)),
        default=None,
    )
    if nearest is None:
        return "no column of it can hold ids"
    empty, repeated = int(nearest.values.null_count), nearest.num_repeated
    others = " and ".join(sorted(set(table.references.values()))) or "no table that is taken"
    return (
        f"it refers to {others}, and no column has an id of its own in each row "
        f"({nearest.name}: {repeated:,} rows repeat one, {empty:,} have none)"
    )


def _doubts(table: Table, tables: Sequence[Table]) -> Iterator[str]:
    """Errors in rows of a table that is used nevertheless."""
    keys = {other.name: other.columns[other.key] for other in tables if other.key is not None}
    if table.key is not None and (repeated := table.columns[table.key].num_repeated):
        rows = "row repeats" if repeated == 1 else "rows repeat"
        yield f"{table.key}: {repeated:,} {rows} an id; data.on_error: drop keeps the first"
    for name, other in table.references.items():
        column = table.columns[name]
        values = column.values
        if column.as_reference is not column.distinct:
            values = pc.cast(values, pa.int64())
        known = pc.sum(pc.is_in(values.drop_null(), value_set=keys[other].distinct)).as_py() or 0
        # Nodes without a reference have no edge; an edge without an end is an error.
        num_rows = len(column.values) if table.key is None else column.num_given
        if known < num_rows:
            yield (
                f"{name}: {num_rows - known:,} of {num_rows:,} rows name no {other}; "
                "data.on_error: drop leaves them out"
            )


def _node_lines(table: Table, tables: Sequence[Table]) -> Iterator[str]:
    yield f"  {_quoted(table.name)}:\n"
    for note in (*table.unsure, *_doubts(table, tables)):
        yield f"    # ? {note}\n"
    yield f"    files: {_quoted(table.pattern)}\n    id: {_quoted(table.key or '')}\n"
    split, time, label, rest = _roles(table)
    yield from _feature_lines(rest, "x")
    if label is not None:
        yield f"    labels: {{{_quoted(type_name(label.name))}: {_quoted(label.name)}}}\n"
    if split is not None:
        yield f"    split: {_quoted(split.name)}\n"
    if time is not None:
        yield f"    time: {_time(time)}\n"


def _time(column: Column) -> str:
    name, formats = _quoted(column.name), column.formats
    return f"{{column: {name}, format: {formats[0]}}}" if formats else name


def _is_time(column: Column) -> bool:
    """Whether all values are times, and can be read in one way only."""
    is_one_date = len(column.formats) == 1 and column.formats[0] in DATE_FORMATS
    return column.kind == "time" or is_one_date


def _roles(table: Table) -> tuple[Column | None, Column | None, Column | None, list[Column]]:
    """Columns of split, time, label and features of a table of nodes."""
    taken = {table.key, *table.references}
    columns = [column for column in table.columns.values() if column.name not in taken]
    split = next((column for column in columns if column.is_split), None)
    time = next((c for c in columns if c.name.lower() in _TIMES and _is_time(c)), None)
    rest = [column for column in columns if column is not split and column is not time]
    label = _label(rest, split is not None)
    return split, time, label, [column for column in rest if column is not label]


def _edge_roles(table: Table) -> tuple[Column | None, Column | None, list[Column]]:
    """Columns of split, time and features of a table of edges."""
    taken = table.references.keys()
    rest = [column for column in table.columns.values() if column.name not in taken]
    time = next((column for column in rest if _is_time(column)), None)
    time = time or next((c for c in rest if c.kind == "int" and c.name.lower() in _TIMES), None)
    split = next((column for column in rest if column.is_split), None)
    return split, time, [column for column in rest if column is not time and column is not split]


def _label_note(tables: Sequence[Table]) -> str | None:
    """How to make a column a label, and which look like one. None if the graph has labels."""
    found: list[tuple[str, int]] = []
    for table in tables:
        if table.key is not None:
            _, _, label, rest = _roles(table)
        elif len(table.references) > 1:
            label, rest = None, _edge_roles(table)[-1]
        else:
            continue
        if label is not None:
            return None
        found += [
            (f"{table.name}.{column.name}", len(column.distinct))
            for column in rest
            if 2 <= len(column.distinct) <= min(FEW_CLASSES, column.num_given // 2)
            and column.kind in {"int", "text"}
        ]
    fewest = min((num_classes for _, num_classes in found), default=0)
    names = [name for name, num_classes in found if num_classes == fewest][:_MOST_EXAMPLES]
    such = f" (as {' or '.join(names)})" if names else ""
    return (
        f"no labels: to predict a column{such}, take it out of the features of its table and add "
        "labels: {NAME: COLUMN} there. Classes and numbers can be predicted"
    )


def _label(columns: Sequence[Column], has_split: bool) -> Column | None:
    """The column to predict: by its name, or the last column of classes if there is a split."""
    named = [column for column in columns if column.name.lower() in _LABELS]
    if named or not has_split:
        return named[0] if named else None
    of_classes = [
        column
        for column in columns
        if column.kind == "text" and 2 <= len(column.distinct) <= _MOST_CLASSES
    ]
    return of_classes[-1] if of_classes else None


def _feature_lines(columns: Sequence[Column], name: str) -> Iterator[str]:
    reasons = {column.name: _why_no_feature(column) for column in columns}
    kept = [column for column in columns if reasons[column.name] is None]
    if kept:
        yield f"    features:\n      {name}:\n"
        for column in kept:
            yield f"        - {{column: {_quoted(column.name)}, {_transform(column)}}}\n"
    for column in kept:
        if len(column.formats) > 1:
            chosen, other = column.formats
            yield (
                f"    # ? {column.name} is read with format: {chosen}; its numbers are others with "
                f"{other}\n"
            )
    for column_name, reason in reasons.items():
        if reason is not None:
            yield f"    # ? {column_name} is left out: it holds {reason}\n"


def _why_no_feature(column: Column) -> str | None:
    """Why no transform reads a column. None if one does."""
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
    return "a different text in most rows" if column.is_free_text and not formats else None


def _marks(column: Column) -> list[str]:
    marks = pc.replace_substring_regex(column.distinct, r"[^A-Z\p{Sc}%]", "").unique()
    return sorted(mark for mark in marks.to_pylist() if mark)


def _transform(column: Column) -> str:
    """`auto`; for texts that hold lists, dates or amounts, how to read them."""
    if column.formats:
        return f"transform: auto, format: {column.formats[0]}"
    for separator in _SEPARATORS if column.kind == "text" else ():
        parts = pc.split_pattern(column.distinct, separator)
        lengths = pc.list_value_length(parts)
        words = pc.list_flatten(parts).unique()
        if pc.max(lengths).as_py() > 1 and 2 * len(words) <= len(column.distinct):
            return f'transform: multi_hot, separator: "{separator}"'
    return "transform: auto"


def _edge_lines(table: Table, tables: Sequence[Table]) -> Iterator[str]:
    references = list(table.references.items())
    if table.key is not None:
        for column, other in references:
            relation = type_name(node_name(column) or column)
            edge_type = (table.name, relation, other)
            yield from _edge(table, edge_type, table.key, column)
        return
    if len(references) < 2:
        return
    (source, source_type), (target, target_type) = _ordered(references)[:2]
    yield from _edge(table, (source_type, table.name, target_type), source, target)
    for note in (*table.unsure, *_doubts(table, tables)):
        yield f"    # ? {note}\n"
    split, time, rest = _edge_roles(table)
    if time is not None:
        yield f"    time: {_time(time)}\n"
    if split is not None:
        yield f"    split: {_quoted(split.name)}\n"
    for each in rest:
        if each.is_unique:
            yield f"    # ? {each.name} is left out: each row has another value\n"
    yield from _feature_lines([column for column in rest if not column.is_unique], "edge_attr")
    for column, other in _ordered(references)[2:]:
        yield f"    # ? {column} refers to {other}: an edge has two ends\n"


def _edge(table: Table, edge_type: tuple[str, str, str], source: str, target: str) -> Iterator[str]:
    names = ", ".join(_quoted(name) for name in edge_type)
    yield f"  - type: [{names}]\n"
    yield f"    files: {_quoted(table.edge_files.get(target, table.pattern))}\n"
    yield f"    source: {_quoted(source)}\n    target: {_quoted(target)}\n"
    if edge_type[0] == edge_type[2]:
        note = "messages go both ways; directed: true lets only the target learn of the source"
        yield f"    # ? {note}\n    directed: false\n"


def _ordered(references: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Source before target, if names tell them apart."""

    def place(reference: tuple[str, str]) -> int:
        words = re.split(r"[^a-z]+", reference[0].lower())
        return 0 if set(words) & set(ENDS[0]) else 2 if set(words) & set(ENDS[1]) else 1

    return sorted(references, key=place)


def _quoted(text: str) -> str:
    """The text as YAML, in quotes if YAML would read something else."""
    return dump_yaml([text], flow_leaves=True).strip()[1:-1]
