"""Drafts from databases: declared keys are references, and graph.yaml reads the database."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from raygnn.data.manifest import Manifest
from raygnn.prepare.__main__ import main
from raygnn.prepare.draft import Draft, write_draft
from raygnn.prepare.drafts.catalog import _inspected, read_catalog
from raygnn.runtime.sources import with_snapshots
from tests.databases import write_duckdb, write_sqlite
from tests.errors import assert_reports, raises


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYGNN_CACHE_DIR", str(tmp_path / "cache"))


def _draft(tmp_path: Path, statements: str = "", **options: object) -> tuple[Draft, Manifest]:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(statements)
    draft = write_draft(str(tmp_path / "out"), database=f"sqlite:///{path}", **options)
    return draft, Manifest.load(tmp_path / "out")


@pytest.mark.parametrize("write", [write_sqlite, write_duckdb])
def test_a_draft_reads_the_database(tmp_path: Path, write: Callable[[Path], str]) -> None:
    url = write(tmp_path / "shop.db")
    if write is write_duckdb:
        duckdb = pytest.importorskip("duckdb")
        with closing(duckdb.connect(tmp_path / "shop.db")) as connection:
            connection.execute("COMMENT ON COLUMN orders.amount IS 'in EUR'")
    assert main(["draft", url, "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "graph.yaml").read_text()
    assert text.count("}  # in EUR\n") == (write is write_duckdb)
    graph = Manifest.load(tmp_path / "out")
    assert graph.node_types["orders"].read.args == {"url": url, "table": "orders"}
    assert [table.type for table in graph.edge_types] == [("orders", "customer", "customers")]
    assert f"allow_outside: [{tmp_path}/shop.db]" in (tmp_path / "out" / "train.yaml").read_text()


def test_a_column_that_cannot_be_stored_stops_no_draft(tmp_path: Path) -> None:
    write_sqlite(tmp_path / "shop.db")
    change = "UPDATE customers SET note = iif(age > 40, 'x', 1)"
    _, graph = _draft(tmp_path, f"ALTER TABLE customers ADD COLUMN note; {change}")
    text = (tmp_path / "out" / "graph.yaml").read_text()
    assert "note is left out: a column of type int and str cannot be stored" in text
    assert graph.node_types["customers"].read.args["table"] == "customers"  # no copy


_NO_EVIDENCE = """
    CREATE TABLE a (pk INTEGER PRIMARY KEY, size REAL);
    CREATE TABLE b (nr INTEGER PRIMARY KEY, whose INTEGER {ref}, size REAL);
    INSERT INTO a VALUES (1, .5), (2, 1.5), (3, 2.5), (4, 4.5);
    INSERT INTO b VALUES (1, 3, .5), (2, 3, 1.5), (3, 1, 3.5), (4, 1, 1);
"""


@pytest.mark.parametrize("ref", ["REFERENCES a (pk)", "REFERENCES a"])
def test_a_declared_key_needs_no_evidence(tmp_path: Path, ref: str) -> None:
    """Four small numbers in columns of other names prove nothing."""
    draft, graph = _draft(tmp_path, _NO_EVIDENCE.format(ref=ref))
    (edges,) = graph.edge_types
    assert (edges.type[0], edges.type[2], edges.target) == ("b", "a", "whose")
    assert any("a declared key" in line for line in draft.picture)


_SCHEMAS = {
    "pg_dump": """
        SET statement_timeout = 0;
        CREATE TABLE public.a (pk integer NOT NULL, size double precision);
        ALTER TABLE public.a OWNER TO joe;
        CREATE TABLE public.b (nr integer NOT NULL, whose integer, size double precision);
        CREATE TABLE public.c (id integer PRIMARY KEY, b integer REFERENCES public.b);
        COPY public.a (pk, size) FROM stdin;
        COMMENT ON COLUMN public.a.size IS 'metres, it''s
            measured';
        COMMENT ON COLUMN public.a.pk IS NULL;
        COMMENT ON TABLE public.a IS 'things';
        ALTER TABLE ONLY public.a ADD CONSTRAINT a_pkey PRIMARY KEY (pk);
        ALTER TABLE ONLY public.b ADD CONSTRAINT b_pkey PRIMARY KEY (nr);
        ALTER TABLE ONLY public.b
            ADD CONSTRAINT b_fk FOREIGN KEY (whose) REFERENCES public.a(pk) ON DELETE CASCADE;
    """,
    "mysqldump": """
        CREATE TABLE `A` (`pk` int NOT NULL AUTO_INCREMENT,
            `size` double COMMENT 'metres, it''s measured', PRIMARY KEY (`pk`));
        CREATE TABLE `B` (`nr` int NOT NULL, `whose` int DEFAULT NULL, PRIMARY KEY (`nr`),
            KEY `k` (`whose`), CONSTRAINT `c` FOREIGN KEY (`whose`) REFERENCES `A` (`pk`)
        ) ENGINE=InnoDB DEFAULT CHARSET=utf8;
    """,
    "SQL Server": """
        CREATE TABLE [dbo].[a] ([pk] [int] NOT NULL PRIMARY KEY, [size] [float]);
        CREATE TABLE [dbo].[b] ([nr] [int] NOT NULL PRIMARY KEY,
            [whose] [int] REFERENCES [dbo].[a]([pk]), [size] [float]);
    """,
}


@pytest.mark.parametrize("text", _SCHEMAS.values(), ids=_SCHEMAS)
def test_files_may_be_declared_by_sql(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text("pk,size\n1,.5\n2,1.5\n3,2.5\n4,4.5\n")
    (tmp_path / "b.csv").write_text("nr,whose,size\n1,3,.5\n2,3,1.5\n3,1,3.5\n4,1,1\n")
    (tmp_path / "schema.sql").write_text(text)
    schema = str(tmp_path / "schema.sql")
    assert main(["draft", str(tmp_path), "--schema", schema]) == 0
    graph = Manifest.load(tmp_path)
    assert (graph.node_types["a"].id, graph.node_types["b"].id) == ("pk", "nr")
    (edges,) = graph.edge_types
    assert (edges.type[0], edges.type[2], edges.target) == ("b", "a", "whose")
    comments = re.findall("column: size.*#(.*)", (tmp_path / "graph.yaml").read_text())
    assert comments == ([" metres, it's measured"] if "COMMENT" in text else [])
    (tmp_path / "schema.sql").write_text("CREATE TABLE c (id int PRIMARY KEY);")
    with raises("prepare-schema", "a, b"):
        write_draft(str(tmp_path), overwrite=True, schema=schema)


def test_undeclared_keys_need_evidence_and_declared_ones_may_be_denied(tmp_path: Path) -> None:
    draft, _ = _draft(tmp_path, _NO_EVIDENCE.format(ref=""))
    assert draft.num_references == 0
    (tmp_path / "shop.db").unlink()
    statements = _NO_EVIDENCE.format(ref="REFERENCES a")
    draft, _ = _draft(tmp_path, statements, refs=["b.whose=none"], overwrite=True)
    assert draft.num_references == 0


def test_gaps_and_missing_tables_are_queries(tmp_path: Path) -> None:
    """So graph.yaml reads later rows too, which copies of today's rows would not have."""
    rows = ", ".join(
        f"({i}, {'NULL' if i % 5 == 0 else 1000 + 37 * (i % 40)}, 'u{i % 30}', 'v{i % 20}')"
        for i in range(200)
    )
    _, graph = _draft(
        tmp_path,
        f"""
        CREATE TABLE shops (shop_id INTEGER PRIMARY KEY, size REAL);
        CREATE TABLE visits (id INTEGER PRIMARY KEY, shop INTEGER REFERENCES shops,
                             "from" TEXT, "to" TEXT);
        INSERT INTO visits VALUES {rows};
        INSERT INTO shops SELECT DISTINCT shop, 1.0 / shop FROM visits WHERE shop IS NOT NULL;
        """,
    )
    assert not (tmp_path / "out" / "_drafted").exists()
    queries = {name: t.read.args.get("query") for name, t in graph.all_tables.items() if t.read}
    assert queries["edge_types.visits__shop__shops"] == (
        'SELECT DISTINCT "id", "shop" FROM "visits" WHERE "shop" IS NOT NULL'
    )
    assert (
        'SELECT DISTINCT "from" AS "id" FROM "visits" WHERE "from" IS NOT NULL'
        in queries["node_types.node"]
    )
    uri = with_snapshots(str(tmp_path / "out"), None, allow_outside=None)
    assert uri != str(tmp_path / "out")


def test_labels_of_a_database_outside_the_folder_allow_it(tmp_path: Path) -> None:
    """Also for queries, which the draft has not read, and for runs that read it anew."""
    rows = ", ".join(
        f"({i}, {'NULL' if i % 5 == 0 else 1000 + 37 * (i % 40)}, '2024-{1 + i % 12:02}-01')"
        for i in range(200)
    )
    _draft(
        tmp_path,
        f"""
        CREATE TABLE shops (shop_id INTEGER PRIMARY KEY, size REAL);
        CREATE TABLE visits (id INTEGER PRIMARY KEY, shop INTEGER REFERENCES shops, day DATE);
        INSERT INTO visits VALUES {rows};
        INSERT INTO shops SELECT DISTINCT shop, 1.0 / shop FROM visits WHERE shop IS NOT NULL;
        """,
    )
    out, question = tmp_path / "out", "count(visits) over 30d > 0"
    dates = ["--val", "2024-08-01", "--test", "2024-10-01", "--every", "30d"]
    ask = [str(out), "--predict", question, "--for", "shops", "--name", "soon"]
    assert main(["labels", *ask, *dates]) == 0
    assert f"allow_outside: [{tmp_path}/shop.db]" in (out / "soon.yaml").read_text()


def test_tables_without_rows_are_left_out(tmp_path: Path) -> None:
    """Ingest refuses them, as tables that were not written yet."""
    empty = (
        "CREATE TABLE c (id INTEGER PRIMARY KEY, b INTEGER REFERENCES b, a INTEGER REFERENCES a)"
    )
    _, graph = _draft(tmp_path, f"{_NO_EVIDENCE.format(ref='REFERENCES a')}; {empty}")
    assert list(graph.node_types) == ["a", "b"]


def test_keys_of_several_columns_are_no_references(tmp_path: Path) -> None:
    url = write_sqlite(tmp_path / "shop.db")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.executescript("""
            CREATE TABLE pairs (a INTEGER, b INTEGER, PRIMARY KEY (a, b));
            CREATE TABLE uses (a INTEGER, b INTEGER, FOREIGN KEY (a, b) REFERENCES pairs (a, b));
        """)
    catalog = read_catalog(url)
    assert catalog.tables == ["customers", "orders", "pairs", "uses"]
    assert catalog.keys == {"customers": "id", "orders": "order_id"}
    assert catalog.references == {("orders", "customer_id"): ("customers", "id")}


def test_sqlalchemy_finds_the_same_keys(tmp_path: Path) -> None:
    """SQLAlchemy answers for MySQL and others."""
    pytest.importorskip("sqlalchemy")
    rows = _inspected(write_sqlite(tmp_path / "shop.db"))
    assert sorted(rows, key=str) == [
        ("f", "orders", "customer_id", "customers", "id"),
        ("p", "customers", "id", None, None),
        ("p", "orders", "order_id", None, None),
        ("t", "customers", None, None, None),
        ("t", "orders", None, None, None),
    ]


@pytest.mark.parametrize(
    ("arguments", "id"),
    [
        (["sqlite:///shop.db"], "prepare-options-clash"),
        ([".", "--out", "x"], "prepare-options-clash"),
        (["postgresql://me:hush@127.0.0.1/shop", "--out", "x"], "source-secret"),
        (["sqlite:///missing.db", "--out", "x"], "source-unreadable"),
        (["mysql+nothing://h/d", "--out", "x"], "source-unreadable"),
    ],
)
def test_an_invalid_command(
    tmp_path: Path, monkeypatch, capsys, arguments: list[str], id: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["draft", *arguments]) == 2
    printed = capsys.readouterr().err
    assert_reports(printed, id)
    assert "hush" not in printed
    assert len(printed.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()
