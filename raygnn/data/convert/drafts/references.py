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

from raygnn.data.convert.drafts.column_names import ENDS, KEYS, node_name, plain, type_name
from raygnn.data.convert.drafts.raw_tables import Column, Table

# What a column of a table is called that refers to another row of it.
_OF_ITS_OWN = ("manager", "supervisor", "boss", "parent", "mentor", "referrer", "referred")
# Where a draft writes tables; the next draft of the folder does not read them.
DRAFTED = "_drafted"
_BY_CHANCE = 1e-6  # of numbers to be among the keys
_CONTAINED = 0.99  # share of the distinct values of a reference that are keys


def own_key(table: Table, tables: Sequence[Table]) -> str | None:
    """The column of a table's own ids: by its name, or as another table has one of that name."""
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


def find_references(table: Table, tables: Sequence[Table]) -> None:
    """Fills `references` of a table, once all tables have their keys."""
    for column in table.columns.values():
        has_gaps = table.key is not None and column.as_reference is not column.distinct
        is_id = column.kind in {"int", "text"} or has_gaps
        if column.name == table.key or not is_id:
            continue
        fitting = [other for other in tables if other.key and _refers(table, column, other)]
        if not fitting:
            _set_aside_digits(table, column, tables)
            continue
        fitting.sort(key=lambda other: (not _names(column.name, other), other.name))
        table.references[column.name] = fitting[0].name
        if fitting[1:] and not _names(column.name, fitting[0]):
            others = ", ".join(other.name for other in fitting[1:])
            table.unsure.append(f"{column.name} refers to {fitting[0].name}, or to {others}")


def _set_aside_digits(table: Table, column: Column, tables: Sequence[Table]) -> None:
    """Says where texts as 00123 would refer to ids that are numbers, or numbers to such texts."""
    numbers = _as_numbers(column)
    for other in tables:
        if numbers is None or other is table or other.key is None:
            continue
        key = other.columns[other.key]
        keys = _as_numbers(key)
        if keys is None or key.kind == column.kind:
            continue
        if _refers(table, numbers, replace(other, columns={other.key: keys})):
            kinds = ("text", "integers") if column.kind == "text" else ("integers", "text")
            table.set_aside.add(column.name)
            table.unsure.append(
                f"{column.name} is left out: it holds ids of {other.name} as {kinds[0]}, and those "
                f"of {other.pattern} are {kinds[1]} (007 is 7 in CSV). Write both as integers, or "
                "both as text in Parquet"
            )
            return


def _as_numbers(column: Column) -> Column | None:
    """The distinct values of integers, and of texts that are numbers alone; None of others."""
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
    """Whether numbers of this range would hardly be among the keys unless they refer to them."""
    low, high = pc.min_max(values).as_py().values()
    is_within = pc.and_(pc.greater_equal(keys, low), pc.less_equal(keys, high))
    share = (pc.sum(is_within).as_py() or 0) / (high - low + 1)
    return bool(share ** len(values) < _BY_CHANCE)


def _names(column: str, other: Table) -> bool:
    """Whether a column is called like a table or its key."""
    name, key = plain(column), plain(other.key or "")
    return other.words in name or (key not in KEYS and name.endswith(key))


def keep_keys_of_nodes(tables: Sequence[Table]) -> None:
    """Rows that join two nodes, and that nothing refers to, are edges: their ids are not needed."""
    wanted = {name for table in tables for name in table.references.values()}
    for table in tables:
        if table.key is not None and table.name not in wanted and len(table.references) > 1:
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
