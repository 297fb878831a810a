"""Snowflake and BigQuery: their URLs as arguments of their clients, which find credentials
themselves.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from raygnn.data.tables.source import driver
from raygnn.errors import ConfigError


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
