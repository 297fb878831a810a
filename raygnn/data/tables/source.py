"""A table's source in graph.yaml, and the rows of SQL queries as Arrow batches.

Other sources are readers of Ray Data: `raygnn/runtime/sources.py`.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from itertools import starmap
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pyarrow as pa
from pydantic import ConfigDict

from raygnn.config.section import NonEmptyText, Section
from raygnn.config.validation import broken_section
from raygnn.errors import ConfigError, Problem
from raygnn.redaction import is_secret_name

_SYSTEMS = {
    "sqlite", "duckdb", "postgres", "postgresql", "mysql", "mariadb", "mssql", "oracle",
    "snowflake", "bigquery",
}  # fmt: skip
_ROWS = 1 << 16  # of a batch that a Python driver fetches
UNFIT = b"raygnn.unfit"
#: Words in names of arguments that unpickle files or import code.
_UNSAFE = frozenset(["pickle", "unsafe", "impl"])


class _Query(Section):
    url: NonEmptyText
    query: NonEmptyText | None = None
    table: NonEmptyText | None = None

    def broken_rules(self) -> Iterable[Problem]:
        if (self.query is None) == (self.table is None):
            rule, remedy = "sql reads either a query or a table", "Set one of query and table"
            yield Problem((), rule, remedy, id="source-query")
        if "://" not in self.url:
            rule = "it is not the URL of a database"
            remedy = "Set one as postgresql://user@host/name or sqlite:///shop.sqlite"
            yield Problem(("url",), rule, remedy, id="source-url")


class Source(Section):
    """Rows that are not files: the name of a reader, and its arguments as the other keys.

    Attributes:
        type: sql, or a reader of Ray Data without `read_`: delta, iceberg, bigquery, ...
    """

    model_config = ConfigDict(extra="allow")

    type: NonEmptyText

    @property
    def args(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    def broken_rules(self) -> Iterable[Problem]:
        yield from _unfit_values(self.args, ())
        if self.type == "sql":
            yield from broken_section(_Query, self.args)


def _unfit_values(value: Any, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """Problems of secrets, which belong into the environment, and of what runs code of files."""
    if isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            yield from _unfit_values(inner, (*path, key))
    elif isinstance(value, str) and _is_secret(str(path[-1]), value):
        rule = "it contains a password or another secret"
        remedy = "Remove it, and let the driver find it, as in PGPASSWORD or ~/.pgpass"
        yield Problem(path, rule, remedy, id="source-secret")
    if path and not _UNSAFE.isdisjoint(re.split(r"\W|_", str(path[-1]).lower())):
        rule, remedy = "it can run code that the source contains", "Remove it"
        yield Problem(path, rule, remedy, id="source-unsafe")


def _is_secret(name: str, value: str) -> bool:
    is_place = "://" in value or name.endswith(("file", "path"))  # a dsn, private_key_file
    return has_password(value) if is_place else is_secret_name(name)


def has_password(url: str) -> bool:
    """Whether a text is a URL with a password in it or in its query."""
    if "://" not in url:
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.password) or any(starmap(_is_secret, parse_qsl(parts.query)))
    except ValueError:  # not a URL
        return False


def database_file(url: str) -> str | None:
    """Path of a database that is a local file; None for a server."""
    _, _, rest = url.partition("://")
    return unquote(rest.removeprefix("/")) if system(url) in ("sqlite", "duckdb") else None


def system(url: str) -> str:
    """`sqlite` for `sqlite+pysqlite:///shop.db`."""
    return url.partition("://")[0].partition("+")[0]


def is_postgres(url: str) -> bool:
    return url.startswith(("postgres://", "postgresql://"))


def is_database(url: str) -> bool:
    """Whether a text is the URL of a database, and not of a folder."""
    return system(url) in _SYSTEMS


def select(url: str, table: str) -> str:
    """The query for all rows of a table, such as `orders` or `shop.orders`."""
    names = table.split(".")
    if system(url) == "bigquery":
        names = [urlsplit(url).path.strip("/"), *names]
    return f"SELECT * FROM {'.'.join(quoted(url, name) for name in names)}"


def quoted(url: str, name: str) -> str:
    quote = "`" if system(url) in ("mysql", "mariadb", "bigquery") else '"'
    return f"{quote}{name.replace(quote, quote * 2)}{quote}"


Read = Callable[[str], Iterator[pa.RecordBatch]]


@contextmanager
def open_database(url: str) -> Iterator[Read]:
    """Yields a function from queries, which may only read, to their rows.

    All queries see the database as it was at the first one. Raises errors of the driver.

    Raises a ConfigError if the driver is not installed.
    """
    connect = {"sqlite": _sqlite, "duckdb": _duckdb}.get(system(url), _sqlalchemy)
    with (_postgres if is_postgres(url) else connect)(url) as read:
        yield lambda query: read(query.strip().removesuffix(";"))  # PostgreSQL's COPY takes none


def query_batches(url: str, query: str) -> Iterator[pa.RecordBatch]:
    """Rows of one query; see `open_database`."""
    with open_database(url) as read:
        yield from read(query)


def driver(module: str, package: str) -> Any:
    """Imports a driver. Raises a ConfigError that names the package to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{package} reads this database. Run pip install {package}. [source-package]"
        ) from error


@contextmanager
def _sqlite(url: str) -> Iterator[Read]:
    def allow(action: int, *_: str | None) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK

    path = f"file:{quote(database_file(url) or '')}?mode=ro"
    with closing(sqlite3.connect(path, uri=True, isolation_level=None)) as connection:
        connection.set_authorizer(allow)
        connection.execute("BEGIN")
        yield lambda query: _fetched(connection.execute(query))


@contextmanager
def _duckdb(url: str) -> Iterator[Read]:
    duckdb = driver("duckdb", "duckdb")
    with closing(duckdb.connect(database_file(url), read_only=True)) as connection:
        connection.execute("SET enable_external_access = false")
        yield lambda query: _read(connection.sql(query).to_arrow_reader(_ROWS))


@contextmanager
def _postgres(url: str) -> Iterator[Read]:
    dbapi = driver("adbc_driver_postgresql.dbapi", "adbc-driver-postgresql")

    def read(query: str) -> Iterator[pa.RecordBatch]:
        with connection.cursor() as cursor:
            cursor.execute(query)
            yield from _read(cursor.fetch_record_batch())

    with dbapi.connect(url) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield read


def _read(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([], reader.schema)  # a table without rows has columns
    yield from reader


@contextmanager
def _sqlalchemy(url: str) -> Iterator[Read]:
    engine = driver("sqlalchemy", "sqlalchemy").create_engine(url)
    options = {"stream_results": True, "max_row_buffer": _ROWS}
    with engine.connect().execution_options(**options) as connection:
        yield lambda query: _fetched(connection.exec_driver_sql(query).cursor)


def _fetched(cursor: Any) -> Iterator[pa.RecordBatch]:
    """Rows of a cursor of Python's database API. A type is inferred for each batch and column.

    Columns without one become null, with the types of their values as metadata `UNFIT`.
    """
    names = [column[0] for column in cursor.description]
    while True:
        rows = cursor.fetchmany(_ROWS)
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        fields, arrays = [], []
        for name, values in zip(names, columns, strict=True):
            array, unfit = _array(values)
            fields.append(pa.field(name, array.type, metadata=unfit))
            arrays.append(array)
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        if len(rows) < _ROWS:
            return


def _array(values: Sequence[Any]) -> tuple[pa.Array, dict[bytes, str] | None]:
    try:
        return pa.array(values), None
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        kinds = {type(value).__name__ for value in values if value is not None}
        if kinds == {"float", "int"}:
            return pa.array(values, pa.float64()), None
        return pa.nulls(len(values)), {UNFIT: " and ".join(sorted(kinds))}
