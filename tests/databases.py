"""A small shop in databases."""

from __future__ import annotations

import os
import random
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

NUM_CUSTOMERS, NUM_ORDERS = 60, 300

SCHEMA = """
CREATE TABLE customers (id {text} PRIMARY KEY, age INTEGER NOT NULL, score {real}, segment {text});
CREATE TABLE orders (
    order_id INTEGER PRIMARY KEY, customer_id {text} NOT NULL REFERENCES customers (id),
    amount {real}, day {date}
);
"""
_TYPES = {"text": "TEXT", "real": "DOUBLE PRECISION", "date": "DATE"}


def statements() -> list[str]:
    """SQL that makes the shop in any database."""
    pick = random.Random(0)
    customers = [f"('c{i}', {20 + i % 50}, {i / 4}, '{'ab'[i % 2]}')" for i in range(NUM_CUSTOMERS)]
    orders = [
        f"({i}, 'c{pick.randrange(NUM_CUSTOMERS)}', {i * 1.5}, '2024-01-{1 + i % 28:02d}')"
        for i in range(NUM_ORDERS)
    ]
    return [
        *SCHEMA.format(**_TYPES).strip().removesuffix(";").split(";"),
        f"INSERT INTO customers VALUES {', '.join(customers)}",
        f"INSERT INTO orders VALUES {', '.join(orders)}",
    ]


def write_sqlite(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements():
            connection.execute(statement)
    return f"sqlite:///{path}"


def write_duckdb(path: Path) -> str:
    import duckdb

    with closing(duckdb.connect(path)) as connection:
        for statement in statements():
            connection.execute(statement)
    return f"duckdb:///{path}"


def write_graph(folder: Path, url: str) -> Path:
    """The graph.yaml of a shop whose tables are read from a database."""
    folder.mkdir(exist_ok=True)
    (folder / "graph.yaml").write_text(f"""format: raygnn/graph-v1
node_types:
  customer:
    read: {{type: sql, url: "{url}", table: customers}}
    id: id
    features: {{x: [age, score]}}
    labels: {{y: segment}}
  order:
    read: {{type: sql, url: "{url}", query: "SELECT * FROM orders ORDER BY order_id"}}
    id: order_id
    features: {{x: amount}}
    time: day
edge_types:
  - type: [order, placed_by, customer]
    read: {{type: sql, url: "{url}", query: "SELECT * FROM orders ORDER BY order_id"}}
    source: order_id
    target: customer_id
""")
    return folder


POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
PASSWORD = "s3cret-of-the-shop"


@contextmanager
def postgres() -> Iterator[str]:
    """A server with the shop, which asks for a password; yields its URL."""
    # Only root sees the folders of pytest, and the server refuses to run as root.
    with TemporaryDirectory() as folder:
        yield from _serve(Path(folder))


def _serve(folder: Path) -> Iterator[str]:
    assert POSTGRES is not None
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    folder.chmod(0o755)
    data = folder / "postgres"
    data.mkdir()
    if as_user:
        shutil.chown(data, "postgres")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    password = data.with_name("password")
    password.write_text(PASSWORD)
    password.chmod(0o644)

    def run(program: str, *arguments: str) -> None:
        command = [*as_user, str(POSTGRES / program), "-D", str(data), *arguments]
        subprocess.run(command, check=True, capture_output=True, text=True, cwd="/")

    how = ["-A", "scram-sha-256", "-U", "reader", "--pwfile", str(password), "--no-sync"]
    run("initdb", *how)
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c fsync=off -k {data}"
    run("pg_ctl", "-w", "-l", str(data / "log"), "-o", options, "start")
    try:
        url = f"postgresql://reader@127.0.0.1:{port}/postgres"
        with closing(connected(url)) as connection, connection.cursor() as cursor:
            for statement in statements():
                cursor.execute(statement)
            connection.commit()
        yield url
    finally:
        run("pg_ctl", "-m", "immediate", "stop")


def connected(url: str):  # type: ignore[no-untyped-def]
    from adbc_driver_postgresql import dbapi

    return dbapi.connect(url.replace("reader@", f"reader:{PASSWORD}@"))
