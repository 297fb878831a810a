"""The emulator fakesnow in a process of its own, which Snowflake's connector reaches by HTTP."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from raygnn.data.tables.warehouses import open_snowflake
from tests.databases import statements

#: fakesnow 0.12 answers SHOW IMPORTED KEYS with the primary keys. This answers with DuckDB's
#: foreign keys, in the columns of Snowflake's documentation.
_SERVE = """
import sys
import fakesnow, sqlglot
from fakesnow import transforms
given = transforms.show_keys
def show_keys(expression, database, *, kind):
    if kind != "FOREIGN" or given(expression, database, kind=kind) is expression:
        return given(expression, database, kind=kind)
    return sqlglot.parse_one('''
        SELECT schema_name AS pk_schema_name, referenced_table AS pk_table_name,
            unnest(referenced_column_names) AS pk_column_name, schema_name AS fk_schema_name,
            table_name AS fk_table_name, unnest(constraint_column_names) AS fk_column_name,
            constraint_index AS fk_name
        FROM duckdb_constraints() WHERE constraint_type = 'FOREIGN KEY'
    ''', read="duckdb")
transforms.show_keys = show_keys
with fakesnow.server(port=int(sys.argv[1])):
    sys.stdin.read()
"""


@contextmanager
def snowflake() -> Iterator[str]:
    """A server with the shop; yields its URL, whose password is in the environment."""
    pytest.importorskip("snowflake.connector")
    command = shutil.which("fakesnow")
    if command is None:
        pytest.skip("fakesnow is not on the path (pipx install 'fakesnow[server]')")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    connections = (
        '[shop]\nuser = "fake"\npassword = "s3cret-of-snow"\naccount = "fakesnow"\n'
        f'host = "127.0.0.1"\nport = {port}\nprotocol = "http"\nnetwork_timeout = 20\n'
    )
    python = Path(command).resolve().with_name("python")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    server = subprocess.Popen(
        [python, "-c", _SERVE, str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env,
    )  # fmt: skip
    try:
        for _ in range(300):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        url = "snowflake:///SHOP/PUBLIC?connection_name=shop"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SNOWFLAKE_CONNECTIONS", connections)
            with closing(open_snowflake(url)) as connection:
                for statement in statements():
                    connection.cursor().execute(statement)
            yield url
    finally:
        server.communicate()
