"""Finds columns and tables that reveal what is known later only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from raygnn.prepare.drafts.columns import Column, word_set, words_of
from raygnn.prepare.drafts.raw_tables import Table
from raygnn.prepare.drafts.roles import (
    Task,
    is_edges,
    is_event,
    is_training_rows,
    ordered_ends,
    roles_of,
)

_AFTERWARDS = word_set(
    "after afterwards final closed deleted cancelled canceled ended terminated resolved settled"
    " died deceased"
)
_LATER = 0.05  # share of events with an earlier time than a date of what they refer to
_REPEATED = 0.5  # share of the links to predict that another table has too
_MOST_PAIRS = 10_000
_BY_CHANCE = 1e-6  # of rows with a value to be all of one class


def find_hindsight(tables: Sequence[Table], task: Task) -> None:
    """Sets the reason, by column of `Table.hindsight`, that a column is not a feature."""
    if not any(map(is_event, tables)):
        return
    for table in tables:
        roles = roles_of(table, task.column if task.table == table.name else None)
        for column in roles.features if not is_training_rows(table) else ():
            label = roles.label if is_event(table) or task.table == table.name else None
            reasons = _reasons(table, column, label, tables)
            if (reason := next(reasons, None)) is not None:
                table.hindsight[column.name] = reason


def _reasons(
    table: Table, column: Column, label: Column | None, tables: Sequence[Table]
) -> Iterator[str]:
    if _AFTERWARDS & {*words_of(column.name)}:
        yield "what its name says is known afterwards"
    if label is not None:
        words, of_label = words_of(column.name), words_of(label.name)
        if len(words) > 1 and words[-1:] == of_label[-1:] and len(of_label) > 1:
            yield f"what may become known together with {label.name}"
        for what, mask in (
            ("filled", column.values.is_valid()),
            ("empty", column.values.is_null()),
        ):
            classes = pc.unique(label.values.filter(mask).drop_null())
            num_rows = pc.sum(mask).as_py() or 0
            if len(classes) == 1 and label.num_given:
                share = pc.mean(pc.equal(label.values, classes[0])).as_py()
                if share**num_rows < _BY_CHANCE:
                    only = f"{label.name} is {classes[0].as_py()!r}"
                    yield f"values that are {what} only where {only}"
    if column.is_time and not is_event(table):
        for other in tables:
            time = roles_of(other).time
            for name, reference in other.references.items():
                if reference.table != table.name or time is None or not time.is_time:
                    continue
                keys = table.columns[table.key or ""].ids.combine_chunks()
                position = pc.index_in(other.columns[name].ids, value_set=keys).combine_chunks()
                later = pc.greater(pc.take(column.times, position), time.times)
                share = pc.mean(later).as_py()
                if share is not None and share > _LATER:
                    yield (
                        f"dates later than {time.name} in {share:.0%} of the {other.name} that "
                        "refer to it"
                    )


def find_repeated_links(tables: Sequence[Table], task: Task) -> list[str]:
    """Names of tables with most of the links to predict, which would reveal held-out ones."""
    table = next((each for each in tables if each.name == task.table), None)
    if table is None or task.column is not None or not is_edges(table):
        return []
    source, target = ordered_ends(table)
    links = _pairs(table, source.column, target.column).slice(0, _MOST_PAIRS)
    num_pairs = [len(each.columns[each.key or ""].distinct_ids) for end in (source, target)
                 for each in tables if each.name == end.table]  # fmt: skip
    found = []
    for other in tables:
        ends = [
            (one.column, two.column)
            for one in other.references.values()
            for two in other.references.values()
            if one is not two and (one.table, two.table) == (source.table, target.table)
        ]
        for columns in ends if other is not table else ():
            pairs = _pairs(other, *columns)
            share = pc.mean(pc.is_in(links, value_set=pairs)).as_py() or 0
            by_chance = len(pairs) / (num_pairs[0] * num_pairs[1])
            if share >= max(_REPEATED, 2 * by_chance):
                other.unsure.append(
                    f"{share:.0%} of the pairs in {table.name} are here too, also those that are "
                    "held out: train.yaml does not read these edges (fanout 0)"
                )
                found.append(other.name)
                break
    return found


def _pairs(table: Table, *columns: str) -> pa.Array:
    """Distinct pairs of ids."""
    ids = [pc.cast(table.columns[name].ids, pa.string()) for name in columns]
    return pc.binary_join_element_wise(*ids, "|").unique().drop_null()


def find_untimed_links(tables: Sequence[Table]) -> None:
    """Adds a remark to tables without times that link what tables with times refer to."""
    timed = {ref.table for table in tables if is_event(table) for ref in table.references.values()}
    for table in tables:
        ends = {ref.table for ref in table.references.values()}
        if len(table.references) > 1 and ends & timed and roles_of(table).time is None:
            table.unsure.append(
                "the rows have no times, unlike those of other tables: every prediction sees all "
                "of them, also later ones; add a time if they come into being one after another"
            )
