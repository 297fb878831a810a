"""Tables and keys that a database declares."""

from __future__ import annotations

from typing import Any, NamedTuple

from raygnn.console import say
from raygnn.data.filesystem import absolute, redact
from raygnn.data.tables.source import (
    Source,
    driver,
    has_password,
    is_postgres,
    query_batches,
    system,
)
from raygnn.errors import ConfigError
from raygnn.prepare.drafts.columns import type_name
from raygnn.prepare.drafts.raw_tables import Table, read_table
from raygnn.runtime.sources import located, named_failures, read_sources


class Catalog(NamedTuple):
    """Tables of a database, and the keys that it declares of one column each.

    Attributes:
        tables: names, with a schema that is not the default one.
        keys: column by table.
        references: table and column that a (table, column) refers to.
    """

    tables: list[str]
    keys: dict[str, str]
    references: dict[tuple[str, str], tuple[str, str]]


def read_catalog(url: str) -> Catalog:
    """Raises errors of the driver, or a ConfigError if it is not installed."""
    kind_of_database = "postgres" if is_postgres(url) else system(url)
    if kind_of_database in _CATALOGS:
        rows = [
            row
            for batch in query_batches(url, _CATALOGS[kind_of_database])
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        ]
    else:
        rows = _inspected(url)
    keys = {table: column for kind, table, column, *_ in rows if kind == "p"}
    return Catalog(
        sorted(table for kind, table, *_ in rows if kind == "t"),
        keys,
        {
            (table, column): (other, key or keys[other])
            for kind, table, column, other, key in rows
            if kind == "f" and (key or other in keys)
        },
    )


def _inspected(url: str) -> list[tuple[Any, ...]]:
    sqlalchemy = driver("sqlalchemy", "sqlalchemy")
    found = sqlalchemy.inspect(sqlalchemy.create_engine(url))
    rows: list[tuple[Any, ...]] = []
    for table in found.get_table_names():
        key = found.get_pk_constraint(table)["constrained_columns"]
        rows += [("t", table, None, None, None)]
        rows += [("p", table, key[0], None, None)] if len(key) == 1 else []
        for ref in found.get_foreign_keys(table):
            if len(ref["constrained_columns"]) == 1:
                end = (ref["referred_table"], *ref["referred_columns"])
                rows.append(("f", table, *ref["constrained_columns"], *end))
    return rows


def read_database(url: str) -> tuple[list[Table], list[str]]:
    """Reads all tables of a database into snapshots. Returns them, and its references as `--ref`
    names them.
    """
    if has_password(url):
        raise ConfigError(
            "the URL of the database is invalid: it contains a password. Remove it, and let the "
            "driver find it, as PostgreSQL's does in PGPASSWORD or ~/.pgpass.",
            id="source-secret",
        )
    with named_failures(redact(url)):
        catalog = read_catalog(url)
    sources = {
        name: located(Source(type="sql", **{"url": url, "table": name}), absolute(""))
        for name in catalog.tables
    }
    tables, names = [], {name: type_name(name.replace(".", "_")) for name in catalog.tables}
    for name, path in read_sources(sources, None, refresh=True).items():
        files = sorted(map(str, path.glob("*.parquet")))
        table = read_table(names[name], name, files)
        if not table.num_rows:
            say(f"{name} is left out: it has no rows")
            continue
        table.database, table.declared_key = sources[name].args["url"], catalog.keys.get(name)
        table.declared_references = {c for owner, c in catalog.references if owner == name}
        tables.append(table)
    references = [
        f"{names[table]}.{column}={names[other]}.{key}"
        for (table, column), (other, key) in catalog.references.items()
        if {names[table], names[other]} <= {each.name for each in tables}
    ]
    return tables, references


#: Queries for rows of (t: table, p: primary key or f: foreign key; table; column; and of a foreign
#: key, the other table and its column, null for its primary key).
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
    """,
}
