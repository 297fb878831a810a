"""Columns of tables as answers give them."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pyarrow.parquet as pq

from raygnn.data.tables.files import list_files
from raygnn.data.tables.read_ids import read_columns
from tests.errors import raises


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
