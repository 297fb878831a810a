"""Predictions become rows of a table, all together or not at all."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raygnn.data.tables.source import query_batches, select
from raygnn.data.tables.warehouses import open_snowflake
from raygnn.inference.database_table import DatabaseTable
from tests.bigquery_server import bigquery
from tests.databases import PASSWORD, POSTGRES, postgres, write_duckdb, write_sqlite
from tests.errors import raises
from tests.snowflake_server import snowflake


def _rows(num_rows: int) -> pa.Table:
    return pa.table(
        {
            "id": [f"c{i}" for i in range(num_rows)],
            "time": pa.array(range(num_rows), pa.timestamp("us")),
            "prediction": pa.array([i / 2 for i in range(num_rows)], pa.float32()),
            "probability": pa.array([[0.5, 0.25]] * num_rows, pa.list_(pa.float32(), 2)),
        }
    )


def _read(table: DatabaseTable) -> list[dict[str, Any]]:
    query = f"{select(table.url, table.name)} ORDER BY prediction"
    return [row for batch in query_batches(table.url, query) for row in batch.to_pylist()]


@pytest.fixture(params=["sqlite", "duckdb", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if request.param == "postgresql":  # a second or two
        pytest.importorskip("adbc_driver_postgresql")
        if POSTGRES is None:
            pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        with postgres() as server:
            yield server
    else:
        write = {"sqlite": write_sqlite, "duckdb": write_duckdb}[request.param]
        yield write(tmp_path / "shop.db")


def test_a_table_is_made_and_its_rows_are_replaced(url: str) -> None:
    table = DatabaseTable.of(f"{url}#predictions")
    assert table is not None
    table.write(_rows(30), overwrite=False)
    first, *_, last = _read(table)
    assert first | {"time": None, "probability": None} == {
        "id": "c0",
        "time": None,
        "prediction": 0.0,
        "probability": None,
    }
    assert last["prediction"] == 14.5
    assert last["probability"] in ([0.5, 0.25], "[0.5, 0.25]")
    with raises("output-not-empty", "predictions"):
        table.check(overwrite=False)
    with raises("output-not-empty", "predictions"):
        table.write(_rows(7), overwrite=False)
    table.write(_rows(7), overwrite=True)
    assert [row["id"] for row in _read(table)] == [f"c{i}" for i in range(7)]


def _read_snowflake(url: str, table: str) -> pa.Table:
    """Rows with names in small letters, and lists, which fakesnow answers as JSON."""
    with closing(open_snowflake(url)) as connection:
        cursor = connection.cursor().execute(f"SELECT * FROM {table}")
        names = [column[0].lower() for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return pa.Table.from_pylist(
        [row | {"probability": json.loads(row["probability"])} for row in rows]
    )


@pytest.fixture(
    params=["delta", "iceberg", "bigquery", pytest.param("snowflake", marks=pytest.mark.slow)]
)
def lake(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Callable[[], pa.Table]]]:
    """An output, and a function that reads its rows."""
    if request.param == "bigquery":
        with bigquery() as server:
            server.tables["sales.orders"] = pa.table({})
            yield "bigquery://shop#sales.predictions", lambda: server.tables["sales.predictions"]
    elif request.param == "snowflake":  # 4 s
        with snowflake() as url:
            yield f"{url}#predictions", lambda: _read_snowflake(url, "PREDICTIONS")
    elif request.param == "delta":
        path, deltalake = f"{tmp_path}/lake/predictions", pytest.importorskip("deltalake")
        yield f"delta+{path}", lambda: deltalake.DeltaTable(path).to_pyarrow_table()
    else:
        catalogs = pytest.importorskip("pyiceberg.catalog")
        where = {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/lake.db", "WAREHOUSE": str(tmp_path)}
        for key, value in where.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key}", value)
        config = importlib.import_module("pyiceberg.utils.config").Config()
        monkeypatch.setattr(catalogs, "_ENV_CONFIG", config)  # which it reads when it is imported
        catalog, name = catalogs.load_catalog("lake"), "shop.predictions"
        catalog.create_namespace("shop")
        yield f"iceberg://lake#{name}", lambda: catalog.load_table(name).scan().to_arrow()


def test_a_lake_takes_all_rows_or_none(lake: tuple[str, Callable[[], pa.Table]]) -> None:
    out, read = lake
    table = DatabaseTable.of(out)
    assert table is not None
    assert table.check(overwrite=False) is False
    table.write(_rows(30), overwrite=False)
    assert _sorted(read()) == _rows(30).to_pylist()
    with raises("output-not-empty", table.name):
        table.write(_rows(7), overwrite=False)
    table.write(_rows(7), overwrite=True)
    with raises("output-database", table.name):
        table.write(_rows(3).append_column("other", pa.array([1, 2, 3])), overwrite=True)
    assert _sorted(read()) == _rows(7).to_pylist()


@pytest.mark.slow  # 10 s: fakesnow, and two processes
def test_a_killed_process_changes_no_table_of_snowflake() -> None:
    """It dies with a part of its rows sent."""
    write = """
import os, signal, sys
from snowflake.connector.cursor import SnowflakeCursor
from raygnn.inference import database_table
from tests.unit.inference.test_database_table import _rows
send, sent = SnowflakeCursor.executemany, []
def executemany(*arguments):
    sent.append(send(*arguments))
    if len(sent) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
SnowflakeCursor.executemany = executemany
database_table._CHUNK = 10
database_table.DatabaseTable.of(sys.argv[1]).write(_rows(30), overwrite=True)
"""
    with snowflake() as url:
        DatabaseTable(url, "BEFORE").write(_rows(3), overwrite=False)
        for name in ("before", "new"):
            command = [sys.executable, "-c", write, f"{url}#{name}"]
            assert subprocess.run(command, env=os.environ).returncode == -signal.SIGKILL
        assert _sorted(_read_snowflake(url, "BEFORE")) == _rows(3).to_pylist()
        assert not DatabaseTable(url, "NEW").check(overwrite=False)
        DatabaseTable(url, "NEW").write(_rows(3), overwrite=False)


def _sorted(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by("prediction").to_pylist()


def test_refused_rows_leave_the_table_as_it_was(url: str, monkeypatch) -> None:
    """The last row breaks a rule of a table that users have made."""
    monkeypatch.setattr("raygnn.inference.database_table._CHUNK", 10)
    for table, rule in (("ruled", "prediction REAL CHECK (prediction < 14)"), ("other", "x REAL")):
        _execute(url, f"CREATE TABLE {table} (id VARCHAR, {rule})")
    table = DatabaseTable(url, "ruled")
    rows = _rows(30).select(["id", "prediction"])
    table.write(rows.slice(0, 3), overwrite=True)
    with raises("output-database", "ruled"):
        table.write(rows, overwrite=True)
    assert len(_read(table)) == 3
    with raises("output-database", "other"):
        DatabaseTable(url, "other").write(rows, overwrite=True)
    with raises("output-database", "absent"):
        DatabaseTable(url, "absent.predictions").write(rows, overwrite=False)


def _execute(url: str, statement: str) -> None:
    path = url.partition(":///")[2]
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(path)
    elif url.startswith("duckdb"):
        import duckdb

        connection = duckdb.connect(path)
    else:
        from adbc_driver_postgresql import dbapi

        connection = dbapi.connect(url)
    with closing(connection), closing(connection.cursor()) as cursor:
        cursor.execute(statement)
        connection.commit()


def test_a_new_file_is_a_database(tmp_path: Path) -> None:
    table = DatabaseTable.of(f"sqlite:///{tmp_path}/new.db#predictions")
    assert table is not None
    table.check(overwrite=False)
    assert not (tmp_path / "new.db").exists()
    table.write(_rows(3), overwrite=False)
    assert len(_read(table)) == 3


def test_sqlalchemy_writes_the_same(tmp_path: Path) -> None:
    """SQLAlchemy writes to MySQL and others."""
    pytest.importorskip("sqlalchemy")
    table = DatabaseTable(f"sqlite:///{tmp_path}/new.db", "predictions")
    table._write_sqlalchemy(_rows(30), False)
    table._write_sqlalchemy(_rows(7), True)
    found = _read(table)
    other = DatabaseTable(table.url, "others")
    other.write(_rows(7), overwrite=False)
    assert found == _read(other)


@pytest.mark.parametrize(
    ("out", "id"),
    [
        ("sqlite:///shop.db", "output-database-table"),
        ("postgresql://me:hush@h/shop#predictions", "source-secret"),
        ("snowflake://me:hush@account/shop/public#predictions", "source-secret"),
        ("snowflake://account/shop/public?token=hush#predictions", "source-secret"),
    ],
)
def test_an_invalid_table(out: str, id: str) -> None:
    with raises(id) as raised:
        DatabaseTable.of(out)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("out", ["out", "gs://bucket/out", "out.csv", "/a#b"])
def test_other_outputs_are_no_tables(out: str) -> None:
    assert DatabaseTable.of(out) is None
