"""Tables and keys that a database, or a file of CREATE TABLE statements, declares."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from raygnn.console import say
from raygnn.data.filesystem import absolute, redact
from raygnn.data.tables import source
from raygnn.data.tables.snapshot import read_record
from raygnn.data.tables.warehouses import (
    bigquery_place,
    open_bigquery,
    open_snowflake,
    snowflake_parameters,
    source_of,
)
from raygnn.errors import ConfigError
from raygnn.prepare.drafts.columns import type_name
from raygnn.prepare.drafts.raw_tables import Table, read_table
from raygnn.runtime.sources import located, named_failures, read_sources


class Catalog(NamedTuple):
    """Tables, and declared keys of one column each.

    Attributes:
        tables: names, with a schema that is not the default one.
        keys: column by table.
        references: table and column that a (table, column) refers to.
        comments: of a (table, column).
    """

    tables: list[str]
    keys: dict[str, str]
    references: dict[tuple[str, str], tuple[str, str]]
    comments: dict[tuple[str, str], str]


def read_catalog(url: str) -> Catalog:
    """Raises errors of the driver, or a ConfigError if it is not installed."""
    kind_of_database = "postgres" if source.is_postgres(url) else source.system(url)
    if kind_of_database in _CATALOGS:
        rows = [
            row
            for batch in source.query_batches(url, _CATALOGS[kind_of_database])
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        ]
    else:
        find = {"snowflake": _snowflake_rows, "bigquery": _bigquery_rows}
        rows = [*find.get(kind_of_database, _inspected)(url)]
    return _catalog(rows)


#: Kind (t: table, p: primary key, f: foreign key or c: comment), table, column; of a foreign key,
#: the other table and its column, None for its primary key; of a comment, the text.
_Row = tuple[Any, ...]


def _catalog(rows: Sequence[_Row]) -> Catalog:
    keys = {table: column for kind, table, column, *_ in rows if kind == "p"}
    return Catalog(
        sorted(table for kind, table, *_ in rows if kind == "t"),
        keys,
        {
            (table, column): (other, key or keys[other])
            for kind, table, column, other, key in rows
            if kind == "f" and (key or other in keys)
        },
        {(table, column): text for kind, table, column, text, _ in rows if kind == "c" and text},
    )


def _inspected(url: str) -> list[_Row]:
    sqlalchemy = source.driver("sqlalchemy", "sqlalchemy")
    found = sqlalchemy.inspect(sqlalchemy.create_engine(url))
    rows: list[_Row] = []
    for table in found.get_table_names():
        key = found.get_pk_constraint(table)["constrained_columns"]
        rows += [("t", table, None, None, None)]
        rows += [("p", table, key[0], None, None)] if len(key) == 1 else []
        for ref in found.get_foreign_keys(table):
            if len(ref["constrained_columns"]) == 1:
                end = (ref["referred_table"], *ref["referred_columns"])
                rows.append(("f", table, *ref["constrained_columns"], *end))
        commented = [column for column in found.get_columns(table) if column.get("comment")]
        rows += [("c", table, each["name"], each["comment"], None) for each in commented]
    return rows


def _snowflake_rows(url: str) -> Iterator[_Row]:
    place = "{database}.{schema}".format(**snowflake_parameters(url))
    with closing(open_snowflake(url)) as connection, closing(connection.cursor()) as cursor:

        def show(query: str) -> list[dict[str, Any]]:
            cursor.execute(query)
            names = [column[0].lower() for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

        for table in show(
            "SELECT TABLE_NAME, ROW_COUNT FROM INFORMATION_SCHEMA.TABLES "
            "WHERE TABLE_SCHEMA = CURRENT_SCHEMA() AND TABLE_TYPE = 'BASE TABLE'"
        ):
            yield from _filled(table["table_name"], table["row_count"])
        for column in show(
            "SELECT TABLE_NAME, COLUMN_NAME, COMMENT FROM INFORMATION_SCHEMA.COLUMNS "
            "WHERE TABLE_SCHEMA = CURRENT_SCHEMA()"
        ):
            yield "c", column["table_name"], column["column_name"], column["comment"], None
        for key in _of_one_column(show(f"SHOW PRIMARY KEYS IN SCHEMA {place}"), "table_name"):
            yield "p", key["table_name"], key["column_name"], None, None
        keys = show(f"SHOW IMPORTED KEYS IN SCHEMA {place}")
        for key in _of_one_column(keys, "fk_table_name", "fk_name"):
            if key["pk_schema_name"] == key["fk_schema_name"]:
                start, end = (
                    (key[f"{side}_table_name"], key[f"{side}_column_name"]) for side in ("fk", "pk")
                )
                yield "f", *start, *end


def _of_one_column(rows: Sequence[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """Rows of keys of one column, of a row for each column. `names`: columns that name the key."""
    named = [tuple(row[name] for name in names) for row in rows]
    sizes = Counter(named)
    return [row for row, name in zip(rows, named, strict=True) if sizes[name] == 1]


def _bigquery_rows(url: str) -> Iterator[_Row]:
    (_, client), (_, dataset) = open_bigquery(url), bigquery_place(url)
    for listed in client.list_tables(dataset):
        if listed.table_type != "TABLE":
            continue
        name, table = listed.table_id, client.get_table(listed.reference)
        yield from _filled(name, table.num_rows)
        for field in table.schema:
            yield "c", name, field.name, field.description, None
        keys = table.table_constraints
        if keys is not None and keys.primary_key and len(keys.primary_key.columns) == 1:
            yield "p", name, *keys.primary_key.columns, None, None
        for key in (keys and keys.foreign_keys) or ():
            if key.referenced_table.dataset_id == dataset and len(key.column_references) == 1:
                (column,) = key.column_references
                end = key.referenced_table.table_id, column.referenced_column
                yield "f", name, column.referencing_column, *end


def _filled(table: str, num_rows: int | None) -> Iterator[_Row]:
    """The row of a table. Readers of Ray Data give no columns of one without rows."""
    if num_rows:
        yield "t", table, None, None, None
    else:
        say(f"{table} is left out: it has no rows")


def read_database(url: str) -> tuple[list[Table], list[str]]:
    """Reads all tables of a database into snapshots. Returns them, and its references as `--ref`
    names them.
    """
    if source.has_password(url):
        raise ConfigError(
            "the URL of the database is invalid: it contains a password. Remove it, and let the "
            "driver find it, as PostgreSQL's does in PGPASSWORD or ~/.pgpass. [source-secret]"
        )
    with named_failures(redact(url)):
        catalog = read_catalog(url)
    sources = {name: located(source_of(url, name), absolute("")) for name in catalog.tables}
    tables, names = [], {name: type_name(name.replace(".", "_")) for name in catalog.tables}
    for name, path in read_sources(sources, None, refresh=True).items():
        files = sorted(map(str, path.glob("*.parquet")))
        table = read_table(names[name], name, files)
        table.unsure += [
            f"{column} is left out: a column of type {kind} cannot be stored; convert it in a query"
            for column, kind in read_record(path).left_out.items()
        ]
        if not table.num_rows:
            say(f"{name} is left out: it has no rows")
            continue
        table.database = sources[name].args.get("url", url)
        tables.append(table)
    return tables, declare(tables, catalog)


def declare(tables: Sequence[Table], catalog: Catalog) -> list[str]:
    """Gives tables their declared keys. Returns the references as `--ref` names them.

    Names are compared without case. Keys of other tables and columns are left out.
    """
    by_name = {table.name.lower(): table for table in tables}
    columns = {t.name: {name.lower(): name for name in t.columns} for t in tables}

    def place(table: str, column: str) -> tuple[Table, str] | None:
        found = by_name.get(type_name(table.replace(".", "_")).lower())
        name = None if found is None else columns[found.name].get(column.lower())
        return None if found is None or name is None else (found, name)

    for end in catalog.keys.items():
        if (key := place(*end)) is not None:
            key[0].declared_key = key[1]
    for end, text in catalog.comments.items():
        if (column := place(*end)) is not None:
            column[0].comments[column[1]] = " ".join(text.split())
    references = []
    for start, end in catalog.references.items():
        if (from_ := place(*start)) is not None and (to := place(*end)) is not None:
            from_[0].declared_references.add(from_[1])
            references.append(f"{from_[0].name}.{from_[1]}={to[0].name}.{to[1]}")
    return references


def read_schema(text: str) -> Catalog:
    """Reads CREATE TABLE, ALTER TABLE and COMMENT statements of a dump. Names lose their schema.

    Raises a ConfigError if sqlglot is not installed.
    """
    sqlglot = source.driver("sqlglot", "sqlglot")
    exp = sqlglot.exp
    dialect = "mysql" if "`" in text else "tsql" if "[" in text else "postgres"
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # a line for each statement it skips
    rows: list[_Row] = []
    for statement in sqlglot.parse(text, read=dialect, error_level=sqlglot.ErrorLevel.IGNORE):
        if isinstance(statement, exp.Comment) and statement.args["kind"] == "COLUMN":
            column, comment = statement.this, statement.expression  # None removes a comment
            rows.append(("c", column.table, column.name, comment and comment.name, None))
        if not isinstance(statement, exp.Create | exp.Alter) or statement.args["kind"] != "TABLE":
            continue
        table = statement.find(exp.Table).name
        rows += [("t", table, None, None, None)] if isinstance(statement, exp.Create) else []
        for key in statement.find_all(exp.PrimaryKey, exp.PrimaryKeyColumnConstraint):
            named = key.expressions or [key.find_ancestor(exp.ColumnDef)]
            rows += [("p", table, named[0].name, None, None)] if len(named) == 1 else []
        for comment in statement.find_all(exp.CommentColumnConstraint):
            rows.append(("c", table, comment.find_ancestor(exp.ColumnDef).name, comment.name, None))
        for reference in statement.find_all(exp.Reference):
            owner = reference.find_ancestor(exp.ForeignKey, exp.ColumnDef)
            named, other = owner.expressions or [owner], reference.find(exp.Table).name
            key = reference.this.expressions
            if len(named) == 1:
                rows.append(("f", table, named[0].name, other, key[0].name if key else None))
    return _catalog(rows)


#: Queries for rows of `_Row`.
_CATALOGS = {
    "sqlite": """
        WITH t AS (
            SELECT name FROM sqlite_master
            WHERE type = 'table' AND substr(name, 1, 7) <> 'sqlite_'
        )
        SELECT 't', name, NULL, NULL, NULL FROM t
        UNION ALL SELECT 'p', t.name, max(p.name), NULL, NULL
        FROM t JOIN pragma_table_info(t.name) p WHERE p.pk > 0 GROUP BY t.name HAVING count(*) = 1
        UNION ALL SELECT 'f', t.name, max(f."from"), max(f."table"), max(f."to")
        FROM t JOIN pragma_foreign_key_list(t.name) f GROUP BY t.name, f.id HAVING count(*) = 1
    """,
    "duckdb": """
        WITH t AS (
            SELECT table_oid,
                if(schema_name = 'main', table_name, schema_name || '.' || table_name) AS name
            FROM duckdb_tables() WHERE NOT internal
        )
        SELECT 't', name, NULL, NULL, NULL FROM t
        UNION ALL SELECT if(c.constraint_type = 'PRIMARY KEY', 'p', 'f'), t.name,
            c.constraint_column_names[1], c.referenced_table, c.referenced_column_names[1]
        FROM duckdb_constraints() c JOIN t USING (table_oid)
        WHERE c.constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY')
            AND len(c.constraint_column_names) = 1
        UNION ALL SELECT 'c', t.name, c.column_name, c.comment, NULL
        FROM duckdb_columns() c JOIN t USING (table_oid)
    """,
    "postgres": """
        WITH t AS (
            SELECT c.oid, CASE n.nspname WHEN 'public' THEN c.relname::text
                ELSE n.nspname || '.' || c.relname END AS name
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
                AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
                AND has_table_privilege(c.oid, 'SELECT')
        )
        SELECT 't' AS kind, name, NULL::text AS col, NULL::text AS other, NULL::text AS key FROM t
        UNION ALL SELECT k.contype::text, t.name, a.attname::text, r.name, b.attname::text
        FROM pg_constraint k JOIN t ON t.oid = k.conrelid
        JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1]
        LEFT JOIN t r ON r.oid = k.confrelid
        LEFT JOIN pg_attribute b ON b.attrelid = k.confrelid AND b.attnum = k.confkey[1]
        WHERE cardinality(k.conkey) = 1
            AND (k.contype = 'p' OR (k.contype = 'f' AND r.name IS NOT NULL))
        UNION ALL SELECT 'c', t.name, a.attname::text, col_description(t.oid, a.attnum), NULL
        FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0
    """,
}
