"""A table of a database or lake that receives predictions: all rows appear together, or none."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raygnn.data.filesystem import exists, redact
from raygnn.data.tables import source
from raygnn.data.tables.warehouses import open_bigquery, open_snowflake
from raygnn.errors import ConfigError, RaygnnError, RunError

_CHUNK = 10_000  # rows of one statement


def is_table(out: str) -> bool:
    """Whether an output is a table, and not a folder or a file."""
    return source.is_database(out) or source.system(out) == "iceberg" or out.startswith("delta+")


@dataclass(frozen=True)
class DatabaseTable:
    """`sqlite:///shop.sqlite#predictions`, `iceberg://CATALOG#sales.predictions`,
    `bigquery://PROJECT#sales.predictions`, `snowflake://USER@ACCOUNT/DATABASE/SCHEMA#PREDICTIONS`
    or `delta+s3://lake/predictions`. A name may have a schema: `sales.predictions`.
    """

    url: str
    name: str

    @classmethod
    def of(cls, out: str) -> DatabaseTable | None:
        """None for a folder or a file. Raises a ConfigError without a table, or for a password."""
        if not is_table(out):
            return None
        url, _, name = out.partition("#")
        if source.system(out) == "delta":
            name = PurePath(out).name
        elif source.system(out) == "snowflake":
            name = name.upper()  # as it does with a name without quotes
        if source.has_password(url):
            raise ConfigError(
                "--out is invalid: it contains a password. Remove it, and let the driver find it, "
                "as PostgreSQL's does in PGPASSWORD or ~/.pgpass. [source-secret]"
            )
        if not name:
            raise ConfigError(
                f"--out={redact(out)!r} is invalid: it names no table. Add one, as in "
                "sqlite:///shop.sqlite#predictions. [output-database-table]"
            )
        return cls(url, name)

    def check(self, overwrite: bool) -> bool:
        """Whether the table exists. Raises a RunError if it does, without `overwrite`, or the
        database cannot be reached.
        """
        with self._failures():
            is_there = self._exists()
        if is_there and not overwrite:
            raise RunError(
                f"out={self} is invalid: the table exists. Name another table, or pass --overwrite "
                "(overwrite=True) to replace its rows. [output-not-empty]"
            )
        return is_there

    def write(self, rows: pa.Table, overwrite: bool) -> None:
        """Makes the table, or replaces its rows, in one transaction. Raises a RunError as `check`,
        or if the database refuses the rows.
        """
        columns = dict(zip(rows.column_names, map(_plain, rows.columns), strict=True))
        is_there = self.check(overwrite)
        with self._failures():
            self._writer()(pa.table(columns), is_there)

    def __str__(self) -> str:
        is_delta = source.system(self.url) == "delta"
        return repr(redact(self.url if is_delta else f"{self.url}#{self.name}"))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except RaygnnError:
            raise
        except Exception as error:
            cause = " ".join(redact(str(error)).split())
            raise RunError(
                f"out={self} is invalid: the database refuses it ({type(error).__name__}: "
                f"{cause}). Check table and rights; its rows are as before. [output-database]"
            ) from error

    @property
    def _place(self) -> str:
        return ".".join(source.quoted(self.url, name) for name in self.name.split("."))

    def _exists(self) -> bool:
        if source.system(self.url) == "delta":
            deltalake = source.driver("deltalake", "deltalake")
            return bool(deltalake.DeltaTable.is_deltatable(self._path))
        if source.system(self.url) == "iceberg":
            return bool(self._catalog.table_exists(self.name))
        if source.system(self.url) == "bigquery":
            dataset, _, name = self.name.rpartition(".")
            tables = open_bigquery(self.url)[1].list_tables(dataset)
            return any(table.table_id == name for table in tables)
        file, literal = source.database_file(self.url), self.name.replace("'", "''")
        if source.system(self.url) == "snowflake":
            schema, _, name = literal.rpartition(".")
            place = f"'{schema}'" if schema else "CURRENT_SCHEMA()"
            with closing(open_snowflake(self.url)) as connection:
                found = connection.cursor().execute(
                    "SELECT count(*) FROM INFORMATION_SCHEMA.TABLES "
                    f"WHERE TABLE_SCHEMA = {place} AND TABLE_NAME = '{name}'"
                )
                return bool(found.fetchone()[0])
        if file is not None and not exists(file):
            return False
        if source.is_postgres(self.url):
            place = self._place.replace("'", "''")
            query = f"SELECT count(to_regclass('{place}'))"
        elif source.system(self.url) == "sqlite":
            query = f"SELECT count(*) FROM sqlite_master WHERE name = '{literal}'"
        elif file is not None:
            query = (
                "SELECT count(*) FROM information_schema.tables WHERE table_name = "
                f"'{literal.rpartition('.')[2]}'"
            )
        else:
            sqlalchemy = source.driver("sqlalchemy", "sqlalchemy")
            schema, _, name = self.name.rpartition(".")
            found = sqlalchemy.inspect(sqlalchemy.create_engine(self.url))
            return bool(found.has_table(name, schema=schema or None))
        return any(sum(b.column(0).to_pylist()) for b in source.query_batches(self.url, query))

    def _writer(self) -> Callable[[pa.Table, bool], None]:
        if source.is_postgres(self.url):
            return self._write_postgres
        return {
            "sqlite": self._write_sqlite,
            "duckdb": self._write_duckdb,
            "delta": self._write_delta,
            "iceberg": self._write_iceberg,
            "bigquery": self._write_bigquery,
            "snowflake": self._write_snowflake,
        }.get(source.system(self.url), self._write_sqlalchemy)

    @property
    def _path(self) -> str:
        return self.url.removeprefix("delta+")

    @property
    def _catalog(self) -> Any:
        return source.driver("pyiceberg.catalog", "pyiceberg").load_catalog(
            self.url.partition("://")[2]
        )

    def _write_delta(self, rows: pa.Table, is_there: bool) -> None:
        mode = "overwrite" if is_there else "error"
        source.driver("deltalake", "deltalake").write_deltalake(self._path, rows, mode=mode)

    def _write_iceberg(self, rows: pa.Table, is_there: bool) -> None:
        if is_there:
            self._catalog.load_table(self.name).overwrite(rows)
            return
        with self._catalog.create_table_transaction(self.name, rows.schema) as transaction:
            transaction.append(rows)

    def _write_bigquery(self, rows: pa.Table, is_there: bool) -> None:
        file = io.BytesIO()
        pq.write_table(rows, file, coerce_timestamps="us", allow_truncated_timestamps=True)
        bigquery, client = open_bigquery(self.url)
        options = bigquery.ParquetOptions()
        options.enable_list_inference = True
        config = bigquery.LoadJobConfig(
            source_format="PARQUET",
            parquet_options=options,
            write_disposition="WRITE_TRUNCATE_DATA" if is_there else "WRITE_EMPTY",
        )
        client.load_table_from_file(file, self.name, rewind=True, job_config=config).result()

    def _write_snowflake(self, rows: pa.Table, is_there: bool) -> None:
        texts, staged = _as_texts(rows), source.quoted(self.url, "rows of raygnn")
        names = [source.quoted(self.url, name.upper()) for name in rows.column_names]
        declared = ", ".join(
            f"{name} {'BOOLEAN' if pa.types.is_boolean(field.type) else _sqlite_type(field.type)}"
            for name, field in zip(names, texts.schema, strict=True)
        )
        values = ", ".join(
            f"PARSE_JSON({name})::ARRAY AS {name}"
            if pa.types.is_list(field.type)
            else f"{name}::TIMESTAMP_NTZ AS {name}"
            if pa.types.is_timestamp(field.type)
            else name
            for name, field in zip(names, rows.schema, strict=True)
        )
        insert = f"INSERT INTO {staged} VALUES ({', '.join('?' for _ in names)})"
        with closing(open_snowflake(self.url)) as connection, connection.cursor() as cursor:
            # A temporary table ends with the connection. A new table and its rows are one
            # statement, since a statement that makes a table ends a transaction there.
            cursor.execute(f"CREATE TEMPORARY TABLE {staged} ({declared})")
            for batch in texts.to_batches(_CHUNK):
                columns = (column.to_pylist() for column in batch.columns)
                cursor.executemany(insert, list(zip(*columns, strict=True)))
            query = f"SELECT {values} FROM {staged}"
            if not is_there:
                cursor.execute(f"CREATE TABLE {self._place} AS {query}")
                return
            cursor.execute("BEGIN")
            cursor.execute(f"DELETE FROM {self._place}")
            cursor.execute(f"INSERT INTO {self._place} ({', '.join(names)}) {query}")
            cursor.execute("COMMIT")

    def _write_postgres(self, rows: pa.Table, is_there: bool) -> None:
        dbapi = source.driver("adbc_driver_postgresql.dbapi", "adbc-driver-postgresql")
        schema, _, name = self.name.rpartition(".")
        with dbapi.connect(self.url) as connection, connection.cursor() as cursor:
            if is_there:
                cursor.execute(f"DELETE FROM {self._place}")
            mode = "append" if is_there else "create"
            cursor.adbc_ingest(name, rows, mode, db_schema_name=schema or None)
            connection.commit()

    def _write_duckdb(self, rows: pa.Table, is_there: bool) -> None:
        with closing(
            source.driver("duckdb", "duckdb").connect(source.database_file(self.url))
        ) as connection:
            connection.register("rows of raygnn", rows)
            connection.begin()
            if is_there:
                connection.execute(f"DELETE FROM {self._place}")
            how = "INSERT INTO {} BY NAME" if is_there else "CREATE TABLE {} AS"
            connection.execute(f'{how.format(self._place)} SELECT * FROM "rows of raygnn"')
            connection.commit()

    def _write_sqlite(self, rows: pa.Table, is_there: bool) -> None:
        rows = _as_texts(rows)
        names = [source.quoted(self.url, field.name) for field in rows.schema]
        kinds = [_sqlite_type(field.type) for field in rows.schema]
        marks = ", ".join("?" for _ in names)
        declared = ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
        file = source.database_file(self.url) or ""
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            what = "DELETE FROM {}" if is_there else "CREATE TABLE {} ({})"
            connection.execute(what.format(self._place, declared))
            insert = f"INSERT INTO {self._place} ({', '.join(names)}) VALUES ({marks})"
            for batch in rows.to_batches(_CHUNK):
                values = (column.to_pylist() for column in batch.columns)
                connection.executemany(insert, zip(*values, strict=True))
            connection.execute("COMMIT")

    def _write_sqlalchemy(self, rows: pa.Table, is_there: bool) -> None:
        sql = source.driver("sqlalchemy", "sqlalchemy")
        schema, _, name = self.name.rpartition(".")
        rows = _as_texts(rows)
        types = {"INTEGER": sql.BigInteger, "REAL": sql.Double, "TEXT": sql.Text}
        columns = [sql.Column(f.name, types[_sqlite_type(f.type)]) for f in rows.schema]
        table = sql.Table(name, sql.MetaData(), *columns, schema=schema or None)
        with sql.create_engine(self.url).begin() as connection:
            if is_there:
                connection.execute(table.delete())
            else:
                table.create(connection)
            for batch in rows.to_batches(_CHUNK):
                connection.execute(table.insert(), batch.to_pylist())


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values in types that databases have."""
    if pa.types.is_fixed_size_list(values.type):
        return pc.cast(values, pa.list_(values.type.value_type))
    return values


def _as_texts(rows: pa.Table) -> pa.Table:
    """Rows with lists as JSON and times as ISO 8601, for databases without such types."""
    columns: dict[str, Any] = {}
    for name, values in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type):
            values = pa.array([v if v is None else json.dumps(v) for v in values.to_pylist()])
        elif pa.types.is_temporal(values.type):
            values = pc.cast(values, pa.string())
        columns[name] = values
    return pa.table(columns)


def _sqlite_type(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "INTEGER"
    return "REAL" if pa.types.is_floating(kind) else "TEXT"
