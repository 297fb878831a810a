"""Snowflake and BigQuery: their URLs as arguments of their clients, which find credentials
themselves, and of the readers of Ray Data.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from raygnn.data.tables.source import Source, driver, select, system
from raygnn.errors import ConfigError


def source_of(url: str, rows: str) -> Source:
    """The source of a database's table, or of a query, which begins with SELECT."""
    is_query = rows.startswith("SELECT ")
    args: dict[str, Any] = {"url": url, "query" if is_query else "table": rows}
    if system(url) == "snowflake":
        sql = rows if is_query else select(url, rows)
        args = {"sql": sql, "connection_parameters": snowflake_parameters(url)}
    elif system(url) == "bigquery":
        project, dataset = bigquery_place(url)
        args = {"query": rows} if is_query else {"dataset": f"{dataset}.{rows}"}
        args["project_id"] = project
    kind = system(url) if system(url) in ("snowflake", "bigquery") else "sql"
    return Source(type=kind, **args)


def snowflake_parameters(url: str) -> dict[str, str]:
    """Arguments of `snowflake.connector.connect`, as the reader of Ray Data takes them.

    Args:
        url: `snowflake://USER@ACCOUNT/DATABASE/SCHEMA`, with other arguments as its query. Without
            user and account, `connection_name` names a connection that has them.
    """
    parts = urlsplit(url)
    database, _, schema = unquote(parts.path.strip("/")).partition("/")
    if not schema:
        raise ConfigError(
            "the URL of Snowflake is invalid: it names no database and schema. Write it as "
            "snowflake://USER@ACCOUNT/DATABASE/SCHEMA. [source-url]"
        )
    login = {"user": unquote(parts.username or ""), "account": parts.hostname or ""}
    named = {name: value for name, value in login.items() if value}
    return named | {"database": database, "schema": schema} | dict(parse_qsl(parts.query))


def open_snowflake(url: str) -> Any:
    """A connection whose statements have `?` for values. Raises errors of the connector."""
    connector = driver("snowflake.connector", "snowflake-connector-python")
    return connector.connect(**snowflake_parameters(url), paramstyle="qmark")


def bigquery_place(url: str) -> tuple[str, str]:
    """Project and dataset of `bigquery://PROJECT/DATASET`."""
    parts = urlsplit(url)
    return parts.netloc, parts.path.strip("/")


def open_bigquery(url: str) -> tuple[Any, Any]:
    """Google's module, and a client of the project."""
    bigquery = driver("google.cloud.bigquery", "google-cloud-bigquery")
    return bigquery, bigquery.Client(project=bigquery_place(url)[0])
