"""Which columns are keys, and which refer to them; tables for what no table lists.

A column is a key where each row has another value. A column refers to a key where its values are
among the key's; of numbers, which are among those of many keys, the names have to agree too, or the
keys have gaps that the numbers would hit by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.convert.drafts.raw_tables import (
    ENDS,
    KEYS,
    Column,
    Table,
    node_name,
    plain,
    type_name,
)

# What a column of a table is called that refers to another row of it.
_OF_ITS_OWN = ("manager", "supervisor", "boss", "parent", "mentor", "referrer", "referred")
# Where a draft writes tables; the next draft of the folder does not read them.
DRAFTED = "_drafted"
_BY_CHANCE = 1e-6  # of numbers to be among the keys
_CONTAINED = 0.99  # share of the distinct values of a reference that are keys
_MOST_ENDS = 3  # of rows that are edges: with more references they are nodes


def own_key(table: Table, tables: Sequence[Table]) -> str | None:
    """The column of a table's own ids, by its name or that of columns of other tables."""
    columns = table.columns.values()
    unique = [column.name for column in columns if column.is_unique]
    return _chosen_key(table, tables, unique) or _chosen_key(
        table, tables, [column.name for column in columns if column.is_nearly_unique]
    )


def _chosen_key(table: Table, tables: Sequence[Table], unique: Sequence[str]) -> str | None:
    of_name = [name for name in unique if table.words in (plain(name), plain(node_name(name)))]
    of_key = [name for name in unique if name.lower() in KEYS]
    ending = [name for name in unique if plain(name).endswith("id")]
    others = {name for other in tables if other is not table for name in other.columns}
    shared = [name for name in unique if name in others and node_name(name)]
    found = [*of_name, *of_key, *ending[:1], *shared]
    return found[0] if found else None


def referred_key(table: Table, tables: Sequence[Table]) -> str | None:
    """The column of a table's own ids, because another table refers to it."""
    found = [column for column in table.columns.values() if column.is_unique]
    found += [column for column in table.columns.values() if column.is_nearly_unique]
    for key in found:
        as_nodes = replace(table, key=key.name)
        for other in tables:
            columns = () if other is table else other.columns.values()
            if any(c.name != other.key and _refers(other, c, as_nodes) for c in columns):
                return key.name
    return None


def find_references(table: Table, tables: Sequence[Table]) -> None:
    """Fills `references` of a table, once all tables have their keys."""
    for column in list(table.columns.values()):
        has_gaps = table.key is not None and column.as_reference is not column.distinct
        is_id = column.kind in {"int", "text"} or has_gaps
        if column.name == table.key or not is_id:
            continue
        fitting = [other for other in tables if other.key and _refers(table, column, other)]
        if not fitting:
            if (found := _written_as_keys(table, column, tables)) is not None:
                other, table.columns[column.name] = found
                table.references[column.name] = other.name
                table.rewritten.append(column.name)
            continue
        fitting.sort(key=lambda other: (not _names(column.name, other), other.name))
        table.references[column.name] = fitting[0].name
        if fitting[1:] and not _names(column.name, fitting[0]):
            others = ", ".join(other.name for other in fitting[1:])
            table.unsure.append(f"{column.name} refers to {fitting[0].name}, or to {others}")


def _written_as_keys(
    table: Table, column: Column, tables: Sequence[Table]
) -> tuple[Table, Column] | None:
    """The table whose ids are the same numbers, with or without leading zeros.

    Returns:
        The column as that table writes its ids, too; None where there is no such table.
    """
    numbers = _as_numbers(column)
    for other in tables:
        if numbers is None or other is table or other.key is None:
            continue
        key = other.columns[other.key]
        keys = _as_numbers(key)
        if keys is None or key.kind == column.kind:
            continue
        if not _refers(table, numbers, replace(other, columns={other.key: keys})):
            continue
        if key.kind == "int":
            return other, Column(column.name, pc.cast(column.values, pa.int64()))
        as_text = pc.index_in(column.values, pc.cast(key.distinct, pa.int64()))
        return other, Column(column.name, pc.take(key.distinct, as_text))
    return None


def _as_numbers(column: Column) -> Column | None:
    """Distinct values of integers and of texts of digits. None for other columns."""
    if column.kind == "text" and len(column.distinct) and column.all_match(r"^[0-9]{1,18}$"):
        return Column(column.name, pa.chunked_array([pc.cast(column.distinct, pa.int64())]))
    return column if column.kind == "int" else None


def _refers(table: Table, column: Column, other: Table) -> bool:
    assert other.key is not None
    key = other.columns[other.key]
    values = column.as_reference
    is_number = pa.types.is_integer(values.type)
    if is_number != (key.kind == "int") or not len(values):
        return False
    has_name = _names(column.name, other) or any(column.name.lower() in ends for ends in ENDS)
    if table is other:
        has_name |= any(word in plain(column.name) for word in _OF_ITS_OWN)
        if not has_name and not is_number:
            return False
    if is_number and not has_name and not _is_sparse(values, key.distinct):
        return False
    found = pc.sum(pc.is_in(values, value_set=key.distinct)).as_py() or 0
    return bool(found >= _CONTAINED * len(values))


def _is_sparse(values: pa.Array, keys: pa.Array) -> bool:
    """Whether the keys have so many gaps that unrelated numbers would hit some."""
    low, high = pc.min_max(values).as_py().values()
    is_within = pc.and_(pc.greater_equal(keys, low), pc.less_equal(keys, high))
    share = (pc.sum(is_within).as_py() or 0) / (high - low + 1)
    return bool(share ** len(values) < _BY_CHANCE)


def _names(column: str, other: Table) -> bool:
    name, key = plain(column), plain(other.key or "")
    return other.words in name or (key not in KEYS and name.endswith(key))


def keep_keys_of_nodes(tables: Sequence[Table]) -> None:
    """Rows that join two or three nodes, and that nothing refers to, are edges without ids."""
    wanted = {name for table in tables for name in table.references.values()}
    for table in tables:
        num_ends = len(table.references)
        if table.key is not None and table.name not in wanted and 1 < num_ends <= _MOST_ENDS:
            if num_ends > 2:  # an edge has two
                table.unsure.append(
                    "rows are edges between two of the tables that they refer to; as a node type "
                    f"with id: {table.key} they would have an edge to each"
                )
            table.key = None


def tables_of_missing_nodes(tables: list[Table]) -> dict[str, pa.Table]:
    """Node types for columns of ids, in tables of edges, that no table of their own lists."""
    made: dict[str, pa.Table] = {}
    found: dict[str, list[tuple[Table, Column]]] = {}
    for table in tables:
        if table.key is not None or len(table.references) > 1:
            continue
        ends = [
            column
            for column in table.columns.values()
            if column.name not in table.references
            and column.kind in {"int", "text"}
            and (node_name(column.name) or any(column.name.lower() in end for end in ENDS))
        ]
        if len(ends) + len(table.references) < 2:
            continue
        for column in ends[: 2 - len(table.references)]:
            found.setdefault(node_name(column.name) or "node", []).append((table, column))
    for name, users in found.items():
        # ids of two tables may be of several integer types, or of numbers here and texts there
        kind = pa.string() if any(c.kind == "text" for _, c in users) else pa.int64()
        ids = pa.concat_arrays([pc.cast(column.distinct, kind) for _, column in users]).unique()
        file = f"{DRAFTED}/{name}_ids.parquet"
        made[file] = pa.table({"id": ids.take(pc.sort_indices(ids))})
        columns = {"id": Column("id", made[file].column("id"))}
        table = Table(name, file, columns, "id")
        table.unsure.append(f"no table lists these nodes; their ids are written to {file}")
        tables.append(table)
        for user, column in users:
            user.references[column.name] = name
    return made


def rewritten_tables(tables: Sequence[Table]) -> dict[str, pa.Table]:
    """Copies of tables in which references are written as the ids that they refer to."""
    made: dict[str, pa.Table] = {}
    for table in tables:
        if not table.rewritten:
            continue
        file = f"{DRAFTED}/{table.name}.parquet"
        made[file] = pa.table({name: column.values for name, column in table.columns.items()})
        names = ", ".join(table.rewritten)
        others = ", ".join(sorted({table.references[name] for name in table.rewritten}))
        table.unsure.append(
            f"{names}: one of {table.pattern} and {others} has ids as text and the other as "
            f"integers (007 is 7 in CSV); {file} is a copy that fits"
        )
        table.pattern = file
    return made


def edges_without_gaps(tables: Sequence[Table]) -> dict[str, pa.Table]:
    """Pairs of ids for columns of nodes that refer in some rows only: an edge has two ends."""
    made: dict[str, pa.Table] = {}
    for table in tables:
        if table.key is None:
            continue
        for name in table.references:
            column = table.columns[name]
            is_whole = column.as_reference is column.distinct
            if is_whole and not column.values.null_count:
                continue
            ids = column.values if is_whole else pc.cast(column.values, pa.int64())
            pairs = pa.table({table.key: table.columns[table.key].values, name: ids})
            file = f"{DRAFTED}/{table.name}_{type_name(name)}.parquet"
            made[file] = pairs.filter(pc.is_valid(pairs.column(name)))
            table.edge_files[name] = file
            table.unsure.append(f"{name} has gaps; the others are written to {file}")
    return made
