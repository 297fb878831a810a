"""Finds columns that are known later than their row: the model would learn from hindsight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from raygnn.prepare.drafts.columns import Column, word_set, words_of
from raygnn.prepare.drafts.raw_tables import Table
from raygnn.prepare.drafts.roles import Task, is_event, is_training_rows, roles_of

_AFTERWARDS = word_set(
    "after afterwards final closed deleted cancelled canceled ended terminated resolved settled"
    " died deceased"
)
_LATER = 0.05  # share of events with an earlier time than a date of what they refer to
_BY_CHANCE = 1e-6  # of rows with a value to be all of one class


def find_hindsight(tables: Sequence[Table], task: Task) -> None:
    """Sets the reason, by column of `Table.hindsight`, that a column is no feature."""
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
        for what, mask in (("filled", column.values.is_valid()), ("empty", column.values.is_null())):
            classes = pc.unique(label.values.filter(mask).drop_null())
            num_rows = pc.sum(mask).as_py() or 0
            if len(classes) == 1 and label.num_given:
                share = pc.mean(pc.equal(label.values, classes[0])).as_py()
                if share**num_rows < _BY_CHANCE:
                    yield f"values that are {what} only where {label.name} is {classes[0].as_py()!r}"
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
