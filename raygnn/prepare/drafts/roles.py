from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.errors import ConfigError
from raygnn.prepare.drafts.columns import FEW_CLASSES, Column, type_name, word_set, words_of
from raygnn.prepare.drafts.raw_tables import DRAFTED, Reference, Table
from raygnn.prepare.drafts.references import ENDS, OWN_NAME, PEOPLE, THINGS, key_level

TIMES = ("time", "timestamp", "date", "day", "created", "created_at", "updated_at")
_EVENT_TIMES = TIMES[:4]  # users are created, but are no events
GUESS = "a guess"
LABELS = ("label", "labels", "target", "class", "y")
# Words of columns that are known later than the rest of their row, and that people ask for.
_OUTCOMES = word_set(
    "outcome fraud fraudulent churn churned default defaulted returned readmitted cancelled"
    " canceled delayed converted clicked survived spam solved left defect status"
)
_WORDS_OF_TIMES = word_set(
    "date time timestamp datetime at on created creation posted start ordered purchased bought sold"
    " booked placed sent shipped issued lent loaned borrowed rented visited"
)
_NOT_EVENTS = word_set("birth dob born birthday expire expiry until deadline due end")
_STARTS = word_set("registered signup joined since opened hired founded enrolled member")
_MOST_CLASSES = 100
_MOST_EDGE_COLUMNS = 2  # beside the time: rows with ids of their own and more columns are nodes
_MOST_EXAMPLES = 4
_GAPS = 0.02  # rows without one of two ends are still rows; as edges, they would be left out
_LOOKUP = 20  # rows of a table of categories, about which nobody asks
_ROW_ID = "row_id"
_WINDOWS = (30, 7, 1)  # days of the question about the future
_NEARLY_ALL = 0.95  # share of entities with events from which the question is trivial


class Roles(NamedTuple):
    """Columns of a table by role; `features` are the others."""

    split: Column | None
    time: Column | None
    label: Column | None
    features: list[Column]


def is_edges(table: Table) -> bool:
    return table.key is None and len(table.references) > 1


def is_training_rows(table: Table) -> bool:
    """Whether the rows are one entity at a time, with a label."""
    return table.key is None and len(table.references) == 1


def is_used(table: Table) -> bool:
    return table.key is not None or bool(table.references)


def choose_roles(tables: Sequence[Table]) -> None:
    """Makes tables nodes (with a key), edges (two references, no key) or training rows."""
    referred = {ref.table for table in tables for ref in table.references.values()}
    for table in tables:
        table.is_referred = table.name in referred
    for table in tables:
        if (time := _time(table)) is None or time.kind == "int":
            _date_by_year(table)
    events = {table.name for table in tables if is_event(table)}
    for table in tables:
        if not table.is_referred and table.references and _time(table) is None:
            _inherit_time(table, tables, events)
    for table in tables:
        if table.is_referred or not table.references:
            continue
        if _asks(table) or _joins(table):
            table.row_key, table.key = table.key, None
        elif table.key is None:
            _number_rows(table)


def show_columns(tables: Sequence[Table], task: Task) -> None:
    """Turns edges with columns into nodes, unless they are predicted.

    Most layers read only node columns: the amounts of purchases would reach no user.
    """
    for table in tables:
        has_columns = any(not column.is_unique for column in roles_of(table).features)
        if is_edges(table) and has_columns and table.name != task.table:
            _number_rows(table)


def write_gapless_edges(tables: Sequence[Table]) -> dict[str, pa.Table]:
    """Pairs of ids for references of nodes that have gaps: an edge has two ends.

    Rows keep their time, or dates that may become it.
    """
    made: dict[str, pa.Table] = {}
    for table in tables:
        if table.key is None:
            continue
        time = _time(table)
        dates = [time] if time is not None else [*filter(may_be_time, table.columns.values())]
        extra = {date.name: date.values for date in dates}
        for name in table.references:
            values = table.columns[name].values
            if not values.null_count:
                continue
            num_gaps = int(values.null_count)
            if table.database is not None and not table.repairs:
                columns = [(column, column) for column in (table.key, name, *extra)]
                table.edge_files[name] = table.select(columns, name)
                table.unsure.append(f"{name}: {num_gaps:,} rows have none; the others are edges")
                continue
            ids = {table.key: table.columns[table.key].values, name: values}
            pairs = pa.table({**ids, **extra})
            file = f"{DRAFTED}/{table.name}_{type_name(name)}.parquet"
            made[file] = pairs.filter(pc.is_valid(pairs.column(name)))
            table.edge_files[name] = file
            table.unsure.append(
                f"{name}: {num_gaps:,} rows have none; the other rows are edges in {file}"
            )
    return made


def _number_rows(table: Table) -> None:
    table.key = table.row_key
    if table.key is None:
        table.set_column(_ROW_ID, pa.chunked_array([np.arange(table.num_rows)]))
        table.key = _ROW_ID
        table.repairs.append(f"{_ROW_ID} numbers the rows, which have no ids")


def is_event(table: Table) -> bool:
    """Whether rows happen at a time: they refer to their participants, or are only dated."""
    time = _time(table)
    is_alone = not table.is_referred
    return time is not None and (
        bool(table.references) or is_alone or time.name.lower() in _EVENT_TIMES
    )


def _asks(table: Table) -> bool:
    roles = roles_of(table, is_rows=True)
    is_alone = len(table.references) == 1 and not roles.features
    return is_alone and roles.time is not None and roles.label is not None


def _joins(table: Table) -> bool:
    """Whether rows link two nodes, rather than being something with links of its own."""
    if len(table.references) != 2 or any(
        table.columns[name].ids.null_count > _GAPS * table.num_rows for name in table.references
    ):
        return False
    if table.key is None or key_level(table.key, table, ()) < OWN_NAME:
        return True
    features = [column for column in roles_of(table).features if column.name != table.key]
    return _joins_people(table) and len(features) <= _MOST_EDGE_COLUMNS


def _time(table: Table) -> Column | None:
    """The time column of a table.

    In referenced tables, the name must contain such a word: a policy is older than its last
    renewal. If they refer to none, the name must be one of times.
    """
    if table.num_added:
        return None  # unknown in the added rows, which would be left out
    columns = [c for c in table.columns.values() if c.name not in table.references]
    named = [c for c in columns if c.name.lower() in TIMES]
    found = [c for c in named if c.is_time]
    if table.references or not table.is_referred:
        dated = [c for c in columns if may_be_time(c)]
        found += [
            c for c in dated if not table.is_referred or _WORDS_OF_TIMES & {*words_of(c.name)}
        ]
        found += [c for c in named if c.kind == "int"]
    return found[0] if found else None


def _date_by_year(table: Table) -> None:
    """Dates rows by the last day of their year, month or day, when they are complete.

    In referenced tables, the year has to be part of the ids, as in seasons of a team: people read
    a book in its first year.
    """
    columns = table.columns.values()
    year = next((column for column in columns if column.is_year), None)
    if year is None or year.name == table.key or "date" in table.columns:
        return
    is_part_of_key = year.name in table.joined.get(table.key or "", ())
    if not is_part_of_key and (table.is_referred or not table.references):
        return
    parts, last_days = [year.name], np.asarray(pc.fill_null(year.ids, 1970)) - 1970
    last_days = last_days.astype("datetime64[Y]")
    for word, unit, most in (("month", "M", 12), ("day", "D", 31)):
        part = next((column for column in columns if words_of(column.name) == (word,)), None)
        numbers = [0] if part is None or part.ids.null_count else part.distinct_ids.to_pylist()
        if not {*numbers} <= {*range(1, most + 1)}:
            break
        assert part is not None
        parts.append(part.name)
        last_days = last_days.astype(f"datetime64[{unit}]") + (np.asarray(part.ids) - 1)
    last_days = (last_days + 1).astype("datetime64[D]") - 1
    dates = pc.if_else(pc.is_valid(year.ids), pa.chunked_array([last_days]), None)
    table.set_column("date", dates)
    table.repairs.append(f"date is the last day of {', '.join(parts)}, when the row is complete")


def _inherit_time(table: Table, tables: Sequence[Table], events: set[str]) -> None:
    """Copies times to events without them, from events that they refer to."""
    for name, reference in table.references.items():
        if reference.table not in events:
            continue
        other = next(other for other in tables if other.name == reference.table)
        time = _time(other)
        assert time is not None
        keys = other.columns[other.key or ""].ids.combine_chunks()
        position = pc.index_in(table.columns[name].ids, value_set=keys).combine_chunks()
        if position.null_count > _GAPS * table.num_rows:
            table.unsure.append(
                f"the rows have no times, and {position.null_count:,} of them name no {other.name} "
                f"whose {time.name} they could take"
            )
            continue
        new = time.name if time.name not in table.columns else f"{other.name}_{time.name}"
        times = pc.take(time.values.combine_chunks(), position)
        table.set_column(new, pa.chunked_array([times]))
        table.repairs.append(f"{new} is the {time.name} of the {other.name} that {name} refers to")
        return


def roles_of(table: Table, label: str | None = None, is_rows: bool = False) -> Roles:
    """Columns by role.

    Args:
        label: a column chosen by the user.
        is_rows: reads the table as training rows, even if it has ids.
    """
    taken = {table.key, *table.references}
    rest = [column for column in table.columns.values() if column.name not in taken]
    time = _time(table)
    split = next((column for column in rest if column.is_split), None)
    rest = [column for column in rest if column is not time and column is not split]
    is_rows = is_rows or is_training_rows(table)
    if label is not None:
        chosen: Column | None = table.columns[label]
    elif is_rows and split is not None and len(rest) == 1:
        chosen = rest[0]
    else:
        chosen = _label(rest, split is not None and not is_edges(table))
    return Roles(split, time, chosen, [column for column in rest if column is not chosen])


def _label(columns: Sequence[Column], has_split: bool) -> Column | None:
    """The column to predict: by name, or the last column of classes if there is a split."""
    named = [c for c in columns if c.name.lower() in LABELS and not c.is_free_text]
    words = [c for c in columns if _OUTCOMES & {*words_of(c.name)} and c.is_class]
    of_classes = [
        column
        for column in columns
        if has_split and column.kind == "text" and 2 <= len(column.distinct) <= _MOST_CLASSES
    ]
    return next(iter([*named, *words[-1:], *of_classes[-1:]]), None)


def is_order(column: Column) -> bool:
    """Whether numbers are grades: at least four, in equal steps from the first step on."""
    values = column.distinct_ids if len(column.distinct_ids) else column.distinct
    is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    if not is_number or not 4 <= len(values) <= min(FEW_CLASSES, column.num_given // 2):
        return False
    steps = np.diff(np.sort(values.to_numpy()), prepend=0)
    return bool(steps[0] > 0 and np.allclose(steps, steps[0]))


def may_be_time(column: Column) -> bool:
    return column.is_time and not _NOT_EVENTS & {*words_of(column.name)}


def is_start(column: Column) -> bool:
    """Whether a date of a thing or a person may be the one since which it exists."""
    return may_be_time(column) and bool((_STARTS | _WORDS_OF_TIMES) & {*words_of(column.name)})


@dataclass(frozen=True)
class Task:
    """The prediction target of a draft.

    Attributes:
        table: has the label or the links; None without a task.
        column: the label; None predicts links.
        reference: in a table of nodes, the column whose links are predicted.
        is_event: rows happen at a time, so that later rows are the test.
        sureness: confidence of the choice, for people.
        question: the command that asks the most likely question about the future, if any.
        repeated_in: tables with most of the links to predict.
    """

    table: str | None = None
    column: str | None = None
    reference: str | None = None
    is_event: bool = False
    sureness: str = ""
    question: str | None = None
    notes: list[str] = field(default_factory=list)
    repeated_in: Sequence[str] = ()

    @property
    def description(self) -> str:
        if self.table is None:
            return "none: no table has a label, and no table joins two others"
        if self.column is not None:
            return f"predict {self.table}.{self.column} ({self.sureness})"
        what = self.table if self.reference is None else f"{self.table}.{self.reference}"
        return f"predict links of {what} ({self.sureness})"


def choose_task(tables: Sequence[Table], wanted: str | None, folder: str) -> Task:
    """Chooses the task of a draft.

    Args:
        folder: of the tables, as commands name it.
        wanted: `TABLE.COLUMN` predicts a column, or the links of a reference; `TABLE` predicts the
            links of a table of edges; None chooses.
    Raises:
        ConfigError: `wanted` cannot be predicted.
    """
    task = _likely_task(tables, folder) if wanted is None else _given_task(tables, wanted)
    happens = any(table.name == task.table and is_event(table) for table in tables)
    return replace(task, is_event=happens)


def _likely_task(tables: Sequence[Table], folder: str) -> Task:
    labels = [
        (table, label)
        for table in sorted(tables, key=lambda table: not is_training_rows(table))
        if is_used(table) and (label := roles_of(table).label) is not None
    ]
    question = _question(tables, folder)
    asked = [] if question is None else [f"a question about the future: {question}"]
    named = [pair for pair in labels if pair[1].name.lower() in LABELS]
    for table, label in (*named, *labels):
        is_sure = (table, label) in named or roles_of(table).split is not None
        sureness = "a column of labels: sure" if is_sure else "by its name: likely"
        notes = [] if is_training_rows(table) else asked
        return Task(table.name, label.name, sureness=sureness, notes=notes)
    examples = _examples(tables)
    such = f", such as --task {' or --task '.join(examples)}" if examples else ""
    notes = [
        f"no labels: draft again with --overwrite --task TABLE.COLUMN to predict a column{such}",
        *asked,
    ]
    edges = [table for table in tables if is_edges(table)]
    if edges:
        best = max(edges, key=lambda table: (_joins_people(table), is_event(table)))
        is_likely = _joins_people(best) and is_event(best)
        sureness = "people and things, with times: likely" if is_likely else GUESS
        return Task(best.name, sureness=sureness, question=question, notes=notes)
    events = [table for table in tables if table.key is not None and table.references]
    if not events:
        no_edges = "no column refers to another table or row: there are no edges to train on"
        return Task(notes=[no_edges, *notes])
    table = max(events, key=lambda table: len(table.references))
    reference = next(iter(table.references))
    return Task(table.name, None, reference, sureness=GUESS, question=question, notes=notes)


def _given_task(tables: Sequence[Table], wanted: str) -> Task:
    name, _, column = wanted.partition(".")
    table = next((table for table in tables if table.name == name and is_used(table)), None)
    sure = "given by --task"
    if table is not None and not column and is_edges(table):
        return Task(name, sureness=sure)
    if table is not None and column in table.references and table.key is not None:
        return Task(name, reference=column, sureness=sure)
    if table is not None and column in {*table.columns} - {table.key, *table.references}:
        return Task(name, column, sureness=sure)
    raise ConfigError(
        f"--task={wanted!r} is invalid: it names no column to predict and no table of edges. Set "
        "TABLE.COLUMN, or the table of the links to predict. [prepare-task]"
    )


def _joins_people(table: Table) -> bool:
    references = table.references.values()
    words = {word for ref in references for word in words_of(ref.table)}
    is_directed = all({*words_of(ref.column)} & {*ENDS[0], *ENDS[1]} for ref in references)
    return is_directed or (bool(PEOPLE & words) and len({ref.table for ref in references}) > 1)


def ordered_ends(table: Table) -> list[Reference]:
    """The ends of an edge: by names such as from and to, else people before things."""

    def rank(reference: Reference) -> tuple[int, bool]:
        words = set(words_of(reference.column))
        end = 0 if words & set(ENDS[0]) else 2 if words & set(ENDS[1]) else 1
        return end, not PEOPLE & {*words_of(reference.table), *words}

    return sorted(table.references.values(), key=rank)[:2]


def _examples(tables: Sequence[Table]) -> list[str]:
    """Columns that may be worth predicting: grades of pairs, or else the fewest classes."""
    found = [
        (not (len(table.references) > 1 and is_order(column)), len(column.distinct), table, column)
        for table in tables
        if is_used(table)
        for roles in [roles_of(table)]
        for column in roles.features
        if column.is_class or is_order(column)
        if roles.time is None or not column.follows(roles.time)
    ]
    best = min((each[:2] for each in found), default=None)
    return [f"{t.name}.{c.name}" for *rank, t, c in found if (*rank,) == best][:_MOST_EXAMPLES]


def _question(tables: Sequence[Table], folder: str) -> str | None:
    """The most likely question: will people, or else other entities than things, or else things,
    have another event soon.
    """
    found = []
    for table in tables:
        time = _time(table)
        if time is None or not (time.is_time and time.num_given) or is_training_rows(table):
            continue
        for ref in table.references.values():
            entities = next(other for other in tables if other.name == ref.table)
            is_person = bool(PEOPLE & {*words_of(ref.table)})
            repeats = table.columns[ref.column].repeats
            if is_person or (repeats and not is_event(entities) and entities.num_rows > _LOOKUP):
                sides = [each for each in table.references.values() if each.table == ref.table]
                is_thing = bool(THINGS & {*words_of(ref.table)})
                num_entities = 0 if is_person else entities.num_rows
                sizes = num_entities, table.num_rows, entities.num_rows  # customers before clerks
                rank = (is_person, not is_thing, *sizes)
                found.append((rank, table.name, ref.table, time, sides))
    if not found:
        return None
    _, events, entity, time, sides = max(found, key=lambda each: each[:3])
    by = f" by {sides[0].column}" if len(sides) > 1 else ""
    first, last = time.span
    # Of monthly payments, a month asks little, and a week more; of yearly ones, it asks nothing.
    gaps = np.diff(np.unique(time.times.drop_null()))
    is_yearly = len(gaps) and np.median(gaps) > np.timedelta64(_WINDOWS[0], "D")
    windows = map(timedelta, (365,) if is_yearly else _WINDOWS)
    fitting = [days for days in windows if (last - 4 * days).date() > first.date()]
    if not fitting:
        return None
    ids = next(table for table in tables if table.name == events).columns[sides[0].column].ids
    telling = [days for days in fitting if _share_again(ids, time.times, days) < _NEARLY_ALL]
    window = (telling or fitting)[0]
    recent = pc.unique(ids.filter(_is_late(time.times, 4 * window)))
    active = f" --active {4 * window.days}d" if len(recent) < len(pc.unique(ids)) / 2 else ""
    test = (last - window).date()
    ask = (
        f'raygnn prepare labels {shlex.quote(folder)} --predict "count({events}{by}) over '
        f'{window.days}d > 0" --for {entity} --every {window.days}d --val {test - window} '
        f"--test {test}{active} --name {type_name(events)}_soon"
    )
    return ask + (f"  # or by {sides[1].column}; without by, both count" if by else "")


def _share_again(ids: pa.ChunkedArray, times: pa.Array, window: timedelta) -> float:
    """Share of the entities of events in three windows that have one in the last window, too."""
    is_late = _is_late(times, window)
    before = pc.unique(ids.filter(pc.and_not(_is_late(times, 4 * window), is_late))).drop_null()
    again = pc.is_in(before, value_set=pc.unique(ids.filter(is_late)))
    return pc.mean(again).as_py() or 0.0


def _is_late(times: pa.Array, span: timedelta) -> pa.Array:
    return pc.greater(times, pa.scalar(pc.max(times).as_py() - span, times.type))
