"""Files of tables: those beside graph.yaml that are not read, and columns that are."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.tables.files import list_files, unread_files
from raygnn.data.tables.read_ids import read_columns
from tests.errors import raises


@pytest.mark.parametrize(
    ("there", "read", "expected"),
    [
        (["t.csv", "t-2.csv"], ["t.csv"], "t: graph.yaml does not read t-2.csv; set files: t*.csv"),
        (["t_2024-01.csv", "t_2024-02.csv"], ["t_2024-01.csv"], "t_2024-02.csv"),
        (["a/t.parquet", "a/t1.parquet"], ["a/t.parquet"], "a/t1.parquet; set files: a/t*.parquet"),
        (["t.csv", *(f"t{i}.csv" for i in range(9))], ["t.csv"], "t4.csv and 4 more"),
        (["t.csv", "other-2.csv", "t-2.parquet", "notes.txt", "t-2.bak"], ["t.csv"], None),
        (["t.csv", "t-2.csv"], ["t.csv", "t-2.csv"], None),
        (["1.csv", "2.csv"], ["1.csv"], None),
    ],
)
def test_new_files_are_named(
    tmp_path: Path, there: list[str], read: list[str], expected: str | None
) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a\n1\n")
    found = list(unread_files(str(tmp_path), read))
    if expected is None:
        assert found == []
    else:
        (line,) = found
        assert expected in line


def test_files_elsewhere_are_left_out(tmp_path: Path) -> None:
    assert list(unread_files(str(tmp_path), ["/elsewhere/t.csv", "s3://bucket/t.csv"])) == []


def test_ingest_warns_of_new_files(tmp_path: Path) -> None:
    graph = tmp_path / "graph"
    graph.mkdir()
    (graph / "nodes.csv").write_text("id\n1\n2\n")
    (graph / "edges.csv").write_text("s,t\n1,2\n")
    (graph / "graph.yaml").write_text(
        "{format: raygnn/graph-v1, node_types: {n: {files: nodes.csv, id: id}}, edge_types: "
        "[{type: [n, to, n], files: edges.csv, source: s, target: t}]}"
    )
    lines: list[str] = []
    ingest(graph, cache_dir=tmp_path / "cache", progress=lines.append)
    assert not any("warning" in line for line in lines)
    shutil.copy(graph / "edges.csv", graph / "edges-2024-02.csv")
    lines.clear()
    ingest(graph, cache_dir=tmp_path / "cache", progress=lines.append)
    (line,) = (line for line in lines if line.startswith("warning: "))
    assert "does not read edges-2024-02.csv; set files: edges*.csv" in line


def test_shards_of_text_are_read_as_one_kind(tmp_path):
    (tmp_path / "a.csv").write_text("id,title,year\n1,Alien,1979\n2,,\n")
    (tmp_path / "b.csv").write_text("id,year,title\n3,1.5,1984\n")
    files = list_files(str(tmp_path), ["*.csv"], "items")
    found = read_columns(files, ["title", "id", "title", "year"], "items")
    assert found.to_pydict() == {
        "title": ["Alien", None, "1984"],
        "id": [1, 2, 3],
        "year": [1979.0, None, 1.5],
    }
    with raises("infer-columns-unknown", "'name'", "id, title, year"):
        read_columns(files, ["name"], "items")


def test_leading_zeros_of_ids_stay(tmp_path):
    (tmp_path / "a.csv").write_text("id,month\n007,01\n8,02\n")
    files = list_files(str(tmp_path), ["a.csv"], "items")
    found = read_columns(files, None, "items", ids=["id"])
    assert found.to_pydict() == {"id": ["007", "8"], "month": [1, 2]}


def test_types_of_parquet_stay(tmp_path):
    day = datetime.date(2024, 5, 1)
    pq.write_table(pa.table({"day": [day], "tags": [["a", "b"]]}), tmp_path / "a.parquet")
    files = list_files(str(tmp_path), ["a.parquet"], "items")
    assert read_columns(files, ["tags", "day"], "items").to_pylist() == [
        {"tags": ["a", "b"], "day": day}
    ]
