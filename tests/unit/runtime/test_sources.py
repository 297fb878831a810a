"""Tables of databases become snapshots, and runs read these."""

from __future__ import annotations

import gc
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest

from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.data.manifest import Manifest
from raygnn.data.tables.snapshot import Snapshots
from raygnn.data.tables.source import Read, Source, query_batches
from raygnn.errors import DataError
from raygnn.outputs.saved_model import SavedModel
from raygnn.prepare.__main__ import main
from raygnn.runtime import sources
from raygnn.runtime.data_source import open_bundle
from raygnn.runtime.sources import keep_snapshots, snapshot_records, with_snapshots
from raygnn.train import fit
from tests.databases import (
    NUM_CUSTOMERS,
    NUM_ORDERS,
    PASSWORD,
    POSTGRES,
    connected,
    postgres,
    write_duckdb,
    write_graph,
    write_sqlite,
)
from tests.errors import raises
from tests.small_runs import small_config


def _open(graph: Path, cache: Path, *, refresh: bool = False, **data: object) -> Bundle:
    if refresh:
        with_snapshots(str(graph), str(cache), refresh=True)
    section = {"uri": str(graph), "cache_dir": str(cache), **data}
    return open_bundle(load_config({"data": section}), None)


def _check_shop(bundle: Bundle) -> None:
    assert bundle.num_nodes("customer") == NUM_CUSTOMERS
    assert bundle.num_edges(("order", "placed_by", "customer")) == NUM_ORDERS
    amounts = np.asarray(bundle.column("order", "x"))
    assert amounts.tolist() == [i * 1.5 for i in range(NUM_ORDERS)]
    days = np.asarray(bundle.column("order", "time"))
    assert (days[28] - days[0], days[1] - days[0]) == (0, 86_400_000_000)


@pytest.mark.parametrize("write", [write_sqlite, write_duckdb])
def test_a_graph_reads_a_database(tmp_path: Path, write: Callable[[Path], str]) -> None:
    _check_shop(_open(write_graph(tmp_path, write(tmp_path / "shop.db")), tmp_path / "cache"))


def test_a_path_is_relative_to_the_graph(tmp_path: Path) -> None:
    write_sqlite(tmp_path / "shop.db")
    _check_shop(_open(write_graph(tmp_path, "sqlite:///shop.db"), tmp_path / "cache"))


@pytest.mark.parametrize("name", ["my shop.db", "50%41.db", "what?.db"])
def test_the_path_of_a_database_is_that_of_a_url(tmp_path: Path, name: str) -> None:
    write_sqlite(tmp_path / name)
    url = f"sqlite:///{quote(name)}"
    _check_shop(_open(write_graph(tmp_path, url), tmp_path / "cache"))


def test_a_manifest_is_written_as_it_is_read(tmp_path: Path) -> None:
    graph = Manifest.load(write_graph(tmp_path, "sqlite:///shop.db"))
    assert Manifest.parse(graph.dump()) == graph


def test_a_query_may_end_like_a_statement(tmp_path: Path) -> None:
    write_sqlite(tmp_path / "shop.db")
    graph = write_graph(tmp_path, "sqlite:///shop.db")
    text = (graph / "graph.yaml").read_text()
    (graph / "graph.yaml").write_text(text.replace("ORDER BY order_id", "ORDER BY order_id ;\\n"))
    _check_shop(_open(graph, tmp_path / "cache"))


def test_a_table_may_be_files_beside_a_database(tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "graph", write_sqlite(tmp_path / "graph.db"))
    before = (graph / "graph.yaml").read_text()
    with closing(sqlite3.connect(tmp_path / "graph.db")) as connection:
        rows = connection.execute("SELECT * FROM customers").fetchall()
    lines = ["id,age,score,segment", *(",".join(map(str, row)) for row in rows)]
    (graph / "customers.csv").write_text("\n".join(lines))
    start, end = before.index("read: {"), before.index("    id: id")
    (graph / "graph.yaml").write_text(f"{before[:start]}files: customers.csv\n{before[end:]}")
    _check_shop(_open(graph, tmp_path / "cache", allow_outside=[str(tmp_path / "graph.db")]))


def _change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_a_changed_database_is_read_again_only_on_request(tmp_path: Path) -> None:
    graph = write_graph(tmp_path, write_sqlite(tmp_path / "shop.db"))
    cache = tmp_path / "cache"
    first = _open(graph, cache)
    _change(tmp_path / "shop.db", "UPDATE customers SET age = 99 WHERE id = 'c0'")
    assert _open(graph, cache).path == first.path
    second = _open(graph, cache, refresh=True)
    assert second.path != first.path
    assert second.column("customer", "x")[0].tolist() == [99.0, 0.0]
    assert _open(graph, cache).path == second.path
    _change(tmp_path / "shop.db", "UPDATE customers SET age = 20 WHERE id = 'c0'")
    assert _open(graph, cache, refresh=True).path == first.path  # equal rows, equal name


def _intercept(monkeypatch, answer: Callable[[Read, str], Iterator[pa.RecordBatch]]) -> None:
    """Answers all queries of snapshots by a function of the database and the query."""
    open_database = sources.open_database

    @contextmanager
    def opened(url: str) -> Iterator[Read]:
        with open_database(url) as read:
            yield lambda query: answer(read, query)

    monkeypatch.setattr(sources, "open_database", opened)


def test_old_snapshots_are_removed(tmp_path: Path, monkeypatch) -> None:
    """But those that a process reads stay."""
    graph = write_graph(tmp_path, write_sqlite(tmp_path / "shop.db"))
    cache = str(tmp_path / "cache")
    uris = []
    for age in range(70, 80):
        _change(tmp_path / "shop.db", f"UPDATE customers SET age = {age} WHERE id = 'c0'")
        uris.append(with_snapshots(str(graph), cache, refresh=True))
    assert all(map(keep_snapshots, uris))
    sources._claims.clear()  # as the end of the process does
    gc.collect()
    assert keep_snapshots(uris[1])
    with_snapshots(str(graph), cache, refresh=True)
    assert [keep_snapshots(uri) for uri in uris] == [False, True, *[False] * 3, *[True] * 5]


def test_one_query_of_several_tables_is_read_once(tmp_path: Path, monkeypatch) -> None:
    graph = write_graph(tmp_path, write_sqlite(tmp_path / "shop.db"))
    queries: list[str] = []
    _intercept(monkeypatch, lambda read, query: queries.append(query) or read(query))
    _open(graph, tmp_path / "cache", refresh=True)
    assert len(queries) == 2


def test_sources_become_current_together(tmp_path: Path, monkeypatch) -> None:
    """A database that goes away while the second table is read leaves both as they were."""
    graph, cache = (
        write_graph(tmp_path, write_sqlite(tmp_path / "shop.db")),
        str(tmp_path / "cache"),
    )
    before = with_snapshots(str(graph), cache)
    _change(tmp_path / "shop.db", "UPDATE customers SET age = 99 WHERE id = 'c0'")

    def cut_off(read: Read, query: str) -> Iterator[pa.RecordBatch]:
        for batch in read(query):
            yield batch
            if "orders" in query:
                raise OSError("server closed the connection unexpectedly")

    _intercept(monkeypatch, cut_off)
    with raises("source-unreadable", "node_types.order", "closed the connection"):
        with_snapshots(str(graph), cache, refresh=True)
    monkeypatch.undo()
    assert with_snapshots(str(graph), cache) == before
    assert not list(Path(cache).rglob(".building-*"))


def test_several_processes_read_a_source_once(tmp_path: Path, monkeypatch) -> None:
    """Of torchrun, or of runs that start together."""
    graph = write_graph(tmp_path, write_sqlite(tmp_path / "shop.db"))
    cache, queries = str(tmp_path / "cache"), []

    def slow(read: Read, query: str) -> Iterator[pa.RecordBatch]:
        queries.append(query)
        time.sleep(0.1)
        return read(query)

    _intercept(monkeypatch, slow)
    with ThreadPoolExecutor(3) as pool:
        uris = set(pool.map(lambda _: with_snapshots(str(graph), cache), range(3)))
    assert len(uris) == 1
    assert len(queries) == 2


def test_a_snapshot_records_its_source(tmp_path: Path) -> None:
    graph = write_graph(tmp_path, write_sqlite(tmp_path / "shop.db"))
    records = snapshot_records(with_snapshots(str(graph), str(tmp_path / "cache")))
    assert [record["num_rows"] for record in records.values()] == [60, 300, 300]
    assert (
        records["node_types.order"]["source"]["query"] == "SELECT * FROM orders ORDER BY order_id"
    )
    assert snapshot_records(str(graph)) == {}


@pytest.mark.parametrize("num_rows", [70_000, 10])  # in the second batch, and in the first
def test_a_column_that_cannot_be_stored_is_left_out(tmp_path: Path, num_rows: int, capfd) -> None:
    graph = write_graph(tmp_path, write_sqlite(tmp_path / "shop.db"))
    _change(tmp_path / "shop.db", "ALTER TABLE customers ADD COLUMN note")
    _change(
        tmp_path / "shop.db",
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {num_rows}) "
        f"INSERT INTO customers SELECT 'n' || i, 1, 1, 'a', iif(i = {num_rows}, 'x', i) FROM n",
    )
    assert _open(graph, tmp_path / "cache").num_nodes("customer") == NUM_CUSTOMERS + num_rows
    assert "left out, as they cannot be stored: note (int" in capfd.readouterr().out
    for file in (tmp_path / "cache").rglob("*.parquet"):
        assert "note" not in pa.parquet.read_schema(file).names
    text = (graph / "graph.yaml").read_text()
    (graph / "graph.yaml").write_text(text.replace("[age, score]", "[age, score, note]"))
    with raises("table-column-missing", "note"):
        _open(graph, tmp_path / "cache")


def test_a_damaged_snapshot_is_read_again(tmp_path: Path) -> None:
    graph = write_graph(tmp_path, write_sqlite(tmp_path / "shop.db"))
    first = _open(graph, tmp_path / "cache")
    next((tmp_path / "cache" / "snapshots").glob("*/*/part-00000.parquet")).unlink()
    assert _open(graph, tmp_path / "cache").path == first.path


def _check_one_moment(
    monkeypatch,
    graph: Path,
    cache: Path,
    execute: Callable[[str], object],
    commit: Callable[[], object] = lambda: None,
) -> None:
    """Somebody adds a customer and an order after the first table has been read."""
    new = ["customers VALUES ('new', 30, 1, 'a')", "orders VALUES (1000, 'new', 1, '2024-01-01')"]

    def answer(read: Read, query: str) -> Iterator[pa.RecordBatch]:
        yield from read(query)
        while new:
            execute(f"INSERT INTO {new.pop(0)}")
        commit()

    _intercept(monkeypatch, answer)
    _check_shop(_open(graph, cache))
    bundle = _open(graph, cache, refresh=True)
    assert bundle.num_nodes("customer") == NUM_CUSTOMERS + 1
    assert bundle.num_nodes("order") == NUM_ORDERS + 1


def test_tables_of_a_database_are_of_one_moment(tmp_path: Path, monkeypatch) -> None:
    graph = write_graph(tmp_path, write_sqlite(tmp_path / "shop.db"))
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")  # writers do not wait for readers
        _check_one_moment(monkeypatch, graph, tmp_path / "cache", writer.execute)


def _source(**args: object) -> Source:
    return Source(type="sql", url="sqlite:///x", table="t", **args)


def test_files_do_not_depend_on_batches(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("raygnn.data.tables.snapshot._MAX_ROW_GROUP_ROWS", 1024)
    table = pa.table({"id": range(40_000), "text": [str(i) for i in range(40_000)]})
    taken = {
        Snapshots(_source(), tmp_path / str(rows)).take(table.to_batches(rows)).name
        for rows in (700, 4096, 40_000)
    }
    (name,) = taken
    assert len(list((tmp_path / "700" / name).glob("*.parquet"))) == 3


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".building-dead"
    left.mkdir()
    Snapshots(_source(), tmp_path).take([pa.record_batch({"id": [1]})])
    assert not left.exists()


def test_batches_may_differ_in_type(tmp_path: Path) -> None:
    """Python drivers only know the types of a batch: one without values has none."""
    batches = [pa.record_batch({"id": [1], "x": values}) for values in ([None], [1], [0.5], [None])]
    path = Snapshots(_source(), tmp_path).take(batches)
    assert len(list(path.glob("*.parquet"))) == 4


@pytest.mark.parametrize(
    ("read", "id", "part"),
    [
        ("{type: sql, url: 'sqlite:///shop.db'}", "source-query", "query and table"),
        ("{type: sql, url: shop.db, table: t}", "source-url", "postgresql://"),
        ("{type: sql, url: 'sqlite:///shop.db', tabel: t}", "config-unknown-key", "mean table"),
        ("{type: sql, url: 'postgresql://me:hush@h/d', table: t}", "source-secret", "PGPASSWORD"),
        ("{type: sql, url: 'postgresql://h/d?password=hush', table: t}", "source-secret", "url"),
        ("{type: mongo, uri: 'mongodb://me:hush@h', database: d}", "source-secret", "read.uri"),
        ("{type: clickhouse, options: {token: hush}}", "source-secret", "options.token"),
        ("{type: webdataset, paths: x, allow_unsafe: true}", "source-unsafe", "allow_unsafe"),
        ("{type: iceberg, catalog_kwargs: {py-io-impl: x.Y}}", "source-unsafe", "py-io-impl"),
    ],
)
def test_an_invalid_source(read: str, id: str, part: str) -> None:
    text = f"format: raygnn/graph-v1\nnode_types:\n  user: {{read: {read}, id: id}}\n"
    with pytest.raises(DataError) as raised:
        Manifest.parse(text)
    assert id in raised.value.ids
    assert part in str(raised.value)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    "read",
    [
        "{type: clickhouse, dsn: 'clickhouse+http://reader@host/shop', table: t}",
        "{type: snowflake, connection_parameters: {private_key_file: /keys/shop.p8}}",
        "{type: kafka, simple_name: x, security_protocol: y}",
        "{type: sql, url: 'snowflake://h/d/s?private_key_file=/keys/shop.p8', table: t}",
        "{type: sql, url: 'postgresql://h/d?passfile=/keys/pgpass&sslmode=require', table: t}",
    ],
)
def test_a_source_names_where_its_secret_is(read: str) -> None:
    Manifest.parse(f"format: raygnn/graph-v1\nnode_types:\n  user: {{read: {read}, id: id}}\n")


def test_a_table_is_files_or_a_source(tmp_path: Path) -> None:
    for keys in ("id: id", "id: id, files: x.csv, read: {type: delta, path: x}"):
        with raises("graph-table-rows"):
            Manifest.parse(f"format: raygnn/graph-v1\nnode_types: {{user: {{{keys}}}}}\n")


@pytest.mark.parametrize(
    ("statement", "id", "part"),
    [
        ("SELECT * FROM absent", "source-unreadable", "no such table: absent"),
        ("DELETE FROM orders", "source-unreadable", "readonly"),
        ("ATTACH '/tmp/other.db' AS other", "source-unreadable", "not authorized"),
        ("SELECT 1 AS id UNION ALL SELECT 'x'", "source-no-columns", "id (int and str)"),
        ("SELECT customer_id, amount, day FROM orders", "table-column-missing", "order_id"),
        ("SELECT * FROM orders WHERE 1 = 0", "table-empty", "no rows"),
    ],
)
def test_an_invalid_query(tmp_path: Path, statement: str, id: str, part: str) -> None:
    graph = write_graph(tmp_path, write_sqlite(tmp_path / "shop.db"))
    text = (graph / "graph.yaml").read_text()
    text = text.replace("SELECT * FROM orders ORDER BY order_id", statement)
    (graph / "graph.yaml").write_text(text)
    with raises(id, part):
        _open(graph, tmp_path / "cache")


def test_a_table_of_duckdb_without_rows(tmp_path: Path) -> None:
    """It arrives in no batches at all, but has columns."""
    url = write_duckdb(tmp_path / "shop.db")
    graph = write_graph(tmp_path, url)
    text = (graph / "graph.yaml").read_text()
    (graph / "graph.yaml").write_text(text.replace("ORDER BY order_id", "WHERE amount < 0"))
    with raises("table-empty", "order"):
        _open(graph, tmp_path / "cache")


def test_duckdb_reads_and_writes_no_other_files(tmp_path: Path) -> None:
    graph = write_graph(tmp_path, write_duckdb(tmp_path / "shop.db"))
    (tmp_path / "secret.csv").write_text("order_id,customer_id\n1,2\n")
    text = (graph / "graph.yaml").read_text()
    query = f"SELECT * FROM read_csv('{tmp_path}/secret.csv')"
    text = text.replace("SELECT * FROM orders ORDER BY order_id", query)
    (graph / "graph.yaml").write_text(text)
    with raises("source-unreadable", "disabled"):
        _open(graph, tmp_path / "cache")


def test_a_database_outside_of_the_graph_is_allowed_by_the_user(tmp_path: Path) -> None:
    """A stranger's graph.yaml does not choose which files of this machine are read."""
    graph = write_graph(tmp_path / "graph", write_sqlite(tmp_path / "shop.db"))
    with raises("data-outside", "shop.db"):
        _open(graph, tmp_path / "cache")
    _open(graph, tmp_path / "cache", allow_outside=[str(tmp_path / "shop.db")])
    _check_shop(_open(graph, tmp_path / "cache"))  # reads the snapshot


@pytest.mark.parametrize(
    "read",
    [
        "{type: delta, path: ../other}",
        "{type: delta, path: 'file:///etc'}",
        "{type: parquet, paths: [inside.parquet, /etc/passwd]}",
        "{type: iceberg, table_identifier: a.b, catalog_kwargs: {uri: 'sqlite:////etc/x'}}",
        "{type: iceberg, table_identifier: a.b, catalog_kwargs: {warehouse: /etc}}",
        "{type: sql, url: 'sqlite+pysqlite:////etc/x', table: t}",
        "{type: sql, url: 'duckdb:///../x', table: t}",
    ],
)
def test_no_argument_leads_out_of_the_graph(tmp_path: Path, read: str) -> None:
    text = f"format: raygnn/graph-v1\nnode_types:\n  user: {{read: {read}, id: id}}\n"
    (tmp_path / "graph.yaml").write_text(text)
    with raises("data-outside", "node_types.user"):
        with_snapshots(str(tmp_path), str(tmp_path / "cache"))


def test_a_missing_driver_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "adbc_driver_postgresql.dbapi", None)
    graph = write_graph(tmp_path, "postgresql://reader@127.0.0.1:1/shop")
    with raises("source-package", "pip install adbc-driver-postgresql"):
        _open(graph, tmp_path / "cache")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pytest.importorskip("adbc_driver_postgresql")
    if POSTGRES is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    with postgres() as url:
        yield url


@pytest.mark.slow  # 4 s, the most of which is the start of a server
def test_postgresql(server: str, tmp_path: Path, monkeypatch, capfd) -> None:
    graph = write_graph(tmp_path, server)
    monkeypatch.setenv("PGPASSWORD", "not-the-password")
    with raises("source-unreadable", "password authentication failed") as raised:
        _open(graph, tmp_path / "cache")
    assert "not-the-password" not in str(raised.value)
    assert "\n" not in str(raised.value)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    _check_shop(_open(graph, tmp_path / "cache"))
    monkeypatch.setenv("RAYGNN_CACHE_DIR", str(tmp_path / "cache"))
    with closing(connected(server)) as connection, connection.cursor() as cursor:
        cursor.execute("COMMENT ON COLUMN orders.amount IS 'in EUR,\ngross'")
        connection.commit()
    assert main(["draft", server, "--out", str(tmp_path / "draft")]) == 0
    assert "}  # in EUR, gross\n" in (tmp_path / "draft" / "graph.yaml").read_text()
    (edges,) = Manifest.load(tmp_path / "draft").edge_types
    assert edges.type == ("orders", "customer", "customers")
    kept = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()]
    assert not any(PASSWORD.encode() in content for content in kept)
    assert PASSWORD not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_tables_of_postgresql_are_of_one_moment(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    if POSTGRES is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with postgres() as url, closing(connected(url)) as writer, writer.cursor() as cursor:
        graph = write_graph(tmp_path, url)
        _check_one_moment(monkeypatch, graph, tmp_path / "cache", cursor.execute, writer.commit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("1::numeric(10, 2)", pa.float64()),
        ("1::smallint", pa.int16()),
        ("true", pa.bool_()),
        ("'a'::varchar", pa.string()),
        ("'a'::char(3)", pa.string()),
        ("gen_random_uuid()", pa.string()),
        ("'{}'::jsonb", pa.string()),
        ("now()", pa.timestamp("us", "UTC")),
        ("current_date", pa.date32()),
        ("ARRAY[1.0::real, 2]", pa.list_(pa.float32())),
        ("NULL::text", pa.string()),
    ],
)
def test_types_of_postgresql(
    server: str, tmp_path: Path, monkeypatch, column: str, expected: pa.DataType
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    source = Source(type="sql", url=server, query=f"SELECT {column} AS x")
    path = Snapshots.of(source, str(tmp_path)).take(query_batches(server, source.args["query"]))
    field = pa.parquet.read_schema(path / "part-00000.parquet").field("x")
    assert field.type == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "id", "part"),
    [
        ("SELECT interval '1 day' AS x", "source-no-columns", "x (month_day_nano_interval)"),
        ("DELETE FROM orders RETURNING 1", "source-unreadable", "read-only"),
        (
            "SELECT g AS id, CASE WHEN g = 300000 THEN pg_terminate_backend(pg_backend_pid()) END "
            "AS x FROM generate_series(1, 500000) g",  # goes away in the middle
            "source-unreadable",
            "terminating",
        ),
    ],
)
def test_faults_of_postgresql(
    server: str, tmp_path: Path, monkeypatch, query: str, id: str, part: str
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    (tmp_path / "graph.yaml").write_text(
        "format: raygnn/graph-v1\nnode_types:\n"
        f"  user: {{read: {{type: sql, url: '{server}', query: \"{query}\"}}, id: id}}\n"
    )
    with raises(id, part):
        with_snapshots(str(tmp_path), str(tmp_path / "cache"))
    assert not list((tmp_path / "cache").rglob("*.parquet"))


@pytest.mark.slow  # 4 s
def test_a_run_resumes_on_its_snapshot(tmp_path: Path) -> None:
    """Another run may read the database again meanwhile."""
    graph = write_graph(tmp_path, write_sqlite(tmp_path / "shop.db"))
    config = small_config(tmp_path, training__max_epochs=1)
    config["data"] = {
        "uri": str(graph),
        "cache_dir": str(tmp_path / "cache"),
        "splits": {"type": "hash"},
    }
    config |= {"model": {"type": "Hetero"}, "task": {"type": "node_classification"}}
    config["scaling"] = {"num_workers": 0}
    fit(config)
    record = json.loads((tmp_path / "run" / "snapshots.json").read_text())
    assert record["tables"]["node_types.customer"]["num_rows"] == NUM_CUSTOMERS
    _change(tmp_path / "shop.db", "DELETE FROM orders")
    with raises("table-empty"):
        _open(graph, tmp_path / "cache", refresh=True)
    config["training"]["max_epochs"] = 2
    fit(config)
    assert json.loads((tmp_path / "run" / "snapshots.json").read_text()) == record
    assert SavedModel.open(str(tmp_path / "run")).spec.snapshots == record["tables"]
